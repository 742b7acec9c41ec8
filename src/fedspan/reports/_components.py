"""Components of rows in a report: their largest loadings by the features' names, and pictures of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from fedspan._types import Array
from fedspan.reports._section import RowsModel
from fedspan.reports.drawing.charts import draw_picture
from fedspan.reports.drawing.heat_map import draw_heat_map
from fedspan.reports.format import Html, escape
from fedspan.reports.page import render_figure

_COMPONENTS, _LOADINGS, _PICTURES, _PIXELS = 6, 5, 12, 1024  # how much is shown
_ARROWS, _HEAT_COMPONENTS, _HEAT_FEATURES = 6, 8, 24


class FeatureModel(RowsModel, Protocol):
    """A model of rows with the same features at every client."""

    feature_names_in_: Array | None  # scikit-learn's convention: absent if the data had no names


def _find_feature_names(model: FeatureModel) -> list[str] | None:
    """The features' names, if the data had any."""
    try:
        names = model.feature_names_in_
    except AttributeError:
        return None
    return None if names is None else [str(name) for name in names]


def list_loadings(model: FeatureModel, components: Array) -> list[Html]:
    """The largest loadings of each component, with the features' names."""
    names = _name_features(model)
    out = []
    for component in components[:_COMPONENTS]:
        largest = np.argsort(-np.abs(component), kind="stable")[:_LOADINGS]
        items = (f'<span class="keep">{component[j]:+.2f} {escape(names[j])}</span>' for j in largest)
        out.append(Html(" ".join(items)))
    return out


def find_arrows(model: FeatureModel, components: Array) -> dict[str, Array]:
    """The features with the largest loadings on the first two components, as arrows for a biplot; none for pixels."""
    if _are_pixels(model) or len(components) < 2:
        return {}
    names = _name_features(model)
    plane = components[:2].T
    longest = np.argsort(-np.linalg.norm(plane, axis=1), kind="stable")[:_ARROWS]
    return {names[j]: plane[j] for j in longest if plane[j].any()}


def render_loadings(model: FeatureModel, components: Array) -> str:
    """A heat map of the features with the largest loadings; nothing for pixels, which are drawn as pictures."""
    if _are_pixels(model):
        return ""
    shown = components[:_HEAT_COMPONENTS]
    names = _name_features(model)
    largest = np.argsort(-np.abs(shown).max(axis=0), kind="stable")[:_HEAT_FEATURES]
    rows = np.sort(largest)  # in the order of the table
    most = f"the {len(rows)} features with the largest of {model.n_features_in_:,}"
    which = "all features" if len(rows) == model.n_features_in_ else most
    caption = f"Loadings of {which}: blue above zero, orange below, stronger where larger"
    columns = [str(i + 1) for i in range(len(shown))]
    return render_figure(caption, draw_heat_map([names[j] for j in rows], shown[:, rows].T, caption, columns))


def _name_features(model: FeatureModel) -> Sequence[str]:
    return _find_feature_names(model) or [f"column {i}" for i in range(model.n_features_in_)]


def _are_pixels(model: FeatureModel) -> bool:
    """Whether the features are pixels of a square: so named, or without names."""
    side, names = math.isqrt(model.n_features_in_), _find_feature_names(model)
    named = names is None or all(name.startswith("pixel") for name in names)
    return side**2 == model.n_features_in_ and 16 <= model.n_features_in_ <= _PIXELS and named


def render_pictures(model: FeatureModel, components: Array) -> str:
    """Components as pictures, where the features are pixels of a square."""
    if not _are_pixels(model):
        return ""
    side = math.isqrt(model.n_features_in_)
    figures = (
        f"<figure>{draw_picture(component.tolist(), side, f'component {i + 1}')}"
        f"<figcaption>{i + 1}</figcaption></figure>"
        for i, component in enumerate(components[:_PICTURES])
    )
    caption = f"The same components as pictures of {side} by {side} pixels: blue above zero, orange below."
    return f'<p class="soft" style="margin-top:12px">{caption}</p><div class="pictures">{"".join(figures)}</div>'
