"""What the server makes of a signed order is admitted by the sites, for every kind of order: the comparison of the two
refuses nothing that was asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from certificates import ADA, Authority
from orders import ESTIMATORS, new_run, order_for, order_for_estimator, order_with_noise, write_site, write_tables
from people_tables import order_for_people, write_people

from fedspan.deployment.approval.conformity import check_asked_options, possible_algorithms
from fedspan.deployment.approval.signed_order import sign_order, verify_order
from fedspan.deployment.loopback_federation import LoopbackFederation
from fedspan.deployment.policy import Policy
from fedspan.deployment.run_request import FEDERATED_ESTIMATORS, RunRequest
from fedspan.errors import FedspanError, PolicyRefusal
from fedspan.estimators.parameters import parameters_of
from fedspan.jobs.checking.order_in_words import describe_order
from fedspan.jobs.checking.would_leave import TableSize, find_algorithm
from fedspan.jobs.tasks import TASKS
from fedspan.privacy.request import RowDP

SITES = ("east", "north", "south")
PCA = {"n_components": 2, "random_state": 3}


@pytest.fixture(scope="module")
def signed(
    authority: Authority, researchers: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> LoopbackFederation:
    folder = tmp_path_factory.mktemp("signed")
    tables = write_tables(folder, SITES)
    for site, keys in write_people(folder, SITES).items():
        tables[site]["people"] = keys
    kits = {name: write_site(folder / name, own, secure=False, researchers=[ADA]) for name, own in tables.items()}
    for name, kit in kits.items():
        authority.make_kit(kit, name)
    return LoopbackFederation(folder / "server", kits, researcher=researchers[ADA])


def ask_pca(**changes: Any) -> RunRequest:
    parameters = {**PCA, **changes.pop("parameters", {})}
    return RunRequest(new_run(), "FederatedPCA", parameters, table={"name": "hospitals"}, timeout=300.0, **changes)


ORDERS: dict[str, Callable[[], RunRequest]] = {
    **{f"estimator {task}": lambda task=task: order_for_estimator(task) for task in ESTIMATORS},  # type: ignore[misc]
    **{f"default sums {task}": lambda task=task: replace(order_for_estimator(task), secure=None) for task in ("pca",)},  # type: ignore[misc]
    "vertical-svd": lambda: replace(
        order_for_estimator("vertical-pca"), estimator="VerticalSVD", parameters={"n_components": 2}
    ),
    "deep-gcca": lambda: RunRequest(
        new_run(),
        "DeepFederatedGCCA",
        {"n_components": 2, "rounds": 2, "local_steps": 2, "random_state": 3},
        table={"name": "deep"},
        secure={"enabled": False},
    ),
    "noise": order_with_noise,
    "noise alone": lambda: replace(order_with_noise(), secure={"enabled": False}),
    "people": order_for_people,
    "algorithm": lambda: order_for("ssi", True),
    "verified": lambda: order_for("krylov", "verified"),
    **{f"solver {name}": lambda name=name: ask_pca(parameters={"solver": name}) for name in ("gram", "krylov", "faps")},  # type: ignore[misc]
    "each site alone": lambda: ask_pca(parameters={"solver": "uda"}, secure={"enabled": False}),
    "most of the variance": lambda: ask_pca(parameters={"n_components": 0.9}),
    "in groups of all": lambda: ask_pca(secure={"enabled": True, "verified": True, "groups": 3}),
    "with a threshold": lambda: ask_pca(secure={"enabled": True, "threshold": 2}, min_clients=2),
    "without one": lambda: ask_pca(parameters={"solver": "ssi"}, secure={"enabled": False}, min_clients=2),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", ORDERS)
def test_what_was_asked_for_is_admitted(signed: LoopbackFederation, name: str) -> None:
    outcome = signed.carry_out(ORDERS[name]())
    assert outcome["done"], outcome


def test_every_estimator_of_a_federation_is_among_these_orders() -> None:
    asked = {make().estimator for make in ORDERS.values()}
    assert set(FEDERATED_ESTIMATORS) <= asked


CHOICES = [
    (task, choice)
    for task, row in TASKS.items()
    if row.estimator.__name__ in FEDERATED_ESTIMATORS and row.choice in parameters_of(row.estimator)
    for choice in (None, *parameters_of(row.estimator)[row.choice].choices)
]


@pytest.mark.parametrize("noise", [False, True])
@pytest.mark.parametrize(("task", "choice"), CHOICES)
def test_the_algorithm_of_every_choice_follows_from_its_order(task: str, choice: str | None, noise: bool) -> None:
    """Without a run: what the estimator would begin with is among what the site thinks that the order may come to."""
    row = TASKS[task]
    given = {} if choice is None else {row.choice: choice}
    privacy = {"epsilon": 2.0, "delta": 1e-6, "row_norm": 5.0} if noise else {}
    options = {**given, "privacy": RowDP(**privacy) if noise else None}
    try:
        server = find_algorithm(task, options, TableSize(dict.fromkeys(SITES, 6), dict.fromkeys(SITES, 100)))
    except FedspanError:
        return  # the estimator itself refuses it, so there is no run to admit
    request = RunRequest(new_run(), row.estimator.__name__, given, privacy=privacy)
    assert type(server).__name__.lower() in possible_algorithms(request)


@pytest.mark.parametrize("task", TASKS)
def test_every_task_is_told_in_words(signed: LoopbackFederation, task: str) -> None:
    if TASKS[task].estimator.__name__ not in FEDERATED_ESTIMATORS:
        pytest.skip("runs in one process only")
    kit = signed.sites["north"]
    table = {"over": "views"}.get(TASKS[task].over, "hospitals")
    request = RunRequest(new_run(), TASKS[task].estimator.__name__, {}, table={"name": table})
    assert signed.researcher is not None
    words = describe_order(verify_order(kit, sign_order(signed.researcher, [request], SITES)), Policy.read(kit))
    assert {"asked by", "wants", "would leave"} <= {word for word, _ in words} or "cannot run" in dict(words)
    assert f"task {task}" in dict(words)["wants"]


SIGNED = [  # task, what the researcher signs, and what of the algorithm the server changes
    ("vertical-pca", {"hide_scores": True}, {"hide": False}, "hide_scores"),
    ("vertical-svd", {"hide_scores": True, "n_components": 2}, {"k": 3}, "n_components"),
    ("regressor", {"robust": False}, {"robust": True}, "robust"),
    ("regressor", {"loss": "squared"}, {"loss": "huber"}, "loss"),
    ("pca", {"center": True, "solver": "ssi"}, {"center": False}, "center"),
    ("personalized", {"collect": False}, {"collect": True}, "collect"),
    ("vertical-classifier", {"exchange": "sum"}, {"exchange": "each"}, "exchange"),
    ("vertical-classifier", {"validation": 0.0}, {"validation": 0.3}, "held out"),
]


@pytest.mark.parametrize(("task", "given", "changed", "what"), SIGNED)
def test_what_decides_how_much_is_told_is_compared(
    task: str, given: dict[str, Any], changed: dict[str, Any], what: str
) -> None:
    server = find_algorithm(task, given, TableSize(dict.fromkeys(SITES, 6), dict.fromkeys(SITES, 100)))
    check_asked_options(server, given)
    for field, value in changed.items():
        assert field in vars(server)
        object.__setattr__(server, field, value)
    with pytest.raises(PolicyRefusal, match=what):
        check_asked_options(server, given)
