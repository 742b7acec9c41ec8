"""What the report says about one kind of model: the contract, and what several kinds share."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from fedspan.core.ledger import Ledger
from fedspan.reports.drawing.charts import draw_curve_chart
from fedspan.reports.facts import Scores
from fedspan.reports.format import format_number
from fedspan.reports.page import render_figure

Fitted = TypeVar("Fitted", contravariant=True)
Metrics = Mapping[str, float]


class FittedModel(Protocol):
    """What the report reads of every model."""

    n_samples_: int
    n_rounds_: int
    converged_: bool
    seed_: int


class RowsModel(FittedModel, Protocol):
    """A model of rows at clients."""

    n_clients_: int
    n_features_in_: int


@dataclass(frozen=True)
class ShownRows:
    """Which single rows may be drawn, and where they are in the first two components.

    `left_out`: the reader asked for a page without rows. `protected`: the run was to hide them. `command` writes the
    page without them.
    """

    left_out: bool
    protected: bool
    scores: Scores | None
    command: str

    @property
    def allowed(self) -> bool:
        return not self.left_out and not self.protected


@dataclass(frozen=True)
class Section(Generic[Fitted]):
    """The part of the report that belongs to one kind of model.

    `summarize` writes the first sentences (it is told how long the run took: "in 12 rounds"); `list_sizes` says how
    much there was to learn from, `list_key_figures` what was found; `render_body` writes the HTML between convergence
    and clients; `describe_outcome` says how the run ended. `plain_metrics` (metric, caption) are drawn on a plain
    scale.
    """

    title: str
    summarize: Callable[[Fitted, str], str]
    list_sizes: Callable[[Fitted], dict[str, str]]
    list_key_figures: Callable[[Fitted, Metrics], dict[str, str]]
    render_body: Callable[[Fitted, Ledger, ShownRows], str]
    describe_outcome: Callable[[Fitted, Metrics], str]
    get_tol: Callable[[Fitted], float]
    plain_metrics: tuple[tuple[str, str], ...] = ()
    change: str = "change of the estimate"  # what the metric of that name is here


class IterativeModel(FittedModel, Protocol):
    """A model whose solver stops at a tolerance."""

    tol: float


Iterative = TypeVar("Iterative", bound=IterativeModel)


def build_iterative_section(
    title: str,
    summarize: Callable[[Iterative, str], str],
    list_sizes: Callable[[Iterative], dict[str, str]],
    list_key_figures: Callable[[Iterative, Metrics], dict[str, str]],
    render_body: Callable[[Iterative, Ledger, ShownRows], str],
    change: str = "change of the estimate",
) -> Section[Iterative]:
    """The section of a model whose solver stops at a tolerance."""
    return Section(
        title,
        summarize,
        list_sizes,
        list_key_figures,
        render_body,
        _describe_iterative_outcome,
        lambda model: model.tol,
        change=change,
    )


def _describe_iterative_outcome(model: IterativeModel, last: Metrics) -> str:
    if model.converged_ and "best_accuracy" in last and not last["kkt"] <= model.tol:
        return "stopped early (patience)"
    if model.converged_:
        return "converged"
    return "stopped before reaching tol" if model.tol > 0 else "stopped at the round limit"


def list_sizes(model: RowsModel) -> dict[str, str]:
    """How much there was to learn from."""
    return {
        "rows": f"{model.n_samples_:,}",
        "clients": f"{model.n_clients_:,}",
        "features": f"{model.n_features_in_:,}",
    }


def last_metrics(ledger: Ledger) -> dict[str, float]:
    """What the server knew at the end."""
    return (ledger.history() or [{}])[-1]


def collect_course(ledger: Ledger, *metrics: str) -> tuple[list[int], dict[str, list[float]], list[float]]:
    """The rounds in which all of these metrics are known, their values, and the bytes sent until then."""
    rows = {int(row["round"]): row for row in ledger.history() if row["round"] > 0}  # of a repeated round, the last
    known = {r: row for r, row in sorted(rows.items()) if all(math.isfinite(row.get(m, math.nan)) for m in metrics)}
    values = {m: [row[m] for row in known.values()] for m in metrics}
    return list(known), values, [row["bytes_up"] + row["bytes_down"] for row in known.values()]


def render_course(ledger: Ledger, curves: Mapping[str, str], caption: str, level: float | None = None) -> str:
    """A figure of one or more metrics (name → metric) by round; nothing if fewer than two rounds know them."""
    rounds, values, _ = collect_course(ledger, *curves.values())
    if len(rounds) < 2:
        return ""
    named = {name: values[metric] for name, metric in curves.items()}
    start = _find_start(list(named.values()))
    if start:
        largest = max(map(max, named.values()))
        caption += f" (from round {rounds[start]} on; before that up to {format_number(largest)})"
    named = {name: ys[start:] for name, ys in named.items()}
    return render_figure(caption, draw_curve_chart(rounds[start:], named, caption, "round", level=level))


def _find_start(curves: list[list[float]]) -> int:
    """Where to begin drawing: after the first tenth, if that is so large that nothing else would be seen."""
    start = len(curves[0]) // 10
    span = max(map(max, curves)) - min(map(min, curves))
    rest = max(max(ys[start:]) for ys in curves) - min(min(ys[start:]) for ys in curves)
    return start if rest < 0.1 * span else 0
