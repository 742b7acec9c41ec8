"""Fixed-point sums: exact to the step, and never wrapped."""

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
        assert np.abs(parts).max() < fixed.COARSE
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


def test_the_most_clients_fit() -> None:
    """The largest rests of one sign, at 2047 clients."""
    x = np.array([1 - 2.0**-53, -1 + 2.0**-53, -(2.0**-52)])
    lanes = fixed.to_lanes({"x": x}, fixed.MOST_CLIENTS)
    many = {name: lane * np.uint64(fixed.MOST_CLIENTS) for name, lane in lanes.items()}
    np.testing.assert_allclose(fixed.from_lanes(many, fixed.MOST_CLIENTS)["x"], 2047 * x, rtol=2.0**-52)
    with pytest.raises(InputError, match=r"A secure sum can have at most 2047 clients, but this one has 2048\. Sum"):
        fixed.to_lanes({"x": np.ones(1)}, 2048)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(
    "x", [np.array([0.0, 2.0**60]), np.array([2**60]), np.array([1e300])], ids=["float", "int", "huge"]
)
def test_what_could_wrap_is_refused(x: Array, sign: int) -> None:
    """Four clients: the largest that fits is below 2^62/4 = 2^60."""
    with pytest.raises(InputError, match=r"Numbers in 'Y' must be below 1.15e\+18 for a secure sum.*\. Rescale"):
        fixed.to_lanes({"n": np.array(1), "Y": sign * x}, 4)
    below = (x * 0.999).astype(x.dtype)
    if np.abs(below).max() < 2**60:
        fixed.to_lanes({"Y": sign * below}, 4)


def test_unsigned_integers_beyond_the_range_are_refused() -> None:
    with pytest.raises(InputError, match=r"Numbers in .* must be below"):
        fixed.to_lanes({"x": np.array([2**64 - 1], dtype=np.uint64)}, 2)


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
