"""Formulation (40) on MNIST: the smallest ‖ω‖² whose training cost is at most U = 0.13. Verified, over the seeds.

    python benchmarks/ssca/constrained.py [--seeds 10] [--batches 100,6000] [--rounds 1000] [--big-rounds 1000]

For each batch size: the algorithm as printed, ours (limit control, exact closing rounds, best verified iterate kept),
and the unconstrained model (32) at the moment when its cost first is what ours ends with: at the same cost, whose
norm is smaller? Costs are computed here over all 60000 rows, not taken from the run.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from typing import Any

import numpy as np
from common import NET, SAMPLE, accuracy, arguments, by_samples, cost, mnist, put, solve, steps

from fedspan.algorithms import Limit, Ssca, Steps

U = 0.13


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--batches", default="100,6000")
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--big-rounds", type=int, default=1000, help="rounds for batches of all 6000 rows")
    args = parser.parse_args()
    head = ("B", "method", "rounds", "seeds", "cost, mean (largest)", "cost ≤ U", "‖ω‖², mean (largest)", "test")
    data, table = mnist(args.data), [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for batch in map(int, args.batches.split(",")):
        rounds = args.big_rounds if batch == 6000 else args.rounds
        printed = Ssca(NET, batch, rounds, objective="norm", limits=(Limit(U),), paper=True, **steps(*SAMPLE[batch]))
        rho, gamma = (
            Steps(s.a, s.alpha, hold=round(0.8 * rounds), tail=tail)
            for s, tail in ((printed.rho, 0.5), (printed.gamma, 0.8))
        )
        ours = replace(printed, paper=False, rho=rho, gamma=gamma)
        free = Ssca(NET, batch, rounds, paper=True, **steps(*SAMPLE[batch]))
        rows: dict[str, list[Any]] = {"as printed": [], "ours": [], "unconstrained, same cost": []}
        for seed in range(args.seeds):
            started, clients = time.perf_counter(), by_samples(data, seed)
            for name, method in (("as printed", printed), ("ours", ours)):
                result = solve(method, clients, seed, args.threads)
                omega = method.estimate(result.state)
                rows[name].append((cost(data, omega), omega @ omega, accuracy(data, omega), result.rounds))
            rows["unconstrained, same cost"].append(
                same_cost(free, clients, seed, args.threads, data, rows["ours"][-1][0])
            )
            seconds = time.perf_counter() - started
            shown = "; ".join(f"{name} {r[-1][0]:.4f} {r[-1][1]:.1f}" for name, r in rows.items())
            print(f"B={batch} seed {seed}: cost and norm {shown} ({seconds:.0f} s)", flush=True)
        for name, values in rows.items():
            F, norm, test, ran = np.array(values).T
            table.append(
                f"| {batch} | {name} | {ran.mean():.0f} | {len(F)} | {F.mean():.4f} ({F.max():.4f}) | "
                f"{int((F <= U).sum())} of {len(F)} | {norm.mean():.1f} ({norm.max():.1f}) | "
                f"{100 * test.mean():.2f} % |"
            )
    print("\n".join(table))
    if args.write:
        put(args.write, "constrained", "\n".join(table))


def same_cost(
    method: Ssca, clients: Any, seed: int, threads: int | None, data: Any, target: float
) -> tuple[float, ...]:
    """The first iterate, looked at every 25 rounds, whose cost is at most the target; the last one if there is none."""
    found: list[tuple[float, ...]] = []

    class Found(Exception):
        pass

    def look(info: Any) -> None:
        if info.round % 25 == 0 and (info.metrics["cost"] < 1.5 * target or info.round == method.rounds):
            F = cost(data, info.estimate)
            if target >= F or info.round == method.rounds:
                found.append((F, info.estimate @ info.estimate, accuracy(data, info.estimate), info.round))
                raise Found

    with contextlib.suppress(Found):
        solve(method, clients, seed, threads, look)
    return found[0]


if __name__ == "__main__":
    main()
