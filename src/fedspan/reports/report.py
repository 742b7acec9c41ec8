"""The report of a run: one HTML file that needs nothing else, made from the job, the ledger and the model."""

from __future__ import annotations

import math
import re
import shlex
import tomllib
from collections.abc import Mapping
from html import escape
from pathlib import Path
from statistics import median
from typing import Any

from fedspan import __version__
from fedspan._types import Array
from fedspan.cli.progress import accuracy, count, duration, size
from fedspan.core.ledger import Ledger
from fedspan.jobs.scores import protected, why_not
from fedspan.jobs.tasks import task_of
from fedspan.reports.charts import curve_chart, line_chart
from fedspan.reports.model_sections import course
from fedspan.reports.page import figure, figures, notes, page
from fedspan.reports.points import scatter
from fedspan.reports.releases import called
from fedspan.reports.releases import privacy as privacy
from fedspan.reports.sections import Drawn, Section, section_of
from fedspan.reports.traffic import audit, clients, exchanges

_PASSWORD, _HIDDEN = re.compile(r"(://[^:/@\s\"]*):[^@\s\"]+@"), r"\1:…@"  # of a database
_DECADES = 20.0  # a cost whose largest is more than so many times its median is drawn on a log scale
_ROUNDING = 1e-16  # an error below this is rounding error, and is drawn here


def render(
    job: str,
    ledger: Ledger,
    model: Any,
    scores: Mapping[str, Array] | None = None,
    folder: Path | None = None,
    with_rows: bool = True,
) -> str:
    """The whole page. `job` is the text of job.toml; `scores` are rows to draw; `folder` is where an audit may be."""
    section = section_of(task_of(model))
    solver = called(ledger, str(getattr(model, "solver", "")))
    summary = section.summary(model, f"{solver} in {count(model.n_rounds_, 'round')}")
    parts = [
        f"<h1>{escape(section.title)}</h1><p>{escape(summary)}</p>",
        figures(_key_figures(section, ledger, model, job)),
        f"<p><strong>Privacy:</strong> {escape(privacy(ledger, job))}</p>",
        "<h2>Convergence</h2>", _convergence(section, ledger, model),
        section.own(model, ledger, _rows(job, model, scores, folder, with_rows)),
        "<h2>What each exchange showed to the server</h2>", exchanges(ledger), audit(folder),
        "<h2>Clients</h2>", clients(ledger),
        "<h2>Notes</h2>", notes(ledger.notes),
        f"<h2>The job</h2><p>Seed {model.seed_}. To repeat the run: save this as job.toml, then "
        f"<code>fedspan run job.toml</code>, with the versions in the notes.{_unrepeatable(job)}</p>"
        f"<pre>{escape(_PASSWORD.sub(_HIDDEN, job))}</pre>",
        f'<p class="soft">Written by fedspan {escape(__version__)} from job.toml, ledger.jsonl and '
        "model.safetensors in this folder. Bytes are those of the encoded messages; what was sent twice counts twice."
        "</p>",
    ]  # fmt: skip
    return page("fedspan report", parts)


def _unrepeatable(job: str) -> str:
    noise = tomllib.loads(job).get("privacy")
    return (
        " Its noise cannot be repeated: the clients' machines drew it." if noise and not noise.get("simulate") else ""
    )


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


def _rows(job: str, model: Any, scores: Mapping[str, Array] | None, folder: Path | None, with_rows: bool) -> Drawn:
    """Some rows in the first two components, or why not."""
    if not with_rows:
        return Drawn(False, note="Rows were left out of this page (--without-rows).")
    if not scores:
        return Drawn(not protected(job), note=escape(why_not(job, model)) if hasattr(model, "basis_") else "")
    shown, ratio = sum(map(len, scores.values())), model.explained_variance_ratio_
    many = f"{shown:,} of {model.n_samples_:,} rows" if shown < model.n_samples_ else f"all {shown:,} rows"
    caption = f"First two components: {many}, coloured by client"
    chart = scatter(scores, caption, (f"component 1 ({ratio[0]:.1%})", f"component 2 ({ratio[1]:.1%})"))
    command = f"fedspan report {shlex.quote(str(folder)) if folder else 'DIR'} --without-rows"
    note = f"Each point is one row of a client. To pass this page on without them: <code>{escape(command)}</code>"
    return Drawn(figure=figure(caption, chart), note=note)


def _key_figures(section: Section, ledger: Ledger, model: Any, job: str) -> dict[str, str]:
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
    given = tomllib.loads(job).get("privacy", {})
    epsilon = ledger.epsilon(given["delta"]) if given else math.inf
    if not math.isinf(epsilon):
        figures["ε spent"] = f"{epsilon:.3g} of {given['epsilon']:g}"
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
