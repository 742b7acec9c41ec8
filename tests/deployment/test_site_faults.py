"""Sites that are late, that lose messages, that answer nonsense, and that keep failing: what the server makes of it."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import rogue
from orders import estimate, exchanges, new_run, order_for, order_for_estimator

from fedspan import FederatedPCA
from fedspan.channel import wire
from fedspan.core.ledger import Ledger
from fedspan.core.protection import RETRIES
from fedspan.deployment.loopback_federation import LoopbackFederation
from fedspan.deployment.server_job import RunRequest
from fedspan.engines import remote
from fedspan.engines.loopback import Call, Deliver, Tamper

ROUNDS = 12
SSI = {"n_components": 2, "solver": "ssi", "tol": 0.0, "max_rounds": ROUNDS, "random_state": 4}
Make = Callable[..., LoopbackFederation]


@pytest.fixture(scope="module")
def undisturbed(hospital_rows: dict[str, np.ndarray]) -> FederatedPCA:
    return FederatedPCA(**SSI, secure=True).fit(hospital_rows)


@pytest.fixture(scope="module")
def plain(hospital_rows: dict[str, np.ndarray]) -> FederatedPCA:
    return FederatedPCA(**SSI).fit(hospital_rows)


def make_order(timeout: float = 300.0, **changes: Any) -> RunRequest:
    return RunRequest(new_run(), "FederatedPCA", SSI, timeout=timeout, **changes)


def assert_same(federation: LoopbackFederation, order: RunRequest, undisturbed: FederatedPCA) -> None:
    model = FederatedPCA.load(federation.place(order) / "model.safetensors")
    for name in ("components_", "explained_variance_", "mean_"):
        np.testing.assert_array_equal(getattr(model, name), getattr(undisturbed, name))


def assert_close(federation: LoopbackFederation, order: RunRequest, undisturbed: FederatedPCA) -> None:
    """As above, but for the last bits: numbers of a site that answers later are added to the others' sum."""
    model = FederatedPCA.load(federation.place(order) / "model.safetensors")
    for name in ("components_", "explained_variance_", "mean_"):
        np.testing.assert_allclose(getattr(model, name), getattr(undisturbed, name), rtol=1e-11)


def ledger_of(federation: LoopbackFederation, order: RunRequest) -> Ledger:
    return Ledger.read(federation.place(order) / "ledger.jsonl")


def misbehave(site: str, *plans: dict[str, Any]) -> Tamper:
    """One site does as the plans say; see rogue.py."""

    def tamper(call: Call, deliver: Deliver) -> Any:
        if call.site != site or call.method != "exchange":
            return deliver(call)
        return rogue.answer(list(plans), call.message, lambda: deliver(call))

    return tamper


# What is said of each kind of nonsense.
NONSENSE = {
    "names": "The reply to 'multiply' must contain ['Y'], but contains ['password']",
    "shape": "but those of most sites have (6, 2)",
    "nan": "'Y' in the reply to 'multiply' must be finite",
    "garbage": "These 100 bytes are not a safetensors message",
    "text": "Site 'north' must answer in JSON, but sent 'hello'",
    "raise": "ran out of memory",
}


@pytest.mark.parametrize("what", rogue.KINDS)
def test_nonsense_is_refused_and_asked_for_again(make_three: Make, undisturbed: FederatedPCA, what: str) -> None:
    plan = {"what": what, "task": "multiply", "round": 3, "times": 1}
    federation, order = make_three(), make_order()
    federation.tamper = misbehave("north", plan)
    assert federation.carry_out(order) == {"done": True}
    assert plan["times"] == 0
    assert_same(federation, order, undisturbed)
    assert all(event.secure for event in exchanges(ledger_of(federation, order)))


@pytest.mark.parametrize("what", NONSENSE)
def test_nonsense_without_secure_sums_is_asked_for_again(make_three: Make, plain: FederatedPCA, what: str) -> None:
    federation = make_three(secure=False)
    federation.tamper = misbehave("north", {"what": what, "task": "multiply", "round": 3, "times": 1})
    order = make_order(secure={"enabled": False})
    assert federation.carry_out(order) == {"done": True}
    assert_close(federation, order, plain)
    failed = [event for event in exchanges(ledger_of(federation, order)) if event.failures]
    assert [(event.round, event.missing) for event in failed] == [(3, ("north",))]
    assert NONSENSE[what] in failed[0].failures["north"]


@pytest.mark.parametrize("what", NONSENSE)
def test_nonsense_without_secure_sums_is_named_and_the_run_can_be_resumed(
    make_three: Make, plain: FederatedPCA, what: str
) -> None:
    federation, order = make_three(secure=False), make_order(secure={"enabled": False})
    federation.tamper = misbehave("north", {"what": what, "task": "multiply", "round": 3, "times": 1 + RETRIES})
    outcome = federation.carry_out(order)
    assert not outcome["done"]
    assert "'north'" in outcome["error"]
    assert (NONSENSE[what] if what != "shape" else "but that of the other clients has shape (6, 2)") in outcome["error"]
    assert federation.carry_out(order) == {"done": True}
    assert_same(federation, order, plain)


def test_all_kinds_of_nonsense_in_one_run(make_three: Make, undisturbed: FederatedPCA) -> None:
    plans = [{"what": what, "task": "multiply", "round": 2 + i, "times": 1} for i, what in enumerate(rogue.KINDS)]
    federation, order = make_three(), make_order()
    federation.tamper = misbehave("north", *plans)
    assert federation.carry_out(order) == {"done": True}
    assert [plan["times"] for plan in plans] == [0] * len(plans)
    assert_same(federation, order, undisturbed)


def test_a_site_that_keeps_failing_is_named_and_the_run_goes_on_when_it_is_repaired(
    make_three: Make, undisturbed: FederatedPCA
) -> None:
    federation, order = make_three(), make_order()
    federation.tamper = misbehave("south", {"what": "raise", "task": "multiply", "round": 5})
    outcome = federation.carry_out(order)
    assert not outcome["done"]
    assert not outcome["input"]
    assert "'south'" in outcome["error"]
    assert "Traceback" not in outcome["error"]
    federation.tamper = None
    assert federation.carry_out(order) == {"done": True}
    assert_same(federation, order, undisturbed)
    assert any("resumed after round 4" in note for note in ledger_of(federation, order).notes)


def test_a_site_that_was_started_anew_in_the_middle_is_named_and_the_run_goes_on(
    make_three: Make, undisturbed: FederatedPCA
) -> None:
    """The new process knows nothing of the run until it is resumed."""
    federation, order = make_three(), make_order()

    def start_anew(call: Call, deliver: Deliver) -> Any:
        service = deliver.__self__.sites[call.site]  # type: ignore[attr-defined]
        if call.site == "north" and call.method == "exchange" and wire.decode(call.message).round == 6:
            service.open_run = None
        return deliver(call)

    federation.tamper = start_anew
    outcome = federation.carry_out(order)
    assert "'north'" in outcome["error"]
    assert "before a run was opened" in outcome["error"]
    federation.tamper = None
    assert federation.carry_out(order) == {"done": True}
    assert_same(federation, order, undisturbed)


@pytest.mark.parametrize("answered", [False, True], ids=["question", "answer"])
@pytest.mark.parametrize("secure", [True, False], ids=["secure", "plain"])
def test_a_lost_message_changes_nothing(
    make_three: Make, undisturbed: FederatedPCA, plain: FederatedPCA, answered: bool, secure: bool
) -> None:
    """In every round the message of another site is lost: the question, or the answer after the site's work."""
    names, lost = ("east", "north", "south"), Counter[tuple[int, str]]()

    def lose(call: Call, deliver: Deliver) -> Any:
        if call.method == "exchange":
            message = wire.decode(call.message)
            key = (message.round, message.task)
            if call.site == names[message.round % 3] and message.task == "multiply" and not lost[key]:
                lost[key] += 1
                if answered:
                    deliver(call)
                raise TimeoutError
        return deliver(call)

    federation, order = make_three(secure=secure), make_order(secure={"enabled": secure}, min_clients=2)
    federation.tamper = lose
    assert federation.carry_out(order) == {"done": True}
    assert len(lost) >= ROUNDS - 1
    if secure:  # sums of whole numbers: their order does not matter
        assert_same(federation, order, undisturbed)
    else:
        assert_close(federation, order, plain)


@pytest.mark.parametrize("answered", [False, True], ids=["question", "answer"])
@pytest.mark.parametrize("phase", ["@keys", "@roster", "count", "settle", "multiply", "@agree", "@unmask"])
def test_a_lost_message_of_a_sum_that_could_do_with_two(
    make_three: Make, undisturbed: FederatedPCA, phase: str, answered: bool
) -> None:
    """Threshold 2 of 3 sites: every phase of the protocol is used, and a message that is lost in it is sent again."""
    lost: list[str] = []

    def lose(call: Call, deliver: Deliver) -> Any:
        if call.method == "exchange" and call.site == "north" and wire.decode(call.message).task == phase and not lost:
            lost.append(phase)
            if answered:
                deliver(call)
            raise TimeoutError
        return deliver(call)

    federation = make_three(others=1, partial_sums=True)
    order = make_order(secure={"enabled": True, "threshold": 2}, retries=1)
    federation.tamper = lose
    assert federation.carry_out(order) == {"done": True}
    assert lost == [phase]
    assert_same(federation, order, undisturbed)


@pytest.mark.parametrize("retries", [0, 2])
@pytest.mark.parametrize("of", ["estimator", "algorithm"])
def test_a_request_says_how_often_a_site_is_asked(five: LoopbackFederation, of: str, retries: int) -> None:
    asked, site = 0, min(five.sites)

    def lose(call: Call, deliver: Deliver) -> Any:
        nonlocal asked
        if call.method == "exchange" and call.site == site:
            asked += 1
            raise ConnectionError("gone")
        return deliver(call)

    order = order_for("ssi") if of == "algorithm" else order_for_estimator("pca")
    try:
        five.tamper = lose
        assert not five.carry_out(replace(order, retries=retries))["done"]
    finally:
        five.tamper = None
    assert asked == retries + 1


@pytest.mark.parametrize(("name", "secure"), [("ssi", False), ("krylov", False), ("ssi", True), ("ssca", True)])
def test_the_order_of_answers_changes_nothing(five: LoopbackFederation, name: str, secure: bool) -> None:
    """Every answer waits for that of the site with the next name: they come in reverse order. One has a channel."""
    names = sorted(five.sites)
    come: dict[tuple[int, int, int], list[str]] = {}
    changed = threading.Condition()
    asked = Counter[tuple[str, int, int]]()

    def reverse(call: Call, deliver: Deliver) -> Any:
        answer = deliver(call)
        if call.method == "exchange":
            message = wire.decode(call.message)
            place = (call.site, message.round, message.exchange)
            with changed:
                asked[place] += 1
                order = come.setdefault((message.round, message.exchange, asked[place]), [])
                after = names[names.index(call.site) + 1 :]
                changed.wait_for(lambda: len(order) >= len(after), timeout=5)  # if not all are asked
                order.append(call.site)
                changed.notify_all()
        return answer

    order = order_for(name, secure)
    assert LoopbackFederation(five.folder, five.sites, reverse).carry_out(order) == {"done": True}
    assert list(come.values()).count(names[::-1]) >= order.rounds
    again = order_for(name, secure)
    assert five.carry_out(again) == {"done": True}
    np.testing.assert_array_equal(estimate(five.place(order)), estimate(five.place(again)))


FEDPOWER = {**SSI, "solver": "fedpower", "max_rounds": 8, "local_steps": 2}


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float | None]:
    """The time-outs of all waits of the server that ended without an answer."""
    vain: list[float | None] = []

    def note(futures: Any, timeout: float | None = None) -> Any:
        done = wait(futures, timeout=timeout)
        if done.not_done:
            vain.append(timeout)
        return done

    monkeypatch.setattr(remote, "wait", note)
    return vain


@pytest.fixture
def released() -> Iterator[threading.Event]:
    """Whoever waits for it is let go at the end of the test."""
    event = threading.Event()
    yield event
    event.set()


def test_a_straggler_does_not_hold_a_run_that_can_do_without(
    make_three: Make, waits: list[float | None], released: threading.Event
) -> None:
    """FedPower goes on with two of three; whoever was late once is not waited for, and is not asked while it works."""
    calls = 0

    def be_late(call: Call, deliver: Deliver) -> Any:
        nonlocal calls
        if call.site == "south" and call.method == "exchange":
            task = wire.decode(call.message).task
            if task in ("iterate_aligned", "multiply"):
                calls += 1
                released.wait()
        return deliver(call)

    federation = make_three(secure=False)
    federation.tamper = be_late
    timeout = 3.0
    order = RunRequest(new_run(), "FederatedPCA", FEDPOWER, min_clients=2, secure={"enabled": False}, timeout=timeout)
    assert federation.carry_out(order) == {"done": True}
    missed = [event for event in exchanges(ledger_of(federation, order)) if "south" in event.missing]
    assert len(missed) >= 8
    assert "did not answer within 3 s" in missed[0].failures["south"]
    # The whole time-out once, not in each round. South's own call times out at that moment, so it may be asked again.
    assert waits.count(timeout) <= 1
    assert calls < FEDPOWER["max_rounds"]


def test_a_straggler_that_answers_again_is_back(make_three: Make) -> None:
    """Lost once in round 2, there in all later rounds, although it takes longer than others are waited for."""

    def be_late_once(call: Call, deliver: Deliver) -> Any:
        if call.site == "south" and call.method == "exchange":
            message = wire.decode(call.message)
            if message.round == 2:
                raise TimeoutError
            if message.round > 3:  # round 3 shows that it is back
                time.sleep(3 * remote.GRACE)
        return deliver(call)

    federation = make_three(secure=False)
    federation.tamper = be_late_once
    order = RunRequest(new_run(), "FederatedPCA", FEDPOWER, min_clients=2, secure={"enabled": False}, timeout=300.0)
    assert federation.carry_out(order) == {"done": True}
    events = exchanges(ledger_of(federation, order))
    assert {event.round for event in events if "south" in event.missing} == {2}


def test_a_straggler_that_is_needed_is_named_with_the_time_out(make_three: Make) -> None:
    def never(call: Call, deliver: Deliver) -> Any:
        if call.site == "south" and call.method == "exchange":
            raise TimeoutError
        return deliver(call)

    federation, order = make_three(), make_order(timeout=7.0)
    federation.tamper = never
    outcome = federation.carry_out(order)
    assert not outcome["done"]
    assert "'south'" in outcome["error"]
    assert "did not answer within 7 s; see run.timeout" in outcome["error"]


@pytest.mark.parametrize("method", ["describe", "open"])
def test_a_site_that_cannot_be_reached_is_named(make_three: Make, method: str) -> None:
    def cut(call: Call, deliver: Deliver) -> Any:
        if call.site == "south" and call.method == method:
            raise ConnectionError("no route")
        return deliver(call)

    federation, order = make_three(), make_order()
    federation.tamper = cut
    outcome = federation.carry_out(order)
    assert "'south'" in outcome["error"]
    assert "no route" in outcome["error"]
    federation.tamper = None
    assert federation.carry_out(order) == {"done": True}
