"""Clients on a Dask cluster: the same bits and bytes as in one process, lost workers, other versions, large clients."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from fedspan import FederatedPCA
from fedspan.algorithms import FedPower, Gram, Krylov, Ssi
from fedspan.channel import Channel, delta, quantize
from fedspan.core.checkpoint import Checkpoint, flatten
from fedspan.core.ledger import Exchange
from fedspan.core.run import run
from fedspan.engines import Dask, InProcess, dask_cluster, split_client
from fedspan.errors import FedspanError, InputError
from fedspan.numerics.orthonormal import largest_angle
from fedspan.secure.masking import Secure

distributed = pytest.importorskip("distributed", reason="the extra 'dask' is not installed")
pytestmark = [pytest.mark.xdist_group("dask"), pytest.mark.filterwarnings("ignore")]
D = 10


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two processes, as on two machines; no dashboard."""
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=50
        ) as made,
        distributed.Client(made) as client,
        threadpool_limits(1),
    ):
        yield client


def rows(clients: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    scales = 0.7 ** np.arange(D)
    return {f"c{i:04d}": rng.normal(size=(3 + i % 5, D)) * scales + 1 for i in range(clients)}


def bits(result: Any) -> Any:
    skeleton, arrays = flatten(result.state)
    return repr(skeleton), [np.ascontiguousarray(a).tobytes() for a in arrays.values()]


def costs(result: Any) -> Any:
    events = [e for e in result.ledger.events if isinstance(e, Exchange)]
    return [(e.round, e.exchange, e.task, e.clients, e.bytes_up, e.bytes_down, e.missing) for e in events]


MEMORY = Channel(delta(quantize(6)), delta(quantize(6)))


@pytest.mark.parametrize("count", [5, 150])
@pytest.mark.parametrize(
    ("server", "channel"),
    [
        (Gram(k=3), Channel()),
        (Krylov(k=3, tol=1e-8), Channel()),
        (Ssi(k=3, tol=0), MEMORY),
        (FedPower(k=3, fraction=0.4, scheme=2), Channel()),
    ],
    ids=["gram", "krylov", "ssi with memories", "fedpower"],
)
def test_the_same_bits_and_bytes(cluster: Any, count: int, server: Any, channel: Channel) -> None:
    clients = rows(count)
    here = run(server, InProcess(clients, threads=1), rounds=4, seed=0, channel=channel)
    there = run(server, Dask(cluster, clients), rounds=4, seed=0, channel=channel)
    assert bits(there) == bits(here)
    assert costs(there) == costs(here)


def test_estimators_secure_sums_and_checkpoints(cluster: Any, tmp_path: Path) -> None:
    clients = rows(6)
    there = FederatedPCA(2, random_state=0, engine=lambda data: Dask(cluster, data), secure=True).fit(clients)
    here = FederatedPCA(2, random_state=0, secure=Secure(verified=False)).fit(clients)
    np.testing.assert_array_equal(there.components_, here.components_)

    def stop(info: Any) -> None:
        if info.round == 2:
            raise KeyboardInterrupt

    kept = Checkpoint(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run(Ssi(k=2, tol=0), Dask(cluster, clients), rounds=5, seed=0, channel=MEMORY, checkpoint=kept, callback=stop)
    done = run(Ssi(k=2, tol=0), Dask(cluster, clients), rounds=5, seed=0, channel=MEMORY, checkpoint=kept)
    assert bits(done) == bits(run(Ssi(k=2, tol=0), InProcess(clients, threads=1), rounds=5, seed=0, channel=MEMORY))


def test_bad_input_is_told_as_in_one_process(cluster: Any) -> None:
    clients = rows(6) | {"c0004": np.full((3, D), np.nan)}
    with pytest.raises(InputError, match="client 'c0004': Rows must be finite numbers"):
        run(Gram(k=2), Dask(cluster, clients), rounds=1, seed=0)


def _die_once(mark: Path, table: np.ndarray) -> Any:
    def opened() -> np.ndarray:
        if not mark.exists():
            mark.touch()
            os._exit(1)
        return table

    return opened


@pytest.mark.parametrize("when", ["in the opening", "in round 3", "in round 3, after a checkpoint"])
def test_a_worker_that_is_killed_is_replaced_and_asked_again(cluster: Any, tmp_path: Path, when: str) -> None:
    clients: dict[str, Any] = dict(rows(6))
    expected = run(Ssi(k=2, tol=0), InProcess(clients, threads=1), rounds=5, seed=0, channel=MEMORY)
    killed = []

    def kill(info: Any) -> None:
        if info.round == 3 and not killed:
            killed.append(sorted(cluster.scheduler_info()["workers"])[0])
            cluster.run(os._exit, 1, workers=killed, on_error="ignore")

    more: dict[str, Any] = {"callback": kill}
    if when == "in the opening":
        clients["c0001"] = _die_once(tmp_path / "mark", clients["c0001"])
        more = {}
    elif when.endswith("checkpoint"):
        more["checkpoint"] = Checkpoint(tmp_path / "kept")
    cluster.wait_for_workers(2)
    found = run(Ssi(k=2, tol=0), Dask(cluster, clients), rounds=5, seed=0, channel=MEMORY, **more)
    assert bits(found) == bits(expected)
    assert costs(found) == costs(expected)
    assert killed or (tmp_path / "mark").exists()
    cluster.wait_for_workers(2)


def test_a_cluster_of_another_version_is_refused(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.wait_for_workers(2)
    monkeypatch.setattr(dask_cluster, "__version__", "9.9")
    with pytest.raises(InputError, match=r"2 of 2 workers .* another version of fedspan: .* but here it is 9.9"):
        Dask(cluster, rows(3)).start(Gram(k=2), Channel(), 0)


def test_a_lost_worker_ends_secure_sums_with_a_reason(cluster: Any, tmp_path: Path) -> None:
    clients: dict[str, Any] = dict(rows(6))
    clients["c0001"] = _die_once(tmp_path / "mark", clients["c0001"])
    cluster.wait_for_workers(2)
    with pytest.raises(FedspanError, match="Its keys are lost with it: go on from the checkpoint"):
        run(Gram(k=2), Dask(cluster, clients), rounds=1, seed=0, secure=Secure(verified=False))
    cluster.wait_for_workers(2)


def test_the_parts_of_a_large_client(cluster: Any, tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    da = pytest.importorskip("dask.array")
    cluster.wait_for_workers(2)
    X = np.concatenate(list(rows(40).values()))
    V = np.linalg.svd(X - X.mean(axis=0), full_matrices=False)[2][:2].T
    for i in range(5):
        frame = pd.DataFrame(X[i::5], columns=[f"x{j}" for j in range(D)])
        frame.to_parquet(tmp_path / f"part-{i}.parquet")
    for parts in (split_client(tmp_path), split_client(da.from_array(X, chunks=(37, D)))):
        assert len(parts) == 5 or len(parts) == -(-len(X) // 37)
        model = FederatedPCA(2, random_state=0, engine=lambda data: Dask(cluster, data), tol=1e-9).fit(parts)
        assert model.n_samples_ == len(X)
        assert largest_angle(model.components_.T, V) < 1e-6
    with pytest.raises(InputError, match="blocks of whole rows"):
        split_client(da.from_array(X, chunks=(37, 5)))
    with pytest.raises(InputError, match="is not a folder with Parquet files"):
        split_client(tmp_path / "nothing")
    with pytest.raises(InputError, match="A large client is a folder"):
        split_client(X)
