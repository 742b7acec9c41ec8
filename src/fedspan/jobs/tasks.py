"""What differs between the tasks of the command line: one table, from the task's name to everything else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from fedspan.data.columns import first_difference
from fedspan.errors import InputError, nearest

if TYPE_CHECKING:
    from fedspan.jobs.model import Job

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def _clients(job: Job) -> Arguments:
    return (job.sources(),), {}


def _views(job: Job) -> Arguments:
    """The ids, if a column holds them, are read with the rows; the estimator compares the clients' digests of them."""
    more = {"held_out": {name: job.open(name, held_out=True) for name in job.held_out}} if job.held_out else {}
    return (job.sources(),), more


def _labelled(job: Job) -> Arguments:
    """Rows and labels from one reading of each table."""
    tables = {name: job.open(name) for name in job.clients}
    held = {name: replace(source, source=tables[name]) for name, source in job.sources().items()}
    return (held, {name: table.labels for name, table in tables.items()}), {}


def _views_labelled(job: Job) -> Arguments:
    """The label is in one view or in several that agree; all clients know it, as in the paper."""
    tables = {name: job.open(name) for name in job.clients}
    if job.id and (where := first_difference({name: np.asarray(table.ids) for name, table in tables.items()})):
        raise InputError(f"need the same rows in the same order in all views, {where} (column {job.id!r})")
    labels = {name: table.labels for name, table in tables.items() if table.labels is not None}
    if not labels:
        raise InputError(f"need the column {job.label!r} (data.label) in one of the views, none has it")
    if where := first_difference(labels):
        raise InputError(f"need one label for each row, the views disagree: {where} (column {job.label!r})")
    return (tables, next(iter(labels.values()))), {}


@dataclass(frozen=True)
class Task:
    """How one task is asked for and watched. `choice` is a parameter, and where the names of its values stand."""

    estimator: str
    choice: tuple[str, str, str]
    watch: Mapping[str, str]  # what the progress line calls which metric
    arguments: Callable[[Job], Arguments] = _clients
    over: str = "clients"  # the key of [data]: who holds what
    learns_label: bool = False  # else that column is only left out
    protected_by: tuple[str, ...] = ()  # the tables that `fedspan new` offers; the estimator has the last word


_BOTH = ("privacy", "secure")
_SPECTRAL = ("solver", "_options.spectral_solvers", "SOLVERS")
_MAXVAR = ("solver", "_options.maxvar_solvers", "_SOLVERS")
_LOSS = {"cost": "cost", "‖ω‖²": "norm2", "constraint": "constraint_1", "slack": "slack_1"}
TASKS: dict[str, Task] = {
    "pca": Task("FederatedPCA", _SPECTRAL, {"objective": "objective"}, protected_by=_BOTH),
    "svd": Task("FederatedSVD", _SPECTRAL, {"objective": "objective"}, protected_by=_BOTH),
    "gcca": Task(
        "FederatedGCCA", _MAXVAR, {"cost": "cost", "accuracy": "accuracy"}, _views, "views"
    ),
    "personalized": Task(
        "PersonalizedPCA", ("method", "_options.personalized_methods", "METHODS"),
        {"λ": "shrinkage", "objective": "objective", "distance": "distance"},
    ),
    "classifier": Task(
        "FederatedClassifier", ("method", "classifier", "_METHODS"), _LOSS, _labelled, "clients", True, _BOTH
    ),
    "vertical-classifier": Task(
        "VerticalFederatedClassifier", ("method", "vertical_classifier", "_METHODS"), _LOSS, _views_labelled, "views",
        True, ("secure",),
    ),
}  # fmt: skip


def estimator(task: str) -> Any:
    """The estimator behind a task."""
    import fedspan

    return getattr(fedspan, TASKS[task].estimator)


def task_of(model: Any) -> str:
    """The task that a model is the answer to."""
    return next(name for name, task in TASKS.items() if task.estimator == type(model).__name__)


def choices(task: str) -> list[str]:
    """The names of the task's solvers or methods, the default first."""
    name, module, table = TASKS[task].choice
    known = list(getattr(import_module(f"fedspan.estimators.{module}"), table))
    return ["auto", *known] if name == "solver" else known


def check_choice(task: str, job: Mapping[str, Any]) -> None:
    """A mistyped solver or method is told before gigabytes are read."""
    name, known = TASKS[task].choice[0], choices(task)
    if job.get(name, known[0]) not in known:
        raise InputError(f"need a known job.{name}, got {job[name]!r}; {nearest(job[name], known)}")


def rounds_of(model: Any) -> int:
    """How many rounds a run can take at most."""
    if task_of(model) == "personalized":  # whose last round is the one in which components are made
        return model.max_rounds + 1 if model.method != "auto" else 3 if model.shrinkage == "auto" else 2
    return int(model.rounds if hasattr(model, "rounds") else model.max_rounds)
