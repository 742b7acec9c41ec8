"""What a model file may hold: the parameters of its estimator and what was learned, each of its own type.

A file may come from anywhere, and what is in it ends in computations and on pages. So a model is made only of what
`save` could have written.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from typing import TypedDict

from fedspan._types import Array
from fedspan.algorithms.learning.constraints.limits import LimitOutcome
from fedspan.algorithms.learning.held_out import Evaluation
from fedspan.algorithms.learning.scaling import Scaling
from fedspan.core.checkpoint import build, load_tree
from fedspan.errors import CheckpointError
from fedspan.estimators.parameters import parameters_of


class LearnedValues(TypedDict, total=False):
    """All that models learn, by attribute."""

    angle_: float
    angle_bound_: float
    basis_: Array
    basis_variance_ratio_: Array
    bounds_: Array | None
    client_names_: list[str]
    coef_: Array
    column_names_: list[list[str] | None]
    common_: Array
    component_angles_: Array
    components_: Array | list[Array] | None
    converged_: bool
    correlations_: Array
    cost_: float
    covariance_: Array
    cv_losses_: Array
    cv_shrinkages_: Array
    degrees_of_freedom_: float
    deviance_: float
    distances_: Array | None
    eigenvalue_by_chance_: float
    eigenvalues_: Array
    client_accuracy_: dict[str, list[float]] | None
    evaluation_: Evaluation | None
    explained_variance_: Array
    explained_variance_ratio_: Array
    feature_names_in_: list[str] | None
    gram_: Array
    held_out_correlations_: Array
    intercept_: float
    kept_total_: float
    kept_values_: Array | None
    kept_vectors_: Array | None
    limits_: list[LimitOutcome]
    labels_: list[str | int | float | bool]
    ledger_: list[str]  # only if the file was saved with its run
    mean_: Array
    mean_distance_: float
    means_: Array | list[Array] | None
    missing_: Array | None
    n_clients_: int
    n_features_: list[int]
    n_features_in_: int
    n_rounds_: int
    n_samples_: float
    n_views_: int
    noise_variance_: float
    noise_variances_: Array | None
    null_deviance_: float
    offsets_: list[Array]
    parameters_: object  # of torch modules, which refuse what does not fit
    preparation_: dict[str, object] | None
    rank_: int
    residual_scale_: float
    ridge_: float
    rest_: Array | None
    scale_: Array
    scaling_: Scaling | None
    scales_: list[Array]
    scores_: Array | None
    scree_: Array
    seed_: int
    shared_components_: Array
    shared_part_: dict[str, object]
    shares_: Array
    shrinkage_: float
    shrinkage_in_words_: str
    shrinkage_share_: float
    singular_values_: Array
    site_drift_: dict[str, list[float]] | None
    verified_: dict[str, float]
    view_counts_: Array | None
    view_names_: list[str]
    views_: dict[str, int]
    weights_: list[Array]


class ModelFile(TypedDict):
    """The tree in a model file."""

    estimator: str
    params: dict[str, object]
    learned: LearnedValues


def read_model_file(path: str | os.PathLike[str]) -> ModelFile:
    """The contents of a model file, with every value of the type that its attribute has."""
    tree = load_tree(path, "model")
    try:
        return build(ModelFile, tree)
    except CheckpointError as error:
        raise CheckpointError(
            f"{path} does not hold a model of this version of fedspan: {error} Load it with the version that wrote it."
        ) from None


def check_model_file(path: str | os.PathLike[str], file: ModelFile, estimator: type, learned: Collection[str]) -> None:
    """Refuse a file whose parameters or attributes are not those of the estimator."""
    problems = [*_list_odd_parameters(file["params"], estimator), *_list_odd_attributes(file["learned"], learned)]
    if problems:
        raise CheckpointError(f"{path} was written by another version of fedspan, or is damaged: {problems[0]}")


def _list_odd_parameters(given: Mapping[str, object], estimator: type) -> Iterator[str]:
    rows = parameters_of(estimator)
    for name, value in given.items():
        problem = rows[name].find_problem(value) if name in rows else f"{name!r} is not a parameter."
        if problem is not None:
            yield problem


def _list_odd_attributes(given: Collection[str], learned: Collection[str]) -> Iterator[str]:
    known = {*learned, "feature_names_in_", "preparation_"}
    yield from (f"{name!r} is not learned by this model." for name in given if name not in {*known, "ledger_"})
    yield from (f"{name!r} is missing." for name in sorted(known) if name not in given)
