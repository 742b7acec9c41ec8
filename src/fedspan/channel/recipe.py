"""How to make a stage at the other end of a link: its name and plain values, never code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fedspan.channel.memory import delta, error_feedback
from fedspan.channel.pack import pack
from fedspan.channel.quantize import quantize
from fedspan.channel.stage import IDENTITY, Channel, Stage, chain, only
from fedspan.errors import ProtocolError

_MAKERS: dict[str, Callable[..., Stage]] = {
    "identity": lambda: IDENTITY,
    "pack": pack,
    "quantize": quantize,
    "only": lambda names, inner: only([str(name) for name in names], stage_from(inner)),
    "chain": lambda *inner: chain(*map(stage_from, inner)),
    "delta": lambda inner, first: delta(stage_from(inner), None if first is None else stage_from(first)),
    "error_feedback": lambda inner: error_feedback(stage_from(inner)),
}


def stage_from(recipe: Any) -> Stage:
    """The stage that a recipe describes."""
    if not isinstance(recipe, Sequence) or isinstance(recipe, str) or not recipe or recipe[0] not in _MAKERS:
        raise ProtocolError(f"need a stage's recipe, one of {', '.join(_MAKERS)}, got {recipe!r}")
    try:
        return _MAKERS[recipe[0]](*recipe[1:])
    except TypeError as error:
        raise ProtocolError(f"need a stage's recipe, got {recipe!r} ({error})") from None


def recipes_of(channel: Channel) -> dict[str, Any]:
    """Both links as plain data; a stage of one's own has no recipe and cannot leave this process."""
    for stage in (channel.up, channel.down):
        if not stage.recipe:
            raise ProtocolError(f"the stage {stage.name!r} has no recipe, so no other site can make it; run in-process")
    return {"up": channel.up.recipe, "down": channel.down.recipe}


def channel_from(recipes: Any) -> Channel:
    """The channel that two recipes describe."""
    if not isinstance(recipes, dict) or set(recipes) != {"up", "down"}:
        raise ProtocolError("need the recipes of a channel, one for each link")
    return Channel(stage_from(recipes["up"]), stage_from(recipes["down"]))
