"""The site's book: a line for everything that was opened, answered, refused or changed here, in a file that only grows.

Each line holds the SHA-256 of the line before it, so that a line which is changed, taken out or put in later is found
(`fedspan site log KIT --verify`). Whoever can write the file can write all of it anew, or cut off its end: an auditor
who noted the digest of the last line, as `--verify` prints it, finds that too.

A line is on disk before the answer that it is about leaves. If it cannot be written, the site answers nothing.

    {"when": "2026-11-18T20:00:00.123Z", "event": "answered", "run": "…", "task": "gram", …, "previous": "9f2c…"}
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO, Literal

from fedspan._files import make_private_folder, open_private
from fedspan._types import Arrays, Json
from fedspan.errors import InputError

try:
    import fcntl
except ImportError:  # no lock on such a system: a site runs one job at a time there
    fcntl = None  # type: ignore[assignment]

BookEvent = Literal["asked", "opened", "answered", "refused", "ended", "administrator"]
FIRST = "0" * 64  # what stands for the line before the first one
_LAST_LINE_REACH = 1 << 16  # bytes in which the last line is looked for at first


class BookError(InputError):
    """The book cannot be written, so nothing may leave."""


@dataclass(frozen=True)
class BookLine:
    """One line of the book. `event` "cut": what a crash left of a line; `digest` is that of the line itself."""

    number: int
    event: str
    when: str
    facts: Mapping[str, Json]
    digest: str


@dataclass(frozen=True)
class Audit:
    """What a look at the whole chain found: how many lines, the digest of the last one, and where the chain breaks."""

    lines: int
    head: str
    broken: tuple[int, ...]


class Book:
    """The book of one site, in `fedspan/book.jsonl` of its kit. Several processes may write to it."""

    def __init__(self, kit: Path) -> None:
        self.path = kit / "fedspan" / "book.jsonl"

    def write(self, event: BookEvent, **facts: Json) -> None:
        """Add a line, and come back when it is on disk."""
        try:
            make_private_folder(self.path.parent)
            with open(self.path, "ab+", opener=open_private) as file, _hold(file):
                last, whole = _read_last_line(file)
                previous = FIRST if last is None else sha256(last).hexdigest()
                now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
                line = json.dumps({"when": now, "event": event, **facts, "previous": previous}, ensure_ascii=True)
                file.write((b"" if whole else b"\n") + line.encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise BookError(f"Cannot write to the site's book {self.path}: {error.strerror or error}.") from error

    def read(self) -> Iterator[BookLine]:
        """Give all lines, the oldest first."""
        for number, line in enumerate(self._read_lines(), 1):
            tree = _parse_line(line)
            facts = {key: value for key, value in tree.items() if key not in ("event", "when", "previous")}
            yield BookLine(
                number, str(tree.get("event", "cut")), str(tree.get("when", "")), facts, sha256(line).hexdigest()
            )

    def verify(self) -> Audit:
        """Go along the whole chain; a line counts as broken if it does not hold the digest of the line before it."""
        broken, previous, number = [], FIRST, 0
        for number, line in enumerate(self._read_lines(), 1):
            tree = _parse_line(line)
            if tree and tree.get("previous") != previous:
                broken.append(number)
            previous = sha256(line).hexdigest()
        return Audit(number, previous, tuple(broken))

    def _read_lines(self) -> Iterator[bytes]:
        try:
            with self.path.open("rb") as file:
                for line in file:
                    yield line.rstrip(b"\n")
        except FileNotFoundError:
            return
        except OSError as error:
            raise InputError(f"Cannot read the site's book {self.path}: {error.strerror}.") from None


def list_arrays(arrays: Arrays) -> list[Json]:
    """The arrays of an answer as the book names them: name, shape and bytes; no value of them."""
    return [[name, list(array.shape), int(array.nbytes)] for name, array in arrays.items()]


def _parse_line(line: bytes) -> dict[str, Json]:
    """The facts of a line; none if a crash cut it off."""
    try:
        tree = json.loads(line)
    except ValueError:
        return {}
    return tree if isinstance(tree, dict) else {}


def _read_last_line(file: BinaryIO) -> tuple[bytes | None, bool]:
    """The last line without its end, and whether it has one; None if there is no line yet."""
    size, reach = file.seek(0, os.SEEK_END), _LAST_LINE_REACH
    if not size:
        return None, True
    while True:
        file.seek(max(0, size - reach))
        tail = file.read()
        whole = tail.endswith(b"\n")
        lines = (tail[:-1] if whole else tail).split(b"\n")
        if len(lines) > 1 or reach >= size:
            return lines[-1], whole
        reach *= 4


@contextmanager
def _hold(file: BinaryIO) -> Iterator[None]:
    """One process at a time writes; the lock goes with the file, however the process ends."""
    if fcntl:
        fcntl.flock(file, fcntl.LOCK_EX)
    yield
