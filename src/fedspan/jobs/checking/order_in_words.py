"""What a signed order wants of a site, in plain words for the person who approves it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedspan._foreign import printable
from fedspan.deployment.approval.signed_order import Order
from fedspan.deployment.policy import Policy
from fedspan.deployment.run_request import LABELLED_ESTIMATORS, VIEW_ESTIMATORS, RunRequest
from fedspan.engines.start import preparation_from
from fedspan.errors import FedspanError
from fedspan.estimators.parameters import parameters_of
from fedspan.jobs.checking.would_leave import TableSize, describe_leaving, find_algorithm
from fedspan.jobs.tasks import TASKS
from fedspan.privacy.budget import Budget
from fedspan.privacy.request import RowDP

_LEARNS = {
    "pca": "the principal components of all sites' rows together",
    "svd": "the singular vectors of all sites' rows together",
    "gcca": "what the sites' views of the same entities have in common",
    "deep-gcca": "what networks, one at each site, find that the sites' views have in common",
    "personalized": "principal components for each site, drawn towards each other",
    "classifier": "a classifier of rows",
    "vertical-classifier": "a classifier of entities whose columns are at different sites",
    "regressor": "a linear regression",
    "vertical-regressor": "a linear regression of rows whose features are spread over the sites",
    "vertical-pca": "the principal components of one table whose columns are at different sites",
    "vertical-svd": "the singular vectors of one table whose columns are at different sites",
}
_MOST_SHOWN = 300  # characters of one list in a line
_TYPICAL_ROWS = 1000  # where a site does not tell how many there are


def describe_order(order: Order, policy: Policy) -> list[tuple[str, str]]:
    """What to know before approving it: pairs of a word and what is to be said of it."""
    submitter = order.submitter
    lines = [
        ("digest", order.digest),
        ("asked by", f"{submitter.name} ({submitter.organisation}); certificate SHA-256 {submitter.fingerprint[:32]}…"),
        ("together with", ", ".join(order.sites)),
    ]
    for request in order.requests:
        lines += _describe_request(request, order, policy)
    return [(word, printable(text)) for word, text in lines]


def _describe_request(request: RunRequest, order: Order, policy: Policy) -> list[tuple[str, str]]:
    lines = [("run", request.run), ("wants", _describe_task(request))]
    try:
        columns, features = _say_columns(request, policy)
    except FedspanError as error:
        return [*lines, ("cannot run", str(error))]
    lines.append(("reads", columns))
    lines.append(("protection", _describe_protection(request, len(order.sites), policy)))
    lines += [("would leave", line) for line in _describe_leaving(request, order, features)]
    return lines


def _describe_task(request: RunRequest) -> str:
    if request.estimator is None:
        return f"a run of the algorithm {request.algorithm}, at most {request.rounds} rounds"
    task = _task_of(request.estimator)
    given = [f"{key} = {_shorten_list(value)}" for key, value in request.parameters.items() if value is not None]
    known = parameters_of(TASKS[task].estimator)
    default = next((known[key].default for key in ("max_rounds", "rounds") if key in known), None)
    rounds = request.parameters.get("max_rounds", request.parameters.get("rounds", default))
    return f"{_LEARNS[task]} (task {task}; {', '.join(given) or 'usual options'}; at most {rounds} rounds)"


def _task_of(estimator: str) -> str:
    return next(name for name, task in TASKS.items() if task.estimator.__name__ == estimator)


def _say_columns(request: RunRequest, policy: Policy) -> tuple[str, int]:
    """The table and the columns that a request would read, and how many features they become."""
    name = request.table.get("name") or "default"
    table = policy.find_table(request.table)
    asked = {**request.table, "alone": request.estimator in VIEW_ESTIMATORS}
    choice = table.choose(asked)  # type: ignore[arg-type]
    names = table.names_of(choice)
    columns = _shorten_list(choice.columns) if choice.columns is not None else f"all {table.features} columns"
    beside = [f"label {table.label}"] if request.estimator in LABELLED_ESTIMATORS and table.label else []
    beside += [f"target {table.target}"] if request.estimator == "FederatedRegressor" and table.target else []
    beside += [f"ids {table.id}"] if request.estimator in VIEW_ESTIMATORS and table.id else []
    text = f"table {name} ({Path(table.path).name}): {columns}{''.join(f'; {part}' for part in beside)}"
    return text, int(table.features or 0) if names is None else len(names)


def _describe_protection(request: RunRequest, sites: int, policy: Policy) -> str:
    secure = request.choose_secure(sites)
    if secure is None:
        said = ["no secure sums: the server sees what this site sends by itself"]
    else:
        threshold = (
            secure.threshold_for(sites, request.min_clients) if secure.threshold or request.min_clients else sites
        )
        checked = {True: "; each site verifies every step", "auto": "; verified where the method allows it"}
        said = [f"secure sums over at least {threshold} sites{checked.get(secure.verified, '')}"]
    if not request.privacy:
        return f"{said[0]}; no noise, so nothing of a privacy budget is spent"
    text = f"noise for epsilon {request.privacy.get('epsilon')} at delta {request.privacy.get('delta')}"
    if policy.epsilon is not None:
        spent = Budget(policy.budget).spent
        text += f", of this site's budget of {policy.epsilon:g} ({spent:.4g} spent so far)"
    return f"{said[0]}; {text}"


def _describe_leaving(request: RunRequest, order: Order, features: int) -> Sequence[str]:
    """Sentences on what the server would see, as the method that the request comes to says it."""
    if request.estimator is None:
        return [f"what {request.algorithm} asks for; see the list of its tasks in the documentation"]
    task = _task_of(request.estimator)
    secure = request.choose_secure(len(order.sites))
    views = TASKS[task].over == "views"
    options = {**request.parameters, "privacy": RowDP(**request.privacy) if request.privacy else None}  # type: ignore[arg-type]
    if "secure" in parameters_of(TASKS[task].estimator):
        options["secure"] = secure or False
    size = TableSize(dict.fromkeys(order.sites, features), dict.fromkeys(order.sites, _TYPICAL_ROWS))
    how = preparation_from(request.table.get("preparation"))
    try:
        server = find_algorithm(task, options, size)
        return describe_leaving(server, how, privacy=request.privacy, secure=secure is not None, views=views)
    except (FedspanError, TypeError, ValueError) as error:
        return [f"unknown: the method cannot be worked out at this site alone ({error})"]


def _shorten_list(value: object) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return text if len(text) <= _MOST_SHOWN else text[:_MOST_SHOWN] + "…"
