"""CuteMaxVar figures 6 and 7: batch sizes of the local solver, and 10 to 100 views.

(J, N, D, K) = (500, 25, 20, 5), 3 bits, the paper's local solvers (10 steps of 1/σ_max²), MVLSA start. Figure 6: the
cost over v* that 40 rounds reach with batches of 10 to 500 rows. Figure 7: the cost of CuteMaxVar over that of
AltMaxVar, at the end of 40 rounds and at its worst round. Quick: 3 trials of figure 6; full: 20. One of figure 7.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
from figures import K, Problem, solvers

import fedspan
from fedspan.algorithms import CuteMaxVar
from fedspan.engines import InProcess
from fedspan.estimators._options.maxvar_solvers import build_maxvar_channel
from harness import Config, Found, Row

ROUNDS, BATCHES = 40, (10, 50, 150, 500)


def course(problem: Problem, solver: Any, bits: int | None, seed: int) -> list[float]:
    """Cost over v* after each round."""
    out: list[float] = []
    channel = build_maxvar_channel(solver, bits, 8) if bits else None
    fedspan.run(
        solver,
        InProcess(problem.views, threads=1),
        rounds=ROUNDS,
        seed=seed,
        channel=channel,
        callback=lambda info: out.append(problem.cost(info.estimate) / problem.best),
    )
    return out


def run(config: Config, data: Path) -> Found:
    trials, rows, lines = config.trials, [], {}
    ends, spent = {}, {}
    for batch in BATCHES:
        solver = CuteMaxVar(k=K, tol=0.0, start="mvlsa", rank=10, local="sgd", batch=batch)
        started = time.process_time()
        mean = np.mean([course(Problem(trial, 500), solver, 3, trial) for trial in range(trials)], axis=0)
        ends[batch], lines[f"batches of {batch}"] = float(mean[-1]), [(t, y) for t, y in enumerate(mean.tolist(), 1)]
        spent[batch] = time.process_time() - started
        print(batch, ends[batch], spent[batch], flush=True)
    rows.append(
        Row(
            "batches of 10 end at a higher cost than batches of 150 (cost/v* of 150)",
            ends[150],
            "v*",
            against=ends[10],
            where="figure 6: with 10 it does not converge well",
        )
    )
    rows.append(
        Row(
            "batches of 150 end where full gradients do (cost/v*)",
            ends[150],
            "v*",
            factor=1.1,
            against=ends[500],
            where="figure 6",
        )
    )
    rows.append(
        Row(
            "batches of 50 take less processor time than full gradients",
            spent[50],
            "s",
            against=spent[500],
            where="figure 6: reduced computation load",
        )
    )
    for views in (10, 50, 100):
        problem = Problem(0, 500, views)
        alt, cute = solvers("paper", "mvlsa")
        a, c = np.array(course(problem, alt, None, 0)), np.array(course(problem, cute, 3, 0))
        print(views, a[-1], c[-1], float((c / a).max()), flush=True)
        lines[f"AltMaxVar, {views} views"] = [(t, y) for t, y in enumerate(a.tolist(), 1)]
        lines[f"CuteMaxVar, {views} views"] = [(t, y) for t, y in enumerate(c.tolist(), 1)]
        rows.append(
            Row(
                f"{views} views: CuteMaxVar's cost after {ROUNDS} rounds is AltMaxVar's (cost/v*)",
                float(c[-1]),
                "v*",
                factor=1.05,
                against=float(a[-1]),
                where="figure 7",
            )
        )
        rows.append(
            Row(
                f"{views} views: the same in every round (largest ratio from round 5)",
                float((c / a)[4:].max()),
                "",
                factor=1.1,
                against=1.0,
                where="figure 7: almost always the same value",
            )
        )
    return Found(rows, range(trials), {"rounds": ROUNDS, "trials": trials}, (), lines, ("round", "cost over v*"))
