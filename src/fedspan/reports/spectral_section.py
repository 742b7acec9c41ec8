"""The report of PCA and SVD: how much the components explain, where the rows are in them, what they are made of."""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np

from fedspan._types import Array
from fedspan.core.ledger import Ledger
from fedspan.reports._components import FeatureModel, find_arrows, list_loadings, render_loadings, render_pictures
from fedspan.reports._section import IterativeModel, Metrics, Section, ShownRows, build_iterative_section, list_sizes
from fedspan.reports.drawing.charts import draw_bar_chart
from fedspan.reports.drawing.scatter import draw_scatter
from fedspan.reports.format import escape, format_count
from fedspan.reports.page import render_charts, render_figure, render_table

_DETERMINED = 0.1  # an angle from which on a component is not said to be found


class SpectralModel(FeatureModel, IterativeModel, Protocol):
    """What the report reads of a fitted `FederatedPCA` or `FederatedSVD`."""

    components_: Array  # (k, d)
    explained_variance_: Array  # (k,)
    explained_variance_ratio_: Array  # (k,)
    component_angles_: Array  # (k,) nan if they are not known
    scree_: Array  # (m,) variances of all components that were found
    noise_variances_: Array | None  # (T,) with n_components="auto"


def _build_spectral_section(title: str, noun: str, share: str, what: str) -> Section[SpectralModel]:
    """`noun`: what one component is called; `share`: what the components explain a part of; `what`: the scree chart."""

    def summarize(model: SpectralModel, duration: str) -> str:
        k = len(model.components_)
        explained = f"{model.explained_variance_ratio_.sum():.1%} of the {share}"
        return (
            f"{format_count(k, noun)} of {model.n_samples_:,} rows with {model.n_features_in_:,} features at "
            f"{format_count(model.n_clients_, 'client')}, found {duration}. "
            f"{'It explains' if k == 1 else 'They explain'} {explained}."
        )

    def render_body(model: SpectralModel, ledger: Ledger, rows: ShownRows) -> str:
        ratio = model.explained_variance_ratio_
        scree = _render_scree(model, what)
        table = [
            [str(i + 1), f"{ratio[i]:.2%}", f"{ratio[: i + 1].sum():.2%}", loadings]
            for i, loadings in enumerate(list_loadings(model, model.components_))
        ]
        scatter, note = _render_scatter(model, rows)
        return (
            f"<h2>Components</h2>{_describe_angles(model.component_angles_)}"
            f"{render_charts([scree, scatter, render_loadings(model, model.components_)])}"
            f'<p class="soft">{note}</p>{render_pictures(model, model.components_)}<h2>Largest loadings</h2>'
            + render_table(["no.", share, "cumulative", "largest loadings"], table, {1, 2}, save_as="loadings")
        )

    def list_key_figures(model: SpectralModel, last: Metrics) -> dict[str, str]:
        return {f"{share} explained": f"{model.explained_variance_ratio_.sum():.1%}", **_list_gap(model, last)}

    return build_iterative_section(title, summarize, list_sizes, list_key_figures, render_body)


def _render_scree(model: SpectralModel, what: str) -> str:
    """The shares of all components that are known, and where n_components="auto" has drawn the line."""
    noise, caption = model.noise_variances_, f"{what} of each component, in percent of the total"
    if noise is None:
        return render_figure(
            f"{what} of each component (bars) and of all up to it (line), in percent of the total",
            draw_bar_chart(model.explained_variance_ratio_.tolist(), what, "component", cumulative=True),
        )
    k = len(model.components_)
    total = float(model.explained_variance_.sum() / model.explained_variance_ratio_.sum())
    level = float(np.quantile(noise, 0.95)) / total
    chart = draw_bar_chart((model.scree_ / total).tolist(), what, "component", level=level, level_name="noise", kept=k)
    rest = " Paler bars are components that were not kept." if len(model.scree_) > k else ""
    line = f"the 95 % quantile of the first component of {len(noise)} tables with random signs"
    return render_figure(f"{caption}. The dashed line is {line}.{rest}", chart)


def _render_scatter(model: SpectralModel, rows: ShownRows) -> tuple[str, str]:
    """A scatter plot of rows and a note on it; or no plot, and why."""
    if rows.left_out:
        return "", "Single rows were left out of this page (--without-rows)."
    if rows.protected:
        return "", "Rows are not drawn, because the job asks to protect them."
    if len(model.components_) < 2:
        return "", "Rows are not drawn: a scatter plot needs two components."
    if not rows.scores:
        return "", "Rows are not drawn: they stayed with the clients, and are not stored with this run."
    drawn, ratio = sum(map(len, rows.scores.groups.values())), model.explained_variance_ratio_
    many = f"{drawn:,} of {model.n_samples_:,} rows" if drawn < model.n_samples_ else f"all {drawn:,} rows"
    arrows = find_arrows(model, model.components_)
    caption = f"First two components: {many}, coloured by {rows.scores.by}"
    if arrows:
        caption += "; arrows show how much single features weigh in them"
    axes = (f"component 1 ({ratio[0]:.1%})", f"component 2 ({ratio[1]:.1%})")
    chart = draw_scatter(rows.scores.groups, caption, axes, arrows)
    note = f"Each point is one row. To share this page without them: <code>{escape(rows.command)}</code>"
    return render_figure(caption, chart), note


def _list_gap(model: SpectralModel, last: Metrics) -> dict[str, str]:
    """θ_k - θ_{k+1}, as a share of θ_k: near 0, the last component is hardly determined."""
    if "gap" not in last:
        return {}
    theta = model.explained_variance_[-1] * (model.n_samples_ - 1)
    if math.isnan(last["gap"]):
        return {"gap to the next": "not known"}
    return {"gap to the next": f"{last['gap'] / theta:.1%}" if theta > 0 else "0 %"}


def _describe_angles(angles: Array) -> str:
    """Which components are determined, and to what angle; nothing if the solver does not know."""
    if np.isnan(angles).any():
        return ""
    said, first = [], 0
    found = angles < _DETERMINED
    for j in range(1, len(angles) + 1):
        if j == len(angles) or found[j] != found[first]:
            one = j - first == 1
            which = f"component {first + 1}" if one else f"components {first + 1} to {j}"
            if found[first]:
                most = max(float(angles[first:j].max()), 1e-15)
                said.append(f"{which} {'is' if one else 'are'} determined to an angle of {most:.0e}")
            else:
                said.append(f"{which} cannot be told {'from the next' if one else 'apart'}")
            first = j
    text = "; ".join(said)
    return f"<p>{text[0].upper()}{text[1:]}, with high probability over the random start.</p>"


PCA = _build_spectral_section("Federated PCA", "principal component", "variance", "Explained variance")
SVD = _build_spectral_section("Federated SVD", "right singular vector", "sum of squares", "Share of the sum of squares")
