"""How much memory the record batches of an Arrow file ask for, read before any of it is given.

A compressed buffer begins with the size that it says it has when unpacked, and Arrow allocates that size. Where the
buffers are is in the metadata of each message, and where the messages are in the footer of the file: FlatBuffers
(Message.fbs and File.fbs of Arrow's format), of which a few fields are read here.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_MAGIC = b"ARROW1"
_CONTINUES = b"\xff\xff\xff\xff"
_DICTIONARIES, _BATCHES = 2, 3  # fields of the footer, by their numbers
_DICTIONARY, _BATCH = 2, 3  # kinds of messages with a body
_HEADER_KIND, _HEADER = 1, 2  # fields of a message
_DATA = 1  # field of a dictionary: its batch
_BUFFERS, _COMPRESSION = 2, 3  # fields of a batch


class _Table(NamedTuple):
    """A table of a FlatBuffer: its fields are found by their numbers."""

    data: bytes
    at: int

    def find(self, number: int) -> int | None:
        """Where a field is; None if it is not there."""
        (back,) = struct.unpack_from("<i", self.data, self.at)
        names = self.at - back
        (size,) = struct.unpack_from("<H", self.data, names)
        place = 4 + 2 * number
        if place + 2 > size:
            return None
        (offset,) = struct.unpack_from("<H", self.data, names + place)
        return self.at + offset if offset else None

    def follow(self, number: int) -> int | None:
        """Where that is to which a field points."""
        place = self.find(number)
        if place is None:
            return None
        (offset,) = struct.unpack_from("<I", self.data, place)
        return int(place + offset)


def measure_batches(path: Path) -> int:
    """The largest number of bytes that one message of an Arrow file unpacks to.

    Messages are found as Arrow finds them, by the list at the end of the file.
    """
    largest, size = 0, path.stat().st_size
    with path.open("rb") as file:
        if size < 10:
            return 0
        file.seek(size - 10)
        length, magic = struct.unpack("<i6s", file.read(10))
        if magic != _MAGIC:  # the mark at the end is the one that Arrow looks at
            return 0
        if not 0 < length <= size - 10:
            raise ValueError(f"its footer says that it has {length} bytes")
        file.seek(size - 10 - length)
        footer = _read_root(file.read(length))
        for start, metadata_length, body_length in _list_blocks(footer):
            if not (0 <= start <= size and 8 <= metadata_length <= size and 0 <= body_length <= size):
                raise ValueError("its footer says that a message is outside of it")
            file.seek(start)
            metadata = file.read(metadata_length)
            skipped = 8 if metadata[:4] == _CONTINUES else 4  # the format before 0.15 has no mark before the length
            unpacked = 0
            for offset, length in _list_compressed(_read_root(metadata[skipped:])):
                if length >= 8 and 0 <= offset <= size:
                    file.seek(start + metadata_length + offset)
                    unpacked += max(0, int.from_bytes(file.read(8), "little", signed=True))  # -1: not compressed
            largest = max(largest, unpacked)
    return largest


def _read_root(data: bytes) -> _Table:
    return _Table(data, struct.unpack_from("<I", data)[0])


def _list_blocks(footer: _Table) -> Iterator[tuple[int, int, int]]:
    """Where each message with a body is, and how long its two parts are."""
    for field in (_DICTIONARIES, _BATCHES):
        at = footer.follow(field)
        if at is not None:
            for i in range(_count(footer.data, at, 24)):
                yield struct.unpack_from("<qi4xq", footer.data, at + 4 + 24 * i)


def _count(data: bytes, at: int, size: int) -> int:
    """How many structs of a size a list has, which must be there."""
    (count,) = struct.unpack_from("<I", data, at)
    if size * count > len(data):
        raise ValueError(f"a list in it says that it has {count} parts")
    return int(count)


def _list_compressed(message: _Table) -> Iterator[tuple[int, int]]:
    """Where the buffers of a message are in its body, and their lengths, if they are compressed."""
    kind_at, at = message.find(_HEADER_KIND), message.follow(_HEADER)
    kind = None if kind_at is None else message.data[kind_at]
    if kind == _DICTIONARY and at is not None:
        at = _Table(message.data, at).follow(_DATA)
    if kind not in (_DICTIONARY, _BATCH) or at is None:
        return
    batch = _Table(message.data, at)
    buffers = batch.follow(_BUFFERS)
    if batch.find(_COMPRESSION) is None or buffers is None:
        return
    for i in range(_count(message.data, buffers, 16)):
        yield struct.unpack_from("<qq", message.data, buffers + 4 + 16 * i)
