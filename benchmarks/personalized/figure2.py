"""Personalized PCA figure 2: training and held-out error against iterations, for three heterogeneities.

(d, r) = (30, 10), m = 50, n = 20, learning rates 0.02, 0.04, 0.04 as printed. The paper draws curves and says: more
heterogeneity makes training faster and its error smaller, and the held-out error larger. Then what PersonalizedPCA's
methods need in rounds and bytes for the same problem. Quick: 2 data sets, 100 iterations; full: 20 data sets, 300.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from figures import solve
from iterate import iterates, settled
from problem import error, section_v, true_error

from fedspan.algorithms import PersonalAuto
from fedspan.core.ledger import Ledger
from harness import Config, Cost, Found, Row

Series = dict[float, list[float]]
SHOWN = 0.05
WHERE, JOB = "figure 2 and Remark 1", "personalized PCA (its figure 2, σ_U² = 0.05, to the error of Algorithm 1)"


def courses(datasets: int, rounds: int) -> tuple[Series, Series, float]:
    """m = 50, n = 20: training and held-out error against iterations for three σ_U², learning rates tuned for each."""
    train_out: Series = {}
    held_out: Series = {}
    for var_u, alpha in ((0.02, 0.02), (0.05, 0.04), (0.2, 0.04)):
        sums = np.zeros((2, rounds))
        for seed in range(datasets):
            train, held, _ = section_v(seed, var_u, test=200)
            seen: list[tuple[float, float]] = []
            ledger = iterates(
                train,
                var_u,
                seed,
                rounds,
                (alpha, var_u),
                lambda U, seen=seen, train=train, held=held: seen.append((error(U, train), error(U, held))),
            )
            each = _sent(ledger) / rounds
            sums += np.array(seen).T / datasets / true_error()
        for out, values in ((train_out, sums[0]), (held_out, sums[1])):
            out[var_u] = values.tolist()
    return train_out, held_out, each


def budgets(datasets: int, held: list[float], each: float) -> list[Cost]:
    """Rounds and bytes to the held-out error that Algorithm 1 ends at; `each`: MB of one of its rounds."""
    goal, spent = 1.01 * held[-1], list[tuple[float, float]]()
    for seed in range(datasets):
        train, test, _ = section_v(seed, SHOWN, test=200)
        auto = solve(PersonalAuto(10, center="none"), train, seed)
        assert error(list(auto.state.collected.U), test) / true_error() <= goal
        spent.append((auto.rounds, _sent(auto.ledger)))
    t = float(np.argmax(np.array(held) <= goal) + 1)
    return [
        Cost(JOB, "auto (no variance known)", *np.mean(spent, axis=0).tolist(), False),
        Cost(JOB, "Algorithm 1 (variances known)", t, t * each, True),
    ]


def _sent(ledger: Ledger) -> float:
    return (ledger.bytes_up + ledger.bytes_down) / 1e6


def run(config: Config, data: Path) -> Found:
    datasets, rounds = config.datasets, config.iterations
    train, held, each = courses(datasets, rounds)
    low, middle, high = train
    rows = (
        [
            Row(
                f"training converges faster at σ_U² = {b} than at {a} (iterations until it stays within 1 %)",
                settled(train[b]),
                "iterations",
                against=settled(train[a]),
                where=WHERE,
            )
            for a, b in ((low, middle), (middle, high))
        ]
        + [
            Row(
                f"the training error at the end is smaller at σ_U² = {b} than at {a}",
                train[b][-1],
                "",
                against=train[a][-1],
                where=WHERE,
            )
            for a, b in ((low, middle), (middle, high))
        ]
        + [
            Row(
                f"the held-out error at the end is larger at σ_U² = {b} than at {a}",
                held[b][-1],
                "",
                "higher",
                against=held[a][-1],
                where=WHERE,
            )
            for a, b in ((low, middle), (middle, high))
        ]
    )
    costs = budgets(datasets, held[SHOWN], each)
    auto, paper = (cost.rounds for cost in costs)
    rows.append(
        Row("auto needs fewer rounds than Algorithm 1", auto, "rounds", against=paper, where="beyond the paper")
    )
    lines = {
        f"{what}, σ_U² = {var_u}": [(float(i), y) for i, y in enumerate(curve, 1)]
        for what, series in (("training", train), ("held out", held))
        for var_u, curve in series.items()
    }
    setting = {"data sets": datasets, "iterations": rounds}
    return Found(
        rows, range(datasets), setting, costs, lines, ("iteration", "error over the true error"), (False, False)
    )
