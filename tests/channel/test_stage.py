"""Chains of stages: order, memory, and the orders that are not sound."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedspan.channel import IDENTITY, Channel, Stage, chain, delta, only, quantize
from fedspan.core.rng import Streams
from fedspan.errors import InputError

RNG = Streams(0, 1, 2, "ada")
ORDER = ["memory", "quantize", "pack"]


def affine(kind: str, factor: float, offset: float) -> Stage:
    """x ↦ factor·x + offset, undone by its decoder; counts its uses in its memories."""
    return Stage(
        f"{kind}({factor:g})",
        (kind,),
        lambda: (0, 0),
        lambda arrays, n, _: ({k: a * factor + offset for k, a in arrays.items()}, n + 1),
        lambda arrays, n: ({k: (a - offset) / factor for k, a in arrays.items()}, n + 1),
    )


def test_encoding_runs_first_to_last_and_decoding_last_to_first() -> None:
    stage = chain(affine("memory", 2, 0), affine("quantize", 1, 3), affine("pack", 5, 0))
    x = {"x": np.array([1.0, -4.0])}
    (send, receive) = stage.init()
    sent, send = stage.encode(x, send, RNG)
    np.testing.assert_array_equal(sent["x"], (2 * x["x"] + 3) * 5)
    got, receive = stage.decode(sent, receive)
    np.testing.assert_array_equal(got["x"], x["x"])
    assert (send, receive) == ((1, 1, 1), (1, 1, 1))


def test_a_chain_of_nothing_is_the_identity_and_of_one_stage_that_stage() -> None:
    only_stage = quantize(4)
    assert chain() is IDENTITY
    assert chain(IDENTITY, IDENTITY) is IDENTITY
    assert chain(IDENTITY, only_stage) is only_stage


def test_chains_nest() -> None:
    a, b, c = affine("memory", 2, 1), affine("quantize", 3, 1), affine("pack", 5, 1)
    x = {"x": np.arange(3.0)}
    flat, nested = chain(a, b, c), chain(chain(a, b), c)
    assert (flat.name, flat.kinds) == (nested.name, nested.kinds)
    sent, _ = nested.encode(x, nested.init()[0], RNG)
    np.testing.assert_array_equal(sent["x"], flat.encode(x, flat.init()[0], RNG)[0]["x"])
    np.testing.assert_allclose(nested.decode(sent, nested.init()[1])[0]["x"], x["x"])


def test_a_chain_remembers_if_one_of_its_stages_does() -> None:
    assert not chain(quantize(4), affine("pack", 1, 0)).remembers
    assert chain(delta(quantize(4)), affine("pack", 1, 0)).remembers


@pytest.mark.parametrize("kinds", [p for n in (2, 3) for p in permutations(ORDER, n)], ids=" ".join)
def test_only_the_order_memory_quantize_pack_is_accepted(kinds: tuple[str, ...]) -> None:
    stages = [affine(kind, 1, 0) for kind in kinds]
    if list(kinds) == sorted(kinds, key=ORDER.index):
        assert chain(*stages).kinds == kinds
    else:
        with pytest.raises(InputError, match=r"A channel must have .* in the order memory → quantize → pack"):
            chain(*stages)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: chain(quantize(4), affine("memory", 1, 0)), "A channel must have 'memory' before 'quantize'"),
        (lambda: delta(chain(affine("pack", 1, 0), quantize(4))), "must have 'quantize' before 'pack'"),
        (
            lambda: chain(affine("smooth", 1, 0), quantize(4)),
            "one of memory, quantize, pack, but one is ",
        ),
        (lambda: delta(delta(quantize(4))), "inside delta must not have a memory of its own"),
    ],
)
def test_an_unsound_channel_says_why(make, why: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InputError, match=why):
        make()


@given(names=st.sets(st.sampled_from(["X", "Y", "Z", "n"])))
def test_only_touches_the_arrays_it_names(names: set[str]) -> None:
    arrays = {name: np.array([1.0, 0.3, -0.2]) for name in ("X", "Y", "Z")} | {"n": np.array(5)}
    for stage in (only(names, quantize(2)), only(names, delta(quantize(2)))):
        send, receive = stage.init()
        for _ in range(3):
            sent, send = stage.encode(arrays, send, RNG)
            got, receive = stage.decode(sent, receive)
            assert got.keys() == arrays.keys()
            for name in arrays.keys() - names:
                assert got[name] is arrays[name]
            assert {key for key in sent if key in arrays} == (arrays.keys() - names) | {"n"}


def test_different_stages_for_different_arrays() -> None:
    stage = chain(only(["Y"], affine("memory", 2, 0)), only(["Z"], affine("quantize", 3, 0)))
    sent, _ = stage.encode({"Y": np.ones(2), "Z": np.ones(2)}, stage.init()[0], RNG)
    assert (sent["Y"] == 2).all()
    assert (sent["Z"] == 3).all()
    got, _ = stage.decode(sent, stage.init()[1])
    assert all((a == 1).all() for a in got.values())


def test_a_channel_names_both_links_so_that_a_checkpoint_can_tell_channels_apart() -> None:
    stages = [IDENTITY, quantize(4), quantize(5), delta(quantize(4)), delta(quantize(4), first=quantize(6)),
              only(["Y"], quantize(4)), only(["Z"], quantize(4)),
              chain(quantize(4), affine("pack", 1, 0))]  # fmt: skip
    names = {Channel(up=up, down=down).name for up in stages for down in stages}
    assert len(names) == len(stages) ** 2
