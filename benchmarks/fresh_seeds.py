"""Krylov's jobs of the scoreboard on fresh seeds: `python benchmarks/fresh_seeds.py --seeds 50 51 52`.

Only sums are shown. The jobs: FedPower Table 2's data sets to 1.1 times the error that OPT ends at and to an error of
1e-6 (fedpower/table2.py), FAPS Table 4 to a scaled KKT violation of 1e-6 (solvers.py), CuteMaxVar Table I to 1.5 and
1.1 times the least cost (cutemaxvar/figures.py). A seed deals the rows, or makes the problem, and starts the run.
Rounds include the opening. "sorted": rows are dealt by their label, so that clients are unlike, and "plain" is a random
first block of the same width (holdout.py).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent / "faps"))
sys.path.insert(0, str(Path(__file__).resolve().parent / "fedpower"))
sys.path.insert(0, str(Path(__file__).resolve().parent / "cutemaxvar"))
from figures import K as VIEW_COMPONENTS
from figures import Problem
from shards import K, R, deal, exact, scaled, watched

from fedspan.algorithms import FedPower, Krylov, MaxVarKrylov
from fedspan.channel import Channel, pack
from fedspan.core.protocol import Server
from holdout import DATA, PlainBlock
from page import put
from solvers import table4

PACKED = Channel(up=pack(), down=pack())
OPT = FedPower(K, tol=1e-5, center=False, p=4, decay=False, width=R)
NARROW = Krylov(K, center=False, rounded=True)
WIDE = replace(NARROW, width="auto")
PLAIN = PlainBlock(K, center=False, rounded=True, width="auto")
SETS = ("housing", "a9a", "w8a", "mnist", "covtype")
Spent = tuple[float, float]  # rounds with the opening, MB


def shrink(clients: list[np.ndarray]) -> list[np.ndarray]:
    """The same Gram matrices of fewer rows."""
    return [np.linalg.qr(A, mode="r") if len(A) > A.shape[1] else A for A in clients]


def reach(solver: Server[Any], clients: list[np.ndarray], V: np.ndarray, seed: int, goal: float) -> Spent:
    """What it takes to that error."""
    opened = int(type(solver) is Krylov and solver.wide)
    for step in watched(solver, clients, V, seed, goal, PACKED):
        if step.error <= goal:
            return step.round + opened, step.megabytes
    return np.inf, np.inf


def svd_jobs(name: str, seed: int) -> Iterator[tuple[str, str, Spent]]:
    """(job, solver, what it took)."""
    A = scaled(DATA, name)
    V = exact(A)
    mixed = deal(A, seed)
    near = 1.1 * watched(OPT, mixed, V, seed)[-1].error
    dealt = {"": shrink(mixed)}
    if name in ("a9a", "w8a", "mnist", "covtype"):
        y = np.load(DATA / f"{name}.npz")["y"]
        shuffled = np.random.default_rng(seed).permutation(len(A))
        order = shuffled[np.argsort(y[shuffled], kind="stable")]
        dealt[", sorted"] = shrink([A[rows] for rows in np.array_split(order, len(mixed))])
    for kind, clients in dealt.items():
        forms = {"wide": WIDE, "plain": PLAIN} if kind else {"wide": WIDE, "narrow": NARROW}
        for to, goal, tol in (("1.1·OPT", near, 1e-6), ("1e-6", 1e-6, 1e-9)):
            for form, solver in forms.items():
                yield f"{name}{kind}, to {to}", form, reach(replace(solver, tol=tol), clients, V, seed, goal)


def other_jobs(seed: int) -> Iterator[tuple[str, str, Spent]]:
    """Table 4 of FAPS and Table I of CuteMaxVar."""
    problem = Problem(seed, 500)
    for form, width in (("wide", "auto"), ("narrow", None)):
        solver = MaxVarKrylov(k=VIEW_COMPONENTS, tol=3e-4 if width else 1e-6, rounded=True, width=width)
        found = problem.rounds(solver, PACKED, 40, seed, (1.5, 1.1))
        for to, (rounds, sent) in zip(("1.5", "1.1"), found, strict=True):
            yield f"GCCA Table I, to {to}·v*", form, (rounds + 1, sent / 1e6)
    pooled = table4(seed)
    for form, width in (("wide", "auto"), ("narrow", None)):
        run = pooled.until(Krylov(rounded=True, width=width), seed, 60, kkt=1e-6, bits="auto")
        yield "PCA, FAPS Table 4", form, (run.rounds + (width is not None), run.megabytes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[50, 51, 52])
    parser.add_argument("--sets", nargs="*", default=[*SETS], help="data sets (default: all)")
    parser.add_argument("--write", type=Path, nargs="+", default=[], help="put the table into these Markdown files")
    args = parser.parse_args()
    found: dict[str, dict[str, list[Spent]]] = {}
    for seed in args.seeds:
        jobs = [other_jobs(seed), *(svd_jobs(name, seed) for name in args.sets)]
        for job, form, spent in (line for lines in jobs for line in lines):
            found.setdefault(job, {}).setdefault(form, []).append(spent)
            print(seed, job, form, *(f"{value:.4g}" for value in spent), flush=True)
    lines = ["| job | wide: rounds, MB | narrow, or plain | most behind plain |", "|---|--:|--:|--:|"]
    for job, forms in found.items():
        cells = [f"{r:.1f}, {mb:.3g}" for r, mb in (np.mean(spent, axis=0) for spent in forms.values())]
        behind = np.subtract(*(np.array(spent)[:, 0] for spent in forms.values())).max() if "plain" in forms else None
        lines.append(f"| {job} | {' | '.join(cells)} | {'–' if behind is None else f'{behind:.0f}'} |")
    print("\n".join(lines))
    for path in args.write:
        put(lines, path, "fresh-seeds")


if __name__ == "__main__":
    main()
