"""The report of GCCA: its cost, how well the views agree, and the entities in the common components."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from fedspan._types import Array
from fedspan.core.ledger import Ledger
from fedspan.reports._section import IterativeModel, Metrics, ShownRows, build_iterative_section, render_course
from fedspan.reports.drawing.charts import draw_bar_chart
from fedspan.reports.drawing.scatter import draw_scatter
from fedspan.reports.format import Html, escape, format_count
from fedspan.reports.page import render_charts, render_figure, render_table

_ENTITIES = 4000  # points of a scatter plot
_LISTED = 10  # components in the table of correlations, and rows in that of weights
_LARGEST_WEIGHTS = 5  # that are named of each view and component


class GccaModel(IterativeModel, Protocol):
    """What the report reads of a fitted `FederatedGCCA`."""

    common_: Array  # (J, k)
    correlations_: Array  # (views, k)
    explained_variance_ratio_: Array  # (views,)
    cost_: float
    view_names_: list[str]
    eigenvalues_: Array  # (k,)
    eigenvalue_by_chance_: float  # nan if it is not known
    held_out_correlations_: Array  # (k,), or empty if nobody looked
    view_counts_: Array | None  # (J,) how many views have each entity
    missing_: Array | None  # (J, views) whether a view lacks an entity, if that is known here
    n_features_: list[int]
    n_views_: int


class LinearGccaModel(GccaModel, Protocol):
    """What it reads besides of one whose components are weighted sums of features."""

    weights_: list[Array]  # (features, k) of each view; empty if they stayed at the sites
    column_names_: list[list[str] | None]


def _summarize_gcca(model: GccaModel, duration: str) -> str:
    held = f"{format_count(model.n_views_, 'client')} hold one view each ({sum(model.n_features_):,} features in all)."
    k = model.common_.shape[1]
    if k == 0:
        return (
            f"Nothing is shared: these views have no common component. {held} None of the eigenvalues is above "
            f"{model.eigenvalue_by_chance_:.3g}, which views of the same kind show by chance when their entities are "
            "permuted. Correlations in the sample would be high all the same, so none are listed."
        )
    agreement = f"the mean correlation of a view with the common components is {model.correlations_.mean():.3f}"
    if len(model.held_out_correlations_):
        mean = model.held_out_correlations_.mean()
        agreement += f" in the sample; of entities that the views did not learn from, they agree to {mean:.3f}"
    return (
        f"{format_count(k, 'common component')} of {model.n_samples_:,} entities. {held} Found {duration}; {agreement}."
        f"{_describe_gaps(model)}"
    )


def _describe_gaps(model: GccaModel) -> str:
    """How many entities some view lacks."""
    counts = model.view_counts_
    if counts is None:
        return ""
    all_views, none = int(np.sum(counts == model.n_views_)), int(np.sum(counts == 0))
    more = f", and {none:,} have no part" if none else ""
    return f" {all_views:,} entities are in all views, {len(counts) - all_views - none:,} only in some{more}."


def _list_gcca_sizes(model: GccaModel) -> dict[str, str]:
    return {
        "entities": f"{model.n_samples_:,}",
        "views": f"{model.n_views_:,}",
        "features": f"{sum(model.n_features_):,}",
    }


def _list_gcca_figures(model: GccaModel, last: Metrics) -> dict[str, str]:
    if not model.common_.shape[1]:
        return {"common components": "0"}
    out = {"cost": f"{model.cost_:.6g}", "mean correlation": f"{model.correlations_.mean():.3f}"}
    if len(model.held_out_correlations_):
        out["held out"] = f"{model.held_out_correlations_.mean():.3f}"
    if "best_accuracy" in last:
        out["alignment accuracy"] = f"{last['best_accuracy']:.1%}"
    return out


def _render_gcca(model: GccaModel, ledger: Ledger, rows: ShownRows) -> str:
    if not model.common_.shape[1]:
        return "<h2>How well the views agree</h2><p>There is no common component to show.</p>"
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
        f"variance that the common components explain.{more}{_explain_rows(model)}</p>"
        + _render_view_table(model)
        + _render_gaps(model)
    )


def _render_linear_gcca(model: LinearGccaModel, ledger: Ledger, rows: ShownRows) -> str:
    return _render_gcca(model, ledger, rows) + _render_weights(model)


def _render_weights(model: LinearGccaModel) -> str:
    """Which features each view contributes."""
    if not model.common_.shape[1]:
        return ""
    title = "<h2>What each view contributes</h2>"
    if not model.weights_:
        return f"{title}<p>The weights of the features stayed at the clients.</p>"
    found = []
    for name, columns, W in zip(model.view_names_, model.column_names_, model.weights_, strict=True):
        shown = [f"feature {j + 1}" for j in range(len(W))] if columns is None else [*map(str, columns)]
        for i in range(W.shape[1]):
            largest = np.argsort(-np.abs(W[:, i]), kind="stable")[:_LARGEST_WEIGHTS]
            items = (f'<span class="keep">{W[j, i]:+.2g} {escape(shown[j])}</span>' for j in largest)
            found.append([str(name), str(i + 1), Html(" ".join(items))])
    more = f" The first {_LISTED} of {len(found)} lines are shown." if len(found) > _LISTED else ""
    return (
        f"{title}<p>The features with the largest weights. A weight is for one unit of its feature, so weights of "
        f"features in different units cannot be compared.{more}</p>"
        + render_table(["view", "component", "largest weights"], found[:_LISTED], numbers={1}, save_as="weights")
    )


def _explain_rows(model: GccaModel) -> str:
    """What the further rows of the table are."""
    text = ""
    if len(model.held_out_correlations_):
        text += (
            " “Held out” is how well the views agree about entities that they did not learn from: believe this one, "
            "because correlations in the sample rise with the number of features."
        )
    if not np.isnan(model.eigenvalue_by_chance_):
        text += (
            " “Eigenvalue” is in how many views, in sum, a component is found; by chance it reaches about "
            f"{model.eigenvalue_by_chance_:.3g}."
        )
    return text


def _render_gaps(model: GccaModel) -> str:
    """Who is missing where, in counts: by how many views have an entity and, if it is known here, by which."""
    if model.view_counts_ is None:
        return ""
    counts = np.bincount(model.view_counts_.astype(int), minlength=model.n_views_ + 1)
    rows = [[str(i), f"{n:,}"] for i, n in enumerate(counts)]
    by_number = render_table(["views", "entities"], rows, numbers={0, 1})
    if model.missing_ is None:
        return (
            "<h2>Missing entities</h2><p>How many entities are in how many of the views. Which view lacks which entity "
            f"is known to the view's own site (and, without secure sums, to the server).</p>{by_number}"
        )
    return (
        "<h2>Missing entities</h2><p>How many entities are in how many of the views.</p>"
        f"{by_number}<p>Who is missing where: how many entities each view has and lacks, and which views have "
        "entities in common with which others.</p>" + _render_lacking(model, model.missing_) + _render_patterns(model)
    )


def _render_lacking(model: GccaModel, missing: Array) -> str:
    lacks = missing.sum(axis=0)
    rows = [
        [str(name), f"{len(missing) - n:,}", f"{n:,}", f"{n / len(missing):.1%}"]
        for name, n in zip(model.view_names_, lacks, strict=True)
    ]
    return render_table(["view", "has", "lacks", "share"], rows, numbers={1, 2, 3})


def _render_patterns(model: GccaModel) -> str:
    """The sets of views that have entities in common, those of most entities first."""
    patterns, counts = np.unique(~np.asarray(model.missing_), axis=0, return_counts=True)
    order = np.argsort(-counts, kind="stable")[:_LISTED]
    names = [", ".join(str(model.view_names_[i]) for i in np.flatnonzero(patterns[at])) or "none" for at in order]
    more = f"<p>The {_LISTED} largest of {len(counts)} sets are listed.</p>" if len(counts) > _LISTED else ""
    rows = [[name, f"{counts[at]:,}"] for name, at in zip(names, order, strict=True)]
    return more + render_table(["views that have them", "entities"], rows, numbers={1})


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
    points = points[np.isfinite(points).all(axis=1)]
    many = f"{len(points):,} of {model.n_samples_:,} entities" if step > 1 else "one point per entity"
    caption = f"First two common components, {many}"
    return render_figure(caption, draw_scatter({"": points}, caption, ("component 1", "component 2")))


def _render_view_table(model: GccaModel) -> str:
    listed = min(model.common_.shape[1], _LISTED)
    head = ["view", "features", "variance", *(str(i + 1) for i in range(listed))]
    alone = len(model.correlations_) == model.n_views_  # else the weights stayed at the sites, and the mean is known
    rows = [
        [str(name), f"{n:,}", f"{part:.1%}", *(f"{c:.3f}" for c in correlations[:listed])]
        for name, n, part, correlations in zip(
            model.view_names_, model.n_features_, model.explained_variance_ratio_, model.correlations_, strict=alone
        )
        if alone
    ]
    mean = model.correlations_.mean(axis=0)
    rows.append(["all views", f"{sum(model.n_features_):,}", "", *(f"{c:.3f}" for c in mean[:listed])])
    if len(model.held_out_correlations_):
        rows.append(["held out", "", "", *(f"{c:.3f}" for c in model.held_out_correlations_[:listed])])
    if not np.isnan(model.eigenvalue_by_chance_):
        rows.append(["eigenvalue", "", "", *(f"{c:.3f}" for c in model.eigenvalues_[:listed])])
    return render_table(head, rows, numbers=set(range(1, len(head))), save_as="agreement")


GCCA = build_iterative_section(
    "Federated GCCA", _summarize_gcca, _list_gcca_sizes, _list_gcca_figures, _render_linear_gcca
)
DEEP_GCCA = build_iterative_section(
    "Deep GCCA",
    _summarize_gcca,
    _list_gcca_sizes,
    _list_gcca_figures,
    _render_gcca,
    "change of the common representation",
)
