"""The messages of a run at one site, kept for audits there if its file says so: one file, to which they are appended.

What a site keeps holds all that left it, and a server that has the same file has all that it was sent. It is cut off
at the size that the site's file allows; the run goes on then, and the audit says that messages are missing.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from fedspan._files import make_private_folder, open_private

MESSAGES = "messages.bin"
_RECORD_HEAD = struct.Struct(">cQ")
_SITTING, _QUESTION, _ANSWER, _FULL = b"S", b"Q", b"A", b"F"


class KeptPair(NamedTuple):
    """A question and its answer, as they were on the wire. Each opening of the run begins another sitting."""

    sitting: int
    question: bytes
    answer: bytes


class KeptMessages:
    """The file of one part of a run, to write while it goes on and to read when it is over."""

    def __init__(self, folder: Path, most: int) -> None:
        self.path, self.most = folder / MESSAGES, most
        self._begun = False

    def add(self, question: bytes, answer: bytes) -> None:
        """Keep both, unless the file would grow beyond its size."""
        if not self.most:
            return
        make_private_folder(self.path.parent)
        with open(self.path, "ab", opener=open_private) as file:
            if not self._begun:
                _write_record(file, _SITTING, b"")
                self._begun = True
            if file.tell() + len(question) + len(answer) + 2 * _RECORD_HEAD.size <= self.most:
                _write_record(file, _QUESTION, question)
                _write_record(file, _ANSWER, answer)
            else:
                _write_record(file, _FULL, b"")
                self.most = 0

    def read(self) -> Iterator[KeptPair]:
        """All pairs, the oldest first; what a crash cut off at the end is left out."""
        sitting, question = -1, b""
        for kind, blob in self._read_records():
            if kind == _SITTING:
                sitting += 1
            elif kind == _QUESTION:
                question = blob
            elif kind == _ANSWER:
                yield KeptPair(max(sitting, 0), question, blob)

    @property
    def whole(self) -> bool:
        """Whether nothing had to be left out for its size."""
        return all(kind != _FULL for kind, _ in self._read_records())

    def _read_records(self) -> Iterator[tuple[bytes, bytes]]:
        if not self.path.is_file():
            return
        with self.path.open("rb") as file:
            while len(head := file.read(_RECORD_HEAD.size)) == _RECORD_HEAD.size:
                kind, size = _RECORD_HEAD.unpack(head)
                blob = file.read(size)
                if len(blob) < size:
                    return
                yield kind, blob


def _write_record(file: BinaryIO, kind: bytes, blob: bytes) -> None:
    file.write(_RECORD_HEAD.pack(kind, len(blob)) + blob)
