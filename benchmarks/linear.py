"""Linear models on sums: rounds to a millionth of scikit-learn's optimum, and ridge in one round.

    FEDSPAN_DATA=… python benchmarks/linear.py

Five clients, rows dealt out by seed 100; columns raw, penalty C = 1 on standardised columns. Data sets that are not in
FEDSPAN_DATA (or shared/data beside the repository) are left out, and said so.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.linear_model import LogisticRegression, Ridge

from fedspan.algorithms import LogisticNewton, RegressionNewton
from fedspan.core.run import run
from fedspan.engines import InProcess

DATA = Path(os.environ.get("FEDSPAN_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
CLIENTS, SEED, ENOUGH = 5, 100, 1e-6


def load(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Rows and labels of two classes; of covtype, class 2 against the rest."""
    if name == "breast_cancer":
        return load_breast_cancer(return_X_y=True)
    with np.load(DATA / f"{name}.npz", allow_pickle=False) as file:
        X, y = file["X"], file["y"]
    return X, ((y == 2) if name == "covtype" else (y > 0)).astype(int)


def deal(X: np.ndarray, y: np.ndarray) -> Mapping[str, tuple[np.ndarray, np.ndarray]]:
    order = np.random.default_rng(SEED).permutation(len(y))
    return {f"client{i}": (X[at], y[at]) for i, at in enumerate(np.array_split(order, CLIENTS))}


def measure_logistic(name: str) -> None:
    """How many rounds Newton's method and L-BFGS take, and the bytes of all clients."""
    X, y = load(name)
    mean, s, n = X.mean(axis=0, dtype=float), X.std(axis=0, dtype=float), len(y)
    Z = (X - mean) / np.where(s > 0, s, 1)

    def objective(w: np.ndarray, b: float) -> float:
        z = Z @ w + b
        return float(np.mean(np.logaddexp(0, z) - y * z) + (w @ w) / (2 * n))

    started = time.process_time()
    other = LogisticRegression(C=1.0, tol=1e-10, max_iter=5000, solver="newton-cholesky").fit(Z, y)
    seconds = time.process_time() - started
    best = objective(other.coef_[0], float(other.intercept_[0]))
    print(f"{name}: {n} rows, {X.shape[1]} columns; scikit-learn's Newton on all rows {seconds:.1f} s of CPU")
    for solver in ("newton", "lbfgs"):
        server, found = LogisticNewton(l2=1 / (2 * n), solver=solver, rounds=150), []
        started = time.process_time()
        result = run(
            server,
            InProcess(deal(X, y), threads=1),
            rounds=server.rounds,
            seed=SEED,
            callback=lambda info, found=found: found.append(info.estimate[1].copy()),
        )
        seconds = time.process_time() - started
        gaps = [objective(e[:-1] * s, float(e[-1] + mean @ e[:-1])) - best for e in found]
        rounds = next((i for i, gap in enumerate(gaps, 1) if gap <= ENOUGH), None)
        print(
            f"  {solver}: {rounds} rounds to {ENOUGH:g}; in all {result.rounds} rounds, gap {gaps[-1]:.1e}, "
            f"{result.ledger.bytes_up / 1e6:.2f} MB up, {seconds:.1f} s of CPU"
        )


def measure_ridge() -> None:
    """How far one round is from scikit-learn's Ridge."""
    X, y = load_diabetes(return_X_y=True)
    server = RegressionNewton(l2=1.0 / (2 * len(y)), standardize=False)
    result = run(server, InProcess(deal(X, y), threads=1), rounds=server.rounds, seed=SEED)
    other = Ridge(alpha=1.0).fit(X, y)
    off = np.abs(server.estimate(result.state)[0, :-1] - other.coef_).max() / np.abs(other.coef_).max()
    print(f"ridge on diabetes: {result.rounds} round, coefficients off by {off:.1e} of the largest")


if __name__ == "__main__":
    measure_ridge()
    for each in ("breast_cancer", "a9a", "phishing", "covtype"):
        if each == "breast_cancer" or (DATA / f"{each}.npz").is_file():
            measure_logistic(each)
        else:
            print(f"{each}: not in {DATA}, left out")
