"""Many small clients: `python benchmarks/personalized/scale.py [--clients 5000] [--write docs/personalized.md]`.

Clients of 20 × 100, r = 5, of which 10 % take part in a round; before that half the cohort of as many and of half as
many clients: seconds per round follow the cohort, not the number of clients.
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
from fedspan.engines import InProcess
from fedspan.ledger import Exchange
from fedspan.numerics.stiefel import lift, random_point, retract
from fedspan.run import run


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
        "| method | clients | cohort | round | per client of the cohort | opening and closing, all clients |"
        " MB up in a round | peak memory of the process so far |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    print("\n".join(lines), flush=True)
    for many, cohort in ((m // 2, K // 2), (m, K // 2), (m, K)):
        for name, server in (
            ("paper", PersonalPaper(5, 30.0, rounds=args.rounds, tol=-1.0, count=cohort)),
            ("auto", PersonalAuto(5, count=cohort)),
        ):
            started = time.perf_counter()
            ledger = run(server, InProcess(clients(many)), rounds=args.rounds + 1, seed=0).ledger
            total = time.perf_counter() - started
            events = [e for e in ledger.events if isinstance(e, Exchange)]
            work = [e for e in events if e.task in ("descend", "sketch", "validate")]
            count = len({e.round for e in work})
            ends = {e.round for e in events} - {e.round for e in work}
            seconds = {e.round: e.seconds for e in ledger.events if type(e).__name__ == "RoundEnd"}
            each = sum(seconds[e.round] for e in work) / count
            up = sum(sum(e.bytes_up) for e in work) / count / 1e6
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e6 if sys.platform != "darwin" else 1e9)
            lines.append(
                f"| {name} | {many} | {cohort} | {each:.2f} s | {1e3 * each / cohort:.2f} ms | "
                f"{sum(seconds[r] for r in ends):.1f} s | {up:.1f} | {peak:.2f} GB |"
            )
            print(lines[-1], f"{total:.1f} s in all", flush=True)
    if args.write:
        put(lines, args.write, "scale")


if __name__ == "__main__":
    main()
