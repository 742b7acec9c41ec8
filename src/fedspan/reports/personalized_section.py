"""The report of personalized PCA: what the clients share, how far each is from it, and why λ is what it is."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from fedspan._types import Array
from fedspan.core.ledger import Ledger
from fedspan.reports._components import FeatureModel, list_loadings, render_pictures
from fedspan.reports._section import IterativeModel, Metrics, ShownRows, build_iterative_section, list_sizes
from fedspan.reports.drawing.charts import draw_curve_chart
from fedspan.reports.drawing.client_charts import draw_distances
from fedspan.reports.drawing.scatter import draw_client_map
from fedspan.reports.format import escape, format_count, format_number
from fedspan.reports.page import render_charts, render_figure, render_table

_MAPPED = 300  # clients on the map
_FARTHEST, _NEAREST = 5, 3  # clients in the table of distances
_WEIGHTINGS = ("equal weight", "by number of rows")


class PersonalizedModel(FeatureModel, IterativeModel, Protocol):
    """What the report reads of a fitted `PersonalizedPCA`."""

    shared_components_: Array  # (k, d)
    components_: Array | None  # (m, k, d); None if the clients kept theirs
    distances_: Array | None  # (m,)
    client_names_: list[str]
    mean_distance_: float
    shrinkage_: float  # λ
    shrinkage_share_: float
    shrinkage_in_words_: str
    cv_shrinkages_: Array
    cv_losses_: Array  # (weightings, λs); empty if λ was given


def _summarize_personalized(model: PersonalizedModel, duration: str) -> str:
    return (
        f"{format_count(len(model.shared_components_), 'component')} for each of "
        f"{format_count(model.n_clients_, 'client')}, from {model.n_samples_:,} rows with "
        f"{model.n_features_in_:,} features in all, found {duration}. The clients' own components are "
        f"{model.shrinkage_in_words_} (λ = {format_number(model.shrinkage_)})."
    )


def _list_personalized_figures(model: PersonalizedModel, last: Metrics) -> dict[str, str]:
    return {
        "λ": format_number(model.shrinkage_),
        "weight of the shared part": f"{model.shrinkage_share_:.0%}",
        "mean distance": f"{model.mean_distance_:.3f}",
    }


def _render_personalized(model: PersonalizedModel, ledger: Ledger, rows: ShownRows) -> str:
    loadings = [[str(i + 1), text] for i, text in enumerate(list_loadings(model, model.shared_components_))]
    return (
        f"<h2>Clients and what they share</h2><p>{escape(_explain_shrinkage(model))}</p>"
        + render_charts([_render_map(model), _render_distances(model), _render_held_out(model)])
        + _render_distance_table(model)
        + "<h2>Shared components</h2>"
        + render_table(["no.", "largest loadings"], loadings, numbers=set())
        + render_pictures(model, model.shared_components_)
    )


def _explain_shrinkage(model: PersonalizedModel) -> str:
    origin = "It was given"
    if model.cv_losses_.size:
        origin = "It was chosen by cross-validation on the clients' own rows"
    if len(np.atleast_2d(model.cv_losses_)) == len(_WEIGHTINGS):
        origin += ", with the shared part weighted equally at every client or less at clients with more rows"
    meaning = {
        "local": "each client's components are nearly those of its own rows alone",
        "shared": "each client's components are nearly the shared ones",
    }.get(model.shrinkage_in_words_, f"the shared part has {model.shrinkage_share_:.0%} of the weight at each client")
    return (
        f"λ = {format_number(model.shrinkage_)} says how strongly the clients' components are pulled towards the "
        f"shared ones (0: every client by itself; ∞: the same components for all). {origin}. Here the components are "
        f"{model.shrinkage_in_words_}: {meaning}. A distance of 0 means that a client's components span the same "
        f"space as the shared ones, 1 that they have nothing in common; the mean is {model.mean_distance_:.3f}."
    )


def _render_map(model: PersonalizedModel) -> str:
    """The clients' subspaces in the plane: classical scaling of their distances, with the shared one among them."""
    if model.components_ is None or model.n_clients_ < 3:
        return ""
    U = np.concatenate([model.components_[:_MAPPED], model.shared_components_[None]])  # (m + 1, k, d)
    m, k, d = U.shape
    products = (U.reshape(m * k, d) @ U.reshape(m * k, d).T).reshape(m, k, m, k)
    squares = np.clip(1.0 - (products**2).sum(axis=(1, 3)) / k, 0.0, None)  # 0: the same span, 1: nothing in common
    centre = np.eye(m) - 1.0 / m
    theta, V = np.linalg.eigh(-0.5 * centre @ squares @ centre)
    plane = V[:, -2:][:, ::-1] * np.sqrt(np.clip(theta[-2:][::-1], 0.0, None))
    held = np.clip(theta[-2:], 0.0, None).sum() / (np.clip(theta, 0.0, None).sum() or 1.0)
    caption = (
        f"Map of the clients: similar clients are close together, the ring is what all share "
        f"(shows {held:.0%} of their distances)"
    )
    names = [str(name) for name in model.client_names_[:_MAPPED]]
    return render_figure(caption, draw_client_map(names, plane[:-1], plane[-1], caption))


def _render_distances(model: PersonalizedModel) -> str:
    if model.distances_ is None:
        return ""
    caption = "Distance of each client to the shared components (0: the same span, 1: nothing in common)"
    return render_figure(caption, draw_distances(model.client_names_, model.distances_))


def _render_held_out(model: PersonalizedModel) -> str:
    losses = np.atleast_2d(model.cv_losses_)
    if losses.size == 0 or not np.isfinite(losses).all():
        return ""
    last = len(model.cv_shrinkages_) - 1
    named = {*range(0, last - 1, 3), last}  # not all of them fit
    names = [format_number(lam) if i in named else "" for i, lam in enumerate(model.cv_shrinkages_)]
    kinds = _WEIGHTINGS if len(losses) == len(_WEIGHTINGS) else ("held-out error",)
    curves = dict(zip(kinds, losses.tolist(), strict=True))
    best = int(np.argmin(losses.min(axis=0)))
    caption = "Reconstruction error on held-out rows, by λ; the dashed line marks the λ that was chosen"
    return render_figure(caption, draw_curve_chart(range(last + 1), curves, caption, "λ", names=names, mark=best))


def _render_distance_table(model: PersonalizedModel) -> str:
    if model.distances_ is None:
        return "<p>The clients kept their components (collect = false), so only their mean distance is known.</p>"
    order = np.argsort(-model.distances_, kind="stable")
    rows = [[str(model.client_names_[i]), f"{model.distances_[i]:.3f}"] for i in order]
    if len(rows) > _FARTHEST + _NEAREST:
        rows = [*rows[:_FARTHEST], ["…", "…"], *rows[-_NEAREST:]]
    return "<h2>Clients by distance, the farthest first</h2>" + render_table(["client", "distance"], rows, numbers={1})


PERSONALIZED = build_iterative_section(
    "Personalized PCA",
    _summarize_personalized,
    list_sizes,
    _list_personalized_figures,
    _render_personalized,
    "change of the objective",
)
