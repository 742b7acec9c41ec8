"""Private PCA in the setting of k-DP-PCA: a spiked covariance, few rows to many, beside what others do.

    python benchmarks/private/spiked.py [--seeds 20] [--rows 500,1000,…] [--write docs/privacy.md]

Rows are N(0, I + Σ λ_j v_j v_jᵀ) with λ = (10, 8), d = 200, k = 2; ε = 1, δ = 0.01; the error is the sine of the
largest angle to (v₁, v₂). All know C = √(d + 18), about the mean norm. Ours is what `solver="auto"` takes for rows that
are not centred, at one client, with the counts that a real run takes; "auto" norm is row_norm="auto". Analyze Gauss
adds a triangle of independent noise by the classic formula; the noisy power method takes 4 rounds of a block of 2k
columns; k-DP-PCA is our reading of DP-Oja with deflation (a private range of the gradients, 8 batches), not the
authors' code. Seeds are 0, 1, ….
"""

from __future__ import annotations

import argparse
import math
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import scipy.linalg

from fedspan import RowDP, run
from fedspan.algorithms import NoisyGram, NoisyPower
from fedspan.algorithms.spectral.private_bounds import LENGTHS_SHARE, Census
from fedspan.core.protocol import declared_releases
from fedspan.engines import InProcess
from fedspan.numerics.orthonormal import projection_distance
from fedspan.privacy.accountant import gaussian_mu
from fedspan.privacy.plan import plan_for

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from page import put

D, K, LAMBDAS, EPSILON, DELTA = 200, 2, (10.0, 8.0), 1.0, 0.01
NORM = math.sqrt(D + sum(LAMBDAS))
ROWS = "500,1000,2000,5000,10000,20000,50000"


def draw(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    V = np.linalg.qr(rng.normal(size=(D, K)))[0]
    return rng.normal(size=(n, D)) + (rng.normal(size=(n, K)) * np.sqrt(LAMBDAS)) @ V.T, V


def top(M: np.ndarray) -> np.ndarray:
    return np.asarray(scipy.linalg.eigh(M, subset_by_index=[len(M) - K, len(M) - 1])[1])


def shorten(X: np.ndarray, C: float) -> np.ndarray:
    return np.asarray(X * np.minimum(1, C / np.linalg.norm(X, axis=1))[:, None])


def ours(X: np.ndarray, seed: int) -> np.ndarray:
    return fit(NoisyGram(K, False), X, NORM, seed)


def ours_auto(X: np.ndarray, seed: int) -> np.ndarray:
    """The bound is found first, as `row_norm="auto"` does."""
    census = Census(search=True)
    dp = RowDP(EPSILON, DELTA, 1.0, simulate=True)
    plan = plan_for(dp, declared_releases(census.client), census.planned())
    found = run(census, InProcess([X]), rounds=0, seed=seed, privacy=plan).state
    return fit(NoisyGram(K, False, counted=True, spent=0.01 + LENGTHS_SHARE), X, found.norm, seed)


def noisy_power(X: np.ndarray, seed: int) -> np.ndarray:
    return fit(NoisyPower(K, False, d=D, width=2 * K, rounds=4), X, NORM, seed)


def fit(server: NoisyGram | NoisyPower, X: np.ndarray, C: float, seed: int) -> np.ndarray:
    plan = plan_for(RowDP(EPSILON, DELTA, C, simulate=True), declared_releases(server.client), server.planned())
    rounds = server.rounds if isinstance(server, NoisyPower) else 1
    return np.asarray(run(server, InProcess([X]), rounds=rounds, seed=seed, privacy=plan).state.Z)


def analyze_gauss(X: np.ndarray, seed: int) -> np.ndarray:
    rows, rng = shorten(X, NORM), np.random.default_rng([1, seed])
    N = np.triu(rng.normal(size=(D, D))) * NORM**2 * math.sqrt(2 * math.log(1.25 / DELTA)) / EPSILON
    return top(rows.T @ rows + N + np.triu(N, 1).T)


def k_dp_pca(X: np.ndarray, seed: int, batches: int = 8) -> np.ndarray:
    rng, mu, edges = np.random.default_rng([2, seed]), gaussian_mu(EPSILON, DELTA), 2.0 ** (np.arange(-40, 81) / 2)
    first, second, order, U = 0.3 * mu, math.sqrt(0.91) * mu, rng.permutation(len(X)), np.zeros((D, 0))
    for part in np.array_split(order, K):
        rows = X[part] - (X[part] @ U) @ U.T
        w = rng.normal(size=D)
        w = (w - U @ (U.T @ w)) / np.linalg.norm(w - U @ (U.T @ w))
        for batch in np.array_split(rows, max(1, min(batches, len(rows) // 20))):
            g = batch * (batch @ w)[:, None]
            norms = np.linalg.norm(g, axis=1)
            bins = np.histogram(np.clip(norms, edges[0], edges[-1] * 0.999), edges)[0] + rng.normal(size=120) / first
            bins = np.where(bins > 4 / first, bins, 0.0)
            reached = np.cumsum(bins) / max(bins.sum(), 1e-9)
            R = edges[1:][min(int(np.searchsorted(reached, 0.9)), 119)]
            y = (g * np.minimum(1, R / np.maximum(norms, 1e-12))[:, None]).sum(axis=0) + rng.normal(size=D) * R / second
            y -= U @ (U.T @ y)
            w = y / np.linalg.norm(y)
        U = np.hstack([U, w[:, None]])
    return U


METHODS: dict[str, Callable[[np.ndarray, int], np.ndarray]] = {
    "ours": ours,
    'ours, "auto" norm': ours_auto,
    "Analyze Gauss": analyze_gauss,
    "noisy power": noisy_power,
    "k-DP-PCA (our reading)": k_dp_pca,
    "not private": lambda X, seed: top(X.T @ X),
}


def table(rows: list[int], seeds: int) -> Iterator[str]:
    yield f"| rows | {' | '.join(METHODS)} |"
    yield "|--:" + "|--:" * len(METHODS) + "|"
    for n in rows:
        errors: dict[str, list[float]] = {name: [] for name in METHODS}
        for seed in range(seeds):
            X, V = draw(n, seed)
            for name, method in METHODS.items():
                errors[name].append(projection_distance(method(X, seed), V))
        yield f"| {n:,} | " + " | ".join(f"{np.mean(found):.3f}" for found in errors.values()) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--rows", default=ROWS)
    parser.add_argument("--write", type=Path)
    args = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)
    lines = []
    for line in table([int(n) for n in args.rows.split(",")], args.seeds):
        print(line, flush=True)
        lines.append(line)
    if args.write:
        put(lines, args.write, "spiked")


if __name__ == "__main__":
    main()
