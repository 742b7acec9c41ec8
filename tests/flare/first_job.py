"""One job with many orders. To start and to end a job takes FLARE half a minute, an order in it a second.

The job works in the background until somebody asks for an outcome.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import rogue
from orders import THREE, new_run, order_for, order_for_estimator, order_with_noise
from people_tables import order_for_people
from world import collect, log_of, misbehave, plans_of, submit

from fedspan.deployment.local import LocalFederation
from fedspan.deployment.server_job import RunRequest

# Algorithm, with secure sums. All others: over loopback, and with `long` for real.
ALGORITHMS = [
    ("ssi", False),
    ("ssi", True),
    ("krylov rounded", True),
    ("krylov", "verified"),
    ("altmaxvar", False),
    ("personal auto", False),
    ("vertical ssca", True),
]
ESTIMATORS = ["pca", "gcca", "classifier", "vertical-pca", "deep-gcca"]
PCA = {"n_components": 2, "solver": "ssi", "tol": 0.0, "max_rounds": 10, "random_state": 4}
FEDPOWER = {**PCA, "solver": "fedpower", "max_rounds": 8, "local_steps": 9}
PATIENCE = 6.0  # seconds that the server waits for the straggler


class FirstJob:
    """The job, its orders by name, and what became of them."""

    sites = THREE

    def __init__(self, made: LocalFederation, folder: Path) -> None:
        self.made, self.folder = made, folder
        self.id: str | None = None
        self.outcomes: dict[str, dict[str, Any]] = {}
        self.plans: list[dict[str, Any]] = []
        self.orders: dict[Any, RunRequest] = {
            "nonsense": RunRequest(new_run(), "FederatedPCA", PCA, timeout=300.0),  # first: it uses up north's plans
            **{key: order_for(*key) for key in ALGORITHMS},
            **{task: order_for_estimator(task) for task in ESTIMATORS},
            "noised": order_with_noise(),
            "people": order_for_people(),
            "refused": order_for("uda"),
            "renamed": RunRequest(new_run(), "FederatedPCA", PCA, table={"name": "renamed"}, timeout=300.0),
            "gone": RunRequest(new_run(), "FederatedPCA", PCA, table={"name": "gone"}, timeout=300.0),
            "straggler": RunRequest(
                new_run(), "FederatedPCA", FEDPOWER, min_clients=2, secure={"enabled": False}, timeout=PATIENCE
            ),
        }

    def submit(self) -> None:
        """Send it, unless it has been sent."""
        if self.id is None:
            nonsense = [{"what": what, "task": "multiply", "round": 2 + i} for i, what in enumerate(rogue.KINDS)]
            misbehave(self.made, "north", *({**plan, "times": 1} for plan in nonsense))
            misbehave(self.made, "south", {"what": "sleep", "seconds": 1.5 * PATIENCE, "task": "iterate_aligned"})
            self.id = submit(self.made, list(self.orders.values()))

    def finish(self) -> None:
        """Wait until it has ended, if it was sent; its sites behave again."""
        if self.id is not None and not self.outcomes:
            self.outcomes = collect(self.made, self.id, list(self.orders.values()), self.folder)
            self.plans = plans_of(self.made, "north")
            for site in self.made.sites:
                misbehave(self.made, site)

    def outcome(self, key: Any) -> dict[str, Any]:
        """How an order ended."""
        self.submit()
        self.finish()
        return self.outcomes[self.orders[key].run]

    def place(self, key: Any) -> Path:
        """Where the ledger and the model of an order are, which has been carried out."""
        assert self.outcome(key) == {"done": True}
        return self.folder / self.orders[key].run

    def log(self, site: str) -> str:
        """What a site has logged."""
        return log_of(self.made, site)
