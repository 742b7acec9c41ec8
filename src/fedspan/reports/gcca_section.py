"""The report of GCCA: its cost, how well the views agree, and the entities in the common components."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from fedspan._types import Array
from fedspan.core.ledger import Ledger
from fedspan.reports._section import IterativeModel, Metrics, ShownRows, build_iterative_section, render_course
from fedspan.reports.drawing.charts import draw_bar_chart
from fedspan.reports.drawing.scatter import draw_scatter
from fedspan.reports.format import format_count
from fedspan.reports.page import render_charts, render_figure, render_table

_ENTITIES = 4000  # points of a scatter plot
_LISTED = 10  # components in the table of correlations


class GccaModel(IterativeModel, Protocol):
    """What the report reads of a fitted `FederatedGCCA`."""

    common_: Array  # (J, k)
    correlations_: Array  # (views, k)
    explained_variance_ratio_: Array  # (views,)
    cost_: float
    view_names_: list[str]
    n_features_: list[int]
    n_views_: int


def _summarize_gcca(model: GccaModel, duration: str) -> str:
    return (
        f"{format_count(model.common_.shape[1], 'common component')} of {model.n_samples_:,} entities. "
        f"{format_count(model.n_views_, 'client')} hold one view each ({sum(model.n_features_):,} features in all). "
        f"Found {duration}; the mean correlation of a view with the common components is "
        f"{model.correlations_.mean():.3f}."
    )


def _list_gcca_sizes(model: GccaModel) -> dict[str, str]:
    return {
        "entities": f"{model.n_samples_:,}",
        "views": f"{model.n_views_:,}",
        "features": f"{sum(model.n_features_):,}",
    }


def _list_gcca_figures(model: GccaModel, last: Metrics) -> dict[str, str]:
    out = {"cost": f"{model.cost_:.6g}", "mean correlation": f"{model.correlations_.mean():.3f}"}
    if "best_accuracy" in last:
        out["alignment accuracy"] = f"{last['best_accuracy']:.1%}"
    return out


def _render_gcca(model: GccaModel, ledger: Ledger, rows: ShownRows) -> str:
    charts = [
        render_course(ledger, {"cost": "cost"}, "Cost, by round"),
        render_course(ledger, {"alignment accuracy": "accuracy"}, "Alignment accuracy on held-out rows, by round"),
        _render_correlations(model),
        _render_entities(model) if rows.allowed else "",
    ]
    k = model.common_.shape[1]
    more = f" The first {_LISTED} of {k} components are listed." if k > _LISTED else ""
    return (
        f"<h2>Cost and agreement</h2>{render_charts(charts)}"
        "<h2>How well the views agree</h2>"
        "<p>The correlation of each view with each common component: 1 means that the view predicts the component "
        "exactly from its own features, 0 that it cannot predict it at all. “Variance” is the share of the view's own "
        f"variance that the common components explain.{more}</p>" + _render_view_table(model)
    )


def _render_correlations(model: GccaModel) -> str:
    mean = model.correlations_.mean(axis=0)
    if len(mean) < 2:
        return ""
    caption = "Mean correlation of the views with each common component, in percent"
    return render_figure(caption, draw_bar_chart(np.clip(mean, 0, None).tolist(), caption, "component"))


def _render_entities(model: GccaModel) -> str:
    if model.common_.shape[1] < 2:
        return ""
    step = -(-len(model.common_) // _ENTITIES)
    points = model.common_[::step, :2]
    many = f"{len(points):,} of {model.n_samples_:,} entities" if step > 1 else "one point per entity"
    caption = f"First two common components, {many}"
    return render_figure(caption, draw_scatter({"": points}, caption, ("component 1", "component 2")))


def _render_view_table(model: GccaModel) -> str:
    listed = min(model.common_.shape[1], _LISTED)
    head = ["view", "features", "variance", *(str(i + 1) for i in range(listed))]
    rows = [
        [str(name), f"{n:,}", f"{part:.1%}", *(f"{c:.3f}" for c in correlations[:listed])]
        for name, n, part, correlations in zip(
            model.view_names_, model.n_features_, model.explained_variance_ratio_, model.correlations_, strict=True
        )
    ]
    mean = model.correlations_.mean(axis=0)
    rows.append(["all views", f"{sum(model.n_features_):,}", "", *(f"{c:.3f}" for c in mean[:listed])])
    return render_table(head, rows, numbers=set(range(1, len(head))))


GCCA = build_iterative_section("Federated GCCA", _summarize_gcca, _list_gcca_sizes, _list_gcca_figures, _render_gcca)
