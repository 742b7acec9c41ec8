"""A channel is a chain of stages: each encodes named arrays at the sender and decodes them at the receiver."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from fedspan._types import Array, Arrays, Draw
from fedspan.errors import InputError

State = Any  # plain data: dicts and tuples of arrays, so that a checkpoint can hold it


class Stage(NamedTuple):
    """One step of a channel. `kinds` are the steps inside it, first to last; `remembers` if it keeps a memory.

    `recipe` says how to make it at the other end of a link: a name and plain values (see `channel/recipe.py`).
    """

    name: str
    kinds: tuple[str, ...]
    init: Callable[[], tuple[State, State]]  # the sender's and the receiver's memory
    encode: Callable[[Arrays, State, Draw], tuple[Arrays, State]]
    decode: Callable[[Arrays, State], tuple[Arrays, State]]
    remembers: bool = False
    recipe: tuple[object, ...] = ()


IDENTITY = Stage("identity", (), lambda: ((), ()), lambda a, s, _: (a, s), lambda a, s: (a, s), recipe=("identity",))

STAGE_KINDS = ("memory", "quantize", "pack")
"""Kinds of stages in the only sound order: a memory must see the numbers themselves, and packing comes last."""


def check_order(kinds: tuple[str, ...]) -> tuple[str, ...]:
    """The kinds, if their order is sound; otherwise they are refused."""
    unknown = [kind for kind in kinds if kind not in STAGE_KINDS]
    if unknown:
        raise InputError(f"The kind of a stage must be one of {', '.join(STAGE_KINDS)}, but one is {unknown[0]!r}.")
    for before, after in pairwise(kinds):
        if STAGE_KINDS.index(before) > STAGE_KINDS.index(after):
            raise InputError(
                f"A channel must have {after!r} before {before!r}, in the order {' → '.join(STAGE_KINDS)}."
            )
    return kinds


def chain(*stages: Stage) -> Stage:
    """The stages one after the other; decoding runs in reverse. Refuses an order that is not sound."""
    stages = tuple(stage for stage in stages if stage.kinds)
    if len(stages) < 2:
        return stages[0] if stages else IDENTITY
    kinds = check_order(tuple(kind for stage in stages for kind in stage.kinds))

    def init() -> tuple[State, State]:
        pairs = [stage.init() for stage in stages]
        return tuple(p[0] for p in pairs), tuple(p[1] for p in pairs)

    def encode(arrays: Arrays, state: State, rng: Draw) -> tuple[Arrays, State]:
        after = []
        for stage, memory in zip(stages, state, strict=True):
            arrays, memory = stage.encode(arrays, memory, rng)
            after.append(memory)
        return arrays, tuple(after)

    def decode(arrays: Arrays, state: State) -> tuple[Arrays, State]:
        after = []
        for stage, memory in zip(reversed(stages), reversed(state), strict=True):
            arrays, memory = stage.decode(arrays, memory)
            after.append(memory)
        return arrays, tuple(reversed(after))

    name = " → ".join(stage.name for stage in stages)
    recipe = ("chain", *(stage.recipe for stage in stages))
    return Stage(name, kinds, init, encode, decode, any(stage.remembers for stage in stages), recipe)


def only(names: Collection[str], stage: Stage) -> Stage:
    """The stage, for the arrays of those names; the others pass as they are."""

    def split(arrays: Arrays) -> tuple[dict[str, Array], dict[str, Array]]:
        chosen = {key for key in arrays if plain_name(key) in names}
        return {k: a for k, a in arrays.items() if k in chosen}, {k: a for k, a in arrays.items() if k not in chosen}

    def encode(arrays: Arrays, state: State, rng: Draw) -> tuple[Arrays, State]:
        inside, outside = split(arrays)
        coded, state = stage.encode(inside, state, rng)
        return {**outside, **coded}, state

    def decode(arrays: Arrays, state: State) -> tuple[Arrays, State]:
        inside, outside = split(arrays)
        plain, state = stage.decode(inside, state)
        return {**outside, **plain}, state

    name, recipe = f"{stage.name} on {', '.join(sorted(names))}", ("only", sorted(names), stage.recipe)
    return stage._replace(name=name, encode=encode, decode=decode, recipe=recipe)


def plain_name(key: str) -> str:
    """The array's own name, without the marks that stages append to it."""
    return re.split(r"[~+]", key, maxsplit=1)[0]


@dataclass(frozen=True)
class Channel:
    """Both links: `up` from the clients to the server, `down` from the server to the clients."""

    up: Stage = IDENTITY
    down: Stage = IDENTITY

    @property
    def name(self) -> str:
        return f"up: {self.up.name}; down: {self.down.name}"
