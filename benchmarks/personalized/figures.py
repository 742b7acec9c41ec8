"""Section V of Ozkara et al.: `python benchmarks/personalized/figures.py [--only table] [--write FILE]`.

    table   held-out error over the true one at four values of σ_U²: our methods, known variances, baselines
    rounds  rounds until f is within 1e-3 of the least f that eigen found from either start

Errors are ratios to the true reconstruction error (d - r)σ_ε², on held-out rows. "ours" is the paper's problem with
known variances, solved by "eigen"; "auto" does not know them. `fedspan bench personalized/figure1` (2) compares the
paper's figures with what it says of them.
"""

from __future__ import annotations

import argparse
import contextlib
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from problem import error, global_pca, local_pca, put, section_v, true_error

from fedspan.algorithms import PerPca, PersonalAuto, PersonalEigen, PersonalPaper
from fedspan.core.protocol import Array
from fedspan.core.run import Info, Result, run
from fedspan.engines import InProcess

NOISE = 0.5
FOUR = (0.005, 0.02, 0.05, 0.2)


def lam(var_u: float) -> float:
    """λ of the known variances."""
    return NOISE * (1 + NOISE) / var_u


def solve(server: Any, train: list[Array], seed: int, rounds: int = 10**6, callback: Any = None) -> Result[Any]:
    return run(server, InProcess(train, threads=1), rounds=rounds, seed=seed, callback=callback)


def finals(train: list[Array], held: list[Array], r: int, var_u: float, seed: int, more: bool) -> dict[str, float]:
    """Held-out errors of all methods on one data set."""
    known = {"k": r, "shrinkage": lam(var_u), "center": "none"}
    servers: dict[str, Any] = {"ours": PersonalEigen(**known, tol=1e-6), "auto": PersonalAuto(r, center="none")}
    if more:
        servers["eigen, λ by cross-validation"] = PersonalEigen(r, center="none", tol=1e-5)
        servers["PerPCA"] = PerPca(r, center="none", tol=1e-4, rounds=40)
    out = {name: error(list(solve(s, train, seed).state.collected.U), held) for name, s in servers.items()}
    return out | {"local": error(local_pca(train, r), held), "global": error(global_pca(train, r), held)}


def one(var_u: float, seed: int, more: bool) -> dict[str, float]:
    """The table's figures for one data set, m = 50, n = 20."""
    train, held, _ = section_v(seed, var_u)
    return {name: value / true_error() for name, value in finals(train, held, 10, var_u, seed, more).items()}


def table(seeds: int, jobs: int, more: int = 2) -> list[str]:
    """All methods at four values of σ_U²; the slow ones on the first `more` seeds only."""
    columns: list[dict[str, list[float]]] = []
    with ProcessPoolExecutor(jobs) as pool:
        asked = {v: [pool.submit(one, v, seed, seed < more) for seed in range(seeds)] for v in FOUR}
        for var_u, futures in asked.items():
            rows = [future.result() for future in futures]
            columns.append({k: [row[k] for row in rows if k in row] for k in rows[0]})
            print(var_u, {k: f"{np.mean(v):.4f}" for k, v in columns[-1].items()}, flush=True)
    lines = [f"| {seeds} seeds; σ_U² = | {' | '.join(map(str, FOUR))} |", "|---|" + "--:|" * len(FOUR)]
    for name in columns[0]:
        few = "" if len(columns[0][name]) == seeds else f" ({more} seeds)"
        lines.append(f"| {name}{few} | {' | '.join(f'{np.mean(c[name]):.3f}' for c in columns)} |")
    mean = [np.mean(c["auto"]) / np.mean(c["ours"]) for c in columns]
    worst = [np.max(np.divide(c["auto"], c["ours"])) for c in columns]
    lines.append(f"| auto / ours, of the means | {' | '.join(f'{x:.4f}' for x in mean)} |")
    return [*lines, f"| auto / ours, worst seed | {' | '.join(f'{x:.4f}' for x in worst)} |"]


class ReachedError(Exception):
    """The objective is near enough."""


def rounds_table(seeds: int, most: int) -> list[str]:
    """Rounds to within 1e-3 of the least f that eigen found from either start."""
    m, r, d, n = 50, 10, 30, 20
    factor = 2 * NOISE * (1 + NOISE) * m
    exact: dict[str, Any] = {"k": r, "center": "none", "tol": 1e-9, "rounds": 300}
    paper: dict[str, Any] = {"k": r, "center": "none", "tol": -1.0, "rounds": most, "noise": NOISE}
    kinds: dict[str, Any] = {
        "eigen, global start": PersonalEigen(**exact),
        "eigen, random start": PersonalEigen(**exact, start="random"),
        "eigen by sums, random start": PersonalEigen(**exact, start="random", share="sums"),
        "paper, safe steps, global start": PersonalPaper(**paper),
        "paper, safe steps, random start": PersonalPaper(**paper, start="random"),
        "paper, α = 0.02, β = σ_U²/4, random start": PersonalPaper(**paper, start="random", step=(0.02, 0.25)),
    }
    cells: dict[str, list[str]] = {name: [] for name in kinds}
    for var_u in FOUR:
        found: dict[str, list[float]] = {name: [] for name in kinds}
        for seed in range(seeds):
            train, _, _ = section_v(seed, var_u, test=1)
            energy = sum(float((X**2).sum()) for X in train)
            constant = n / 2 * (r * np.log(1 + NOISE) + (d - r) * np.log(NOISE))
            constant += energy * (1 / (2 * NOISE) - 1 / (2 * NOISE * (1 + NOISE))) / m
            curves: dict[str, Array] = {}
            best = np.inf
            for name, server in kinds.items():
                server = replace(server, shrinkage=lam(var_u))
                f: list[float] = []
                if name.startswith("paper"):
                    if isinstance(server.step, tuple):
                        server = replace(server, step=(server.step[0], server.step[1] * var_u))

                    def watch(info: Info, f: list[float] = f, best: float = best) -> None:
                        f.append(info.metrics["objective"])
                        if f[-1] <= best + 1e-3 * abs(best):
                            raise ReachedError

                    with contextlib.suppress(ReachedError):
                        solve(server, train, seed, callback=watch)
                else:
                    solve(
                        server,
                        train,
                        seed,
                        callback=lambda i, f=f, c=constant: f.append(c + i.metrics["objective"] / factor),
                    )
                    best = min(best, *f)
                curves[name] = np.array(f)
            for name, values in curves.items():
                there = np.nonzero(values <= best + 1e-3 * abs(best))[0]
                # eigen reports f of the round just done, paper that of the point it came from
                found[name].append(float(there[0] + name.startswith("eigen")) if len(there) else np.inf)
        for name, counts in found.items():
            cells[name].append(f"> {most}" if np.isinf(max(counts)) else f"{max(counts):.0f}")
        print(var_u, found, flush=True)
    head = [f"| most rounds of {seeds} seeds; σ_U² = | {' | '.join(map(str, FOUR))} |", "|---|" + "--:|" * len(FOUR)]
    return head + [f"| {name} | {' | '.join(row)} |" for name, row in cells.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=["table", "rounds"])
    parser.add_argument("--datasets", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=1000, help="of paper in the table of rounds, at most")
    parser.add_argument("--jobs", type=int, default=2, help="processes for the first table")
    parser.add_argument("--write", type=Path, help="put the tables into this Markdown file")
    args = parser.parse_args()
    for name, make in (
        ("table", lambda: table(args.datasets, args.jobs)),
        ("rounds", lambda: rounds_table(args.datasets, args.rounds)),
    ):
        if name in args.only:
            lines = make()
            print("\n".join(lines), flush=True)
            if args.write:
                put(lines, args.write, name)


if __name__ == "__main__":
    main()
