"""Components of rows in a report: their largest loadings by the features' names, and pictures of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from fedspan._types import Array
from fedspan.reports._section import RowsModel
from fedspan.reports.charts import draw_picture
from fedspan.reports.format import escape
from fedspan.reports.page import Html

_COMPONENTS, _LOADINGS, _PICTURES, _PIXELS = 6, 5, 12, 1024  # how much is shown


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
    names: Sequence[str] = _find_feature_names(model) or [f"column {i}" for i in range(model.n_features_in_)]
    out = []
    for component in components[:_COMPONENTS]:
        largest = np.argsort(-np.abs(component), kind="stable")[:_LOADINGS]
        items = (f'<span class="keep">{component[j]:+.2f} {escape(names[j])}</span>' for j in largest)
        out.append(Html(" ".join(items)))
    return out


def render_pictures(model: FeatureModel, components: Array) -> str:
    """Components as pictures, where the features are pixels of a square: so named, or without names."""
    side, names = math.isqrt(model.n_features_in_), _find_feature_names(model)
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
