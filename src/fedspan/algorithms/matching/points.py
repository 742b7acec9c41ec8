"""Blinding ids: each becomes a point of P-256 that is multiplied by a secret key. See point_worker.py for the curve.

The work is shared by processes of their own, each of which is given the key over a pipe. Where they cannot be started,
or end early, this process does the work itself: the result is the same.
"""

from __future__ import annotations

import hmac
import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from hashlib import sha256
from threading import Lock

import numpy as np

from fedspan._types import Array
from fedspan.algorithms.matching import point_worker
from fedspan.algorithms.matching.point_worker import DONE, HASH, INVALID, MULTIPLY, SIZE, Blinder, InvalidPointError
from fedspan.errors import MissingExtraError

_GROUP_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551  # of the group, a prime
_POINTS_AT_ONCE = 500  # points that are sent to a process at once: less than a pipe holds
_TOO_FEW = 2000  # points that are not worth a process


def require_curve() -> None:
    """Fail now, with what to install, rather than at the first client."""
    try:
        Blinder(b"\1".rjust(SIZE, b"\0"))
    except ImportError:
        raise MissingExtraError("Private matching of ids", "privacy") from None


def draw_key() -> bytes:
    """A secret key from the operating system. It is never derived from a seed, and never saved."""
    return (1 + secrets.randbelow(_GROUP_ORDER - 1)).to_bytes(SIZE, "big")


def digest_ids(spelled: Iterable[bytes], secret: str) -> Array:
    """The digests from which points are made, (n, 32): under the clients' common secret if they have one."""
    key = secret.encode()
    rows = [hmac.digest(key, one, "sha256") if key else sha256(one).digest() for one in spelled]
    return to_rows(b"".join(rows))


def draw_digests(count: int) -> Array:
    """Digests of nothing: padding, which looks like ids and matches none."""
    return to_rows(secrets.token_bytes(SIZE * count))


def to_rows(blob: bytes) -> Array:
    """Points as rows of bytes, (n, 32)."""
    return np.frombuffer(blob, dtype=np.uint8).reshape(-1, SIZE)


def count_workers() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


class Pool:
    """A key, and the processes that blind with it."""

    def __init__(self, key: bytes, workers: int = 0, progress: Callable[[int], None] | None = None) -> None:
        self.workers = workers or count_workers()
        self.progress, self.lock = progress, Lock()
        self._key, self._own = key, Blinder(key)

    def hash_and_multiply(self, digests: Array) -> Array:
        """H(id)·k of every digest."""
        return self._spread(HASH, digests)

    def multiply(self, points: Array) -> Array:
        """P·k of every point; `InvalidPointError` if one is not on the curve."""
        return self._spread(MULTIPLY, points)

    def _spread(self, kind: bytes, points: Array) -> Array:
        blob = np.ascontiguousarray(points, dtype=np.uint8).tobytes()
        pieces = [blob[start : start + _POINTS_AT_ONCE * SIZE] for start in range(0, len(blob), _POINTS_AT_ONCE * SIZE)]
        if self.workers == 1 or len(points) < _TOO_FEW:
            return to_rows(b"".join(self._work_here(kind, piece) for piece in pieces))
        found: list[bytes] = [b""] * len(pieces)
        todo = iter(range(len(pieces)))
        with ThreadPoolExecutor(self.workers) as pool:
            done = [pool.submit(self._work_apart, kind, pieces, todo, found) for _ in range(self.workers)]
        for one in done:
            one.result()
        return to_rows(b"".join(found))

    def _work_here(self, kind: bytes, piece: bytes) -> bytes:
        found = self._own.hash_and_multiply(piece) if kind == HASH else self._own.multiply(piece)
        self._tell(piece)
        return found

    def _work_apart(self, kind: bytes, pieces: list[bytes], todo: Iterator[int], found: list[bytes]) -> None:
        """In a thread: let one process do piece after piece. Without it, the pieces are done here."""
        with _start_process(self._key) as process:
            while True:
                with self.lock:
                    at = next(todo, None)
                if at is None:
                    return
                answer = None if process is None else _let_blind(process, kind, pieces[at])
                if answer is None:
                    process = None
                    found[at] = self._work_here(kind, pieces[at])
                else:
                    found[at] = answer
                    self._tell(pieces[at])

    def _tell(self, piece: bytes) -> None:
        if self.progress:
            with self.lock:
                self.progress(len(piece) // SIZE)


@contextmanager
def _start_process(key: bytes) -> Iterator[subprocess.Popen[bytes] | None]:
    """A process that has the key; None if it cannot be started."""
    try:
        # By its path and with -P: nothing of this program is imported there, and no module beside it by mistake.
        process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-P", point_worker.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
    except OSError:
        yield None
        return
    with process:
        try:
            yield process if _send_bytes(process, key) else None
        finally:
            process.kill()


def _let_blind(process: subprocess.Popen[bytes], kind: bytes, piece: bytes) -> bytes | None:
    """What the process answers; None if it has ended."""
    size = len(piece) // SIZE
    if process.stdout is None or not _send_bytes(process, kind + size.to_bytes(4, "big") + piece):
        return None
    status = process.stdout.read(1)
    if status == INVALID:
        raise InvalidPointError
    answer = process.stdout.read(len(piece)) if status == DONE else b""
    return answer if len(answer) == len(piece) else None


def _send_bytes(process: subprocess.Popen[bytes], blob: bytes) -> bool:
    try:
        if process.stdin is not None:
            process.stdin.write(blob)
            process.stdin.flush()
    except OSError:
        return False
    return process.stdin is not None
