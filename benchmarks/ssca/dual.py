"""The server's problem with M = 3 constraints at d = 100,000: the box dual against Clarabel (through cvxpy).

    python benchmarks/ssca/dual.py [--d 100000] [--seeds 3]

Times are of one process in this run; only their ratio means something. cvxpy's own time (stating the problem for the
solver) is told apart from Clarabel's.
"""

from __future__ import annotations

import argparse
import time

import cvxpy as cp
import numpy as np

from fedspan.numerics.surrogate import Surrogate, minimise


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--d", type=int, default=100_000)
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    for seed in range(args.seeds):
        rng = np.random.default_rng(seed)
        F = Surrogate(
            np.array([0.0, 2.0, 1.0, 3.0]), rng.normal(size=(4, args.d)) / np.sqrt(args.d) * 4, np.full(4, 0.5)
        )
        started = time.perf_counter()
        repeats = 20
        for _ in range(repeats):
            least = minimise(F, 1e5)
        ours = (time.perf_counter() - started) / repeats
        w, s, r = cp.Variable(args.d), cp.Variable(3), cp.Variable()
        f = [F.constant[m] + F.linear[m] @ w + F.curvature[m] * r for m in range(4)]
        rules = [s >= 0, cp.sum_squares(w) <= r, *(f[m] <= s[m - 1] for m in (1, 2, 3))]
        problem = cp.Problem(cp.Minimize(f[0] + 1e5 * cp.sum(s)), rules)
        started = time.perf_counter()
        problem.solve(cp.CLARABEL)
        whole, solver = time.perf_counter() - started, problem.solver_stats.solve_time
        other = F(w.value)[0] + 1e5 * np.maximum(F(w.value)[1:], 0).sum()
        print(
            f"seed {seed}, d = {args.d}: dual {1e3 * ours:.2f} ms, Clarabel {1e3 * solver:.0f} ms (with cvxpy "
            f"{1e3 * whole:.0f} ms): ratio {solver / ours:.0f} ({whole / ours:.0f}); objectives {least.primal:.9f} "
            f"(relative gap {least.relative_gap:.0e}) and {other:.9f}, largest difference of ω "
            f"{np.abs(least.omega - w.value).max():.1e}",
            flush=True,
        )


if __name__ == "__main__":
    main()
