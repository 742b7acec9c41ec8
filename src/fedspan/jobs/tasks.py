"""What differs between the tasks of a job file: one table, from the task's name to everything else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fedspan.data.ids_and_labels import find_first_difference
from fedspan.data.tables import Table
from fedspan.errors import InputError
from fedspan.estimators.classifier import FederatedClassifier
from fedspan.estimators.deep_gcca import DeepFederatedGCCA
from fedspan.estimators.gcca import FederatedGCCA
from fedspan.estimators.parameters import parameters_of
from fedspan.estimators.pca import FederatedPCA
from fedspan.estimators.personalized import PersonalizedPCA
from fedspan.estimators.regressor import FederatedRegressor
from fedspan.estimators.svd import FederatedSVD
from fedspan.estimators.vertical_classifier import VerticalFederatedClassifier
from fedspan.estimators.views.vertical_pca import VerticalPCA, VerticalSVD
from fedspan.estimators.views.vertical_regressor import VerticalFederatedRegressor

if TYPE_CHECKING:
    from fedspan.jobs.model import Job

AnyModel = (
    FederatedPCA
    | FederatedSVD
    | FederatedGCCA
    | DeepFederatedGCCA
    | PersonalizedPCA
    | FederatedClassifier
    | VerticalFederatedClassifier
    | FederatedRegressor
    | VerticalFederatedRegressor
    | VerticalPCA
    | VerticalSVD
)
"""The models that a job can learn."""

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
"""Of `fit`: those by position, and those by name."""


def _open_clients(job: Job) -> Arguments:
    return (job.sources(),), {}


def _open_weighted_clients(job: Job) -> Arguments:
    return (job.sources(),), {"client_weight": job.client_weight}


def _open_job_views(job: Job) -> Arguments:
    """The ids, if a column holds them, are read with the rows; the estimator matches or compares them."""
    named: dict[str, Any] = {"match": job.match}
    if job.preparation.missing in ("mask", "drop"):
        named["missing"] = job.preparation.missing
    if job.held_out:
        named["held_out"] = {name: job.open(name, held_out=True) for name in job.held_out}
    return (job.sources(),), named


def _open_deep_views(job: Job) -> Arguments:
    return (job.sources(),), {"match": job.match}


def _open_labelled_clients(job: Job) -> Arguments:
    """Rows and labels from one reading of each table."""
    tables = {name: job.open(name) for name in job.clients}
    held = {name: replace(source, source=tables[name]) for name, source in job.sources().items()}
    return (held, {name: table.labels for name, table in tables.items()}), _find_weights(job, tables)


def _find_weights(job: Job, tables: Mapping[str, Table]) -> dict[str, Any]:
    """The weights of the rows, if a column holds them; the groups are found by the estimator."""
    if job.preparation.weight is None:
        return {}
    return {"sample_weight": {name: table.weights for name, table in tables.items()}}


def _open_labelled_views(job: Job) -> Arguments:
    """The label is in one view or in several that agree; all clients know it, as in the paper."""
    tables = {name: job.open(name) for name in job.clients}
    labels = {name: table.labels for name, table in tables.items() if table.labels is not None}
    weights = {name: table.weights for name, table in tables.items() if table.weights is not None}
    for column, found, key in ((job.label, labels, "label"), (job.preparation.weight, weights, "weight")):
        if column is not None and not found:
            raise InputError(f"None of the views has the column {column!r} (data.{key}). Add it to at least one view.")
    if job.match != "order":  # what belongs to rows is put in order with them
        groups = {name: table.groups for name, table in tables.items() if table.groups is not None}
        beside = {"sample_weight": weights, "groups": groups}
        return (tables, labels), {"match": job.match, **{key: own for key, own in beside.items() if own}}
    if job.id and (where := find_first_difference({name: np.asarray(table.ids) for name, table in tables.items()})):
        raise InputError(
            f"All views must have the same rows in the same order, but {where} (column {job.id!r}). Sort them by it."
        )
    if where := find_first_difference(labels):
        raise InputError(f"The views disagree about the label of a row: {where} (column {job.label!r}).")
    if weights and (where := find_first_difference(weights)):
        raise InputError(f"The views disagree about the weight of a row: {where} (column {job.preparation.weight!r}).")
    held = {name: replace(source, source=tables[name]) for name, source in job.sources().items()}
    named = {"sample_weight": next(iter(weights.values()))} if weights else {}
    return (held, next(iter(labels.values()))), named


@dataclass(frozen=True)
class JobTask:
    """How one task is asked for, opened and watched."""

    estimator: type[AnyModel]
    choice: Literal["solver", "method"] | None  # the parameter that chooses the algorithm, if there are several
    watch: Mapping[str, str]  # what the progress line calls which metric
    arguments: Callable[[Job], Arguments] = _open_clients
    over: Literal["clients", "views"] = "clients"  # the key of [data]: who holds what
    learns_label: bool = False  # else that column is only left out
    label_words: str = "the classes to learn"  # what that column holds
    protected_by: tuple[str, ...] = ()  # the tables that `fedspan new` offers; the estimator has the last word
    sums_by_default: bool = True  # whether a federation of three sites has secure sums if the job says nothing


_BOTH = ("privacy", "secure")
_LOSS = {
    "cost": "cost",
    "held-out loss": "held_out_loss",
    "‖ω‖²": "norm2",
    "constraint": "constraint_1",
    "slack": "slack_1",
}
TASKS: dict[str, JobTask] = {
    "pca": JobTask(FederatedPCA, "solver", {"objective": "objective"}, _open_weighted_clients, protected_by=_BOTH),
    "svd": JobTask(FederatedSVD, "solver", {"objective": "objective"}, _open_weighted_clients, protected_by=_BOTH),
    "gcca": JobTask(
        FederatedGCCA,
        "solver",
        {"cost": "cost", "accuracy": "accuracy"},
        _open_job_views,
        "views",
        protected_by=("secure",),
        sums_by_default=False,
    ),
    "deep-gcca": JobTask(
        DeepFederatedGCCA,
        None,
        {"cost": "cost", "correlation": "correlation"},
        _open_deep_views,
        "views",
        protected_by=("secure",),
    ),
    "personalized": JobTask(
        PersonalizedPCA,
        "method",
        {"λ": "shrinkage", "objective": "objective", "distance": "distance"},
    ),
    "classifier": JobTask(
        FederatedClassifier,
        "method",
        _LOSS,
        _open_labelled_clients,
        learns_label=True,
        protected_by=_BOTH,
    ),
    "vertical-classifier": JobTask(
        VerticalFederatedClassifier,
        "method",
        _LOSS,
        _open_labelled_views,
        "views",
        learns_label=True,
        protected_by=("secure",),
    ),
    "regressor": JobTask(
        FederatedRegressor,
        "solver",
        {"cost": "cost", "decrement": "decrement"},
        _open_labelled_clients,
        learns_label=True,
        protected_by=("secure",),
        label_words="the numbers to predict",
    ),
    "vertical-regressor": JobTask(
        VerticalFederatedRegressor,
        None,
        {"cost": "cost", "decrement": "decrement"},
        _open_labelled_views,
        "views",
        learns_label=True,
        protected_by=("secure",),
        label_words="the numbers to predict",
    ),
    "vertical-pca": JobTask(
        VerticalPCA, "solver", {"objective": "objective"}, _open_job_views, "views", protected_by=("secure",)
    ),
    "vertical-svd": JobTask(
        VerticalSVD, "solver", {"objective": "objective"}, _open_job_views, "views", protected_by=("secure",)
    ),
}


def estimator(task: str) -> type[AnyModel]:
    """The estimator behind a task."""
    return TASKS[task].estimator


def task_of(model: AnyModel) -> str:
    """The task that a model is the answer to."""
    return next(name for name, task in TASKS.items() if task.estimator is type(model))


def choices(task: str) -> list[str]:
    """The names of the task's solvers or methods, the default first."""
    choice = TASKS[task].choice
    return [] if choice is None else list(parameters_of(estimator(task))[choice].choices)


def rounds_limit(model: AnyModel) -> int:
    """How many rounds a run can take at most."""
    if isinstance(model, FederatedClassifier | VerticalFederatedClassifier | DeepFederatedGCCA):
        return int(model.rounds)
    if isinstance(model, PersonalizedPCA):  # whose last round is the one in which components are made
        if model.method != "auto":
            return int(model.max_rounds) + 1
        return 3 if model.shrinkage == "auto" else 2
    return int(model.max_rounds)


def tolerance(model: AnyModel) -> float:
    """The accuracy at which a run stops; classifiers run all their rounds, regressions show their own measure."""
    own = FederatedClassifier | VerticalFederatedClassifier | FederatedRegressor | VerticalFederatedRegressor
    return 0.0 if isinstance(model, own) else float(model.tol)
