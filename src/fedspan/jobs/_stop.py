"""Ctrl-C: once, and the run stops after its round, with a checkpoint; twice, and it stops at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from functools import partial
from types import FrameType, TracebackType
from typing import Self

from fedspan.core.checkpoint import Checkpoint
from fedspan.core.run import Info

NOTICE = "stopping after this round; Ctrl-C again stops at once"


class Stop:
    """A callback and a context: inside it, the first Ctrl-C is remembered until the round is over."""

    def __init__(self, checkpoint: Checkpoint, *, quiet: bool) -> None:
        """`quiet`: whoever shows the progress says it too."""
        self.asked = False
        self._checkpoint, self._quiet = checkpoint, quiet
        self._restore: Callable[[], object] | None = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # elsewhere Python takes no signals
            self._restore = partial(signal.signal, signal.SIGINT, signal.getsignal(signal.SIGINT))
            signal.signal(signal.SIGINT, self._interrupt)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._restore is not None:
            self._restore()

    def __call__(self, info: Info) -> None:
        """The round is over. If the key was pressed too late for it to be saved, the next one will be."""
        if self.asked and self._checkpoint.saved == info.round:
            raise KeyboardInterrupt

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        self._checkpoint.every = 1  # from now on every round is saved
        if not self._quiet:
            os.write(2, f"{NOTICE}\n".encode())  # print is not safe in a signal handler
