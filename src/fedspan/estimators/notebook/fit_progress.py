"""Progress while a model is fitted: a line that moves in a terminal or a notebook, a line each second elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from fedspan.core.run import Info

_MEASURES = ("kkt", "change", "decrement", "cost", "loss", "objective")  # the first that is known
_EVERY = 1.0  # seconds between two lines where nothing can move


class FitProgress:
    """A callback for the rounds of one run."""

    def __init__(self, rounds: int, console: Console | None = None) -> None:
        self.rounds, self.console = rounds, console or Console(stderr=True)
        self.moves = self.console.is_terminal or self.console.is_jupyter
        self._last, self._line = -_EVERY, ""
        self._bar: Progress | None = None
        self._task = TaskID(0)

    def __enter__(self) -> Self:
        if self.moves:
            columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
            self._bar = Progress(*columns, console=self.console)
            self._bar.start()
            self._task = self._bar.add_task("round 0", total=self.rounds)
        return self

    def __call__(self, info: Info) -> None:
        known = next((name for name in _MEASURES if name in info.metrics), None)
        measure = "" if known is None else f", {known} {info.metrics[known]:.3g}"
        self._line = f"round {info.round}{measure}"
        if self._bar is not None:
            self._bar.update(self._task, completed=info.round, description=self._line)
        elif time.monotonic() - self._last >= _EVERY:
            self._print()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif self._line:
            self._print()

    def _print(self) -> None:
        """A line, once: the last is shown at the end if it was not before."""
        self.console.print(self._line, markup=False, highlight=False, soft_wrap=True)
        self._last, self._line = time.monotonic(), ""
