"""The report of a run: one HTML file that needs nothing else, made from the model, the ledger and a few facts."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from fedspan._version import __version__
from fedspan.core.ledger import Ledger
from fedspan.reports._section import FittedModel, Section, ShownRows, collect_course, last_metrics
from fedspan.reports.disclosure import describe_privacy, describe_solver
from fedspan.reports.drawing.charts import draw_curve_chart, draw_line_chart
from fedspan.reports.facts import RunFacts, Scores
from fedspan.reports.format import accuracy_of, escape, format_bytes, format_count, format_duration, shorten_paths
from fedspan.reports.gcca_section import DEEP_GCCA, GCCA
from fedspan.reports.learning_section import CLASSIFIER, VERTICAL
from fedspan.reports.models.columns_section import COLUMNS_PCA, COLUMNS_SVD
from fedspan.reports.models.regression_section import REGRESSION, VIEW_REGRESSION
from fedspan.reports.page import (
    render_charts,
    render_details,
    render_figure,
    render_key_figures,
    render_notes,
    render_page,
)
from fedspan.reports.personalized_section import PERSONALIZED
from fedspan.reports.spectral_section import PCA, SVD
from fedspan.reports.traffic import collect_parts, render_audit_link, render_clients, render_exchanges
from fedspan.reports.verdict import classify_protection, list_warnings, render_protection, render_verdict

_PASSWORD = re.compile(r"(://[^:/@\s\"]*):[^@\s\"]+@")  # of a database
_DECADES = 20.0  # a cost whose largest is more than so many times its median is drawn on a log scale
_LEAST_ERROR = 1e-16  # an error below this is rounding error, and is drawn here
SECTIONS: Mapping[str, Section[Any]] = {
    "pca": PCA,
    "svd": SVD,
    "gcca": GCCA,
    "deep-gcca": DEEP_GCCA,
    "personalized": PERSONALIZED,
    "classifier": CLASSIFIER,
    "vertical-classifier": VERTICAL,
    "regressor": REGRESSION,
    "vertical-pca": COLUMNS_PCA,
    "vertical-svd": COLUMNS_SVD,
    "vertical-regressor": VIEW_REGRESSION,
}


def render_report(
    model: FittedModel,
    ledger: Ledger,
    facts: RunFacts,
    scores: Scores | None = None,
    with_rows: bool = True,
) -> str:
    """The report as HTML.

    Parameters:
        model: The fitted model, of the kind that `facts.task` names.
        ledger: What happened in the run.
        facts: What was asked for.
        scores: Rows in the first two components, to be drawn.
        with_rows: False draws no single rows, so that the page can be shared.
    """
    section = SECTIONS[facts.task]
    duration = f"in {format_count(model.n_rounds_, 'round')}"
    summary = section.summarize(model, duration) + _describe_count(ledger)
    last = last_metrics(ledger)
    seed = model.seed_ if facts.seed is None else facts.seed
    parts = [
        f"<h1>{escape(section.title)}</h1><p>{escape(summary)}</p>",
        render_verdict(
            section.describe_outcome(model, last),
            _describe_accuracy(section, model, last),
            model.converged_,
            list_warnings(ledger),
        ),
        render_key_figures(_list_large_figures(section, model, ledger), large=True),
        section.render_body(model, ledger, _choose_rows(facts, scores, with_rows)),
        "<h2>Protection</h2>" + render_protection(classify_protection(ledger, facts.privacy)),
        f"<p>{escape(describe_privacy(ledger, facts.privacy))}</p>",
        f"<h2>What was sent</h2>{render_exchanges(ledger)}{render_audit_link(facts.folder)}",
        f"<h2>Convergence</h2>{_render_convergence(section, model, ledger)}",
        "<h2>Details</h2>",
        render_details("All figures of the run", render_key_figures(_list_run_figures(section, model, ledger, facts))),
        render_details(
            f"The {format_count(len(collect_parts(ledger)), 'client')} one by one",
            render_clients(ledger),
            open_=any(part.answered < part.asked for part in collect_parts(ledger).values()),
        ),
        render_details("Notes and versions", _render_method(ledger)) if ledger.notes or ledger.started else "",
        render_details("The job, to repeat the run", _render_job(facts, seed)),
        _render_footer(facts),
    ]
    return render_page("fedspan report", parts)


def describe_outcome(task: str, model: FittedModel, ledger: Ledger) -> str:
    """How a run ended, in a few words."""
    return SECTIONS[task].describe_outcome(model, last_metrics(ledger))


def _choose_rows(facts: RunFacts, scores: Scores | None, with_rows: bool) -> ShownRows:
    place = "DIR" if facts.folder is None else shlex.quote(facts.folder.name)
    return ShownRows(not with_rows, facts.hides_rows, scores, f"fedspan report {place} --without-rows")


def _describe_count(ledger: Ledger) -> str:
    """That the number of rows is noised, and by how much, if it is."""
    count = ledger.counted
    if count is None:
        return ""
    if count.hidden:
        return f" The noise hides the number of rows: it is {count.figure()}."
    return f" The number of rows is a noised count, {count.figure()}."


def _list_large_figures(section: Section[Any], model: FittedModel, ledger: Ledger) -> dict[str, str]:
    """The figures that a reader looks for first: what was found, in how much data, in how many rounds and bytes."""
    found = section.list_key_figures(model, last_metrics(ledger))
    sizes = section.list_sizes(model)
    if ledger.counted:
        sizes["rows"] = ledger.counted.figure()
    return {
        **dict(list(found.items())[:1]),
        **dict(list(sizes.items())[:1]),
        "rounds": f"{model.n_rounds_:,}",
        "sent, up and down": format_bytes(ledger.bytes_up + ledger.bytes_down),
    }


def _describe_accuracy(section: Section[Any], model: FittedModel, last: Mapping[str, float]) -> str:
    """How near the end was to a solution, beside the tolerance that was asked for."""
    kind, error = accuracy_of(last)
    tol = section.get_tol(model)
    if math.isnan(error):
        return ""
    name = "KKT violation" if kind == "KKT" else section.change
    asked = f", where tol is {tol:g}" if tol > 0 else ""
    shown = f"{error:.2e}" if error >= _LEAST_ERROR else f"below {_LEAST_ERROR:g}"
    return f" {name[:1].upper()}{name[1:]}: {shown}{asked}."


def _render_method(ledger: Ledger) -> str:
    """Which solver ran and why, and what the run noted."""
    notes = render_notes(shorten_paths(note) for note in ledger.notes) if ledger.notes else ""
    return f"<p>{escape(describe_solver(ledger))}</p>{notes}"


def _list_run_figures(section: Section[Any], model: FittedModel, ledger: Ledger, facts: RunFacts) -> dict[str, str]:
    last = last_metrics(ledger)
    figures = {
        "rounds": str(model.n_rounds_),
        "exchanges": str(ledger.exchanges),
        "bytes up": format_bytes(ledger.bytes_up),
        "bytes down": format_bytes(ledger.bytes_down),
        "time": format_duration(ledger.seconds),
        **section.list_sizes(model),
        **({"rows": ledger.counted.figure()} if ledger.counted else {}),
        "outcome": section.describe_outcome(model, last),
    }
    kind, error = accuracy_of(last)
    if not math.isnan(error):
        name = "KKT violation" if kind == "KKT" else section.change
        figures[name] = f"{error:.2e}" if error >= _LEAST_ERROR else f"below {_LEAST_ERROR:g}"
    if facts.privacy is not None and not math.isinf(epsilon := ledger.epsilon(facts.privacy.delta)):
        figures["ε spent"] = f"{epsilon:.3g} of {facts.privacy.epsilon:g}"
    if "floor" in last:
        figures["floor of the change"] = f"{last['floor']:.2g}"
    return figures | section.list_key_figures(model, last)


def _render_convergence(section: Section[Any], model: FittedModel, ledger: Ledger) -> str:
    charts = []
    for metric, caption in section.plain_metrics:
        rounds, values, sent = collect_course(ledger, metric)
        if len(rounds) > 1:
            charts += _draw_metric(rounds, sent, values[metric], caption)
    metric, name = "change", section.change
    if 2 * len(collect_course(ledger, "kkt")[0]) >= ledger.rounds:  # some solvers see it in few rounds only
        metric, name = "kkt", "KKT violation"
    rounds, values, sent = collect_course(ledger, metric)
    if len(rounds) > 1:
        charts += _draw_both(rounds, sent, values[metric], name, section.get_tol(model))
    if charts:
        return render_charts(charts)
    if model.n_rounds_ == 1:
        return "<p>Solved in one round, so there is no convergence curve.</p>"
    return "<p>This method does not report progress between rounds.</p>"


def _draw_metric(rounds: Sequence[int], sent: Sequence[float], values: Sequence[float], caption: str) -> list[str]:
    """A metric by round and by bytes; on a log scale if a plain one would show its largest values only."""
    if min(values) >= 0 and max(values) > _DECADES * median(values) > 0:
        return _draw_both(rounds, sent, values, caption, 0.0)
    by_round = draw_curve_chart(rounds, {caption: values}, caption, "round")
    by_bytes = draw_curve_chart(sent, {caption: values}, caption, "bytes sent, up and down", in_bytes=True)
    return [render_figure(f"{caption}, by round", by_round), render_figure(f"{caption}, by bytes sent", by_bytes)]


def _draw_both(
    rounds: Sequence[int], sent: Sequence[float], errors: Sequence[float], name: str, tol: float
) -> list[str]:
    """An error by round and by bytes, on a log scale."""
    name = name[:1].upper() + name[1:]
    by_round = draw_line_chart(rounds, errors, f"{name} by round", "round", tol)
    by_bytes = draw_line_chart(sent, errors, f"{name} by bytes", "bytes sent, up and down", tol, in_bytes=True)
    return [render_figure(f"{name}, by round", by_round), render_figure(f"{name}, by bytes sent", by_bytes)]


def _render_job(facts: RunFacts, seed: int) -> str:
    noise = ""
    if facts.privacy is not None and not facts.privacy.simulate:
        noise = " The noise cannot be repeated, because every client drew its own in secret."
    if not facts.job_text:
        return f"<p>Fit the same data with random_state={escape(str(seed))}.{noise}</p>"
    text = shorten_paths(_PASSWORD.sub(r"\1:…@", facts.job_text))
    return (
        f"<p>Seed {escape(str(seed))}. To repeat the run, save this as job.toml, write the folders of your files where "
        "“…” stands for them, and run <code>fedspan run job.toml</code> with the versions listed in the notes."
        f'{noise}</p><pre tabindex="0">{escape(text)}</pre>'
    )


def _render_footer(facts: RunFacts) -> str:
    source = "" if facts.folder is None else " from job.toml, ledger.jsonl and model.safetensors in this folder"
    return (
        f'<p class="soft">Written by fedspan {escape(__version__)}{source}. Byte counts are those of the encoded '
        "messages; a message that was sent twice counts twice.</p>"
    )
