"""Recipes: a channel is made again at another site from plain data, and nothing else is."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fedspan.channel import IDENTITY, Channel, Stage, chain, delta, only, pack, quantize
from fedspan.channel.recipe import channel_from, recipes_of, stage_from
from fedspan.errors import FedspanError, ProtocolError

STAGES = [
    IDENTITY,
    pack(),
    quantize(4),
    delta(quantize(3)),
    delta(quantize(3), first=quantize(6)),
    only(["Y", "Z"], quantize(4)),
    chain(only(["Z"], delta(quantize(5))), pack()),
]


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)
def test_a_channel_comes_back_from_json(stage: Stage) -> None:
    channel = Channel(up=stage, down=pack())
    again = channel_from(json.loads(json.dumps(recipes_of(channel))))
    assert again.name == channel.name
    assert (again.up.kinds, again.up.remembers) == (stage.kinds, stage.remembers)


@pytest.mark.parametrize(
    "recipe",
    [None, 3, "pack", [], [["pack"]], [{}], ["eval", "1"], ["pack", 1], ["quantize"], ["quantize", 99], ["only", 1, 2]],
    ids=str,
)
def test_what_is_not_a_recipe_is_refused(recipe: Any) -> None:
    with pytest.raises(FedspanError):
        stage_from(recipe)


def test_a_channel_needs_two_recipes_and_each_stage_one() -> None:
    with pytest.raises(ProtocolError, match="two recipes, one for each link"):
        channel_from({"up": ["pack"]})
    own = Stage("own", ("quantize",), lambda: ((), ()), lambda a, s, _: (a, s), lambda a, s: (a, s))
    with pytest.raises(ProtocolError, match="'own' has no recipe, so no other site can make it"):
        recipes_of(Channel(up=own))
