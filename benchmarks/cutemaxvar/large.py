"""Figure 8 of CuteMaxVar, large and sparse: `python benchmarks/cutemaxvar/large.py [--write docs/gcca.md]`.

(J, N, D, K, I) = (50000, 2000, 200, 5, 3), Z, A_i and N_i sparse, the density of X_i about 0.02, ν = 0.1 (variance
0.01), as in the authors' code. The largest resident memory of the process is printed, which makes the data too; a dense
view would be 0.8 GB. The cost is (7) after the last round.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from pathlib import Path

import numpy as np
import scipy.sparse as sp

import fedspan
from fedspan.algorithms import CuteMaxVar, MaxVarDavidson, MaxVarKrylov
from fedspan.channel import Channel, pack
from fedspan.estimators._options.maxvar_solvers import build_maxvar_channel

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from page import put

K, VIEWS, NOISE = 5, 3, 0.1


def sparse_normal(rng: np.random.Generator, shape: tuple[int, int], density: float) -> sp.csr_array:
    count = int(density * shape[0] * shape[1])
    at = rng.integers(shape[0] * shape[1], size=count)
    return sp.csr_array((rng.normal(size=count), (at // shape[1], at % shape[1])), shape=shape)


def views(J: int, N: int, D: int, density: float, seed: int) -> list[sp.csr_array]:
    """X_i = Z A_i + ν N_i. The products of Z A_i fill half of the density, the noise the other half."""
    rng = np.random.default_rng(seed)
    each = np.sqrt(density / 2 / D)
    Z = sparse_normal(rng, (J, D), each)
    return [
        (Z @ sparse_normal(rng, (D, N), each) + NOISE * sparse_normal(rng, (J, N), density / 2)).tocsr()
        for _ in range(VIEWS)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entities", type=int, default=50000)
    parser.add_argument("--features", type=int, default=2000)
    parser.add_argument("--latent", type=int, default=200)
    parser.add_argument("--density", type=float, default=0.02)
    parser.add_argument("--rounds", type=int, default=10, help="of cutemaxvar and davidson (default 10)")
    parser.add_argument("--krylov-rounds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", type=Path, nargs="+", default=[], help="put the table into these Markdown files")
    args = parser.parse_args()
    data = views(args.entities, args.features, args.latent, args.density, args.seed)
    density = np.mean([X.nnz / np.prod(X.shape) for X in data])
    runs = [("krylov, bits='auto'", MaxVarKrylov(k=K, tol=1e-6, rounded=True), "auto", args.krylov_rounds)]
    runs.append(("davidson, bits='auto'", MaxVarDavidson(k=K, tol=1e-4, rounded=True, columns=50), "auto", args.rounds))
    runs += [
        (
            f"cutemaxvar, {bits} bits, {args.rounds} rounds",
            CuteMaxVar(k=K, tol=0, start="mvlsa", rank=50),
            bits,
            args.rounds,
        )
        for bits in (3, 4)
    ]
    lines = [
        f"| J, N, D = {args.entities}, {args.features}, {args.latent}, density {density:.3f} | rounds | cost "
        "| MB | seconds |",
        "|---|--:|--:|--:|--:|",
    ]
    for name, solver, bits, rounds in runs:
        channel = Channel(up=pack(), down=pack()) if bits == "auto" else build_maxvar_channel(solver, bits, 8)
        started = time.perf_counter()
        result = fedspan.run(solver, fedspan.engines.InProcess(data), rounds=rounds, seed=args.seed, channel=channel)
        cost = solver.metrics(result.state)["cost"]
        sent = (result.ledger.bytes_up + result.ledger.bytes_down) / 1e6
        seconds = time.perf_counter() - started
        lines.append(f"| {name} | {result.rounds} | {cost:.6f} | {sent:.2f} | {seconds:.0f} |")
        print(lines[-1], file=sys.stderr, flush=True)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    lines += ["", f"Largest resident memory of the process, data included: {memory:.2f} GB."]
    print("\n".join(lines))
    for path in args.write:
        put(lines, path, "large")


if __name__ == "__main__":
    main()
