"""How to make a stage at the other end of a link: its name and plain values, never code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypedDict

from fedspan.channel.memory import delta
from fedspan.channel.pack import pack
from fedspan.channel.quantize import quantize
from fedspan.channel.stage import IDENTITY, Channel, Stage, chain, only
from fedspan.errors import ProtocolError


class ChannelRecipes(TypedDict):
    """How to make the stages of both links."""

    up: Sequence[object]
    down: Sequence[object]


_MAKERS: dict[str, Callable[..., Stage]] = {
    "identity": lambda: IDENTITY,
    "pack": pack,
    "quantize": quantize,
    "only": lambda names, inner: only([str(name) for name in names], _make(inner)),
    "chain": lambda *inner: chain(*map(_make, inner)),
    "delta": lambda inner, first: delta(_make(inner), None if first is None else _make(first)),
}


_MOST_STAGES = 100  # in one recipe, however they are nested


def stage_from(recipe: object) -> Stage:
    """The stage that a recipe describes."""
    _check_size(recipe)
    return _make(recipe)


def _check_size(recipe: object) -> None:
    """Refuse what is nested deeper, or has more parts, than any channel, before anything is made of it."""
    parts = [recipe]
    for count, part in enumerate(parts):
        if count > _MOST_STAGES:
            raise ProtocolError(f"The recipe of a stage has more than {_MOST_STAGES} parts.")
        if isinstance(part, list | tuple):
            parts += [inner for inner in part if isinstance(inner, list | tuple)]


def _make(recipe: object) -> Stage:
    if not isinstance(recipe, list | tuple) or not recipe or not isinstance(recipe[0], str) or recipe[0] not in _MAKERS:
        known = ", ".join(_MAKERS)
        raise ProtocolError(f"{repr(recipe)[:200]} is not the recipe of a stage; known stages are {known}.")
    try:
        return _MAKERS[recipe[0]](*recipe[1:])
    except TypeError as error:
        raise ProtocolError(f"{repr(recipe)[:200]} is not the recipe of a stage: {error}") from None


def recipes_of(channel: Channel) -> ChannelRecipes:
    """Both links as plain data; a stage that users wrote themselves has no recipe and cannot leave this process."""
    for stage in (channel.up, channel.down):
        if not stage.recipe:
            raise ProtocolError(
                f"Stage {stage.name!r} has no recipe, so no other site can make it. Run this channel in one process."
            )
    return {"up": channel.up.recipe, "down": channel.down.recipe}


def channel_from(recipes: object) -> Channel:
    """The channel that two recipes describe."""
    if not isinstance(recipes, dict) or set(recipes) != {"up", "down"}:
        raise ProtocolError("A channel has two recipes, one for each link: 'up' and 'down'.")
    return Channel(stage_from(recipes["up"]), stage_from(recipes["down"]))
