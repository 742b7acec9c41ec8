"""Private personalized PCA on MNIST by writers: the error on held-out rows, private over not private.

    python benchmarks/private/writers.py [--data FOLDER] [--seeds 5] [--first 0]

The first 60 writers; half of each one's rows are for learning, half for the error; five components, ε = 3, δ = 1e-6,
secure sums, row_norm and the bound for the mean found by the run itself ("auto"). "Local" is PCA of each writer's own
rows, "not private" is `PersonalizedPCA` without noise. Seeds split the rows: as many as asked for, from `first` on.
The noise is fresh in every run.
"""

from __future__ import annotations

import argparse
import os
import warnings
from pathlib import Path

import numpy as np

from fedspan import PersonalizedPCA, RowDP

WRITERS, K, EPSILON, DELTA = 60, 5, 3.0, 1e-6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    shared = Path(__file__).resolve().parents[3] / "shared" / "data"
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("FEDSPAN_DATA", shared)))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=0)
    args = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)
    X = np.load(args.data / "mnist.npz")["X"]
    X = X.reshape(len(X), -1).astype(np.float64) / 255
    writer = np.load(args.data / "mnist_writers.npz")["client"]
    names = np.unique(writer)[:WRITERS]
    print("seed | local | not private | private | private / not private")
    ratios = []
    for seed in range(args.first, args.first + args.seeds):
        rng = np.random.default_rng(seed)
        train, test = {}, {}
        for name in names:
            rows = X[writer == name]
            order, half = rng.permutation(len(rows)), len(rows) // 2
            train[str(name)], test[str(name)] = rows[order[:half]], rows[order[half:]]
        local = error(train, test, lambda rows: np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)[2][:K])
        exact, private = (fit_and_test(train, test, epsilon, seed) for epsilon in (None, EPSILON))
        ratios.append(private / exact)
        print(f"{seed} | {local:.4f} | {exact:.4f} | {private:.4f} | {private / exact:.4f}", flush=True)
    print(f"ratio: mean {np.mean(ratios):.4f}, worst {np.max(ratios):.4f}")


def fit_and_test(train: dict[str, np.ndarray], test: dict[str, np.ndarray], epsilon: float | None, seed: int) -> float:
    """The part of the held-out squares that each client's own components leave over."""
    if epsilon is None:
        model = PersonalizedPCA(K, random_state=seed).fit(train)
        components = dict(zip(model.client_names_, model.components_, strict=True))
        return error(train, test, components)
    dp = RowDP(epsilon, DELTA, "auto")
    model = PersonalizedPCA(K, privacy=dp, secure=True, collect=False, random_state=seed).fit(train)
    return error(train, test, model.personalize)


def error(train: dict[str, np.ndarray], test: dict[str, np.ndarray], components: object) -> float:
    lost = total = 0.0
    for name, rows in train.items():
        U = components[name] if isinstance(components, dict) else components(rows)  # type: ignore[operator]
        Z = test[name] - rows.mean(axis=0)
        lost += float((Z**2).sum() - ((Z @ U.T) ** 2).sum())
        total += float((Z**2).sum())
    return lost / total


if __name__ == "__main__":
    main()
