"""Private fits over a federation of verified sites: every part of them is repeated by the sites, and charged."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from orders import FIVE, SEED, data_of, exchanges, new_run

import fedspan
from fedspan import FederatedClassifier, RowDP, Secure
from fedspan.channel import wire
from fedspan.core.ledger import Ledger
from fedspan.deployment.loopback_federation import LoopbackFederation
from fedspan.deployment.server_job import RunRequest
from fedspan.engines.loopback import Call, Deliver
from fedspan.errors import FedspanError

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


FITS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "one bound": ("FederatedPCA", {"row_norm": 30.0}, {"n_components": 2}),
    "robust": ("FederatedPCA", {"row_norm": 8.0, "center": "robust"}, {"n_components": 2}),
    "a bound for the mean": ("FederatedPCA", {"row_norm": 8.0, "center": 40.0}, {"n_components": 2}),
    "no bound": ("FederatedPCA", {"row_norm": "auto"}, {"n_components": 2}),
    "not centred": ("FederatedSVD", {"row_norm": 30.0}, {"n_components": 2, "solver": "gram"}),
    "narrow block": ("FederatedPCA", {"row_norm": 30.0}, {"n_components": 2, "solver": "ssi", "max_rounds": 3}),
    "personalized": ("PersonalizedPCA", {"row_norm": "auto"}, {"n_components": 2, "collect": False}),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", FITS)
def test_every_part_of_a_private_fit_is_verified(five: LoopbackFederation, name: str) -> None:
    """The sites accept all questions of all parts, and what they release adds up to what was asked for."""
    estimator, dp, options = FITS[name]
    order = order_privately(estimator, "hospitals", {"epsilon": 20.0, **dp}, **options)
    assert five.carry_out(order) == {"done": True}
    ledger = Ledger.read(five.place(order) / "ledger.jsonl")
    assert ledger.epsilon(DELTA) == pytest.approx(20.0, rel=1e-6)
    assert all(event.secure for event in exchanges(ledger))


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", FITS)
def test_a_verified_private_fit_has_the_bits_of_one_that_is_not(name: str) -> None:
    """To the bit: noise that repeats, and sums of whole numbers."""
    estimator, dp, options = FITS[name]
    request, found = RowDP(20.0, DELTA, simulate=True, **dp), []
    for secure in (True, Secure(verified=True)):
        model = getattr(fedspan, estimator)(**options, privacy=request, secure=secure, random_state=SEED)
        model.fit(data_of("hospitals", FIVE))
        found.append(model.shared_components_ if estimator == "PersonalizedPCA" else model.components_)
    np.testing.assert_array_equal(*found)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_mean_with_which_the_run_did_not_begin_is_refused(five: LoopbackFederation) -> None:
    """It was found by an earlier part, and is in what the sites are told when the part with the components begins."""
    asked = []

    def lie(call: Call, deliver: Deliver) -> Any:
        if call.method != "exchange" or (message := wire.decode(call.message)).task != "triangle":
            return deliver(call)
        asked.append(call)
        arrays = {**message.arrays, "mean": message.arrays["mean"] + 1e-3}
        return deliver(replace(call, message=wire.encode(replace(message, arrays=arrays))))

    order = order_privately("FederatedPCA", "hospitals", {"epsilon": 5.0, "row_norm": 8.0, "center": "robust"})
    federation = LoopbackFederation(five.folder, five.sites, lie)
    try:
        done = federation.carry_out(order)
    except FedspanError as error:
        done = {"error": str(error)}
    assert asked
    assert "error" in done
    ledger = Ledger.read(five.place(order) / "ledger.jsonl")
    assert "triangle" not in {e.task for e in exchanges(ledger) if not e.missing}
