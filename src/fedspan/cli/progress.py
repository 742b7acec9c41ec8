"""What is shown during a run: a live display on a terminal, plain lines elsewhere."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from types import TracebackType

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fedspan._foreign import printable
from fedspan.core.ledger import Exchange, RoundEnd
from fedspan.core.run import Info
from fedspan.jobs.finished import Run
from fedspan.jobs.tasks import task_of
from fedspan.jobs.watching import Outlook
from fedspan.reports.format import accuracy_of, format_bytes, format_count, format_duration
from fedspan.reports.report import describe_outcome

_NEGLIGIBLE = 1e-12  # a slack below this is rounding error
_ACCOUNTING = 20.0  # how many times longer than the accounting of privacy took, until it is done again
_CELL = 18  # columns of a terminal for one figure
_LINE_EVERY = 1.0  # seconds between two lines where they are not live: nobody reads a thousand in a log
_RECENT = 10  # rounds that the estimate of the time left looks back on


def say(console: Console, text: str) -> None:
    """Print one line as it is: no markup, no wrapping, so that a path can be copied and a log can be searched.

    What others wrote may be in it, so characters that would act on the terminal are shown as escapes.
    """
    console.print(printable(text), markup=False, highlight=False, soft_wrap=True)


def announce_json(run: Run) -> None:
    """Print how a run ended as one line of JSON."""
    ledger = run.ledger
    told = {
        "folder": str(run.folder.path),
        "model": str(run.folder.model),
        "report": str(run.folder.report),
        "rounds": run.model.n_rounds_,
        "ended": describe_outcome(task_of(run.model), run.model, ledger),
        "bytes_up": ledger.bytes_up,
        "bytes_down": ledger.bytes_down,
        "seconds": ledger.seconds,
    }
    print(json.dumps(told, ensure_ascii=False))


def announce(run: Run, console: Console) -> None:
    """Say how a run ended, and where things are."""
    folder, ledger = run.folder, run.ledger
    rounds, ended = format_count(run.model.n_rounds_, "round"), describe_outcome(task_of(run.model), run.model, ledger)
    sent = f"{format_bytes(ledger.bytes_up)} up, {format_bytes(ledger.bytes_down)} down"
    say(console, f"done: {rounds}, {ended}, {sent}, {format_duration(ledger.seconds)}")
    say(console, f"model:  {folder.model}")
    say(console, f"report: {folder.report}")
    if folder.transcript.exists():
        attack = folder.command("audit")
        say(console, f"transcript: {folder.transcript}, all that the clients released; to attack it: {attack}")


class TerminalProgress:
    """The `Progress` of the command line."""

    def __init__(self, console: Console) -> None:
        self.console = console

    @property
    def shows_notice(self) -> bool:
        """Only a live display has a place for it."""
        return self.console.is_terminal

    def say(self, text: str) -> None:
        """Print the line."""
        say(self.console, text)

    def warn(self, text: str) -> None:
        """Print the warning where errors go."""
        say(Console(stderr=True), f"warning: {text}")

    def follow(self, outlook: Outlook) -> RoundDisplay:
        """Show the rounds."""
        return RoundDisplay(self.console, outlook)


def estimate_rounds_left(errors: Sequence[float], tol: float, done: int, most: int) -> int:
    """Estimate how many rounds are left, if the log of the error keeps falling as in the last rounds."""
    left = most - done
    y = [math.log(value) for value in errors[-_RECENT:] if 0 < value < math.inf]
    if tol <= 0 or len(y) < 2:
        return left
    middle, mean = (len(y) - 1) / 2, sum(y) / len(y)
    slope = sum((i - middle) * (v - mean) for i, v in enumerate(y)) / sum((i - middle) ** 2 for i in range(len(y)))
    if slope >= 0:
        return left
    return max(0, min(left, math.ceil((math.log(tol) - y[-1]) / slope - 1e-6)))


class RoundDisplay:
    """The callback of a run, as a context. It reads the ledger only from where it last stopped."""

    def __init__(self, console: Console, outlook: Outlook) -> None:
        self.console, self.outlook = console, outlook
        self._spent, self._spent_at, self._spent_took = 0.0, 0.0, 0.0
        self.round, self.metrics = 0, dict[str, float]()
        self._seen, self._up, self._down, self._seconds = 0, 0, 0, 0.0
        self._errors: list[float] = []
        self._pace: list[float] = []
        self._asked: set[str] = set()  # in the round that goes on; `_last` is the round before
        self._answered: set[str] = set()
        self._last, self._out = "0/0", list[str]()
        self._started = time.monotonic()
        self._said, self._said_at = 0, -math.inf  # the round of the last line, and when it was printed
        self._live = Live(get_renderable=self._render, console=console, refresh_per_second=4, transient=True)

    def __enter__(self) -> RoundDisplay:
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
        elif self.round > self._said:
            self._print_line()

    def __call__(self, info: Info) -> None:
        self._read()
        if not self.console.is_terminal and time.monotonic() - self._said_at >= _LINE_EVERY:
            self._print_line()

    def _print_line(self) -> None:
        """Say where the run is, on a line of its own."""
        rows = (f"{label} {text}" for label, text in self._figures().items())
        say(self.console, "  ".join(rows))
        self._said, self._said_at = self.round, time.monotonic()

    def _read(self) -> None:
        """Take in what is new in the ledger."""
        for event in self.outlook.ledger.events[self._seen :]:
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
                    self._errors.append(accuracy_of(event.metrics)[1])
                    self._pace = [*self._pace[1 - _RECENT :], event.seconds]
        self._seen = len(self.outlook.ledger.events)

    def _epsilon(self, delta: float) -> float:
        """The ε spent so far; accounting may take long, so it gets at most a twentieth of the time."""
        now = time.monotonic()
        if now - self._spent_at >= _ACCOUNTING * self._spent_took or self.round == self.outlook.max_rounds:
            self._spent, self._spent_at = self.outlook.ledger.epsilon(delta), now
            self._spent_took = time.monotonic() - now
        return self._spent

    def _figures(self) -> dict[str, str]:
        """Format every figure that is known."""
        figures = {"round": f"{self.round}/{self.outlook.max_rounds}"}
        for name, metric in self.outlook.metrics.items():
            value = self.metrics.get(metric, math.nan)
            if not math.isnan(value):
                figures[name] = f"{value if abs(value) > _NEGLIGIBLE else 0.0:.6g}"
        label, error = accuracy_of(self.metrics)
        if not math.isnan(error):
            figures[label] = f"{error:.2e}"
        figures["up"], figures["down"] = format_bytes(self._up), format_bytes(self._down)
        if self.outlook.budget:
            epsilon, delta = self.outlook.budget
            figures["ε"] = f"{self._epsilon(delta):.3g}/{epsilon:g}"
        left = estimate_rounds_left(self._errors, self.outlook.tol, self.round, self.outlook.max_rounds)
        figures["time"] = format_duration(self._seconds)
        figures["left"] = "about " + format_duration(left * sum(self._pace) / max(1, len(self._pace)))
        figures["answered"] = self._last
        if self._out:
            figures["out"] = printable(", ".join(self._out[:2])) + (", …" if len(self._out) > 2 else "")
        return figures

    def _fraction(self) -> float:
        """How far the run is: by the logarithm of the error if that decides when it stops, else by rounds."""
        by_rounds = self.round / self.outlook.max_rounds
        first, last = self._errors[0], self._errors[-1]
        if not (self.outlook.tol > 0 and first > self.outlook.tol and last > 0):
            return by_rounds
        return max(by_rounds, min(1.0, math.log(first / last) / math.log(first / self.outlook.tol)))

    def _render(self) -> RenderableType:
        if not self._errors:
            waited = format_duration(time.monotonic() - self._started)
            return Text("\n".join(filter(None, [f"opening the clients … {waited}", self.outlook.notice()])))
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
        outer.add_row(Text(self.outlook.notice()))
        return outer
