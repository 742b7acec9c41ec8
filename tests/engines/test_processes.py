"""Clients in forked processes: the same bits, bytes, ledger and checkpoints as in one, and what goes wrong."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from fedspan import FederatedPCA
from fedspan.algorithms import FedPower, Gram, Krylov, LocalPower, Ssi
from fedspan.channel import Channel, delta, quantize
from fedspan.core.checkpoint import Checkpoint, flatten
from fedspan.core.ledger import Exchange
from fedspan.core.run import run
from fedspan.engines import InProcess
from fedspan.engines.client_group import share_clients
from fedspan.engines.forked import can_fork
from fedspan.engines.hub import find_blocks
from fedspan.errors import FedspanError, InputError
from fedspan.secure.masking import Secure

pytestmark = pytest.mark.skipif(not can_fork(), reason="this system cannot fork")
D = 12


def rows(clients: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    scales = 0.7 ** np.arange(D)
    return {f"c{i:04d}": rng.normal(size=(3 + i % 5, D)) * scales + 1 for i in range(clients)}


def bits(result: Any) -> Any:
    skeleton, arrays = flatten(result.state)
    return repr(skeleton), [np.ascontiguousarray(a).tobytes() for a in arrays.values()]


def costs(result: Any) -> Any:
    """All of the ledger's exchanges but for their seconds."""
    events = [e for e in result.ledger.events if isinstance(e, Exchange)]
    return [(e.round, e.exchange, e.task, e.clients, e.bytes_up, e.bytes_down, e.missing, e.failures) for e in events]


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    with threadpool_limits(1):
        yield


@pytest.mark.parametrize("count", [5, 200])
@pytest.mark.parametrize(
    "server",
    [Gram(k=3), Krylov(k=3, tol=1e-8), Ssi(k=3, tol=0), FedPower(k=3, fraction=0.4, scheme=2), LocalPower(k=3)],
    ids=lambda server: type(server).__name__,
)
@pytest.mark.parametrize(
    "channel", [Channel(), Channel(delta(quantize(6)), delta(quantize(6)))], ids=["plain", "delta"]
)
def test_the_same_bits_and_bytes(count: int, server: Any, channel: Channel) -> None:
    if isinstance(server, Krylov) and channel.up.kinds:
        pytest.skip("krylov rounds itself")
    clients = rows(count)
    found = [
        run(server, InProcess(clients, threads=1, processes=n), rounds=4, seed=0, channel=channel) for n in (1, 2, 3)
    ]
    for other in found[1:]:
        assert bits(other) == bits(found[0])
        assert costs(other) == costs(found[0])


@pytest.mark.parametrize("secure", [Secure(), Secure(threshold=3)])
def test_secure_sums(secure: Secure) -> None:
    clients, server = rows(7), Krylov(k=2, tol=1e-8)
    found = [run(server, InProcess(clients, threads=1, processes=n), rounds=8, seed=0, secure=secure) for n in (1, 2)]
    assert bits(found[0]) == bits(found[1])
    assert [sum(e[4]) for e in costs(found[0])] == [sum(e[4]) for e in costs(found[1])]


def test_estimators_and_resumed_runs(tmp_path: Path) -> None:
    clients = rows(150)
    whole = run(Ssi(k=2, tol=0), InProcess(clients, threads=1, processes=2), rounds=6, seed=0)
    channel = Channel(delta(quantize(8)), delta(quantize(8)))
    straight = run(Ssi(k=2, tol=0), InProcess(clients, threads=1), rounds=6, seed=0, channel=channel)

    def stop(info: Any) -> None:
        if info.round == 3:
            raise KeyboardInterrupt

    engine, kept = InProcess(clients, threads=1, processes=2), Checkpoint(tmp_path / "kept")
    with pytest.raises(KeyboardInterrupt):
        run(Ssi(k=2, tol=0), engine, rounds=6, seed=0, channel=channel, checkpoint=kept, callback=stop)
    for processes in (1, 3):  # a checkpoint does not know how many there were
        again = InProcess(clients, threads=1, processes=processes)
        copy = Checkpoint(tmp_path / f"copy{processes}")
        for file in (tmp_path / "kept").iterdir():
            (tmp_path / f"copy{processes}").mkdir(exist_ok=True)
            (tmp_path / f"copy{processes}" / file.name).write_bytes(file.read_bytes())
        assert bits(run(Ssi(k=2, tol=0), again, rounds=6, seed=0, channel=channel, checkpoint=copy)) == bits(straight)
    assert whole.rounds == 6
    model = FederatedPCA(2, random_state=0, engine=lambda data: InProcess(data, processes=2)).fit(clients)
    np.testing.assert_array_equal(model.components_, FederatedPCA(2, random_state=0).fit(clients).components_)


def test_clients_that_are_opened_in_their_process(tmp_path: Path) -> None:
    def open_rows(i: int) -> Any:
        def opened() -> np.ndarray:
            (tmp_path / f"{i} {os.getpid()}").touch()
            return rows(6)[f"c{i:04d}"]

        return opened

    clients = {f"c{i:04d}": open_rows(i) for i in range(6)}
    run(Gram(k=2), InProcess(clients, threads=1, processes=3), rounds=1, seed=0)
    seen = [path.name.split() for path in tmp_path.iterdir()]
    assert len(seen) == 6  # each in one process only
    assert len({pid for _, pid in seen}) == 3
    assert str(os.getpid()) not in {pid for _, pid in seen}


def test_bad_input_is_told_as_in_one_process() -> None:
    clients = rows(6)
    clients["c0004"] = np.where(np.arange(D) == 3, np.nan, clients["c0004"])
    told = []
    for processes in (1, 2):
        with pytest.raises(InputError) as caught:
            run(Gram(k=2), InProcess(clients, threads=1, processes=processes), rounds=1, seed=0)
        told.append((str(caught.value), caught.value.client))
    assert told[0] == told[1]
    assert "NaN or infinity was found" in told[0][0]
    wide = rows(6) | {"c0005": np.ones((4, D + 1))}
    with pytest.raises(FedspanError, match=r"'c0005' has shape|13"):
        run(Gram(k=2, center=True), InProcess(wide, threads=1, processes=2), rounds=1, seed=0)


def test_a_process_that_is_killed_ends_the_run_with_a_reason() -> None:
    clients = rows(6)
    parent = os.getpid()

    def fall() -> np.ndarray:
        assert os.getpid() != parent
        os.kill(os.getpid(), signal.SIGKILL)
        return np.zeros((1, D))

    with pytest.raises(FedspanError, match=r"A process with clients has ended \(exit code -9\)"):
        run(Gram(k=2), InProcess(clients | {"c0001": fall}, threads=1, processes=2), rounds=1, seed=0)


def test_processes_are_gone_afterwards() -> None:
    import multiprocessing

    run(Gram(k=2), InProcess(rows(6), threads=1, processes=3), rounds=1, seed=0)
    assert not multiprocessing.active_children()


def test_how_many(tmp_path: Path) -> None:
    assert InProcess(rows(6)).processes == 1
    assert InProcess(rows(6), processes="auto").processes == 1
    assert InProcess(rows(600), processes="auto", transcript=tmp_path).processes == 1
    assert InProcess(rows(3), processes=8).processes == 3
    with pytest.raises(InputError, match="processes must be an integer"):
        InProcess(rows(3), processes=0)
    with pytest.raises(InputError, match="cannot be combined with faults or transcript"):
        InProcess(rows(3), processes=2, transcript=tmp_path)


def test_shares_cut_no_block() -> None:
    names = [f"{i:03d}" for i in range(130)]
    blocks = find_blocks(names)
    assert max(blocks.values()) < 64
    shares = share_clients(names, 4, blocks)
    assert [name for share in shares for name in share] == names
    owners = [{blocks[name] for name in share} for share in shares]
    assert sum(map(len, owners)) == len(set().union(*owners))
    assert share_clients(names[:3], 8, find_blocks(names[:3])) == [["000"], ["001"], ["002"]]
