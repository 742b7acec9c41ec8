"""Fixed-point sums: exact to the step, never wrapped, and silent about whose numbers do not fit."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from fedspan.core.protocol import Array, Arrays
from fedspan.errors import InputError
from fedspan.secure import fixed


def added(parts: list[Arrays]) -> dict[str, Array]:
    """What the server has after the masks cancelled: lanes added modulo 2^64."""
    coded = [fixed.to_lanes(part, len(parts)) for part in parts]
    with np.errstate(over="ignore"):
        return {name: np.sum([c[name] for c in coded], axis=0, dtype=np.uint64) for name in coded[0]}


def total(parts: list[Array]) -> Array:
    return fixed.from_lanes(added([{"x": part} for part in parts]), len(parts))["x"]


FLOATS = arrays_of.arrays(np.float64, st.tuples(st.integers(1, 5), st.just(7)), elements=st.floats(-1e17, 1e17))


@given(FLOATS)
def test_a_sum_of_floats_is_exact_to_the_step(parts: Array) -> None:
    """Against exact rational arithmetic: half a step for each client, then one rounding to float64."""
    try:
        got = total(list(parts))
    except InputError as error:
        assert "too small" in str(error)  # noqa: PT017 - all is below 2^-30: hypothesis finds that too
        assert np.abs(parts).max() < 2.0**-30
        return
    for j, value in enumerate(got):
        exact = sum(map(Fraction, parts[:, j].tolist()))
        room = len(parts) * Fraction(1, 2**53) + abs(exact) * Fraction(1, 2**52)
        assert abs(Fraction(float(value)) - exact) <= room


@given(st.lists(st.integers(-(2**58), 2**58), min_size=2, max_size=9))
def test_a_sum_of_integers_is_exact(numbers: list[int]) -> None:
    got = total([np.array([n, -n, 0]) for n in numbers])
    assert got.dtype == np.int64
    assert got.tolist() == [sum(numbers), -sum(numbers), 0]


@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.uint8, np.int16, np.uint32])
def test_small_integers_do_not_wrap(dtype: Any) -> None:
    x = np.array([1, 0, 1]).astype(dtype) if dtype is np.bool_ else np.array([np.iinfo(dtype).max] * 3, dtype=dtype)
    assert total([x] * 100).tolist() == [100 * int(n) for n in x]


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_short_floats_are_widened(dtype: Any) -> None:
    parts = [np.array([0.1, -3.25, 100.0], dtype=dtype)] * 3
    got = total(parts)
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, 3 * parts[0].astype(np.float64), rtol=1e-15)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (2, 3, 4)])
def test_every_shape_comes_back(shape: tuple[int, ...]) -> None:
    assert total([np.ones(shape)] * 2).shape == shape
    assert total([np.ones(shape, dtype=int)] * 2).shape == shape


def test_numbers_around_zero_lose_nothing_of_their_sign() -> None:
    """A negative rest is carried as -1 and a fraction, which must come back as a small negative number."""
    x = np.array([-(2.0**-52), 2.0**-52, -1.0, -0.5, -1e-20, 0.75])
    np.testing.assert_array_equal(total([x, np.zeros(6)]), [-(2.0**-52), 2.0**-52, -1.0, -0.5, 0.0, 0.75])


@pytest.mark.parametrize(("clients", "bits"), [(2, 52), (2047, 52), (2048, 51), (5000, 50), (fixed.MOST_CLIENTS, 43)])
def test_the_largest_rests_of_one_sign_fit_at_any_number_of_clients(clients: int, bits: int) -> None:
    """Above 2047 clients the step is coarser; the sum must not wrap, and is as exact as that step."""
    x = np.array([1 - 2.0**-53, -1 + 2.0**-53, -(2.0**-52), 0.7, 3e5 + 0.1])
    lanes = fixed.to_lanes({"x": x}, clients)
    many = {name: lane * np.uint64(clients) for name, lane in lanes.items()}
    got = fixed.from_lanes(many, clients)["x"]
    for value, one in zip(got.tolist(), x.tolist(), strict=True):
        exact = clients * Fraction(one)
        assert abs(Fraction(value) - exact) <= clients * Fraction(1, 2 ** (bits + 1)) + abs(exact) * Fraction(1, 2**52)


def test_the_step_follows_from_the_roster_not_from_who_answered() -> None:
    """3000 clients were asked and 2000 answered: what they sent is in steps of 2^-51."""
    lanes = fixed.to_lanes({"x": np.array([0.5, -1.25])}, 3000)
    some = {name: lane * np.uint64(2000) for name, lane in lanes.items()}
    np.testing.assert_array_equal(fixed.from_lanes(some, 2000, 3000)["x"], [1000.0, -2500.0])
    assert fixed.from_lanes(some, 2000)["x"][0] != 1000.0


def test_more_clients_than_that_are_refused() -> None:
    with pytest.raises(
        InputError, match=r"A secure sum can have at most 1048575 clients, but this one has 1048576\. S"
    ):
        fixed.to_lanes({"x": np.ones(1)}, fixed.MOST_CLIENTS + 1)


BEYOND: dict[str, Array] = {
    "float": np.array([0.0, 2.0**60]),
    "negative": np.array([0.0, -(2.0**60)]),
    "int": np.array([2**60]),
    "negative int": np.array([-(2**60)]),
    "most negative": np.array([-(2**63)]),
    "unsigned": np.array([2**64 - 1], dtype=np.uint64),
    "huge": np.array([1e300]),
    "infinite": np.array([[np.inf], [-np.inf]]),
    "nan": np.array([1.0, np.nan]),
    "nan alone": np.array(np.nan),
    "short float": np.array([np.inf, 1.0], dtype=np.float16),
}


@pytest.mark.parametrize("x", BEYOND.values(), ids=BEYOND)
def test_what_could_wrap_saturates_and_is_marked_in_the_sum(x: Array) -> None:
    """Four clients: the largest that fits is below 2^62/4 = 2^60. Who has more is not said, nor how many have."""
    fits: Arrays = {"n": np.array(1), "Y": np.zeros_like(x)}
    assert not fixed.has_saturated(fixed.to_lanes(fits, 4))
    assert fixed.has_saturated(fixed.to_lanes({"n": np.array(1), "Y": x}, 4))
    for many in (1, 3, 4):
        sums = added([{"n": np.array(1), "Y": x}] * many + [fits] * (4 - many))
        with pytest.raises(InputError, match=r"^Some numbers of one or more of the 4 clients were too large.*Rescale"):
            fixed.from_lanes(sums, 4)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("x", [np.array([0.0, 2.0**60]), np.array([2**60])], ids=["float", "int"])
def test_what_is_just_below_the_limit_is_summed(x: Array, sign: int) -> None:
    below = (sign * (x * 0.999)).astype(x.dtype)
    np.testing.assert_array_equal(total([below] * 4), 4 * below)


def test_lanes_have_the_same_shapes_and_types_whatever_the_numbers() -> None:
    """So that a message's size tells nothing of them."""
    shapes = set()
    for x in (np.zeros(2), np.ones(2), np.array([np.nan, np.inf]), np.array([1e300, -1e300])):
        shapes.add(tuple((name, lane.shape, lane.dtype) for name, lane in fixed.to_lanes({"x": x}, 3).items()))
    assert len(shapes) == 1


def test_what_the_step_cannot_resolve_is_refused_but_small_parts_and_zeros_are_not() -> None:
    tiny = np.full(3, 2.0**-31)
    with pytest.raises(InputError, match=r"'x' is below 9e-10 at every client, too small for the fixed-point step"):
        total([tiny, tiny])
    np.testing.assert_allclose(total([tiny, np.ones(3)]), 1 + tiny)  # one client has little to say
    np.testing.assert_array_equal(total([np.zeros(3)] * 2), np.zeros(3))
    np.testing.assert_array_equal(total([np.ones(3), -np.ones(3)]), np.zeros(3))  # a sum may vanish


def test_arrays_do_not_mix() -> None:
    parts: list[Arrays] = [{"b": np.array([1.5]), "a": np.array(7), "c": np.array([[2, -3]])}] * 3
    got = fixed.from_lanes(added(parts), 3)
    assert {name: x.tolist() for name, x in got.items()} == {"a": 21, "b": [4.5], "c": [[6, -9]]}
