"""A memory around a lossy stage. It wraps the stage, because it must see what the receiver will decode.

Both sides remember the last decoded array M̂; what is sent is C(x - M̂), and both add it (CuteMaxVar, Algorithm 1,
lines 23-25 and 28). As x settles, the differences shrink and so does the quantisation error.

Each name has a memory of its own; an array whose shape changes starts anew.
"""

from __future__ import annotations

import numpy as np

from fedspan._types import Arrays, Draw
from fedspan.channel.quantize import quantize
from fedspan.channel.stage import Stage, State, check_order
from fedspan.errors import InputError, ProtocolError

_FIRST = "+0"  # marks an array that is sent whole, against no memory


def delta(inner: Stage, first: Stage | None = None) -> Stage:
    """Send differences to a memory on both sides, coded by `inner`; the first array is coded by `first` (8 bits)."""
    start = quantize(8) if first is None else first
    kinds = check_order(("memory", *inner.kinds))
    ends = {inner: _memoryless(inner), start: _memoryless(start)}

    def encode(arrays: Arrays, state: State, rng: Draw) -> tuple[Arrays, State]:
        memory, out = dict(state), {}
        for name, x in arrays.items():
            if x.dtype.kind != "f":
                out[name] = x
                continue
            known = name in memory and memory[name].shape == x.shape
            if known:
                sent, _ = inner.encode({name: np.asarray(x - memory[name])}, ends[inner][0], rng)  # Alg. 1, line 23
            else:
                sent, _ = start.encode({name + _FIRST: x}, ends[start][0], rng)
            out |= sent
            coder = inner if known else start
            (value,) = coder.decode(sent, ends[coder][1])[0].values()
            memory[name] = np.asarray(memory[name] + value) if known else value  # Alg. 1, line 25
        return out, memory

    def decode(arrays: Arrays, state: State) -> tuple[Arrays, State]:
        memory, out = dict(state), {}
        for key, sent in arrays.items():
            whole = _FIRST in key
            coder = start if whole else inner
            ((name, value),) = coder.decode({key: sent}, ends[coder][1])[0].items()
            if not whole and name == key and name not in memory:  # told to one client only, and sent as it is
                out[name] = value
                continue
            name = name.removesuffix(_FIRST)
            if name in out:
                raise ProtocolError(f"Two arrays of a message have the name {name[:80]!r} when decoded.")
            if value.dtype.kind == "f":
                if not whole and (name not in memory or memory[name].shape != value.shape):
                    raise ProtocolError(f"{name[:80]!r} is a difference to an array that is not remembered here.")
                memory[name] = value if whole else np.asarray(memory[name] + value)  # Alg. 1, line 28
                value = memory[name]
            out[name] = value
        return out, memory

    name = f"delta({inner.name})" if first is None else f"delta({inner.name}, first={first.name})"
    recipe = ("delta", inner.recipe, None if first is None else first.recipe)
    return Stage(name, kinds, lambda: ({}, {}), encode, decode, remembers=True, recipe=recipe)


def _memoryless(stage: Stage) -> tuple[State, State]:
    """The (empty) memories of a stage that keeps none; a memory within a memory would be forgotten."""
    if stage.remembers:
        raise InputError(f"A stage inside delta must not have a memory of its own, but {stage.name} has one.")
    return stage.init()
