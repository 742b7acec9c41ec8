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

from fedspan.deployment.loopback_federation import LoopbackFederation
from fedspan.deployment.server_job import RunRequest

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
