"""Private fits over a federation of verified sites: every part of them is repeated by the sites, and charged."""

from __future__ import annotations

import math
from typing import Any

from orders import SEED, exchanges, new_run

from fedspan import FederatedClassifier
from fedspan.core.ledger import Ledger
from fedspan.deployment.loopback_federation import LoopbackFederation
from fedspan.deployment.server_job import RunRequest

DELTA = 1e-4


def order_privately(estimator: str, table: str, dp: dict[str, Any], **options: Any) -> RunRequest:
    return RunRequest(
        new_run(),
        estimator,
        {**options, "random_state": SEED},
        table={"name": table},
        privacy={"delta": DELTA, **dp},
        secure={"enabled": True, "verified": True},
        timeout=300.0,
    )


def test_weights_of_classes_are_found_at_verified_sites(five: LoopbackFederation) -> None:
    """The noised histogram comes from all sites' secure sum; the sites are told the weights that follow from it."""
    options = {"class_weight": "balanced", "standardize": False, "hidden": 2, "batch_size": 2, "rounds": 3}
    order = order_privately("FederatedClassifier", "labelled", {"epsilon": 50.0, "row_norm": 1.0}, **options)
    assert five.carry_out(order) == {"done": True}
    ledger = Ledger.read(five.place(order) / "ledger.jsonl")
    assert [e.task for e in exchanges(ledger) if e.noise] == ["tally", "count_classes", *["sampled"] * 3]
    assert ledger.epsilon(DELTA) <= 50.0 * (1 + 1e-6)
    assert math.isfinite(FederatedClassifier.load(five.place(order) / "model.safetensors").coef_.sum())
