"""How near krylov's bound on the angle comes: `python benchmarks/angles.py [--first 3000] [--write docs/solvers.md]`.

Random problems with six kinds of spectra, d from 80 to 400, k of 2, 3, 5 or 8, five clients; every fourth has clients
that are unlike. A run stops by `angle_tol`, or ends by `tol` where an angle cannot be a stop (bits="auto"); the truth
is the eigenvectors that the problem was made of. A false stop is a run that stops by `angle_tol` further away than
that, or, with bits="auto", says a bound that is below the truth. Constants of the bound were chosen on seeds 0 to 59.
"""

from __future__ import annotations

import argparse
import warnings
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from fedspan import FederatedSVD, Secure
from fedspan.algorithms import Krylov
from fedspan.core.run import run
from fedspan.engines import InProcess
from fedspan.numerics.orthonormal import projection_distance
from page import put

KINDS = 6
RUNS: tuple[tuple[str, int, dict[str, Any]], ...] = (  # what is run, on how many problems
    ("angle_tol=1e-4", 200, {"angle_tol": 1e-4}),
    ("angle_tol=1e-2, another start", 200, {"angle_tol": 1e-2, "seed": 77}),
    ("angle_tol=1e-4, width=2k", 60, {"angle_tol": 1e-4, "times": 2}),
    ("angle_tol=1e-4, secure sums", 24, {"angle_tol": 1e-4, "secure": True}),
    ("bits='auto', tol=1e-6", 60, {"bits": "auto"}),
)


def draw_spectrum(kind: int, d: int, k: int, rng: np.random.Generator) -> np.ndarray:
    i = np.arange(d)
    kinds = (
        0.9**i,
        1 / (1 + i),
        1 / (1.0 + i) ** 2,
        np.sort(rng.uniform(size=d))[::-1] ** 3,
        0.98**i * np.where(i < k, 1.0, 0.8),
        np.where(i < k, 1 + 0.1 * (k - i), 0.5 * 0.97**i),
    )
    return np.asarray(kinds[kind])


def draw_problem(seed: int) -> tuple[list[np.ndarray], np.ndarray, int]:
    """The clients' rows, the exact eigenvectors (d, d), and k."""
    rng = np.random.default_rng(5000 + seed)
    d, k = int(rng.integers(80, 401)), int(rng.choice([2, 3, 5, 8]))
    w = draw_spectrum(seed % KINDS, d, k, rng)
    V = np.linalg.qr(rng.normal(size=(d, d)))[0]
    X = np.linalg.qr(rng.normal(size=(d + 60, d)))[0] * np.sqrt(w) @ V.T
    rows = np.argsort(X[:, 0]) if seed % 4 == 3 else np.arange(len(X))
    return np.array_split(X[rows], 5), V, k


def measure(seed: int, how: dict[str, Any]) -> tuple[bool, bool, list[float]]:
    """Whether the run ended by itself, whether it was wrong to, and 2b over the truth in its rounds."""
    clients, V, k = draw_problem(seed)
    if "bits" in how or "secure" in how:
        secure = Secure(verified=False) if "secure" in how else False
        options = {"bits": how["bits"]} if "bits" in how else {"angle_tol": how["angle_tol"]}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = FederatedSVD(k, solver="krylov", secure=secure, random_state=seed, **options).fit(clients)
        true = projection_distance(model.components_.T, V[:, : len(model.components_)])
        limit = how.get("angle_tol", model.angle_bound_)
        return model.converged_, bool(true > limit), [model.angle_bound_ / true] if model.angle_bound_ > 0 else []
    seen: list[tuple[float, float]] = []
    width = "auto" if "times" not in how else how["times"] * k
    solver = Krylov(k=k, center=False, width=width, angle_tol=how["angle_tol"])

    def note(info: Any) -> None:
        seen.append((projection_distance(info.estimate.T, V[:, :k]), info.metrics["angle"]))

    found = run(solver, InProcess(clients, threads=1), rounds=60, seed=seed + how.get("seed", 0), callback=note)
    ratios = [2 * b / a for (_, before), (a, b) in pairwise(seen) if before < 1 and b < 0.5 and a > 1e-11]
    return found.converged, bool(found.converged and seen[-1][0] > how["angle_tol"]), ratios


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=3000, help="seed of the first problem (default 3000)")
    parser.add_argument("--most", type=int, default=1000, help="at most that many problems of each kind of run")
    parser.add_argument("--write", type=Path, nargs="+", default=[], help="put the table into these Markdown files")
    args = parser.parse_args()
    lines = [
        "| run | problems | ended by itself | false stops | median of bound / truth | rounds with a bound below it |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for name, count, how in RUNS:
        problems = min(count, args.most)
        runs = [measure(args.first + i, how) for i in range(problems)]
        ratios = np.array([ratio for _, _, found in runs for ratio in found if np.isfinite(ratio)])
        ended, wrong = sum(one[0] for one in runs), sum(one[1] for one in runs)
        below = f"{np.sum(ratios < 1)} of {len(ratios)}"
        lines.append(f"| {name} | {problems} | {ended} | {wrong} | {np.median(ratios):.1f} | {below} |")
        print(lines[-1], flush=True)
    for path in args.write:
        put(lines, path, "angles")


if __name__ == "__main__":
    main()
