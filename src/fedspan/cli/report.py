"""The report of a run: one HTML file that needs nothing else, made from the job, the ledger and the model."""

from __future__ import annotations

import math
from collections import Counter
from html import escape
from statistics import median
from typing import Any

from fedspan import __version__
from fedspan.cli.model_sections import course
from fedspan.cli.page import figure, figures, notes, page, table
from fedspan.cli.progress import accuracy, count, duration, size
from fedspan.cli.releases import called
from fedspan.cli.releases import privacy as privacy
from fedspan.cli.sections import Section, section_of
from fedspan.cli.svg import curve_chart, line_chart
from fedspan.cli.tasks import task_of
from fedspan.ledger import Exchange, Ledger

_CLIENTS = 500  # how many are shown
_DECADES = 20.0  # a cost whose largest is more than so many times its median is drawn on a log scale
_ROUNDING = 1e-16  # an error below this is rounding error, and is drawn here


def render(job: str, ledger: Ledger, model: Any) -> str:
    """The whole page. `job` is the text of job.toml."""
    section = section_of(task_of(model))
    solver = called(ledger, str(getattr(model, "solver", "")))
    summary = section.summary(model, f"{solver} in {count(model.n_rounds_, 'round')}")
    parts = [
        f"<h1>{escape(section.title)}</h1><p>{escape(summary)}</p>",
        figures(_key_figures(section, ledger, model)),
        f"<p><strong>Privacy:</strong> {escape(privacy(ledger, job))}</p>",
        "<h2>Convergence</h2>", _convergence(section, ledger, model),
        section.own(model, ledger),
        "<h2>Clients</h2>", _clients(ledger),
        "<h2>Notes</h2>", notes(ledger.notes),
        f"<h2>The job</h2><p>Seed {model.seed_}.</p><pre>{escape(job)}</pre>",
        f'<p class="soft">Written by fedspan {escape(__version__)} from job.toml, ledger.jsonl and '
        "model.safetensors in this folder. Bytes are those of the encoded messages; what was sent twice counts twice."
        "</p>",
    ]  # fmt: skip
    return page("fedspan report", parts)


def outcome(model: Any, ledger: Ledger) -> str:
    """How the run ended, in words."""
    last = (ledger.history() or [{}])[-1]
    if hasattr(model, "verified_"):  # a classifier has limits, and no tol
        if model.converged_:
            return "all limits hold" if model.verified_ else "all rounds run"
        if model.cost_limit is not None:
            return "a limit does not hold" if model.verified_ else "the limit was not verified"
        return "stopped: a loss was not finite"
    if model.converged_ and "best_accuracy" in last and not last["kkt"] <= model.tol:
        return "stopped by patience"
    if model.converged_:
        return "converged"
    return "stopped before tol was met" if model.tol > 0 else "all rounds run (tol = 0)"


def _key_figures(section: Section, ledger: Ledger, model: Any) -> dict[str, str]:
    last = (ledger.history() or [{}])[-1]
    figures = {
        "rounds": str(model.n_rounds_),
        "exchanges": str(ledger.exchanges),
        "bytes up": size(ledger.bytes_up),
        "bytes down": size(ledger.bytes_down),
        "time": duration(ledger.seconds),
        **section.sizes(model),
        "outcome": outcome(model, ledger),
    }
    label, error = accuracy(last)
    if not math.isnan(error):
        figures["KKT violation" if label == "KKT" else section.change] = (
            f"{error:.2e}" if error >= _ROUNDING else f"below {_ROUNDING:g}"
        )
    if "floor" in last:
        figures["floor of the change"] = f"{last['floor']:.2g}"
    return figures | section.figures(model, last)


def _convergence(section: Section, ledger: Ledger, model: Any) -> str:
    charts = []
    for metric, words in section.course:
        rounds, values, sent = course(ledger, metric)
        ys = values[metric]
        if len(rounds) > 1:
            if min(ys) >= 0 and max(ys) > _DECADES * median(ys) > 0:
                ys = [max(y, max(ys) / 1e6) for y in ys]  # a batch may be learned to a loss of nearly 0
                by_round = line_chart(rounds, ys, words, "round", 0.0, bytes_=False)
                by_bytes = line_chart(sent, ys, words, "bytes sent, up and down", 0.0, bytes_=True)
            else:
                by_round = curve_chart(rounds, {words: ys}, words, "round")
                by_bytes = curve_chart(sent, {words: ys}, words, "bytes sent, up and down", bytes_=True)
            charts += [figure(f"{words}, by round", by_round), figure(f"{words}, by bytes on the wire", by_bytes)]
    # Some solvers see the violation in few rounds only.
    label = "KKT" if 2 * len(course(ledger, "kkt")[0]) >= len(course(ledger)[0]) else "change"
    rounds, values, sent = course(ledger, label.lower())
    if len(rounds) > 1:
        errors, what = (
            [max(error, _ROUNDING) for error in values[label.lower()]],
            "KKT violation" if label == "KKT" else section.change,
        )
        by_round = line_chart(rounds, errors, f"{what} by round", "round", model.tol, bytes_=False)
        by_bytes = line_chart(sent, errors, f"{what} by bytes", "bytes sent, up and down", model.tol, bytes_=True)
        charts += [figure(f"{what}, by round", by_round), figure(f"{what}, by bytes on the wire", by_bytes)]
    if not charts:
        many = f"{count(model.n_rounds_, 'round')}, in which nothing showed the server its progress"
        return f"<p>{'One round' if model.n_rounds_ == 1 else many}: there is no course to draw.</p>"
    return f'<div class="charts">{"".join(charts)}</div>'


def _clients(ledger: Ledger) -> str:
    up, down, asked, answered = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    part: dict[str, set[int]] = {}  # the rounds in which a client answered
    seconds: dict[str, float] = {}
    for event in ledger.events:
        if isinstance(event, Exchange):
            lists = zip(event.clients, event.bytes_up, event.bytes_down, event.seconds, strict=True)
            for client, u, d, s in lists:
                up[client] += u
                down[client] += d
                seconds[client] = seconds.get(client, 0.0) + s
                asked[client] += 1
                answered[client] += client not in event.missing
                if client not in event.missing and event.round > 0:
                    part.setdefault(client, set()).add(event.round)
    rows = [
        [
            c,
            size(up[c]),
            size(down[c]),
            duration(seconds[c]),
            f"{len(part.get(c, ()))} of {ledger.rounds}",
            f"{answered[c]} of {asked[c]}",
        ]
        for c in sorted(seconds)[:_CLIENTS]
    ]
    more = f"<p>And {len(seconds) - _CLIENTS:,} more, in ledger.jsonl.</p>" if len(seconds) > _CLIENTS else ""
    head = ["client", "up", "down", "time", "rounds", "answered"]
    return table(head, rows, numbers={1, 2, 3, 4, 5}) + more
