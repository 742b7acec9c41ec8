"""All solvers on one problem, counted alike: `python benchmarks/solvers.py [--write docs/solvers.md]`.

The problem is that of FAPS Table 4: 1000 features, 36000 rows in 8 clients of 1000·i rows, singular values 1.01^(1-i),
10 components, no centering. A solver is stopped when the *true* scaled KKT violation of its estimate, computed here
from the pooled Gram matrix, is at most 1e-6; so solvers that cannot see it are measured by the same rule.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

from fedspan.algorithms import Davidson, DrSvd, Faps, FedPower, Gram, Krylov, LocalPower, Ssi, Uda, Wda
from fedspan.core.run import run
from fedspan.engines import InProcess
from page import put

sys.path.insert(0, str(Path(__file__).resolve().parent / "faps"))
from synthetic import Pooled, geometric, problem

PAPER: dict[str, Any] = {"start": "paper", "penalty": "paper", "beta": 0.15, "cap": 200}  # FAPS section 5.2
SUMS, MIXES = "sums over clients of MᵢV", "sum over clients of mixed leading eigenvectors"
ROWS: list[tuple[str, Any, Any, str]] = [
    ("gram", Gram(), None, "the sum of the Gram matrices"),
    ("davidson, bits='auto'", Davidson(rounded=True), "auto", f"each client's own leading subspace; then {SUMS}"),
    ("davidson", Davidson(), None, f"each client's own leading subspace; then {SUMS}"),
    ("krylov, bits='auto'", Krylov(rounded=True, width="auto"), "auto", f"a {MIXES}; then {SUMS}"),
    ("krylov", Krylov(width="auto"), None, f"a {MIXES}; then {SUMS}"),
    ("krylov, width=None, bits='auto'", Krylov(rounded=True), "auto", SUMS),
    ("krylov, width=None", Krylov(), None, SUMS),
    ("faps, accelerated", Faps(accelerate=True), None, "sums of masked products; true ones when it checks itself"),
    ("faps", Faps(), None, "sums of masked products"),
    ("faps, rules (14) and (25)", Faps(**PAPER), None, "sums of masked products, but for the first"),
    ("faps, rules (26) and (25)", Faps(rule="change", **PAPER), None, "sums of masked products, but for the first"),
    ("ssi, bits=3", Ssi(), 3, SUMS),
    ("ssi", Ssi(), None, SUMS),
    ("localpower", LocalPower(), None, f"sums of iterates; {SUMS} once q = 1"),
    ("fedpower", FedPower(), None, f"sums of aligned iterates; {SUMS} once p = 1"),
    ("drsvd", DrSvd(), None, "sums of sketches"),
    ("wda", Wda(), None, "each client's own leading subspace"),
    ("uda", Uda(), None, "each client's own leading subspace"),
]


def table4(seed: int) -> Pooled:
    return Pooled(problem(seed, geometric(1000, 1.01), [1000 * i for i in range(1, 9)]), 10)


def faps_by_seed(seeds: int, most: int) -> list[str]:
    """Rounds of SSI and of both forms of FAPS, a column for each seed."""
    solvers: list[tuple[str, Any]] = [("ssi", Ssi()), ("faps", Faps()), ("faps, accelerated", Faps(accelerate=True))]
    cells: dict[str, list[str]] = {name: [] for name, _ in solvers}
    for seed in range(seeds):
        pooled = table4(seed)
        for name, solver in solvers:
            row = pooled.until(solver, seed, most, kkt=1e-6)
            cells[name].append(f"{row.rounds:.0f}" if row.kkt <= 1e-6 else f"> {most}")
        print(seed, {name: row[-1] for name, row in cells.items()}, flush=True)
    head = [f"| seed | {' | '.join(map(str, range(seeds)))} |", "|---|" + "--:|" * seeds]
    return head + [f"| {name} | {' | '.join(row)} |" for name, row in cells.items()]


def unlike_clients(seed: int) -> list[np.ndarray]:
    """Six clients with principal axes of their own."""
    rng = np.random.default_rng(seed)
    turns = [np.linalg.qr(rng.normal(size=(60, 60)))[0] for _ in range(6)]
    return [rng.normal(size=(200, 60)) * 0.95 ** np.arange(60) @ Q.T for Q in turns]


def faps_elsewhere(seed: int, most: int) -> list[str]:
    """Rounds of SSI and of both forms of FAPS on data for which the constants of FAPS were not chosen."""
    digits = load_digits()
    mixed = np.random.default_rng(seed).permutation(len(digits.data))
    ordered = np.argsort(digits.target, kind="stable")
    problems: dict[str, list[np.ndarray]] = {}
    for name, at in (("digits, mixed", mixed), ("digits, sorted by label", ordered)):
        rows = digits.data[at]
        problems[name] = np.array_split(rows, 8)
        problems[f"{name}, centred"] = np.array_split(rows - rows.mean(axis=0), 8)
    problems["clients with axes of their own"] = unlike_clients(seed)
    lines = ["| data, k = 5 | ssi | faps | faps, accelerated |", "|---|--:|--:|--:|"]
    for name, clients in problems.items():
        cells = []
        for solver in (Ssi(), Faps(check=True), Faps(accelerate=True)):
            engine = InProcess(clients, threads=1)
            found = run(replace(solver, k=5, tol=1e-6, center=False), engine, rounds=most, seed=seed)
            cells.append(str(found.rounds) if found.converged else f"> {most}")
        lines.append(f"| {name} | {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="of the problem and of the runs (default 0)")
    parser.add_argument("--rounds", type=int, default=600, help="give up after this many rounds (default 600)")
    parser.add_argument("--write", type=Path, nargs="+", default=[], help="put the table into these Markdown files")
    parser.add_argument("--faps", type=int, metavar="SEEDS", help="instead: SSI and FAPS on that many seeds")
    parser.add_argument("--elsewhere", action="store_true", help="instead: SSI and FAPS on data of other kinds")
    args = parser.parse_args()
    if args.elsewhere:
        rows = faps_elsewhere(args.seed, args.rounds)
        for path in args.write:
            put(rows, path, "elsewhere")
        return
    if args.faps:
        rows = faps_by_seed(args.faps, args.rounds)
        for path in args.write:
            put(rows, path, "faps")
        return
    pooled = table4(args.seed)
    lines = [
        "| solver | rounds | MB, both links, all clients | true KKT | what the server sees |",
        "|---|---:|---:|---:|---|",
    ]
    print("\n".join(lines))
    for name, solver, bits, sees in ROWS:
        row = pooled.until(solver, args.seed, args.rounds, kkt=1e-6, bits=bits)
        short = "" if row.kkt <= 1e-6 else " (not reached)"
        lines.append(f"| {name} | {len(row.curve)} | {row.megabytes:.2f} | {row.kkt:.1e}{short} | {sees} |")
        print(lines[-1], flush=True)
    for path in args.write:
        put(lines, path, "table")


if __name__ == "__main__":
    main()
