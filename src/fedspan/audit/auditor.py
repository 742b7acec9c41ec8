"""`fedspan audit`: what left each client of a run, and what the server could work out from it, measured by attacks."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from rich.console import Console
from scipy.special import ndtr

from fedspan._files import write_whole
from fedspan._types import Array
from fedspan.algorithms import NoisyGram, NoisyPower
from fedspan.audit.attacks import error
from fedspan.audit.evidence import Evidence, Told, milestones, one_row
from fedspan.audit.protected import protected
from fedspan.channel.stage import Channel
from fedspan.cli.progress import count, say, size
from fedspan.core.ledger import Exchange, Ledger
from fedspan.core.protocol import Declared, Sensitivity, Server, tasks_of
from fedspan.data.common_schema import Schema
from fedspan.data.table import open_table
from fedspan.engines.transcript import Talk, Transcript
from fedspan.errors import InputError
from fedspan.estimators._options.spectral_solvers import SOLVERS, Request, channel_for, choose
from fedspan.jobs.folder import RunFolder
from fedspan.jobs.model import Job, estimator
from fedspan.reports.report import privacy


@dataclass
class Released:
    """What one task sent up, of all clients together."""

    task: str
    answers: Counter[str] = field(default_factory=Counter)  # by client
    bytes_up: int = 0
    arrays: dict[str, set[str]] = field(default_factory=dict)  # the shapes of each, as far as messages were kept
    bounds: dict[str, str] = field(default_factory=dict)  # the declared sensitivity of each


@dataclass
class Audit:
    """All that was found."""

    solver: str
    privacy: str  # in one sentence
    clients: int
    rounds: int
    bytes_up: int
    released: dict[str, Released]
    evidence: list[Evidence] = field(default_factory=list)
    row: int = -1  # that of the membership test, at the client of that name
    at: str = ""
    told: list[Told] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def examine(folder: RunFolder, job: Job, console: Console, most: int) -> None:
    """Audit a run folder: a summary here, and audit.html there."""
    from fedspan.audit.audit_page import render

    with folder.locked():
        audit = gather(folder, job, most)
        write_whole(folder.audit, render(audit))
        write_whole(folder.audited, "".join(f"{line}\n" for line in findings(audit)))
    for line in summary(audit):
        say(console, line)
    say(console, f"audit: {folder.audit}")


def gather(folder: RunFolder, job: Job, most: int) -> Audit:
    """Read the ledger and the transcript, and attack the first `most` clients."""
    ledger = Ledger.read(folder.ledger) if folder.ledger.exists() else Ledger()
    if not ledger.exchanges:
        raise InputError(f"need a run in which something was sent, {folder.path} has none yet; do: fedspan resume")
    server, channel = _solver(job, ledger)
    audit = _from_ledger(ledger, server, job)
    transcript = Transcript(folder.transcript)
    if not transcript.answers():
        audit.notes.append(
            "the messages were not kept, so no attack was tried; to keep them, run the job again with --transcript"
        )
        return audit
    if job.secure.get("enabled") or job.privacy:
        audit.notes += protected(job, ledger, list(transcript.talks(channel)))
        return audit
    if server is None:
        audit.notes.append(f"the solver {audit.solver!r} has no attacks here: what it sent is listed, and not attacked")
    audit.evidence = [_open(name, job, audit) for name in sorted(job.clients)[:most]] if server else []
    if server and len(job.clients) > most:
        audit.notes.append(f"of {len(job.clients)} clients the first {most} were attacked; for more, give --clients")
    kept = _attack(audit, transcript.talks(channel))
    known = [e for e in audit.evidence if e.rows is not None and e.rows.shape[0] > 1]
    if server and known:
        chosen, seed = known[0], job.parameters["random_state"]
        options = server.client_options()
        audit.at = chosen.client
        audit.row, audit.told = one_row(server.client, options, chosen.rows, kept[chosen.client], seed)
    audit.notes += [note for e in audit.evidence for note in e.notes]
    audit.notes += _model_alone(folder, job, audit.evidence)
    return audit


def _solver(job: Job, ledger: Ledger) -> tuple[Server[Any] | None, Channel]:
    """The solver that ran, and its channel, as far as this version knows them."""
    p = job.parameters
    name = solver_of(job, ledger)
    if job.privacy:
        return ({"noisygram": NoisyGram, "noisypower": NoisyPower}[name])(), Channel()
    if name not in SOLVERS:
        return None, Channel()
    request = Request(
        p["n_components"], name, p.get("center", False), p.get("scale", False), p["tol"], p["max_rounds"],
        p.get("local_steps"), p.get("bits"), None, None, False,
    )  # fmt: skip
    server, _ = choose(request, Schema(0, None, 0), len(job.clients))
    return server, channel_for(server, p.get("bits"))


def solver_of(job: Job, ledger: Ledger) -> str:
    """The solver's name: "auto" is resolved by the note that the estimator left."""
    chosen = [found[1] for note in ledger.notes if (found := re.match(r"solver (\w+)\b", note))]
    return chosen[-1] if chosen else str(job.parameters.get("solver", job.task))


def _from_ledger(ledger: Ledger, server: Server[Any] | None, job: Job) -> Audit:
    released: dict[str, Released] = {}
    clients: set[str] = set()
    for e in ledger.events:
        if isinstance(e, Exchange):
            here = released.setdefault(e.task, Released(e.task))
            here.bytes_up += sum(e.bytes_up)
            here.answers.update(c for c, up in zip(e.clients, e.bytes_up, strict=True) if up)
            clients.update(e.clients)
    for name, task in (tasks_of(server.client) if server else {}).items():
        if name in released:
            released[name].arrays = {array: set() for array in task.releases}
            released[name].bounds = {array: _bound(declared) for array, declared in task.releases.items()}
    solver = type(server).__name__.lower() if server else solver_of(job, ledger)
    return Audit(solver, privacy(ledger, job.to_toml()), len(clients), ledger.rounds, ledger.bytes_up, released)


def _bound(declared: Declared) -> str:
    if not isinstance(declared, Sensitivity):
        return "none known" if declared is None else "public"
    return {0: "1", 1: "C"}.get(declared.power, f"C^{declared.power}")


def _open(name: str, job: Job, audit: Audit) -> Evidence:
    """One client's file, with its rows if they can be read here."""
    try:
        X = open_table(job.sources()[name]()).X
    except InputError as problem:
        audit.notes.append(f"client {name!r}: its rows cannot be read here ({problem}), so errors are not known")
        return Evidence(name)
    return Evidence(name, X)


def _attack(audit: Audit, talks: Iterator[Talk]) -> dict[str, list[Talk]]:
    """Hear all answers; sum up after some of the rounds. The talks of the first client whose rows are here are kept."""
    by_name = {e.client: e for e in audit.evidence}
    tested = next((e.client for e in audit.evidence if e.rows is not None), None)
    kept: dict[str, list[Talk]] = {tested: []} if tested else {}
    when, at, up = milestones(audit.rounds), 0, 0
    for talk in talks:
        if talk.round != at and at in when:
            _sum_up(audit, at)
        at, up = talk.round, up + talk.bytes_up
        here = audit.released.setdefault(talk.task, Released(talk.task))
        for name, array in talk.answer.items():
            here.arrays.setdefault(name, set()).add(" × ".join(map(str, array.shape)) or "one number")
        if talk.client in by_name:
            by_name[talk.client].hear(talk)
        if talk.client in kept:
            kept[talk.client].append(talk)
    _sum_up(audit, at)
    for e in audit.evidence:
        e.fit()
    if up != audit.bytes_up:
        audit.notes.append(
            f"the ledger says that {size(audit.bytes_up)} were sent up, the transcript holds {size(up)}: "
            "the run was cut off in between, or messages are missing"
        )
    return kept


def _sum_up(audit: Audit, round: int) -> None:
    for e in audit.evidence:
        e.sum_up(round)


def _model_alone(folder: RunFolder, job: Job, evidence: Sequence[Evidence]) -> list[str]:
    """What anyone who has the model knows of all clients together (FedPower, Example 2)."""
    truths: list[Array] = [e.truth for e in evidence if e.truth is not None]
    if not folder.model.exists() or len(truths) < len(job.clients):
        return []
    model = estimator(job.task).load(folder.model)
    pooled = np.sum(truths, axis=0)
    V = model.components_.T
    found = error((V * model.singular_values_**2) @ V.T, pooled)
    return [f"the model alone, which anyone has who is given it, tells the pooled second moments to {found:.2g}"]


def summary(audit: Audit) -> Iterator[str]:
    """What the terminal shows."""
    yield f"{audit.solver}, {count(audit.clients, 'client')}, {count(audit.rounds, 'round')}, {size(audit.bytes_up)} up"
    yield f"privacy: {audit.privacy}"
    yield ""
    yield "what left the clients (sensitivity: how much one row of norm at most C can change it):"
    yield from columns([["task", "answers each", "arrays", "sensitivity", "bytes, all"], *released_rows(audit)])
    if audit.evidence:
        yield ""
        yield "what the server could work out about each of them:"
        yield from columns([["client", "determined", "fit", "error", "verdict"], *evidence_rows(audit)])
    if any(e.faps for e in audit.evidence):
        yield ""
        yield "what the mask of FAPS does not hide, after the last round:"
        head = ["client", "error of P⊥MZ", "beta", "largest eigenvalue", "error of M", "from all rounds"]
        yield from columns([head, *faps_rows(audit)])
    if audit.told:
        yield ""
        yield f"was row {audit.row} there (of client {audit.at!r})? for an attacker who knows all its other rows:"
        yield from columns([["task", "array", "score", "answer"], *told_rows(audit)])
    yield from ["", *(f"note: {note}" for note in audit.notes)] if audit.notes else []


def findings(audit: Audit) -> Iterator[str]:
    """What it comes to, in a few lines for the report."""
    by_verdict: dict[str, list[str]] = {}
    for e, row in zip(audit.evidence, evidence_rows(audit), strict=True):
        by_verdict.setdefault(row[-1], []).append(e.client)
    for verdict, clients in by_verdict.items():
        few = ", ".join(clients[:5]) + (f" and {len(clients) - 5} more" if len(clients) > 5 else "")
        yield f"{few}: {verdict}"
    sure = list(dict.fromkeys(row[0] for row in told_rows(audit) if row[-1] == "certain"))
    if audit.told:
        found = f"is seen with certainty from {', '.join(sure)}" if sure else "is not seen with certainty"
        yield f"row {audit.row} of {audit.at}, for an attacker who knows all other rows: {found}"
    yield from audit.notes


def released_rows(audit: Audit) -> list[list[str]]:
    """One row per task."""
    rows = []
    for r in audit.released.values():
        times = sorted(set(r.answers.values())) or [0]
        arrays = ", ".join(f"{a} {f'({_few(s)})' if s else ''}".strip() for a, s in r.arrays.items()) or "not known"
        bounds = ", ".join(r.bounds.get(a, "not declared") for a in r.arrays) or "not known"
        each = str(times[0]) if len(times) == 1 else f"{times[0]} to {times[-1]}"
        rows.append([r.task, each, arrays, bounds, size(r.bytes_up)])
    return rows


def _few(shapes: set[str]) -> str:
    return "; ".join(sorted(shapes)[:3]) + ("; …" if len(shapes) > 3 else "")


def evidence_rows(audit: Audit) -> list[list[str]]:
    """One row per client that was attacked."""
    rows = []
    for e in audit.evidence:
        if e.course:
            last = e.course[-1]
            share = "masked" if math.isnan(last.share) else f"{last.share:.0%}"
            rows.append([e.client, share, f"{last.misfit:.1e}", number(last.error), e.verdict()])
        else:
            rows.append([e.client, "", "", "", e.verdict()])
    return rows


def faps_rows(audit: Audit) -> list[list[str]]:
    """One row per client of FAPS that was attacked."""
    rows = []
    for e in audit.evidence:
        if e.faps:
            p = e.faps[-1]
            top = math.nan if e.truth is None else float(np.linalg.eigvalsh(e.truth)[-1])
            rows.append(
                [e.client, number(p.off_diagonal), f"{p.beta:.4g}", f"{top:.4g}", number(p.error), number(e.fitted)]
            )
    return rows


def told_rows(audit: Audit) -> list[list[str]]:
    """One row per array that depends on the row."""
    return [[t.task, t.array, f"{t.result.score:+.3f}", certainty(t.result.mu)] for t in audit.told]


def certainty(mu: float) -> str:
    """How often the best test is right, if either case is as likely."""
    return "certain" if mu > 12 else f"right in {ndtr(mu / 2):.1%} of cases (mu {mu:.2g})"


def number(value: float) -> str:
    """A relative error; nan is what could not be measured."""
    return "not known" if math.isnan(value) else f"{value:.1e}" if value < 0.01 else f"{value:.2f}"


def columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Rows of text under each other; the last column is as wide as it likes."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        yield "  " + "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
