"""What the report says of one kind of model: its summary, its own key figures, its own sections.

The spectral models stand here, those of views and labels in model_sections.py; `section_of` finds the right one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from fedspan.cli.progress import count
from fedspan.core.ledger import Ledger
from fedspan.reports.charts import bar_chart, picture
from fedspan.reports.page import Html, figure, table

_COMPONENTS, _LOADINGS, _PICTURES, _PIXELS = 6, 5, 12, 1024  # how much is shown


@dataclass(frozen=True)
class Drawn:
    """Single rows in the first two components: a figure and a note, or only the note on why there is none."""

    allowed: bool = True
    figure: str = ""
    note: str = ""


@dataclass(frozen=True)
class Section:
    """`summary` is one sentence around what it is told of how the model was found; `own` are the HTML parts between
    convergence and clients (told of the rows that may be drawn); `course` are metrics to draw on a
    plain scale, with what they are called."""

    title: str
    summary: Callable[[Any, str], str]
    sizes: Callable[[Any], dict[str, str]]
    own: Callable[[Any, Ledger, Drawn], str]
    course: tuple[tuple[str, str], ...] = ()
    figures: Callable[[Any, dict[str, float]], dict[str, str]] = lambda model, last: {}
    change: str = "change of the estimate"  # what the metric of that name is here


def sizes(model: Any) -> dict[str, str]:
    """How much there was to learn from."""
    return {
        "samples": f"{model.n_samples_:,}",
        "clients": f"{model.n_clients_:,}",
        "features": f"{model.n_features_in_:,}",
    }


def spectral(title: str, noun: str, share: str) -> Section:
    """The report of components of all rows. `share` is what they explain a part of."""

    def summary(model: Any, found: str) -> str:
        return (
            f"{len(model.components_)} {noun} of {model.n_samples_:,} rows with {model.n_features_in_:,} features at "
            f"{count(model.n_clients_, 'client')}, found by {found}; they explain "
            f"{model.explained_variance_ratio_.sum():.1%} of the {share}."
        )

    def own(model: Any, ledger: Ledger, drawn: Drawn) -> str:
        ratio = model.explained_variance_ratio_
        what = f"{'Explained' if share == 'variance' else 'Share of the'} {share}"
        chart = bar_chart(ratio.tolist(), what, "component")
        scree = figure(f"{what} of each component, in percent of all", chart)
        rows = []
        for i, loadings in enumerate(largest_loadings(model, model.components_)):
            rows.append([str(i + 1), f"{ratio[i]:.2%}", f"{ratio[: i + 1].sum():.2%}", loadings])
        listed = table(["no.", share, "so far", "largest loadings"], rows, numbers={1, 2})
        pictures = component_pictures(model, model.components_)
        charts = f'<div class="charts">{scree}{drawn.figure}</div><p class="soft">{drawn.note}</p>'
        return f"<h2>Components</h2>{charts}{pictures}<h2>Largest loadings</h2>{listed}"

    return Section(title, summary, sizes, own, figures=_gap)


def _gap(model: Any, last: dict[str, float]) -> dict[str, str]:
    """θ_k - θ_{k+1}, as a share of θ_k: near 0, the last component is hardly determined."""
    if "gap" not in last:
        return {}
    theta = model.explained_variance_[-1] * (model.n_samples_ - 1)
    return {"gap after the last": f"{last['gap'] / theta:.1%}" if theta > 0 else "0 %"}


def largest_loadings(model: Any, components: Any) -> list[Html]:
    """The largest loadings of each component, with the features' names."""
    d = model.n_features_in_
    names: Sequence[str] = [str(n) for n in getattr(model, "feature_names_in_", [f"column {i}" for i in range(d)])]
    out = []
    for component in components[:_COMPONENTS]:
        top = np.argsort(-np.abs(component), kind="stable")[:_LOADINGS]
        out.append(Html(" ".join(f'<span class="keep">{component[j]:+.2f} {escape(names[j])}</span>' for j in top)))
    return out


def component_pictures(model: Any, components: Any) -> str:
    """Components as pictures, where the features are pixels of a square: so named, or without names."""
    side = math.isqrt(model.n_features_in_)
    names = getattr(model, "feature_names_in_", ["pixel"])
    pixels = all(str(name).startswith("pixel") for name in names)
    if side**2 != model.n_features_in_ or not 16 <= model.n_features_in_ <= _PIXELS or not pixels:
        return ""
    figures = (
        f"<figure>{picture(component.tolist(), side, f'component {i + 1}')}<figcaption>{i + 1}</figcaption></figure>"
        for i, component in enumerate(components[:_PICTURES])
    )
    caption = f"The same components as pictures of {side} by {side}: blue above zero, orange below."
    return f'<p class="soft" style="margin-top:12px">{caption}</p><div class="pictures">{"".join(figures)}</div>'


def section_of(task: str) -> Section:
    """The part of the report that belongs to a task."""
    from fedspan.reports.model_sections import CLASSIFIER, GCCA, PERSONALIZED, VERTICAL

    return {
        "pca": spectral("Federated PCA", "principal components", "variance"),
        "svd": spectral("Federated SVD", "right singular vectors", "sum of squares"),
        "gcca": GCCA,
        "personalized": PERSONALIZED,
        "classifier": CLASSIFIER,
        "vertical-classifier": VERTICAL,
    }[task]
