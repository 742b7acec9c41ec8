"""`class_weight="balanced"` in a federation: the rows of each class are one secure sum, before the fit itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from orders import arguments, exchanges, order_for_estimator, write_site, write_tables

from fedspan import FederatedClassifier, InputError
from fedspan.algorithms.learning._samples import SampleClient
from fedspan.algorithms.learning.count_samples import CountClasses
from fedspan.core.ledger import Ledger
from fedspan.deployment.loopback_federation import LoopbackFederation
from fedspan.deployment.server_job import RunRequest
from fedspan.engines.loopback import Call, Deliver


def balanced() -> RunRequest:
    return replace(order_for_estimator("classifier, balanced"), secure={"enabled": True, "verified": True})


def test_only_their_sum_is_seen_and_verified(five: LoopbackFederation) -> None:
    order = balanced()
    assert five.carry_out(order) == {"done": True}
    ledger = Ledger.read(five.place(order) / "ledger.jsonl")
    counted = [event for event in exchanges(ledger) if event.task == "count_classes"]
    assert [(event.secure, len(event.clients)) for event in counted] == [(True, 5)]
    there = FederatedClassifier.load(five.place(order) / "model.safetensors")
    Xs, ys = arguments("labelled", tuple(five.sites))
    rows = np.bincount(np.concatenate(list(ys.values())))
    weights = {label: rows.sum() / (2 * count) for label, count in enumerate(rows)}
    here = FederatedClassifier(**{**order.parameters, "class_weight": weights}, secure=True).fit(Xs, ys)
    np.testing.assert_array_equal(there.coef_, here.coef_)


class Killed(BaseException):
    """The end of the server's process."""


@pytest.mark.parametrize("at", [0, 30])
def test_a_fit_that_was_cut_off_goes_on_to_the_same_bits(five: LoopbackFederation, at: int) -> None:
    whole, order = balanced(), balanced()
    heard = []

    def kill_server(call: Call, deliver: Deliver) -> Any:
        answer = deliver(call)
        heard.append(call)
        if len(heard) > at and call.method == "exchange":
            raise Killed
        return answer

    assert five.carry_out(whole) == {"done": True}
    with pytest.raises(Killed):
        LoopbackFederation(five.folder, five.sites, kill_server).carry_out(order)
    assert five.carry_out(order) == {"done": True}
    models = [FederatedClassifier.load(five.place(run) / "model.safetensors") for run in (whole, order)]
    np.testing.assert_array_equal(models[0].coef_, models[1].coef_)


def test_a_class_of_few_rows_is_not_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Whose it is and how many rows it has, only that site's log says."""
    tables = write_tables(tmp_path)
    tables["dee"]["labelled"]["min_rows_per_class"] = 3  # it has two rows
    sites = {name: write_site(tmp_path / name, own, secure=False) for name, own in tables.items()}
    outcome = LoopbackFederation(tmp_path / "server", sites).carry_out(balanced())
    assert "refused [" in outcome["error"]
    assert "rows" not in outcome["error"].split("refused [")[0]
    assert "has fewer than 3 rows" in caplog.text


def test_the_shape_of_the_counts_is_the_jobs() -> None:
    for y in ([], [0], [0, 1, 2]):
        client = SampleClient((np.zeros((len(y), 1)), np.array(y, dtype=int)), **CountClasses(2).client_options())
        _, released = client.count_classes(None, {}, None)  # type: ignore[arg-type]
        assert released["rows"].shape == (2,)
    for classes in (0, 10**9):
        with pytest.raises(InputError, match="from 1 to 100000 classes"):
            CountClasses(classes)
