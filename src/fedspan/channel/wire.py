"""The wire format: one safetensors blob per message. No pickle: names, dtypes, shapes, bytes.

The header is written here, so that `size` can count a message to the byte without making it; it is read by the
safetensors library, which checks it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple, TypedDict

import numpy as np
import safetensors

from fedspan._foreign import printable
from fedspan._types import Array, Arrays
from fedspan.errors import ProtocolError

_FLOATS = {"f8": "F64", "f4": "F32", "f2": "F16"}
_SIGNED = {"i8": "I64", "i4": "I32", "i2": "I16", "i1": "I8"}
_UNSIGNED = {"u8": "U64", "u4": "U32", "u2": "U16", "u1": "U8"}
_DTYPE_NAMES = {**_FLOATS, **_SIGNED, **_UNSIGNED, "b1": "BOOL"}
_DTYPES = {name: np.dtype("<" + code) for code, name in _DTYPE_NAMES.items()}
_LONGEST_COUNT = 15  # digits of a number in a message's stamp
_Layout = tuple[tuple[str, str, tuple[int, ...]], ...]


class _Tensor(TypedDict):
    """An array as the library gives it."""

    dtype: str
    shape: list[int]
    data: bytes


class Message(NamedTuple):
    """A message on a link. `number` names it, `base` the memory it was coded against, `ack` the last one received."""

    task: str
    round: int
    exchange: int
    arrays: Arrays
    number: int = 0
    base: int = 0
    ack: int = 0


@lru_cache(maxsize=4096)
def _tensors(layout: _Layout) -> tuple[str, int]:
    """The header's entries (without their braces) for arrays of that layout, and the bytes of data behind it."""
    entries, end = {}, 0
    for name, code, shape in layout:
        if code not in _DTYPE_NAMES:
            raise ProtocolError(f"Arrays must be numeric, but {name!r} has dtype {code!r}. Convert it to float64.")
        start, end = end, end + int(np.prod(shape, dtype=np.int64)) * np.dtype(code).itemsize
        entries[name] = {"dtype": _DTYPE_NAMES[code], "shape": list(shape), "data_offsets": [start, end]}
    return json.dumps(entries, separators=(",", ":"))[1:-1], end


def _layout(arrays: Arrays) -> _Layout:
    return tuple([(name, array.dtype.str[1:], array.shape) for name, array in arrays.items()])


def _header(meta: str, layout: _Layout) -> tuple[bytes, int]:
    """The header with its length before it and padding behind, and the bytes of data to follow."""
    tensors, data = _tensors(layout)
    text = f'{{"__metadata__":{meta}{"," if tensors else ""}{tensors}}}'.encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, data


@lru_cache(maxsize=4096)
def _size(meta_length: int, layout: _Layout) -> int:
    header, data = _header(" " * meta_length, layout)
    return len(header) + data


def dump(metadata: Mapping[str, str], arrays: Arrays) -> bytes:
    """Arrays and a few strings as one safetensors blob."""
    return b"".join(dump_pieces(metadata, arrays))


def dump_pieces(metadata: Mapping[str, str], arrays: Arrays) -> list[bytes | memoryview]:
    """The same in pieces, of which large arrays are not copied."""
    header, _ = _header(json.dumps(metadata, separators=(",", ":")), _layout(arrays))
    return [header, *map(_bytes, arrays.values())]


def _bytes(array: Array) -> memoryview:
    """The array's own memory if it can be sent as it is: large ones are copied once, into the blob."""
    little = np.asarray(array, dtype=array.dtype.newbyteorder("<"), order="C")
    return little.reshape(-1).view(np.uint8).data


def load(blob: bytes) -> tuple[dict[str, str], dict[str, Array]]:
    """The inverse of `dump`; the arrays are read-only views of the blob's parts."""
    try:
        _check_header(blob)
        tensors: dict[str, _Tensor] = dict(safetensors.deserialize(blob))  # type: ignore[no-untyped-call]
        header = json.loads(blob[8 : 8 + int.from_bytes(blob[:8], "little")])
        meta = header.pop("__metadata__", None) or {}
        found = {name: tensors[name] for name in header}  # in the order of the sender; the library's is random
        arrays = {
            name: np.frombuffer(t["data"], dtype=_DTYPES[t["dtype"]]).reshape(t["shape"]) for name, t in found.items()
        }
    except (safetensors.SafetensorError, ValueError, KeyError, OverflowError) as error:
        raise ProtocolError(f"These {len(blob)} bytes are not a safetensors message: {printable(str(error))}") from None
    return dict(meta), arrays


def _check_header(blob: bytes) -> None:
    """Refuse a header that says it is longer than all that is there, before anybody believes it."""
    length = int.from_bytes(blob[:8], "little")
    if len(blob) < 8 or length > len(blob) - 8:
        raise ValueError(f"its header says that it has {length} bytes")


def _stamp(m: Message) -> dict[str, str]:
    return {"m": f"{m.task} {m.round} {m.exchange} {m.number} {m.base} {m.ack}"}  # ASCII: characters are bytes


def encode(message: Message) -> bytes:
    """The bytes that cross the wire."""
    return dump(_stamp(message), message.arrays)


def decode(blob: bytes) -> Message:
    """The message in those bytes."""
    meta, arrays = load(blob)
    try:
        name, *numbers = meta["m"].split(" ")
        round, exchange, number, base, ack = map(_parse_count, numbers)
    except (KeyError, ValueError):
        raise ProtocolError("This safetensors file is not a message of fedspan: it has no stamp.") from None
    return Message(name, round, exchange, arrays, number, base, ack)


def _parse_count(text: str) -> int:
    """A number in a stamp; all count something, so none is negative, and none is beyond all counting."""
    if not (text.isascii() and text.isdigit() and len(text) <= _LONGEST_COUNT):
        raise ValueError(text)
    return int(text)


def size(message: Message) -> int:
    """How many bytes `encode` would make, with header and all."""
    return _size(len('{"m":""}') + len(_stamp(message)["m"]), _layout(message.arrays))
