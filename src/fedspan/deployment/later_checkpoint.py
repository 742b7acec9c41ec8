"""A checkpoint that is written while the sites work on the next round, so that no round waits for the disk.

One write is on its way at most: a crash repeats two rounds at most, where one that is waited for repeats one.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from fedspan.core.checkpoint import Checkpoint
from fedspan.core.snapshot import SessionSnapshot

T = TypeVar("T")


class LaterCheckpoint(Checkpoint):
    """Saves while the run goes on, which is safe because a state is never changed, only replaced."""

    def __init__(self, folder: Path, every: int = 1) -> None:
        super().__init__(folder, every)
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="fedspan-checkpoint")
        self._writing: Future[None] | None = None

    def save(self, run: Mapping[str, object], round: int, state: object, engine: SessionSnapshot) -> None:
        self.settle()
        self._writing = self._writer.submit(super().save, run, round, state, engine)

    def load(self, run: Mapping[str, object], state: type[T]) -> tuple[int, T, SessionSnapshot] | None:
        self.settle()
        return super().load(run, state)

    def settle(self) -> None:
        """Wait until the last checkpoint is on disk; if writing it failed, the run fails."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()
