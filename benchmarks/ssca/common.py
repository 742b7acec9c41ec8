"""What the benchmarks of mini-batch SSCA share: MNIST among ten clients, the settings of section VI, one run of it."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedspan.algorithms import Steps
from fedspan.core.protocol import Array, Server
from fedspan.core.run import Info, Result, run
from fedspan.engines.inprocess import InProcess
from fedspan.numerics.swish import Swish

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from page import put as put  # for the scripts beside

NET = Swish(hidden=128, classes=10)
SAMPLE = {10: (0.9, 0.5, 0.1, 0.2), 100: (0.3, 0.3, 0.1, 0.05), 6000: (0.2, 0.3, 0.1, 0.03)}  # a1, a2, α, τ by B
FEATURE = {10: (0.9, 0.3, 0.3, 0.1), 100: (0.9, 0.5, 0.1, 0.2), 1000: (0.3, 0.3, 0.1, 0.05)}


class Data(NamedTuple):
    """MNIST, pixels from 0 to 1 in float32."""

    X: Array
    y: Array
    X_test: Array
    y_test: Array


def arguments(text: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(text or "").splitlines()[0])
    shared = Path(__file__).resolve().parents[3] / "shared" / "data"
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("FEDSPAN_DATA", shared)))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--write", type=Path, help="put the tables into this page, between its markers")
    return parser


def mnist(folder: Path) -> Data:
    path = folder / "mnist.npz"
    if not path.is_file():
        sys.exit(f"{folder} does not contain mnist.npz; give the folder that does with --data.")
    z = np.load(path)
    scaled = [(z[name] / 255.0).astype(np.float32) for name in ("X", "X_test")]
    return Data(scaled[0], z["y"].astype(np.int64), scaled[1], z["y_test"].astype(np.int64))


def by_samples(data: Data, seed: int, clients: int = 10) -> list[Any]:
    """The rows dealt at random to ten clients of 6000."""
    order = np.random.default_rng(seed).permutation(len(data.y))
    return [(data.X[rows], data.y[rows]) for rows in np.array_split(order, clients)]


def by_features(data: Data, clients: int = 10) -> list[Any]:
    """The pixels dealt to ten clients, in rows of the image."""
    return [(np.ascontiguousarray(part), data.y) for part in np.array_split(data.X, clients, axis=1)]


def steps(a1: float, a2: float, alpha: float, tau: float) -> dict[str, Any]:
    """The paper's settings as options of `Ssca`."""
    return {"rho": Steps(a1, alpha), "gamma": Steps(a2, alpha), "tau": tau}


def accuracy(data: Data, omega: Array) -> float:
    return float((NET.proba(omega, data.X_test).argmax(axis=1) == data.y_test).mean())


def cost(data: Data, omega: Array) -> float:
    """F(ω) over all training rows, computed here, in one place: not what the run says of itself."""
    total = 0.0
    for start in range(0, len(data.y), 5000):
        Q = NET.proba(omega, data.X[start : start + 5000])
        total -= float(np.log(np.maximum(Q[np.arange(len(Q)), data.y[start : start + 5000]], 1e-300)).sum())
    return total / len(data.y)


def solve(
    method: Server[Any], clients: Any, seed: int, threads: int | None, look: Callable[[Info], None] | None = None
) -> Result[Any]:
    return run(method, InProcess(clients, threads=threads), rounds=method.rounds, seed=seed, callback=look)  # type: ignore[attr-defined]
