"""The report of vertical PCA and SVD: how much the components explain, and which views they are made of."""

from __future__ import annotations

from typing import Protocol

from fedspan._types import Array
from fedspan.core.ledger import Ledger
from fedspan.reports._section import IterativeModel, Metrics, Section, ShownRows, build_iterative_section
from fedspan.reports.drawing.charts import draw_bar_chart
from fedspan.reports.drawing.scatter import draw_scatter
from fedspan.reports.format import format_count
from fedspan.reports.page import render_charts, render_figure, render_table

_POINTS_DRAWN = 4000  # of a scatter plot
_COMPONENTS_LISTED = 10  # components in the table of views


class ColumnsModel(IterativeModel, Protocol):
    """What the report reads of a fitted `VerticalPCA` or `VerticalSVD`."""

    scores_: Array | None  # (J, k)
    shares_: Array  # (views, k), no rows if the loadings are at sites elsewhere
    explained_variance_ratio_: Array  # (k,)
    view_names_: list[str]
    n_features_: list[int]
    n_views_: int
    hide_scores: bool


def _build_columns_section(title: str, noun: str, share: str) -> Section[ColumnsModel]:
    """`noun`: what one component is called; `share`: what the components explain a part of."""

    def summarize(model: ColumnsModel, duration: str) -> str:
        k = len(model.explained_variance_ratio_)
        return (
            f"{format_count(k, noun)} of {model.n_samples_:,} rows, whose {sum(model.n_features_):,} columns are "
            f"spread over {format_count(model.n_views_, 'client')}, found {duration}. "
            f"{'It explains' if k == 1 else 'They explain'} "
            f"{model.explained_variance_ratio_.sum():.1%} of the {share}. {_describe_holders(model)}"
        )

    def render_body(model: ColumnsModel, ledger: Ledger, rows: ShownRows) -> str:
        ratio = model.explained_variance_ratio_
        caption = f"Share of the {share} of each component, in percent"
        scree = render_figure(caption, draw_bar_chart(ratio.tolist(), caption, "component"))
        scatter, note = _render_scores(model, rows)
        return (
            f'<h2>Components</h2>{render_charts([scree, scatter])}<p class="soft">{note}</p>'
            f"<h2>Where the components come from</h2>{_render_shares(model)}"
        )

    return build_iterative_section(title, summarize, _list_columns, _list_no_figures, render_body)


def _describe_holders(model: ColumnsModel) -> str:
    scores = "The server holds the scores of all rows"
    if model.hide_scores:
        scores = (
            "The clients turned the rows by a secret transform, so the server does not hold the scores of single rows "
            "(a shield, not a proof)"
        )
    return f"{scores}; the loadings, means and deviations stayed with the clients."


def _list_columns(model: ColumnsModel) -> dict[str, str]:
    return {
        "rows": f"{model.n_samples_:,}",
        "views": f"{model.n_views_:,}",
        "columns": f"{sum(model.n_features_):,}",
    }


def _list_no_figures(model: ColumnsModel, last: Metrics) -> dict[str, str]:
    return {}


def _render_scores(model: ColumnsModel, rows: ShownRows) -> tuple[str, str]:
    """A scatter plot of rows and a note on it; or no plot, and why."""
    if rows.left_out:
        return "", "Single rows were left out of this page (--without-rows)."
    if rows.protected or model.hide_scores or model.scores_ is None:
        return "", "Rows are not drawn, because the job asks to protect them."
    if model.scores_.shape[1] < 2:
        return "", "Rows are not drawn: a scatter plot needs two components."
    step = -(-len(model.scores_) // _POINTS_DRAWN)
    points, ratio = model.scores_[::step, :2], model.explained_variance_ratio_
    caption = f"First two components: {len(points):,} of {model.n_samples_:,} rows"
    axes = (f"component 1 ({ratio[0]:.1%})", f"component 2 ({ratio[1]:.1%})")
    return render_figure(caption, draw_scatter({"": points}, caption, axes)), "Each point is one row."


def _render_shares(model: ColumnsModel) -> str:
    if not len(model.shares_):
        return "<p>The loadings stayed at the sites, which have them in their own folders of this run.</p>"
    listed = min(model.shares_.shape[1], _COMPONENTS_LISTED)
    k = model.shares_.shape[1]
    more = f" The first {listed} of {k} components are listed." if listed < k else ""
    head = ["view", "columns", *(str(i + 1) for i in range(listed))]
    table = [
        [str(name), f"{n:,}", *(f"{share:.1%}" for share in shares[:listed])]
        for name, n, shares in zip(model.view_names_, model.n_features_, model.shares_, strict=True)
    ]
    return (
        f"<p>The share of each component's squared loadings that belongs to each view's columns.{more}</p>"
        + render_table(head, table, numbers=set(range(1, len(head))))
    )


COLUMNS_PCA = _build_columns_section("Vertical PCA", "principal component", "variance")
COLUMNS_SVD = _build_columns_section("Vertical SVD", "singular vector", "sum of squares")
