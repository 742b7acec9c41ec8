"""What the report says about one kind of model, and what several kinds share."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Generic, Protocol, TypeVar

import numpy as np

from fedspan._types import Array
from fedspan.core.ledger import Ledger
from fedspan.reports.charts import draw_curve_chart, draw_picture
from fedspan.reports.page import Html, render_figure

_COMPONENTS, _LOADINGS, _PICTURES, _PIXELS = 6, 5, 12, 1024  # how much is shown
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


class FeatureModel(RowsModel, Protocol):
    """A model of rows with the same features at every client."""

    feature_names_in_: Array | None  # scikit-learn's convention: absent if the data had no names


@dataclass(frozen=True)
class ShownRows:
    """Which single rows may be drawn, and where they are in the first two components.

    `left_out`: the reader asked for a page without rows. `protected`: the run was to hide them. `command` writes the
    page without them.
    """

    left_out: bool
    protected: bool
    scores: Mapping[str, Array] | None
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


def get_tol(model: IterativeModel) -> float:
    return model.tol


def describe_iterative_outcome(model: IterativeModel, last: Metrics) -> str:
    """How a run ended that stops at a tolerance."""
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


def format_number(value: float, digits: int = 3) -> str:
    """A number for people."""
    if math.isinf(value):
        return "∞"
    text = f"{value:.{digits}g}"
    return f"{float(text):,.{digits + 3}g}" if value == 0 or 1e-3 <= abs(value) < 1e6 else text.replace("e+0", "e")


def find_feature_names(model: FeatureModel) -> list[str] | None:
    """The features' names, if the data had any."""
    try:
        names = model.feature_names_in_
    except AttributeError:
        return None
    return None if names is None else [str(name) for name in names]


def list_loadings(model: FeatureModel, components: Array) -> list[Html]:
    """The largest loadings of each component, with the features' names."""
    names: Sequence[str] = find_feature_names(model) or [f"column {i}" for i in range(model.n_features_in_)]
    out = []
    for component in components[:_COMPONENTS]:
        largest = np.argsort(-np.abs(component), kind="stable")[:_LOADINGS]
        items = (f'<span class="keep">{component[j]:+.2f} {escape(names[j])}</span>' for j in largest)
        out.append(Html(" ".join(items)))
    return out


def render_pictures(model: FeatureModel, components: Array) -> str:
    """Components as pictures, where the features are pixels of a square: so named, or without names."""
    side, names = math.isqrt(model.n_features_in_), find_feature_names(model)
    pixels = names is None or all(name.startswith("pixel") for name in names)
    if side**2 != model.n_features_in_ or not 16 <= model.n_features_in_ <= _PIXELS or not pixels:
        return ""
    figures = (
        f"<figure>{draw_picture(component.tolist(), side, f'component {i + 1}')}"
        f"<figcaption>{i + 1}</figcaption></figure>"
        for i, component in enumerate(components[:_PICTURES])
    )
    caption = f"The same components as pictures of {side} by {side} pixels: blue above zero, orange below."
    return f'<p class="soft" style="margin-top:12px">{caption}</p><div class="pictures">{"".join(figures)}</div>'
