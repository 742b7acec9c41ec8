"""What the benchmarks of FedPower share: scaled data sets, rows dealt to clients, the exact answer, one run."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg

from fedspan.channel import Channel
from fedspan.core.ledger import Exchange, Ledger
from fedspan.core.protocol import Array, Server
from fedspan.core.run import Info, Result
from fedspan.core.run import run as run_rounds
from fedspan.engines.inprocess import InProcess
from fedspan.numerics.orthonormal import projection_distance

K, R = 5, 10  # components wanted, columns iterated
HERE = ("a9a", "housing", "w8a", "mnist", "covtype")
AWAY = ("acoustic", "aloi", "combined", "connect-4", "ijcnn1")
MISSING = "the data set is not to be had here"


def scaled(data: Path, name: str) -> Array:
    """The rows, every column divided by its largest absolute value."""
    A = np.load(data / f"{name}.npz")["X"].astype(np.float64)
    A = A[:, :780] if name == "mnist" else A  # LIBSVM's mnist: the last four pixels are always 0
    largest = np.abs(A).max(axis=0)
    return A / np.where(largest > 0, largest, 1.0)


def exact(A: Array) -> Array:
    d = A.shape[1]
    return np.asarray(scipy.linalg.eigh(A.T @ A, subset_by_index=[d - K, d - 1])[1])


def deal(A: Array, seed: int, m: int | None = None) -> list[Array]:
    """The rows at random to m clients; None: so many that they have about 1000 rows, as for Table 2."""
    order = np.random.default_rng(seed).permutation(len(A))
    return [A[rows] for rows in np.array_split(order, m or max(len(A) // 1000, 3))]


def solve(method: Server[Any], clients: Any, seed: int, rounds: int = 300, callback: Any = None) -> Result[Any]:
    return run_rounds(method, InProcess(clients, max_open=1000), rounds=rounds, seed=seed, callback=callback)


class Step(NamedTuple):
    """After a round."""

    error: float
    round: int
    megabytes: float  # both links, all clients, from the beginning
    exchanges: int  # in this round and those before


class NearEnoughError(Exception):
    """The error is what it was to be."""


def watched(
    method: Server[Any], clients: Any, V: Array, seed: int, until: float = 0.0, channel: Channel | None = None
) -> list[Step]:
    """What each round led to, and what was sent by then; to its own end, or until that error."""
    ledger, out = Ledger(), list[Step]()

    def watch(info: Info) -> None:
        sent = (ledger.bytes_up + ledger.bytes_down) / 1e6
        asked = sum(isinstance(event, Exchange) and event.round > 0 for event in ledger.events)
        out.append(Step(projection_distance(info.estimate.T, V), info.round, sent, asked))
        if out[-1].error <= until:
            raise NearEnoughError

    engine = InProcess(clients, max_open=1000)
    with contextlib.suppress(NearEnoughError):
        run_rounds(method, engine, rounds=300, seed=seed, channel=channel, ledger=ledger, callback=watch)
    return out


def course(method: Server[Any], clients: Any, V: Array, seed: int, rounds: int) -> list[float]:
    """The distance after each round."""
    out: list[float] = []
    solve(method, clients, seed, rounds, lambda info: out.append(projection_distance(info.estimate.T, V)))
    return out + out[-1:] * (rounds - len(out))  # a run that stands still has ended
