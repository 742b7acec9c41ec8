"""The quantiser: its error bound, its mean, its size on the wire, and what it refuses."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedspan.channel import quantize
from fedspan.channel.quantize import pack_bits, unpack_bits
from fedspan.core.rng import Streams
from fedspan.errors import InputError, ProtocolError

RNG = Streams(0, 1, 2, "ada")
BITS = range(2, 17)

shapes = st.sampled_from([(), (0,), (1,), (17,), (5, 3), (0, 4), (2, 3, 4)])
floats = st.sampled_from([np.float64, np.float32, np.float16])
finite_arrays = floats.flatmap(
    lambda dtype: hnp.arrays(
        dtype, shapes, elements=hnp.from_dtype(np.dtype(dtype), allow_nan=False, allow_infinity=False)
    )
)


def send(x: np.ndarray, bits: int, rng: Streams = RNG) -> tuple[np.ndarray, int]:
    """What arrives, and how many bytes it took."""
    stage = quantize(bits)
    sent, state = stage.encode({"x": x}, stage.init()[0], rng)
    (packed,) = sent.values()
    return stage.decode(sent, state)[0]["x"], packed.nbytes


@given(x=finite_arrays, bits=st.integers(2, 16))
def test_every_entry_arrives_within_the_largest_over_S(x: np.ndarray, bits: int) -> None:
    """Denormals and the largest numbers of each dtype are among the examples."""
    got, _ = send(x, bits)
    assert (got.dtype, got.shape) == (x.dtype, x.shape)
    top, limits = float(np.abs(x).max(initial=0)), np.finfo(x.dtype)
    step, rounding = top / (2 ** (bits - 1) - 1), float(limits.eps) * top + float(limits.smallest_subnormal)
    assert np.isfinite(got).all()
    assert (np.abs(got.astype(np.float64) - x) <= step * (1 + 1e-12) + rounding).all()


@given(x=finite_arrays, bits=st.integers(2, 16))
def test_signs_and_zeros_are_kept(x: np.ndarray, bits: int) -> None:
    got, _ = send(x, bits)
    assert ((np.sign(got) == np.sign(x)) | (got == 0)).all()
    assert (got[x == 0] == 0).all()


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("top", [5e-324, 1e-310, 1e-300, 1.0, 1e308, np.finfo(np.float64).max])
def test_the_largest_entry_arrives_exactly_whatever_its_size(bits: int, top: float) -> None:
    got, _ = send(np.array([top, -top, 0.0]), bits)
    np.testing.assert_array_equal(got, [top, -top, 0.0])


@pytest.mark.parametrize("bits", BITS)
def test_zero_constant_and_single_arrays_arrive_exactly(bits: int) -> None:
    for x in (np.zeros((4, 3)), np.full((6, 2), -2.5), np.array([7.25]), np.array(-0.3), np.zeros(0)):
        np.testing.assert_array_equal(send(x, bits)[0], x)


@pytest.mark.parametrize("bits", BITS)
def test_a_number_takes_just_its_bits_and_an_array_one_scale(bits: int) -> None:
    for count in (0, 1, 2, 7, 8, 1000):
        _, size = send(np.linspace(-1, 1, count), bits)
        assert size == 8 + math.ceil(count * bits / 8)


@given(bits=st.integers(2, 16), data=st.data())
def test_packing_is_undone_by_unpacking(bits: int, data: st.DataObject) -> None:
    codes = data.draw(hnp.arrays(np.uint16, st.integers(0, 40), elements=st.integers(0, 2**bits - 1)))
    packed = pack_bits(codes, bits)
    assert packed.dtype == np.uint8
    np.testing.assert_array_equal(unpack_bits(packed, bits, len(codes)), codes)


@pytest.mark.parametrize("bits", [2, 3, 4, 8, 12])
def test_the_mean_over_many_draws_is_the_array(bits: int) -> None:
    """A decoded entry lies on one of two levels, `step` apart: Hoeffding's bound, failing once in 1e9 seeds."""
    x, draws = np.array([1.0, -0.83, 0.5, 0.31, -0.07, 0.004, 0.0]), 20_000
    got, _ = send(np.tile(x, (draws, 1)), bits)
    step = 1.0 / (2 ** (bits - 1) - 1)
    margin = step * math.sqrt(math.log(2 * len(x) / 1e-9) / (2 * draws))
    assert (np.abs(got.mean(axis=0) - x) <= margin).all()


def test_draws_are_named_by_stream_and_array() -> None:
    x = np.linspace(-1, 1, 200)
    stage = quantize(3)
    codes = [
        next(iter(stage.encode({name: x}, (), rng)[0].values()))
        for name, rng in (("x", RNG), ("x", RNG), ("y", RNG), ("x", RNG._replace(client="bo")))
    ]
    np.testing.assert_array_equal(codes[0], codes[1])
    assert (codes[0] != codes[2]).any()
    assert (codes[0] != codes[3]).any()


def test_layout_and_byte_order_do_not_matter() -> None:
    x = np.random.default_rng(0).normal(size=(6, 4))
    want, _ = send(x, 5)
    for same in (np.asfortranarray(x), x.astype(">f8"), np.repeat(x, 2, axis=0)[::2]):
        np.testing.assert_array_equal(send(same, 5)[0], want)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_nan_and_infinity_are_refused_by_name(bad: float, dtype: type) -> None:
    with pytest.raises(ProtocolError, match=r"'x' contains NaN or infinity and cannot be quantised, so nothing"):
        send(np.array([1.0, bad, 2.0], dtype=dtype), 4)


def test_integers_and_booleans_pass_as_they_are() -> None:
    arrays = {"n": np.array(12), "u": np.arange(5, dtype=np.uint8), "b": np.array([True, False])}
    stage = quantize(2)
    sent, _ = stage.encode(arrays, (), RNG)
    got, _ = stage.decode(sent, ())
    for name, array in arrays.items():
        assert sent[name] is array
        assert got[name].dtype == array.dtype
        np.testing.assert_array_equal(got[name], array)


@pytest.mark.parametrize("bits", [1, 0, -3, 17, 32, 4.0, 2.5, "4", None, True])
def test_bits_out_of_range_are_refused(bits: object) -> None:
    with pytest.raises(InputError, match=r"bits must be an integer from 2 to 16, but is"):
        quantize(bits)  # type: ignore[arg-type]


def test_bits_may_be_a_numpy_integer() -> None:
    assert quantize(np.int64(4)).name == "quantize(4)"  # type: ignore[arg-type]


@pytest.mark.parametrize("bits", [3, 8, 16])
@pytest.mark.parametrize(
    "spoil",
    [
        lambda key, a: (key, a[:-1]),
        lambda key, a: (key, np.append(a, np.uint8(0))),
        lambda key, a: (key, a[:5]),
        lambda key, a: (key.replace("~f8", "~O"), a),
        lambda key, a: (key.replace("~f8", "~zebra"), a),
        lambda key, a: (key.replace("~5x2", "~99x99"), a),
        lambda key, a: (key.replace("~5x2", "~-5x-2"), a),
        lambda key, a: (key.replace("~5x2", ""), a),
        lambda key, a: (key.replace("~q", "~q9"), a),
        lambda key, a: (key, np.concatenate([np.frombuffer(np.float64(np.nan).tobytes(), np.uint8), a[8:]])),
    ],
    ids=["short", "long", "no data", "dtype O", "dtype ?", "shape", "negative", "no shape", "bits", "scale"],
)
def test_a_damaged_packed_array_is_refused(spoil, bits: int) -> None:  # type: ignore[no-untyped-def]
    stage = quantize(bits)
    ((key, packed),) = stage.encode({"x": np.ones((5, 2))}, (), RNG)[0].items()
    key, packed = spoil(key, packed)
    with pytest.raises(ProtocolError, match=r"The quantised array .* does not decode"):
        stage.decode({key: packed}, ())
