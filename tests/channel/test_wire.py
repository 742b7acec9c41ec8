"""The wire format: what goes in comes out, its size is known beforehand, and nothing else is read."""

from __future__ import annotations

import json

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedspan.channel import wire
from fedspan.channel.wire import Message
from fedspan.errors import ProtocolError

DTYPES = ["f8", "f4", "f2", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1", "b1"]

numbers = st.integers(0, 10**12)
dtypes = st.tuples(st.sampled_from("<>"), st.sampled_from(DTYPES)).map(lambda pair: np.dtype("".join(pair)))
any_array = dtypes.flatmap(lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, min_side=0, max_side=4)))
names = st.text(min_size=1, max_size=8).filter(lambda name: name != "__metadata__")
messages = st.builds(
    Message,
    st.from_regex("[a-z_][a-z_0-9]{0,20}", fullmatch=True),
    numbers, numbers, st.dictionaries(names, any_array, max_size=4), numbers, numbers, numbers,
)  # fmt: skip


@given(messages)
def test_decode_undoes_encode(message: Message) -> None:
    got = wire.decode(wire.encode(message))
    assert got._replace(arrays={}) == message._replace(arrays={})
    assert list(got.arrays) == list(message.arrays)
    for name, array in message.arrays.items():
        assert got.arrays[name].shape == array.shape
        assert got.arrays[name].dtype == array.dtype.newbyteorder("<")
        np.testing.assert_array_equal(got.arrays[name], array)


@given(messages)
def test_size_is_the_length_of_the_encoded_message(message: Message) -> None:
    assert wire.size(message) == len(wire.encode(message))


@given(messages)
def test_the_safetensors_library_reads_our_messages(message: Message) -> None:
    got = safetensors.numpy.load(wire.encode(message))
    assert got.keys() == message.arrays.keys()
    for name, array in message.arrays.items():
        np.testing.assert_array_equal(got[name], array)


def test_an_array_without_a_contiguous_layout_arrives_whole() -> None:
    x = np.arange(60.0).reshape(6, 10)
    for view in (x.T, x[::2, ::3], x[::-1], np.asfortranarray(x), x[:, 0], np.broadcast_to(x[0], (3, 10))):
        (got,) = wire.decode(wire.encode(Message("t", 0, 0, {"x": view}))).arrays.values()
        np.testing.assert_array_equal(got, view)
        assert got.flags.c_contiguous


def test_numbers_arrive_to_the_bit() -> None:
    x = np.array([np.nan, -0.0, 5e-324, np.inf, np.finfo(float).max, 1 / 3])
    (got,) = wire.decode(wire.encode(Message("t", 0, 0, {"x": x}))).arrays.values()
    assert got.tobytes() == x.tobytes()


@pytest.mark.parametrize(
    "array",
    [np.ones(2, complex), np.array([None, 1]), np.array(["a"]), np.array([b"a"]), np.ones(1, "M8[s]"),
     np.ones(2, np.longdouble), np.zeros(2, dtype=[("a", "f8")])],
    ids=lambda a: str(a.dtype),
)  # fmt: skip
def test_what_is_not_a_number_is_refused(array: np.ndarray) -> None:
    message = Message("t", 0, 0, {"fine": np.ones(2), "odd": array})
    for count in (wire.encode, wire.size):
        with pytest.raises(ProtocolError, match=r"Arrays must be numeric"):
            count(message)


BLOB = wire.encode(Message("multiply", 3, 1, {"Z": np.arange(6.0).reshape(2, 3), "n": np.array(4)}, 5, 4, 2))


def test_a_message_cut_anywhere_is_refused() -> None:
    for length in range(len(BLOB)):
        with pytest.raises(ProtocolError, match=r"not a (safetensors message|message of fedspan)"):
            wire.decode(BLOB[:length])


@given(st.binary(max_size=200))
def test_garbage_is_refused(blob: bytes) -> None:
    with pytest.raises(ProtocolError, match=r"not a (safetensors message|message of fedspan)"):
        wire.decode(blob)


@given(at=st.integers(0, len(BLOB) - 1), byte=st.integers(0, 255))
def test_a_changed_byte_is_refused_or_gives_a_message(at: int, byte: int) -> None:
    """The wire has no digest (TCP and TLS have theirs); but no change may surface as another kind of exception."""
    try:
        got = wire.decode(BLOB[:at] + bytes([byte]) + BLOB[at + 1 :])
    except ProtocolError:
        return
    assert isinstance(got, Message)


def _blob(header: object, data: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


ZERO = {"dtype": "F64", "shape": [1], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    "blob",
    [
        b"",
        b"\x80\x04\x95",  # the beginning of a pickle
        safetensors.numpy.save({"x": np.ones(3)}),
        safetensors.numpy.save({"x": np.ones(3)}, metadata={"format": "np"}),
        _blob({"__metadata__": None, "x": ZERO}, bytes(8)),
        _blob({"__metadata__": {"m": "multiply 1 2"}, "x": ZERO}, bytes(8)),
        _blob({"__metadata__": {"m": "multiply 1 2 3 4 five"}, "x": ZERO}, bytes(8)),
        _blob({"__metadata__": {"m": "multiply 1 2 3 4 5"}, "x": {**ZERO, "dtype": "BF16", "shape": [4]}}, bytes(8)),
        _blob({"__metadata__": {"m": "multiply 1 2 3 4 5"}, "x": {**ZERO, "shape": [2]}}, bytes(8)),
        _blob([1, 2, 3]),
    ],
    ids=["empty", "pickle", "foreign", "foreign metadata", "null", "short stamp", "stamp", "bf16", "shape", "list"],
)
def test_foreign_bytes_are_refused(blob: bytes) -> None:
    with pytest.raises(ProtocolError, match=r"not a (safetensors message|message of fedspan)"):
        wire.decode(blob)
