"""What an audit found: the result that Python gets, and its tables for the terminal and the page."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fedspan.audit.attacks import success_rate
from fedspan.audit.evidence import Evidence
from fedspan.audit.row_test import RowTest
from fedspan.reports.format import format_bytes, format_count

_CERTAIN = 12.0  # a mu above this leaves no doubt
_FEW = 5  # clients that are named in a line


@dataclass
class Released:
    """What one task sent to the server, all clients together."""

    task: str
    answers: Counter[str] = field(default_factory=Counter)  # by client
    bytes_up: int = 0
    shapes: dict[str, set[str]] = field(default_factory=dict)  # of each array, as far as messages were kept
    bounds: dict[str, str] = field(default_factory=dict)  # the declared sensitivity of each array


@dataclass
class AuditResult:
    """What left the clients of a run, and what could be recovered from it.

    Attributes:
        solver: The solver that ran.
        privacy: What protected the rows, in words.
        clients, rounds, bytes_up: How large the run was.
        released: What each task sent, by task.
        evidence: What was recovered about each client that was attacked: `client`, `least` (the relative error of the
            best attack; nan if it could not be measured), `guess` (that of a blind guess) and `verdict()` in words.
        row_test: Whether the presence of one row shows; None if that could not be tested.
        notes: What else there is to know: what was not attacked, and why.
        page: The page that was written, `audit.html` in the run folder.
    """

    solver: str
    privacy: str
    clients: int
    rounds: int
    bytes_up: int
    released: dict[str, Released]
    evidence: list[Evidence] = field(default_factory=list)
    row_test: RowTest | None = None
    notes: list[str] = field(default_factory=list)
    page: Path | None = None

    def summarize(self) -> Iterator[str]:
        """The lines that `fedspan audit` prints."""
        size = f"{format_count(self.clients, 'client')}, {format_count(self.rounds, 'round')}"
        yield f"{self.solver}, {size}, {format_bytes(self.bytes_up)} up"
        yield f"privacy: {self.privacy}"
        yield ""
        yield "What left the clients (sensitivity: how much one row of norm at most C can change it):"
        yield from _align_columns([RELEASED_HEAD, *list_released(self)])
        if self.evidence:
            yield ""
            yield "What the server could work out about each of them:"
            yield from _align_columns([EVIDENCE_HEAD, *list_evidence(self)])
        if any(e.faps for e in self.evidence):
            yield ""
            yield "What the mask of FAPS does not hide, after the last round:"
            yield from _align_columns([FAPS_HEAD, *list_faps(self)])
        if self.row_test and self.row_test.arrays:
            yield ""
            yield (
                f"Was row {self.row_test.row} in the data of client {self.row_test.client!r}? For an attacker who "
                "knows all its other rows:"
            )
            yield from _align_columns([ROW_HEAD, *list_row_tests(self)])
        yield from ["", *(f"note: {note}" for note in self.notes)] if self.notes else []

    def list_findings(self) -> Iterator[str]:
        """The result in a few lines, for the report."""
        by_verdict: dict[str, list[str]] = {}
        for e in self.evidence:
            by_verdict.setdefault(e.verdict(), []).append(e.client)
        for verdict, clients in by_verdict.items():
            more = f" and {len(clients) - _FEW} more" if len(clients) > _FEW else ""
            yield f"{', '.join(clients[:_FEW])}{more}: {verdict}"
        if self.row_test and self.row_test.arrays:
            test = self.row_test
            sure = dict.fromkeys(t.task for t in test.arrays if t.result.mu > _CERTAIN)
            found = f"shows with certainty in {', '.join(sure)}" if sure else "does not show with certainty"
            yield f"Row {test.row} of {test.client}, for an attacker who knows all other rows: its presence {found}"
        yield from self.notes


RELEASED_HEAD = ["task", "answers each", "bytes, all", "sensitivity", "arrays"]
EVIDENCE_HEAD = ["client", "determined", "misfit", "error", "verdict"]
FAPS_HEAD = ["client", "error of P⊥MZ", "β as read", "largest eigenvalue of M", "error of M", "from all rounds"]
ROW_HEAD = ["task", "array", "score", "attacker"]


def list_released(result: AuditResult) -> list[list[str]]:
    """One row per task."""
    rows = []
    for r in result.released.values():
        times = sorted(set(r.answers.values())) or [0]
        each = str(times[0]) if len(times) == 1 else f"{times[0]} to {times[-1]}"
        arrays = ", ".join(f"{name} ({_join_few(s)})" if s else name for name, s in r.shapes.items()) or "none"
        bounds = ", ".join(r.bounds.get(name, "not declared") for name in r.shapes) or "none"
        rows.append([r.task, each, format_bytes(r.bytes_up), bounds, arrays])
    return rows


def _join_few(shapes: set[str]) -> str:
    return "; ".join(sorted(shapes)[:3]) + ("; …" if len(shapes) > 3 else "")


def list_evidence(result: AuditResult) -> list[list[str]]:
    """One row per client that was attacked."""
    rows = []
    for e in result.evidence:
        cells = ["", "", ""]
        if e.course:
            last = e.course[-1]
            share = "masked" if math.isnan(last.share) else f"{last.share:.0%}"
            cells = [share, format_error(last.misfit), format_error(last.error)]
        rows.append([e.client, *cells, e.verdict()])
    return rows


def list_faps(result: AuditResult) -> list[list[str]]:
    """One row per client of FAPS that was attacked."""
    rows = []
    for e in result.evidence:
        if e.faps:
            last = e.faps[-1]
            largest = math.nan if e.truth is None else float(np.linalg.eigvalsh(e.truth)[-1])
            numbers = [format_error(last.off_diagonal), f"{last.beta:.4g}", f"{largest:.4g}"]
            rows.append([e.client, *numbers, format_error(last.error), format_error(e.fitted)])
    return rows


def list_row_tests(result: AuditResult) -> list[list[str]]:
    """One row per array that depends on the row."""
    tests = result.row_test.arrays if result.row_test else ()
    return [[t.task, t.array, f"{t.result.score:+.3f}", format_certainty(t.result.mu)] for t in tests]


def format_certainty(mu: float) -> str:
    """How often the best attacker is right, if both answers are equally likely."""
    rate = format_success_rate(mu)
    return rate if mu > _CERTAIN else f"{rate} of cases (mu {mu:.2g})"


def format_success_rate(mu: float) -> str:
    """The same in a few words."""
    return "certain" if mu > _CERTAIN else f"right in {success_rate(mu):.1%}"


def format_error(value: float) -> str:
    """A relative error; nan is what could not be measured."""
    if math.isnan(value):
        return "not known"
    if value == 0:
        return "0"
    return f"{value:.1e}" if value < 0.01 else f"{value:.2f}"


def _align_columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Rows of text under each other; the last column is as wide as it likes."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        yield "  " + "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
