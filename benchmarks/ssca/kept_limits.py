"""Formulation (40) on MNIST, U = 0.13, kept by rows and by features, with batches of 100 and of 10: verified, by seed.

    python benchmarks/ssca/kept_limits.py [--first 10] [--seeds 10] [--rounds 700] [--kinds h100,v100,h10,v10]
        [--keep FOLDER]

h: ten clients of 6000 rows each, B rows drawn by every client. v: ten clients of about 78 pixels, B rows in all. The
steps are the defaults of `Ssca` in all four; batches grow by themselves. Costs are computed here over all 60000 rows,
not taken from the run. Every run is kept in a folder, so that a command that was cut goes on. Seeds come first, so that
what is there after any time has as many seeds of each kind.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

from common import NET, accuracy, arguments, by_features, by_samples, cost, mnist, solve

from fedspan.algorithms import Limit, Ssca, VerticalSsca

U = 0.13
HEAD = ("kind", "seed", "cost", "≤ U", "‖ω‖²", "test", "rounds", "rows of the last batch", "CPU s")


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--first", type=int, default=10, help="the first seed")
    parser.add_argument("--rounds", type=int, default=700)
    parser.add_argument("--kinds", default="h100,v100,h10,v10")
    parser.add_argument("--keep", type=Path, default=Path("kept-limits"), help="results so far")
    args = parser.parse_args()
    data, usual = mnist(args.data), Ssca()
    args.keep.mkdir(parents=True, exist_ok=True)
    for seed in range(args.first, args.first + args.seeds):
        for kind in args.kinds.split(","):
            path = args.keep / f"{kind}-{args.rounds}-{seed}.json"
            if path.exists():
                continue
            started = time.process_time()
            form = Ssca if kind[0] == "h" else VerticalSsca
            method = form(
                NET,
                int(kind[1:]),
                args.rounds,
                objective="norm",
                limits=(Limit(U),),
                rho=usual.rho,
                gamma=usual.gamma,
                tau=usual.tau,
            )
            clients = by_samples(data, seed) if kind[0] == "h" else by_features(data)
            result = solve(method, clients, seed, args.threads)
            omega = method.estimate(result.state)
            found = {
                "kind": kind,
                "seed": seed,
                "cost": cost(data, omega),
                "norm2": float(omega @ omega),
                "test": accuracy(data, omega),
                "rounds": result.rounds,
                "batch": result.state.control.batch,
                "cpu": time.process_time() - started,
            }
            path.write_text(json.dumps(found), encoding="utf-8")
            print(found, flush=True)
    rows = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(args.keep.glob("*.json"))]
    print(f"| {' | '.join(HEAD)} |\n{'|---' * len(HEAD)}|")
    for row in rows:
        kept = "yes" if row["cost"] <= U else "no"
        print(
            f"| {row['kind']} | {row['seed']} | {row['cost']:.5f} | {kept} | {row['norm2']:.1f} | "
            f"{100 * row['test']:.2f} % | {row['rounds']} | {row['batch']} | {row['cpu']:.0f} |"
        )


if __name__ == "__main__":
    main()
