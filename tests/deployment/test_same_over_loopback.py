"""Every algorithm gives over loopback what it gives in one process, to the bit and to the byte."""

from __future__ import annotations

from typing import Any

import pytest
from orders import (
    ESTIMATORS,
    RUNS,
    Sums,
    assert_noised,
    assert_same_as_fitted_here,
    assert_same_as_in_one_process,
    assert_same_estimate,
    order_for,
    order_for_estimator,
    order_with_noise,
)

from fedspan.channel import wire
from fedspan.core.ledger import Ledger
from fedspan.deployment.loopback_federation import LoopbackFederation
from fedspan.engines.loopback import Call, Deliver


@pytest.mark.parametrize(("name", "secure"), RUNS)
def test_an_algorithm_learns_the_same(five: LoopbackFederation, name: str, secure: Sums) -> None:
    order = order_for(name, secure)
    assert five.carry_out(order) == {"done": True}
    assert_same_as_in_one_process(five.place(order), name, secure)


@pytest.mark.parametrize("task", ESTIMATORS)
def test_an_estimator_learns_the_same(five: LoopbackFederation, task: str) -> None:
    order = order_for_estimator(task)
    assert five.carry_out(order) == {"done": True}
    assert_same_as_fitted_here(five.place(order), task)


def test_noise_is_not_the_seeds(five: LoopbackFederation) -> None:
    order = order_with_noise()
    assert five.carry_out(order) == {"done": True}
    assert_noised(five.place(order))


class Killed(BaseException):
    """The end of the server's process, as near as a test in one process comes to it."""


@pytest.mark.parametrize(("name", "secure"), RUNS)
def test_a_run_that_was_cut_off_goes_on_to_the_same_bits(five: LoopbackFederation, name: str, secure: Sums) -> None:
    """The server ends in the middle, after the sites have answered; in the next job they are new objects, too."""
    order = order_for(name, secure)
    middle = (order.rounds + 1) // 2

    def kill_server(call: Call, deliver: Deliver) -> Any:
        answer = deliver(call)
        if call.method == "exchange" and wire.decode(call.message).round == middle:
            raise Killed
        return answer

    with pytest.raises(Killed):
        LoopbackFederation(five.folder, five.sites, kill_server).carry_out(order)
    assert five.carry_out(order) == {"done": True}
    assert_same_estimate(five.place(order), name, secure)
    if middle > 1:  # else the first round is begun again
        notes = Ledger.read(five.place(order) / "ledger.jsonl").notes
        assert any("resumed after round" in note for note in notes)
