"""Formulation (40) on MNIST: the smallest ‖ω‖² whose training cost is at most U = 0.13. Verified, over the seeds.

    python benchmarks/ssca/constrained.py [--seeds 10] [--batches 100,6000] [--rounds 1000] [--big-rounds 1000]
        [--methods "ours,unconstrained,as printed"] [--keep FOLDER]

For each batch size: the algorithm as printed, ours (limit control, exact closing rounds, best verified iterate kept),
and the unconstrained model (32) at the moment when its cost first is what ours ends with: at the same cost, whose
norm is smaller? Costs are computed here over all 60000 rows, not taken from the run.
"""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from common import NET, SAMPLE, Data, accuracy, arguments, by_samples, cost, mnist, put, solve, steps

from fedspan.algorithms import Limit, Ssca, Steps

U = 0.13


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--batches", default="100,6000")
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--big-rounds", type=int, default=1000, help="rounds for batches of all 6000 rows")
    parser.add_argument("--methods", default="ours,unconstrained,as printed")
    parser.add_argument("--keep", type=Path, default=Path("constrained-ssca"), help="results so far: a run can go on")
    args = parser.parse_args()
    data, seeds = mnist(args.data), range(args.first, args.first + args.seeds)
    args.keep.mkdir(parents=True, exist_ok=True)
    head = ("B", "method", "rounds", "seeds", "cost, mean (largest)", "cost ≤ U", "‖ω‖², mean (largest)", "test")
    table = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for batch in map(int, args.batches.split(",")):
        rounds = args.big_rounds if batch == 6000 else args.rounds
        for name in args.methods.split(","):
            values = [one(args, data, batch, rounds, name, seed) for seed in seeds]
            F, norm, test, ran = np.array(values).T
            table.append(
                f"| {batch} | {name} | {ran.mean():.0f} | {len(F)} | {F.mean():.5f} ({F.max():.5f}) | "
                f"{int((F <= U).sum())} of {len(F)} | {norm.mean():.1f} ({norm.max():.1f}) | "
                f"{100 * test.mean():.2f} % |"
            )
    print("\n".join(table))
    if args.write:
        put(table, args.write, "constrained")


def one(args: Any, data: Data, batch: int, rounds: int, name: str, seed: int) -> list[float]:
    """Cost, ‖ω‖², test accuracy and rounds of one run; from the file in which it was kept, if it is there."""
    path = args.keep / f"{batch}-{rounds}-{name.replace(' ', '-')}-{seed}.json"
    if path.exists():
        return list(json.loads(path.read_text(encoding="utf-8")))
    started, clients = time.perf_counter(), by_samples(data, seed)
    printed = Ssca(NET, batch, rounds, objective="norm", limits=(Limit(U),), paper=True, **steps(*SAMPLE[batch]))
    if name == "unconstrained":
        target = one(args, data, batch, rounds, "ours", seed)[0]
        free = Ssca(NET, batch, rounds, paper=True, **steps(*SAMPLE[batch]))
        found = same_cost(free, clients, seed, args.threads, data, target)
    else:
        later = [
            Steps(s.a, s.alpha, hold=round(0.8 * rounds), tail=tail)
            for s, tail in ((printed.rho, 0.5), (printed.gamma, 0.8))
        ]
        method = printed if name == "as printed" else replace(printed, paper=False, rho=later[0], gamma=later[1])
        result = solve(method, clients, seed, args.threads)
        omega = method.estimate(result.state)
        found = [cost(data, omega), float(omega @ omega), accuracy(data, omega), result.rounds]
    path.write_text(json.dumps(found), encoding="utf-8")
    shown = f"cost {found[0]:.6f}, norm {found[1]:.1f}, test {100 * found[2]:.2f} %, {found[3]:.0f} rounds"
    print(f"B={batch} {name}, seed {seed}: {shown} ({time.perf_counter() - started:.0f} s)", flush=True)
    return found


def same_cost(method: Ssca, clients: Any, seed: int, threads: int | None, data: Any, target: float) -> list[float]:
    """The first iterate, looked at every 25 rounds, whose cost is at most the target; the last one if there is none."""
    found: list[list[float]] = []

    class Found(Exception):
        pass

    def look(info: Any) -> None:
        if info.round % 25 == 0 and (info.metrics["cost"] < 1.5 * target or info.round == method.rounds):
            F = cost(data, info.estimate)
            if target >= F or info.round == method.rounds:
                found.append([F, float(info.estimate @ info.estimate), accuracy(data, info.estimate), info.round])
                raise Found

    with contextlib.suppress(Found):
        solve(method, clients, seed, threads, look)
    return found[0]


if __name__ == "__main__":
    main()
