"""A bad network and clients that fail: the answer is the right one, or the run says who is missing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

from fedspan.algorithms import Krylov, Ssi
from fedspan.algorithms._moments import RowsClient
from fedspan.channel import Channel, delta, only, quantize
from fedspan.core.ledger import Exchange
from fedspan.core.protocol import Arrays, Client, Sensitivity, task
from fedspan.core.rng import Streams
from fedspan.core.run import Result, run
from fedspan.engines import Faults, InProcess
from fedspan.errors import ClientError, InputError, ProtocolError
from fedspan.numerics.orthonormal import largest_angle

BAD = {
    "lost requests": Faults(lose_request=0.25),
    "lost replies": Faults(lose_reply=0.25),
    "late replies": Faults(delay=0.001, timeout=0.0014),
    "all of it": Faults(lose_request=0.1, lose_reply=0.1, delay=0.0005, timeout=0.001),
}
DELTA = Channel(up=only(["Y"], delta(quantize(6))), down=only(["Z"], delta(quantize(6))))


def error(result: Result[Any], clients: dict[str, np.ndarray]) -> float:
    A = np.vstack(list(clients.values()))
    B = A - A.mean(axis=0)
    return largest_angle(result.state.Z, np.linalg.eigh(B.T @ B)[1][:, -result.state.Z.shape[1] :])


def missing(result: Result[Any]) -> int:
    return sum(len(e.missing) for e in result.ledger.events if isinstance(e, Exchange))


@pytest.mark.parametrize("faults", BAD.values(), ids=BAD)
@pytest.mark.parametrize("algorithm", [Krylov(k=3, tol=1e-10), Ssi(k=3, tol=1e-8)], ids=["krylov", "ssi"])
def test_those_who_did_not_answer_are_asked_again(algorithm: Any, faults: Faults, hospitals: Any) -> None:
    result = run(algorithm, InProcess(hospitals, faults=faults), rounds=100, seed=0, retries=30)
    assert missing(result) >= 5
    assert result.converged
    assert error(result, hospitals) < 1e-5


def test_the_answer_does_not_depend_on_what_was_lost(hospitals: Any) -> None:
    """Catch-up adds the same numbers in another order."""
    good, bad = (
        run(Krylov(k=3, tol=1e-10), InProcess(hospitals, faults=faults), rounds=9, seed=0, retries=30)
        for faults in (None, BAD["lost replies"])
    )
    assert good.rounds == bad.rounds
    np.testing.assert_allclose(bad.state.theta, good.state.theta, rtol=1e-9)


@pytest.mark.parametrize("faults", BAD.values(), ids=BAD)
def test_quantised_links_with_memories_keep_their_accuracy(faults: Faults, hospitals: Any) -> None:
    good, bad = (
        run(Ssi(k=3, tol=0), InProcess(hospitals, faults=f), rounds=40, seed=0, retries=30, channel=DELTA)
        for f in (None, faults)
    )
    assert missing(bad) >= 5
    assert error(good, hospitals) < 2e-5
    assert error(bad, hospitals) < 2e-5


def test_faults_are_named_by_the_seed(hospitals: Any) -> None:
    def lost(seed: int) -> list[tuple[str, ...]]:
        engine = InProcess(hospitals, faults=BAD["lost requests"], threads=3)
        events = run(Ssi(tol=0), engine, rounds=5, seed=seed, retries=30).ledger.events
        return [e.missing for e in events if isinstance(e, Exchange)]

    assert lost(1) == lost(1) != lost(2)


def test_without_retries_the_first_loss_ends_the_run(hospitals: Any) -> None:
    with pytest.raises(
        ClientError, match=r"'\w+' needs answers from 5 clients, but only \d answered in round \d \(no answer from '"
    ):
        run(Ssi(tol=0), InProcess(hospitals, faults=BAD["lost replies"]), rounds=50, seed=0, retries=0)


@pytest.mark.parametrize("lost", ["lose_request", "lose_reply"])
def test_bytes_that_were_sent_are_counted_even_if_they_are_lost(lost: str, hospitals: Any) -> None:
    engine = InProcess(hospitals, faults=Faults(**{lost: 0.4}))
    events = run(Ssi(tol=0), engine, rounds=5, seed=0, retries=30).ledger.events
    for event in (e for e in events if isinstance(e, Exchange)):
        assert all(n > 0 for n in event.bytes_down)
        unheard = set(event.missing) if lost == "lose_request" else set()
        assert [n > 0 for n in event.bytes_up] == [name not in unheard for name in event.clients]
        assert event.failures == {}


class FlakyClient(RowsClient):
    """Fails now and then, after it has heard the question."""

    @task(releases={"Y": Sensitivity(2)}, shows="its products")
    def multiply(self, state: Any, arrays: Arrays, rng: Streams) -> Any:
        if rng("flaky").random() < 0.2:
            raise OSError("out of file handles")
        return super().multiply(state, arrays, rng)


@dataclass(frozen=True)
class FlakySsi(Ssi):
    client: ClassVar[type[Client[Any]]] = FlakyClient


def test_clients_that_fail_now_and_then_do_not_spoil_the_memories(hospitals: Any) -> None:
    result = run(FlakySsi(k=3, tol=0), InProcess(hospitals), rounds=40, seed=0, retries=30, channel=DELTA)
    failures = [why for e in result.ledger.events if isinstance(e, Exchange) for why in e.failures.values()]
    assert len(failures) >= 10
    assert set(failures) == {"OSError"}
    assert error(result, hospitals) < 2e-5


def test_clients_with_other_features_are_named(hospitals: Any) -> None:
    hospitals["cy"] = hospitals["cy"][:, :7]
    with pytest.raises(
        ProtocolError,
        match=r"'total' of client 'cy' has shape \(7,\), but that of the clients before it has shape \(12,\). Check",
    ):
        run(Ssi(), InProcess(hospitals), rounds=1, seed=0)


@pytest.mark.parametrize("threads", [1, 3])
def test_data_that_are_not_finite_are_named_by_client(hospitals: Any, threads: int) -> None:
    hospitals["dee"][3, 4] = np.nan
    with pytest.raises(
        InputError, match=r"client 'dee': Rows must be finite numbers, but NaN or infinity was found in 1 of 7 rows"
    ):
        run(Ssi(), InProcess(hospitals, threads=threads), rounds=1, seed=0)


def test_data_that_cannot_be_opened_are_named_by_client(hospitals: Any) -> None:
    def refuse() -> Any:
        raise InputError("need a readable file, a.csv is not there")

    with pytest.raises(InputError, match=r"^client 'bo': need a readable file, a.csv is not there$"):
        run(Ssi(), InProcess({**hospitals, "bo": refuse}), rounds=1, seed=0)

    def vanish() -> Any:
        raise OSError("stale file handle")

    with pytest.raises(ClientError, match=r"client 'bo' failed: OSError: stale file handle"):
        run(Ssi(), InProcess({**hospitals, "bo": vanish}), rounds=1, seed=0)
