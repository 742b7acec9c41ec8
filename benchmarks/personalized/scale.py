"""Many small clients: `python benchmarks/personalized/scale.py [--clients 5000] [--write docs/personalized.md]`.

Clients of 20 × 100, r = 5, of which 10 % take part in a round; before that half the cohort of as many and of half as
many clients: CPU seconds per round (of a busy machine, so not by the clock) follow the cohort,
not the number of clients. A round of "paper" is a step of all in the cohort, that of "auto" its cross-validation.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from problem import put

from fedspan.algorithms import PersonalAuto, PersonalPaper
from fedspan.core.ledger import Exchange
from fedspan.core.run import run
from fedspan.engines import InProcess
from fedspan.numerics.stiefel import lift, random_point, retract


def clients(m: int) -> dict[str, Any]:
    V = random_point(np.random.default_rng(0), 100, 5)

    def rows(i: int) -> np.ndarray:
        rng = np.random.default_rng(i + 1)
        U = retract(V, lift(V, V + 0.1 * rng.normal(size=V.shape)))
        return rng.normal(size=(20, 5)) @ U.T + 0.5 * rng.normal(size=(20, 100))

    return {f"{i:05d}": lambda i=i: rows(i) for i in range(m)}  # made when they are opened, as files would be


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write", type=Path)
    args = parser.parse_args()
    m, K = args.clients, args.clients // 10
    lines = [
        "| method | clients | cohort | CPU per round | per client of the cohort | CPU of the rest of the run |"
        " MB up per round | peak memory of the process so far |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    print("\n".join(lines), flush=True)
    for many, cohort in ((m // 2, K // 2), (m, K // 2), (m, K)):
        for name, server in (
            ("paper", PersonalPaper(5, 30.0, rounds=args.rounds, tol=-1.0, count=cohort)),
            ("auto", PersonalAuto(5, count=cohort)),
        ):
            clock = [time.process_time()]
            ledger = run(
                server, InProcess(clients(many), threads=1), rounds=args.rounds + 1, seed=0,
                callback=lambda _, clock=clock: clock.append(time.process_time()),
            ).ledger  # fmt: skip
            spent = np.diff(clock)  # of each round; the first holds the opening too
            work = [e for e in ledger.events if isinstance(e, Exchange) and e.task in ("descend", "validate")]
            each = float(np.mean([spent[e.round - 1] for e in work if e.round > 1]))
            ends = float(spent.sum()) - each * len(work)
            up = sum(sum(e.bytes_up) for e in work) / len(work) / 1e6
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e6 if sys.platform != "darwin" else 1e9)
            lines.append(
                f"| {name} | {many} | {cohort} | {each:.2f} s | {1e3 * each / cohort:.2f} ms | {ends:.1f} s | "
                f"{up:.2f} | {peak:.2f} GB |"
            )
            print(lines[-1], flush=True)
    if args.write:
        put(lines, args.write, "scale")


if __name__ == "__main__":
    main()
