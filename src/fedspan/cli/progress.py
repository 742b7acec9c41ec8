"""What one sees while a run goes on: a live display on a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fedspan.core.ledger import Exchange, Ledger, RoundEnd
from fedspan.core.run import Info

_TINY = 1e-12  # a slack below this is rounding error
_WATCH = {"objective": "objective"}
_ACCOUNTING = 20.0  # how many times longer than the accounting of privacy took, until it is done again
_CELL = 18  # columns of a terminal for one figure
_WINDOW = 10  # rounds that the estimate of the time left looks back on


def size(count: float) -> str:
    """Bytes for people."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def count(number: int, noun: str) -> str:
    """A number of things."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def duration(seconds: float) -> str:
    """Seconds for people."""
    if seconds < 60:
        return f"{1000 * seconds:.0f} ms" if seconds < 1 else f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def accuracy(metrics: Mapping[str, float]) -> tuple[str, float]:
    """What the server knows of its accuracy: the KKT violation, or if it cannot see that, the estimate's change."""
    kkt, change = metrics.get("kkt", math.nan), metrics.get("change", math.nan)
    return ("change", change) if math.isnan(kkt) and not math.isnan(change) else ("KKT", kkt)


def rounds_left(errors: Sequence[float], tol: float, done: int, most: int) -> int:
    """How many more rounds, if the log of the error goes on falling along the line through the last ones."""
    left = most - done
    y = [math.log(value) for value in errors[-_WINDOW:] if 0 < value < math.inf]
    if tol <= 0 or len(y) < 2:
        return left
    middle, mean = (len(y) - 1) / 2, sum(y) / len(y)
    slope = sum((i - middle) * (v - mean) for i, v in enumerate(y)) / sum((i - middle) ** 2 for i in range(len(y)))
    if slope >= 0:
        return left
    return max(0, min(left, math.ceil((math.log(tol) - y[-1]) / slope - 1e-6)))


class Progress:
    """The callback of a run, as a context. It reads the ledger only from where it last stopped."""

    def __init__(
        self,
        console: Console,
        ledger: Ledger,
        max_rounds: int,
        tol: float,
        watch: Mapping[str, str] = _WATCH,
        budget: tuple[float, float] | None = None,
        notice: Callable[[], str] = str,
    ) -> None:
        """`watch`: the metrics to show, by their labels, where they are known; `budget`: ε and δ; `notice`: a line to
        show below the figures."""
        self.console, self.ledger, self.max_rounds, self.tol, self.watch = console, ledger, max_rounds, tol, watch
        self.budget, self.notice = budget, notice
        self._spent, self._spent_at, self._spent_took = 0.0, 0.0, 0.0
        self.round, self.metrics = 0, dict[str, float]()
        self._seen, self._up, self._down, self._seconds = 0, 0, 0, 0.0
        self._errors: list[float] = []
        self._pace: list[float] = []
        self._asked: set[str] = set()  # in the round that goes on; `_last` is the round before
        self._answered: set[str] = set()
        self._last, self._out = "0/0", list[str]()
        self._started = time.monotonic()
        self._live = Live(get_renderable=self._render, console=console, refresh_per_second=4, transient=True)

    def __enter__(self) -> Progress:
        self._started = time.monotonic()
        self._read()
        if self.console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.console.is_terminal:
            self._live.stop()

    def __call__(self, info: Info) -> None:
        self._read()
        if not self.console.is_terminal:
            rows = (f"{label} {text}" for label, text in self._figures().items())
            say(self.console, "  ".join(rows))

    def _read(self) -> None:
        """Fold what is new in the ledger."""
        for event in self.ledger.events[self._seen :]:
            if isinstance(event, Exchange):
                self._up, self._down = self._up + sum(event.bytes_up), self._down + sum(event.bytes_down)
                self._asked.update(event.clients)
                self._answered.update(set(event.clients) - set(event.missing))
            elif isinstance(event, RoundEnd):
                self._seconds += event.seconds
                self._last = f"{len(self._answered)}/{len(self._asked)}"
                self._out = sorted(self._asked - self._answered)
                self._asked, self._answered = set(), set()
                if event.round > 0:  # round 0, the opening, has no estimate yet
                    self.round, self.metrics = event.round, event.metrics
                    self._errors.append(accuracy(event.metrics)[1])
                    self._pace = [*self._pace[1 - _WINDOW :], event.seconds]
        self._seen = len(self.ledger.events)

    def _epsilon(self, delta: float) -> float:
        """What was spent so far; accounting may take long, so it gets a twentieth of the time at most."""
        now = time.monotonic()
        if now - self._spent_at >= _ACCOUNTING * self._spent_took or self.round == self.max_rounds:
            self._spent, self._spent_at = self.ledger.epsilon(delta), now
            self._spent_took = time.monotonic() - now
        return self._spent

    def _figures(self) -> dict[str, str]:
        label, error = accuracy(self.metrics)
        left = rounds_left(self._errors, self.tol, self.round, self.max_rounds)
        known = {name: self.metrics.get(metric, math.nan) for name, metric in self.watch.items()}
        return {
            "round": f"{self.round}/{self.max_rounds}",
            **{
                name: f"{value if abs(value) > _TINY else 0.0:.6g}"
                for name, value in known.items()
                if not math.isnan(value)
            },
            **({label: f"{error:.2e}"} if not math.isnan(error) else {}),
            "up": size(self._up),
            "down": size(self._down),
            **({"ε": f"{self._epsilon(self.budget[1]):.3g}/{self.budget[0]:g}"} if self.budget else {}),
            "time": duration(self._seconds),
            "left": "about " + duration(left * sum(self._pace) / max(1, len(self._pace))),
            "answered": self._last,
            **({"out": ", ".join(self._out[:2]) + (", …" if len(self._out) > 2 else "")} if self._out else {}),
        }

    def _fraction(self) -> float:
        """How far along: by the logarithm of the error where it decides, else by rounds."""
        by_rounds = self.round / self.max_rounds
        first, last = self._errors[0], self._errors[-1]
        if not (self.tol > 0 and first > self.tol and last > 0):
            return by_rounds
        return max(by_rounds, min(1.0, math.log(first / last) / math.log(first / self.tol)))

    def _render(self) -> RenderableType:
        if not self._errors:
            waited = duration(time.monotonic() - self._started)
            return Text("\n".join(filter(None, [f"opening the clients … {waited}", self.notice()])))
        figures = list(self._figures().items())
        across = max(1, min(len(figures), (self.console.width - 1) // _CELL))
        table = Table.grid()
        for _ in range(across):
            table.add_column(width=_CELL, no_wrap=True)
        for first in range(0, len(figures), across):
            cells = figures[first : first + across]
            table.add_row(*(Text(label, "dim") for label, _ in cells))
            table.add_row(*(Text(text) for _, text in cells))
        outer = Table.grid()
        outer.add_row(ProgressBar(total=1.0, completed=self._fraction(), width=min(60, self.console.width - 1)))
        outer.add_row(table)
        outer.add_row(Text(self.notice()))
        return outer


def say(console: Console, text: str) -> None:
    """One line as it is: no markup, no wrapping, so that a path can be copied and a log can be searched."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)
