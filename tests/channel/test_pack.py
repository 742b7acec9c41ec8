"""Lossless packing of integers: nothing lost, few bits taken."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedspan.channel import pack
from fedspan.channel.pack import pack_bits, unpack_bits
from fedspan.core.rng import Streams
from fedspan.errors import ProtocolError

RNG = Streams(0, 0, 0, "a")
SHAPES = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=9)


def there_and_back(arrays):
    stage = pack()
    sent, _ = stage.encode(arrays, (), RNG)
    return stage.decode(sent, ())[0], sent


@given(hnp.arrays(st.sampled_from(["int8", "int16", "int32", "int64"]), SHAPES))
def test_any_integers_come_back_as_they_were(array):
    got, _ = there_and_back({"Y": array})
    assert got["Y"].dtype == array.dtype
    np.testing.assert_array_equal(got["Y"], array)


def test_the_extremes_come_back():
    array = np.array([[np.iinfo(np.int64).min, 0], [np.iinfo(np.int64).max, 0]])
    np.testing.assert_array_equal(there_and_back({"Y": array})[0]["Y"], array)


@pytest.mark.parametrize("sigma", [0.3, 3.0, 300.0, 3e6])
def test_gaussian_integers_take_their_entropy_and_little_more(sigma):
    Y = np.rint(np.random.default_rng(0).normal(size=(20000, 2)) * sigma).astype(np.int64)
    _, counts = np.unique(Y, return_counts=True)
    entropy = np.log2(sigma * np.sqrt(2 * np.pi * np.e)) if sigma > 1e4 else -np.sum(
        counts / Y.size * np.log2(counts / Y.size)
    )  # fmt: skip
    (sent,) = there_and_back({"Y": Y})[1].values()
    assert sent.nbytes * 8 / Y.size < max(entropy + 0.3, 1.3)  # a Rice code takes at least a bit


def test_an_outlier_costs_itself_and_not_its_column_twice_over():
    Y = np.zeros((1000, 1), dtype=np.int64)
    Y[7] = 2**40
    (sent,) = there_and_back({"Y": Y})[1].values()
    assert sent.nbytes < 8 * 1000


def test_other_arrays_pass_as_they_are():
    arrays = {"a": np.ones(3), "b": np.array([1, 2], dtype=np.uint8), "c": np.array(5)}
    _, sent = there_and_back(arrays)
    assert all(sent[name] is array for name, array in arrays.items())


@pytest.mark.parametrize("bits", [1, 3, 8, 13, 16, 31, 63])
def test_bit_strings(bits):
    codes = np.random.default_rng(0).integers(2**bits, size=77, dtype=np.uint64)
    packed = pack_bits(codes, bits)
    assert packed.nbytes == -(-77 * bits // 8)
    np.testing.assert_array_equal(unpack_bits(packed, bits, 77), codes)


@pytest.mark.parametrize("key", ["Y~p~i8~4x", "Y~p~i8~x4", "Y~p~zz~4", "Y~p~i8~40x5", "Y~p"])
def test_nonsense_is_refused(key):
    with pytest.raises(ProtocolError, match="does not decode"):
        pack().decode({key: np.zeros(3, dtype=np.uint8)}, ())
