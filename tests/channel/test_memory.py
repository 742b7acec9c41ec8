"""Memories around a lossy stage: what they gain, and that both ends keep the same one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedspan.channel import Stage, chain, delta, quantize
from fedspan.core.checkpoint import flatten, unflatten
from fedspan.core.rng import Streams

finite = st.floats(-1e6, 1e6)
sequences = hnp.arrays(np.float64, st.tuples(st.integers(1, 6), st.integers(0, 5)), elements=finite)


def stream(t: int) -> Streams:
    return Streams(0, t, 0, "ada")


def send_all(stage: Stage, xs: list[np.ndarray]) -> list[np.ndarray]:
    """What arrives of a sequence of arrays, none of them lost."""
    (sender, receiver), out = stage.init(), []
    for t, x in enumerate(xs):
        sent, sender = stage.encode({"x": x}, sender, stream(t))
        got, receiver = stage.decode(sent, receiver)
        out.append(got["x"])
    return out


@pytest.mark.parametrize("bits", [3, 4, 8])
def test_delta_errors_shrink_as_the_array_settles_and_plain_ones_do_not(bits: int) -> None:
    rng = np.random.default_rng(bits)
    limit, way = rng.normal(size=(20, 3)), rng.normal(size=(20, 3))
    xs = [limit + 0.5**t * way for t in range(30)]
    errors = [np.abs(got - x).max() for got, x in zip(send_all(delta(quantize(bits)), xs), xs, strict=True)]
    plain = [np.abs(got - x).max() for got, x in zip(send_all(quantize(bits), xs), xs, strict=True)]
    assert errors[-1] < 1e-4 * plain[-1]
    assert plain[-1] > 0.5 * plain[0]


@given(xs=sequences, bits=st.integers(2, 16))
def test_a_delta_is_as_exact_as_its_quantiser_is_for_the_difference(xs: np.ndarray, bits: int) -> None:
    stage, S = delta(quantize(bits)), 2 ** (bits - 1) - 1
    sender, receiver = stage.init()
    for t, x in enumerate(xs):
        known = np.zeros_like(x) if t == 0 else receiver["x"]
        sent, sender = stage.encode({"x": x}, sender, stream(t))
        got, receiver = stage.decode(sent, receiver)
        bound = np.abs(x - known).max(initial=0) / (127 if t == 0 else S)
        assert (np.abs(got["x"] - x) <= bound + 1e-9).all()
        np.testing.assert_array_equal(sender["x"], receiver["x"])


def test_a_memory_is_new_data_not_a_change_of_the_old() -> None:
    """Commit on acknowledgement goes back to an older memory: it must still be what it was."""
    stage = delta(quantize(4))
    sender, receiver = stage.init()
    for t in range(3):
        x = np.random.default_rng(t).normal(size=5)
        before = [flatten(sender), flatten(receiver)]
        copies = [{k: a.copy() for k, a in arrays.items()} for _, arrays in before]
        sent, after = stage.encode({"x": x}, sender, stream(t))
        _, heard = stage.decode(sent, receiver)
        for (skeleton, arrays), copy, old in zip(before, copies, (sender, receiver), strict=True):
            assert flatten(old)[0] == skeleton
            assert all((arrays[k] == copy[k]).all() for k in arrays)
        sender, receiver = after, heard


def test_an_array_of_another_shape_starts_anew() -> None:
    xs = [np.ones((4, 2)), np.ones((4, 1)), np.ones((4, 0)), np.ones((4, 3)), np.ones((4, 3))]
    for got, x in zip(send_all(delta(quantize(4)), xs), xs, strict=True):
        np.testing.assert_array_equal(got, x)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 2)])
def test_a_memory_survives_a_checkpoint_in_every_shape(dtype: type, shape: tuple[int, ...]) -> None:
    """A number on its own (shape ()) must stay an array, or the next message cannot be coded."""
    stage, rng = delta(quantize(5)), np.random.default_rng(0)
    xs = [rng.normal(size=shape).astype(dtype) for _ in range(4)]
    want = send_all(stage, xs)
    sender, receiver = stage.init()
    for t, x in enumerate(xs):
        sent, sender = stage.encode({"x": x}, sender, stream(t))
        got, receiver = stage.decode(sent, receiver)
        assert isinstance(got["x"], np.ndarray)
        assert (got["x"].dtype, got["x"].shape) == (x.dtype, x.shape)
        np.testing.assert_array_equal(got["x"], want[t])
        sender, receiver = unflatten(*flatten(sender)), unflatten(*flatten(receiver))


def test_integers_pass_and_are_not_remembered() -> None:
    stage = delta(quantize(3))
    sender, receiver = stage.init()
    for t in range(3):
        sent, sender = stage.encode({"n": np.array(t), "x": np.ones(2)}, sender, stream(t))
        got, receiver = stage.decode(sent, receiver)
        assert got["n"] == t
        assert got["n"].dtype.kind == "i"
    assert sender.keys() == {"x"}


def test_what_one_client_only_is_told_passes_as_it_is() -> None:
    """It is added behind the stage: see `Ask.privately`."""
    stage = delta(quantize(3))
    sender, receiver = stage.init()
    for t in range(3):
        sent, sender = stage.encode({"x": np.ones(2)}, sender, stream(t))
        got, receiver = stage.decode({**sent, "own": np.full(3, 0.1 * t)}, receiver)
        assert got["own"].tolist() == [0.1 * t] * 3
        assert receiver.keys() == {"x"}


def test_names_are_remembered_one_by_one() -> None:
    stage = delta(quantize(8))
    sender, receiver = stage.init()
    for t, name in enumerate("abab"):
        sent, sender = stage.encode({name: np.full(3, 1.0 + (name == "b"))}, sender, stream(t))
        got, receiver = stage.decode(sent, receiver)
        np.testing.assert_array_equal(got[name], np.full(3, 1.0 + (name == "b")))


def test_a_memory_goes_around_a_chain_too() -> None:
    def flip(arrays, state, *_):  # type: ignore[no-untyped-def]
        return {k: a[::-1] for k, a in arrays.items()}, state

    flipped = Stage("flip", ("pack",), lambda: ((), ()), flip, flip)
    xs = [np.random.default_rng(t).normal(size=9) for t in range(4)]
    want = send_all(delta(quantize(6)), xs)
    for got, x in zip(send_all(delta(chain(quantize(6), flipped)), xs), want, strict=True):
        np.testing.assert_array_equal(got, x)
