"""Figures 3 to 5 and Table I of CuteMaxVar: `python benchmarks/cutemaxvar/figures.py [--write docs/gcca.md]`.

(J, N, D, K, I) = (500, 25, 20, 5, 3), X_i = Z A_i + 0.1 N_i, start by MVLSA of rank 10, 8 bits for the first exchange.
"exact": both methods solve their least squares. "paper": full gradients for AltMaxVar, batches of 150 for CuteMaxVar,
10 steps of 1/σ_max² in a round. The cost of a G is the least that (7) can be for it, v* the best. Rounds are means over
the trials; a CR is of these means. "by formula" is the paper's, 1 - q·R_C/(32·R_A); "by bytes" counts all that crossed
the wire to 1.5·v*, headers, scales, opening and first exchange included, against AltMaxVar in float32 (half of the
float64 that it sent). At this size a message is 1 kB at 3 bits, so headers weigh; --entities 20000 shows them fade.
Davidson opens with rank 15, its default. The second table (figure 5) goes on to lower costs, and begins at random too,
on a few trials: it takes long.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import fedspan
from fedspan.algorithms import AltMaxVar, CuteMaxVar, MaxVarDavidson, MaxVarKrylov
from fedspan.channel import Channel, pack
from fedspan.core.run import Info
from fedspan.estimators._options.maxvar_solvers import build_maxvar_channel
from fedspan.numerics.alignment import bits_per_variable, compression_ratio, measured_ratio

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from page import put

N, D, K = 25, 20, 5
LEVELS = (1.5, 1.4, 1.3)
LOCALS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "exact": ({}, {}),
    "paper": ({"local": "gradient"}, {"local": "sgd", "batch": 150}),
}


class EnoughError(Exception):
    """All levels are reached."""


class Problem:
    """One draw of the views, with P = Σ P_i as U Uᵀ of stacked bases."""

    def __init__(self, seed: int, J: int, views: int = 3) -> None:
        rng, self.most = np.random.default_rng(seed), views * K
        Z = rng.normal(size=(J, D))
        self.views = [Z @ rng.normal(size=(D, N)) + 0.1 * rng.normal(size=(J, N)) for _ in range(views)]
        self.U = np.hstack([np.linalg.qr(X - X.mean(axis=0))[0] for X in self.views])
        self.best = 0.5 * (self.most - float(np.sum(np.linalg.svd(self.U, compute_uv=False)[:K] ** 2)))

    def cost(self, G: np.ndarray) -> float:
        return 0.5 * (self.most - float(np.sum((self.U.T @ G) ** 2)))

    def rounds(
        self, solver: Any, channel: Channel | None, most: int, seed: int, levels: Sequence[float] = LEVELS[:1]
    ) -> list[tuple[float, float]]:
        """(round, bytes) at which each level is reached, nan if it is not."""
        reached: list[tuple[float, float]] = []
        ledger = fedspan.Ledger()

        def watch(info: Info) -> None:
            ratio = self.cost(info.estimate) / self.best
            while len(reached) < len(levels) and ratio <= levels[len(reached)]:
                reached.append((info.round, ledger.bytes_up + ledger.bytes_down))
            if len(reached) == len(levels):
                raise EnoughError

        engine = fedspan.engines.InProcess(self.views, threads=1)
        with contextlib.suppress(EnoughError):
            fedspan.run(solver, engine, rounds=most, seed=seed, channel=channel, ledger=ledger, callback=watch)
        return reached + [(np.nan, np.nan)] * (len(levels) - len(reached))


Found = dict[tuple[str, Any], list[list[tuple[float, float]]]]


def solvers(name: str, start: str) -> tuple[AltMaxVar, CuteMaxVar]:
    """AltMaxVar and CuteMaxVar with those local solvers."""
    full, coarse = ({"k": K, "tol": 0.0, "start": start, "rank": 10, **more} for more in LOCALS[name])
    return AltMaxVar(**full), CuteMaxVar(**coarse)


def first_table(trials: int, J: int, most: int) -> list[str]:
    """Table I: rounds and bytes to 1.5·v* for 2 to 5 bits."""
    found: Found = {}
    lossless = Channel(up=pack(), down=pack())
    for trial in range(trials):
        problem = Problem(trial, J)
        runs: dict[tuple[str, Any], tuple[Any, Channel | None, int]] = {
            ("krylov", None): (MaxVarKrylov(k=K, tol=1e-9), lossless, 40),
            ("krylov", "auto"): (MaxVarKrylov(k=K, tol=1e-6, rounded=True), lossless, 40),
            ("davidson", "auto"): (MaxVarDavidson(k=K, tol=2e-5, rounded=True), lossless, 40),
        }
        for name in LOCALS:
            alt, cute = solvers(name, "mvlsa")
            runs[name, None] = (alt, None, most)
            for bits in (2, 3, 4, 5):
                runs[name, bits] = (cute, build_maxvar_channel(cute, bits, 8), most if bits > 2 else 40)
        for key, (solver, channel, rounds) in runs.items():
            found.setdefault(key, []).append(problem.rounds(solver, channel, rounds, seed=trial))
        print(trial, {key: found[key][-1][0][0] for key in runs}, file=sys.stderr, flush=True)
    lines = [
        f"| Table I, {trials} trials, J = {J} | bits | rounds to 1.5·v*, mean (largest) | BPV there | CR by formula "
        "| CR by bytes |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for name in LOCALS:
        alt_rounds, alt_bytes = np.array(found[name, None])[:, 0].T
        R_A, bpv = alt_rounds.mean(), bits_per_variable(round(alt_rounds.mean()), 32)
        lines.append(f"| altmaxvar, {name} | 32 | {R_A:.1f} ({alt_rounds.max():.0f}) | {bpv} | – | – |")
        for bits in (2, 3, 4, 5):
            rounds, sent = np.array(found[name, bits])[:, 0].T
            missed = int(np.sum(np.isnan(rounds)))
            if missed:
                lines.append(f"| cutemaxvar, {name} | {bits} | not reached in {missed} of {trials} | – | – | – |")
                continue
            ratios = compression_ratio(bits, rounds.mean(), R_A), measured_ratio(sent.mean(), alt_bytes.mean() / 2)
            lines.append(
                f"| cutemaxvar, {name} | {bits} | {rounds.mean():.1f} ({rounds.max():.0f}) "
                f"| {bits_per_variable(round(rounds.mean()), bits, first=8)} | {ratios[0]:.4f} | {ratios[1]:.4f} |"
            )
    for name, wanted, shown in (("krylov", None, "64"), ("krylov", "auto", "auto"), ("davidson", "auto", "auto")):
        rounds = np.array(found[name, wanted])[:, 0, 0]
        lines.append(f"| {name} | {shown} | {rounds.mean():.1f} ({rounds.max():.0f}) | – | – | – |")
    return lines


def levels_table(trials: int, J: int, most: int) -> list[str]:
    """Figure 5 and the random start of figure 3: rounds of both methods at 3 bits to lower and lower costs."""
    lines = [
        f"| figure 5, 3 bits, {trials} trials: rounds to | " + " | ".join(f"{level}·v*" for level in LEVELS) + " |",
        "|---|" + "--:|" * len(LEVELS),
    ]
    for name, start in (("exact", "mvlsa"), ("exact", "random"), ("paper", "random")):
        found: list[list[Any]] = [[], []]
        for trial in range(trials):
            problem, (alt, cute) = Problem(trial, J), solvers(name, start)
            levels = LEVELS if start == "mvlsa" else LEVELS[:1]
            for kept, solver, channel in zip(found, (alt, cute), (None, build_maxvar_channel(cute, 3, 8)), strict=True):
                kept.append([round for round, _ in problem.rounds(solver, channel, most, trial, levels)])
            print(name, start, trial, found[0][-1], found[1][-1], file=sys.stderr, flush=True)
        pairs = zip(np.mean(found[0], axis=0), np.mean(found[1], axis=0), strict=True)
        cells = [f"{c:.0f} against {a:.0f}, CR {compression_ratio(3, c, a):.4f}" for a, c in pairs]
        cells += ["–"] * (len(LEVELS) - len(cells))
        lines.append(f"| cutemaxvar against altmaxvar, {name}, {start} start | " + " | ".join(cells) + " |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=50)
    parser.add_argument("--few", type=int, default=3, help="trials of the second table (default 3; 0 leaves it out)")
    parser.add_argument("--rounds", type=int, default=3000, help="give up after so many rounds (default 3000)")
    parser.add_argument("--entities", type=int, default=500, help="J (default 500)")
    parser.add_argument("--write", type=Path, nargs="+", default=[], help="put the tables into these Markdown files")
    args = parser.parse_args()
    lines = first_table(args.trials, args.entities, args.rounds)
    print("\n".join(lines), flush=True)
    if args.few:
        lines += ["", *levels_table(args.few, args.entities, args.rounds)]
        print("\n".join(lines[-6:]))
    for path in args.write:
        put(lines, path, "figures")


if __name__ == "__main__":
    main()
