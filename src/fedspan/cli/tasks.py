"""What differs between the tasks of the command line: one table, from the task's name to everything else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedspan.errors import InputError, nearest
from fedspan.federation.columns import as_labels, first_difference

if TYPE_CHECKING:
    from fedspan.cli.job import Job

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def _clients(job: Job) -> Arguments:
    return (job.sources(),), {}


def _views(job: Job) -> Arguments:
    """The ids, if a column holds them, go to the estimator, which compares the clients' digests of them."""
    more: dict[str, Any] = {}
    if job.id:
        more["ids"] = {name: _column(job, name, job.id) for name in job.clients}
    if job.held_out:
        more["held_out"] = {name: _opened(job, name, held_out=True)[0] for name in job.held_out}
    return (job.sources(),), more


def _labelled(job: Job) -> Arguments:
    return (job.sources(), {name: _labels(name, _column(job, name, job.label)) for name in job.clients}), {}


def _views_labelled(job: Job) -> Arguments:
    """The label is in one view or in several that agree; all clients know it, as in the paper."""
    opened = {name: _opened(job, name) for name in job.clients}
    if job.id and (where := first_difference({name: apart[str(job.id)] for name, (_, apart) in opened.items()})):
        raise InputError(f"need the same rows in the same order in all views, {where} (column {job.id!r})")
    labels = {name: apart[str(job.label)] for name, (_, apart) in opened.items() if job.label in apart}
    if not labels:
        raise InputError(f"need the column {job.label!r} (data.label) in one of the views, none has it")
    if where := first_difference(labels):
        raise InputError(f"need one label for each row, the views disagree: {where} (column {job.label!r})")
    return ({name: table for name, (table, _) in opened.items()}, _labels(*next(iter(labels.items())))), {}


def _opened(job: Job, name: str, held_out: bool = False) -> Any:
    try:
        return job.open(name, held_out)
    except InputError as error:
        raise type(error)(f"client {name!r}: {error}") from error


def _labels(name: str, column: Any) -> Any:
    try:
        return as_labels(column)
    except InputError as error:
        raise InputError(f"client {name!r}: {error}") from None


def _column(job: Job, name: str, column: str | None) -> Any:
    return _opened(job, name)[1][str(column)]


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
_LOSS = {"cost": "cost", "‖ω‖²": "norm2", "constraint": "constraint_1", "slack": "slack_1"}
TASKS: dict[str, Task] = {
    "pca": Task("FederatedPCA", ("solver", "spectral", "SOLVERS"), {"objective": "objective"}, protected_by=_BOTH),
    "svd": Task("FederatedSVD", ("solver", "spectral", "SOLVERS"), {"objective": "objective"}, protected_by=_BOTH),
    "gcca": Task(
        "FederatedGCCA", ("solver", "maxvar", "_SOLVERS"), {"cost": "cost", "accuracy": "accuracy"}, _views, "views"
    ),
    "personalized": Task(
        "PersonalizedPCA", ("method", "personal", "METHODS"),
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
