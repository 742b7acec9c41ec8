"""The report of the classifiers: the cost and the size of the parameters by round, and whether the limits hold."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Protocol

from fedspan._types import Array
from fedspan.algorithms.learning.constraints.limits import LimitOutcome
from fedspan.core.ledger import Ledger
from fedspan.reports._section import Metrics, RowsModel, Section, ShownRows, last_metrics, list_sizes, render_course
from fedspan.reports.format import escape, format_count, format_number
from fedspan.reports.models.regression_section import ShownCoefficients, render_coefficients
from fedspan.reports.page import render_charts, render_table

_CLASSES = 10  # names of classes in the summary
_MOST_VIEWS = 50  # rows of the table of views
_SHOWN_CLIENTS = 20
_SHOWN_CLASSES = 100  # rows of the table of classes
_LIMITS = 9  # limits whose course is looked for
_SLACK = 1e-9  # below this a slack is rounding error
_FIGURES = {"cost": "cost", "norm2": "‖ω‖²", "constraint_1": "constraint (≤ 0)", "slack_1": "slack"}
_COST = (("cost", "Cost (mean loss of the round's batches)"),)


class ShownEvaluation(Protocol):
    """What the report reads of an `Evaluation` on held-out rows."""

    @property
    def n(self) -> float: ...

    @property
    def loss(self) -> float: ...

    @property
    def accuracy(self) -> float: ...

    @property
    def confusion(self) -> Array: ...

    @property
    def curve(self) -> Array: ...

    @property
    def recall(self) -> Array: ...

    @property
    def precision(self) -> Array: ...

    @property
    def calibration_error(self) -> float: ...

    @property
    def alone(self) -> tuple[float, float] | None: ...


class LearnedModel(RowsModel, Protocol):
    """What the report reads of a fitted `FederatedClassifier` or `VerticalFederatedClassifier`."""

    labels_: Sequence[object]
    coef_: Array
    verified_: Mapping[str, float]  # limit → its value over all training rows
    evaluation_: ShownEvaluation | None
    limits_: Sequence[LimitOutcome]
    cost_limit: float | None
    limits: object


class RowsLearned(LearnedModel, Protocol):
    """A classifier whose clients hold rows."""

    hidden: int | str
    model: object
    covariance_: Array
    client_accuracy_: Mapping[str, Sequence[float]] | None  # rows, and the share of them predicted rightly

    def summary(self, level: float = ...) -> ShownCoefficients: ...


class VerticalModel(LearnedModel, Protocol):
    """A classifier whose features are spread over clients."""

    views_: Mapping[str, int]  # client → number of features


def _summarize_learned(model: LearnedModel, where: str, duration: str) -> str:
    names = ", ".join(str(label) for label in model.labels_[:_CLASSES])
    more = ", …" if len(model.labels_) > _CLASSES else ""
    classes = "class" if len(model.labels_) == 1 else "classes"
    limits = f", subject to {format_count(len(model.verified_), 'limit')}" if model.verified_ else ""
    return (
        f"A classifier of {len(model.labels_):,} {classes} ({names}{more}), learned {duration} from "
        f"{model.n_samples_:,} rows {where}{limits}."
    )


def _summarize_rows(model: LearnedModel, duration: str) -> str:
    where = f"with {model.n_features_in_:,} features at {format_count(model.n_clients_, 'client')}"
    return _summarize_learned(model, where, duration)


def _summarize_vertical(model: VerticalModel, duration: str) -> str:
    where = f"whose {model.n_features_in_:,} features are spread over {format_count(model.n_clients_, 'client')}"
    return _summarize_learned(model, where, duration)


def _list_learned_figures(model: LearnedModel, last: Metrics) -> dict[str, str]:
    known = {words: last[key] for key, words in _FIGURES.items() if math.isfinite(last.get(key, math.nan))}
    figures = {words: format_number(value, 4) for words, value in known.items()}
    if known.get("slack", 1.0) < _SLACK:
        figures["slack"] = "0"
    seen = model.evaluation_
    if seen is not None:
        figures |= {"accuracy (held-out rows)": format_number(seen.accuracy, 4)}
        figures |= {"log-loss (held-out rows)": format_number(seen.loss, 4)}
    return figures | {"parameters": f"{len(model.coef_):,}"}


def _describe_learned_outcome(model: LearnedModel, last: Metrics) -> str:
    if model.evaluation_ is not None:
        return "held-out rows stopped it" if model.converged_ else "held-out rows did not stop it, or are no better"
    if "decrement" in last:
        return "converged" if model.converged_ else "no finite optimum was reached"
    if model.converged_:
        return "all limits hold" if model.verified_ else "stopped at the round limit"
    if model.cost_limit is not None or model.limits:
        return "a limit does not hold" if model.verified_ else "the limit was not verified"
    return "stopped: the loss was not finite"


def _get_no_tol(model: LearnedModel) -> float:
    """Classifiers run all their rounds."""
    return 0.0


def _render_learned(model: LearnedModel, ledger: Ledger, rows: ShownRows) -> str:
    history = ledger.history()
    limits = list(model.verified_) or [
        f"limit {m}" for m in range(1, _LIMITS) if any(f"slack_{m}" in row for row in history)
    ]
    charts = [render_course(ledger, {"‖ω‖²": "norm2"}, "‖ω‖², the squared norm of the parameters, by round")]
    for m, name in enumerate(limits, 1):
        curves = {"constraint": f"constraint_{m}", "slack": f"slack_{m}"}
        caption = f"{name}: value minus bound (the limit holds at or below 0), and slack"
        charts.append(render_course(ledger, curves, caption, 0.0))
        charts.append(render_course(ledger, {"multiplier": f"multiplier_{m}"}, f"{name}: multiplier, by round"))
    drawn = render_charts(charts)
    shown = f"<h2>The model</h2>{drawn}" if drawn else ""
    return shown + _render_limits(model, last_metrics(ledger)) + _render_evaluation(model)


def _render_evaluation(model: LearnedModel) -> str:
    """What held-out rows say: class by class, and how far probabilities can be trusted."""
    seen = model.evaluation_
    if seen is None:
        return ""
    says = (
        f"From {seen.n:,.0f} rows that all clients together held out of training, as sums: {100 * seen.accuracy:.1f} % "
        f"are predicted rightly, and the mean log-loss is {seen.loss:.3f}."
    )
    if seen.alone is not None:
        right, loss = seen.alone
        says += (
            f" If each client used a linear model of its own rows alone instead, these would be {100 * right:.1f} % "
            f"and {loss:.3f}."
        )
        if loss <= seen.loss:
            says += " So learning together has not helped here: the clients may be too unlike each other for one model."
    names = [str(label) for label in model.labels_]
    classes = [
        [name, f"{rows.sum():,.0f}", format_number(recall, 3), format_number(precision, 3)]
        for name, rows, recall, precision in zip(
            names[:_SHOWN_CLASSES], seen.confusion, seen.recall, seen.precision, strict=False
        )
    ]
    html = f"<h2>Held-out rows</h2><p>{escape(says)}</p>"
    html += render_table(["class", "rows", "found (recall)", "right (precision)"], classes, numbers={1, 2, 3})
    if len(names) <= _CLASSES:
        counts = [[name, *(f"{n:,.0f}" for n in row)] for name, row in zip(names, seen.confusion, strict=True)]
        html += "<h3>Confusion matrix: rows by their class, and by the predicted class</h3>"
        html += render_table(["class", *names], counts, numbers=set(range(1, len(names) + 1)))
    bins = [
        [f"{100 * sure / n:.1f} %", f"{100 * right / n:.1f} %", f"{n:,.0f}"] for n, sure, right in seen.curve if n > 0
    ]
    html += (
        "<h3>Calibration: how sure the model is of its predictions, and how often these are right</h3>"
        f"<p>The mean distance is {100 * seen.calibration_error:.1f} %.</p>"
    )
    return html + render_table(["how sure", "how often right", "rows"], bins, numbers={0, 1, 2})


def _render_rows(model: RowsLearned, ledger: Ledger, rows: ShownRows) -> str:
    if model.hidden != 0 or model.model is not None:
        return _render_learned(model, ledger, rows) + _render_clients(model)
    return (
        render_coefficients(
            model.summary(),
            "Standard errors are model-based. With a penalty (l2) they are those of "
            "the penalised estimate, whose bias is not in them.",
        )
        + _render_evaluation(model)
        + _render_clients(model)
    )


def _render_clients(model: RowsLearned) -> str:
    """How the model does at each client, where this is known."""
    if not model.client_accuracy_:
        return ""
    shown = sorted(model.client_accuracy_.items(), key=lambda item: item[1][1])[:_SHOWN_CLIENTS]
    rows = [[name, f"{n:,.0f}", f"{100 * right:.1f} %"] for name, (n, right) in shown]
    more = f" The {_SHOWN_CLIENTS} lowest are shown." if len(model.client_accuracy_) > _SHOWN_CLIENTS else ""
    return (
        "<h2>Accuracy at each client</h2><p>The share of each client's rows that is predicted rightly, the lowest "
        f"first. Training rows are among them, so it flatters the model; compare the clients with each other.{more}</p>"
        + render_table(["client", "rows", "predicted rightly"], rows, numbers={1, 2}, save_as="clients")
    )


def _say_held_out(outcome: LimitOutcome) -> list[str]:
    """A limit over the rows that were held out: its value (a recall, where one was asked for), and the verdict."""
    if outcome.held_out is None:
        return ["–", "no such rows"]
    rows = format_count(outcome.held_out_rows, "row")
    return [f"{outcome.held_out:.6g}", f"{'met' if outcome.held_out_met else 'missed'} ({rows})"]


def _render_limits(model: LearnedModel, last: Metrics) -> str:
    if not model.verified_:
        return ""
    rows = []
    for m, outcome in enumerate(model.limits_, 1):
        over = outcome.value - outcome.bound
        verdict = "not verified" if math.isnan(over) else "met" if outcome.met else f"missed by {over:.3g}"
        price = format_number(last.get(f"multiplier_{m}", math.nan), 4)
        rows.append([outcome.name, f"{outcome.value:.6g}", verdict, *_say_held_out(outcome), price])
    head = ["limit", "training rows", "verdict", "held-out rows", "verdict there", "multiplier"]
    return (
        "<h2>Limits</h2><p>Each limit was verified over all training rows of all clients, in exact rounds at the end, "
        "and then looked at over the rows that were held out (a recall is counted there). The multiplier is the price "
        "of the limit: how fast the objective would fall if the bound were raised.</p>"
        + render_table(head, rows, numbers={1, 3, 5})
    )


def _render_vertical(model: VerticalModel, ledger: Ledger, rows: ShownRows) -> str:
    views = [[str(name), f"{n:,}"] for name, n in list(model.views_.items())[:_MOST_VIEWS]]
    table = render_table(["client", "features"], views, numbers={1})
    return f"{_render_learned(model, ledger, rows)}<h2>Views</h2>{table}"


CLASSIFIER: Section[RowsLearned] = Section(
    "Federated classifier",
    _summarize_rows,
    list_sizes,
    _list_learned_figures,
    _render_rows,
    _describe_learned_outcome,
    _get_no_tol,
    _COST,
)
VERTICAL: Section[VerticalModel] = Section(
    "Vertical federated classifier",
    _summarize_vertical,
    list_sizes,
    _list_learned_figures,
    _render_vertical,
    _describe_learned_outcome,
    _get_no_tol,
    _COST,
)
