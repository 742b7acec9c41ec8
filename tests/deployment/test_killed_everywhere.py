"""A run whose server is killed at one message after another, within one and the same run, goes on to the same bits."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from orders import RUNS, Sums, assert_noised, assert_same_estimate, order_for, order_with_noise

from fedspan.channel import wire
from fedspan.deployment.loopback_federation import LoopbackFederation
from fedspan.deployment.server_job import RunRequest
from fedspan.engines.loopback import Call, Deliver

Moment = tuple[str, str, int, int]  # site, task, round and exchange


class Killed(BaseException):
    """The end of the server's process."""


class KillEverywhere:
    """Ends the server at every message of a run: once before it is heard, and once after it was answered.

    `apart`: at one message after another. Else at those to all sites at once, which takes a fifth of the time.
    """

    def __init__(self, apart: bool) -> None:
        self.apart, self.lock = apart, threading.Lock()
        self.before: set[Moment] = set()
        self.after: set[Moment] = set()
        self.killed = False  # in this life

    def __call__(self, call: Call, deliver: Deliver) -> Any:
        if call.method != "exchange" or not isinstance(call.message, bytes):
            return deliver(call)
        message = wire.decode(call.message)
        moment = (call.site, message.task, message.round, message.exchange)
        if self._is_new(moment, self.before):
            raise Killed
        answer = deliver(call)
        if self._is_new(moment, self.after):
            raise Killed
        return answer

    def _is_new(self, moment: Moment, known: set[Moment]) -> bool:
        with self.lock:
            if moment in known or (self.apart and self.killed):
                return False
            known.add(moment)
            self.killed = True
            return True


def kill_everywhere(five: LoopbackFederation, order: RunRequest, apart: bool) -> int:
    """Carry out an order through all these deaths; how many there were."""
    kill, deaths = KillEverywhere(apart), 0
    federation = LoopbackFederation(five.folder, five.sites, kill)
    while True:
        kill.killed = False
        try:
            assert federation.carry_out(order) == {"done": True}
        except Killed:
            deaths += 1
            assert deaths < 2000
            continue
        assert kill.before == kill.after  # nothing was asked that was not also cut off
        return deaths


QUICK: list[tuple[str, Sums]] = [
    ("krylov", False),
    ("ssca", True),
    ("krylov rounded", True),
    ("krylov", "verified"),
    ("ssca limited", "verified"),
]


@pytest.mark.parametrize(("name", "secure"), QUICK)
def test_a_run_that_is_killed_at_every_exchange(five: LoopbackFederation, name: str, secure: Sums) -> None:
    order = order_for(name, secure)
    assert kill_everywhere(five, order, apart=False) >= 6
    assert_same_estimate(five.place(order), name, secure)


def test_a_run_of_which_some_sites_heard_what_was_told(five: LoopbackFederation) -> None:
    """Mean and scale are told to one site after another: those that heard them do not mask otherwise than the rest."""
    order = order_for("gram scaled", True)
    assert kill_everywhere(five, order, apart=True) >= 20
    assert_same_estimate(five.place(order), "gram scaled", True)


def test_a_private_run_that_is_killed_at_every_message_pays_once(five: LoopbackFederation) -> None:
    order = order_with_noise()
    assert kill_everywhere(five, order, apart=True) >= 20
    assert_noised(five.place(order))


@pytest.mark.long
@pytest.mark.parametrize(("name", "secure"), RUNS)
def test_a_run_that_is_killed_at_every_message(five: LoopbackFederation, name: str, secure: Sums) -> None:
    """Every row of the conformance table, with all the sums that it can have."""
    order = order_for(name, secure)
    assert kill_everywhere(five, order, apart=True) >= 4
    assert_same_estimate(five.place(order), name, secure)
