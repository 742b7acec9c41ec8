"""Personalized PCA figure 2: training and held-out error against iterations, for three heterogeneities.

(d, r) = (30, 10), m = 50, n = 20, learning rates 0.02, 0.04, 0.04 as printed. The paper draws curves and says: more
heterogeneity makes training faster and its error smaller, and the held-out error larger. Then what PersonalizedPCA's
methods need in rounds and bytes for the same problem. Quick: 2 data sets, 100 iterations; full: 20 data sets, 300.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from figures import NOISE, lam, solve
from iterate import Watched, iterates
from problem import error, section_v, true_error

from fedspan.algorithms import PersonalAuto, PersonalEigen, PersonalPaper
from fedspan.ledger import Ledger
from fedspan.run import Info
from fedspan.run import run as run_rounds
from harness import Cost, Found, Row

Series = dict[float, list[float]]
WHERE, JOB = "figure 2 and Remark 1", "personalized PCA (its figure 2, σ_U² = 0.05)"


def courses(datasets: int, rounds: int) -> tuple[Series, Series]:
    """m = 50, n = 20: training and held-out error against iterations for three σ_U², learning rates tuned for each."""
    train_out: Series = {}
    held_out: Series = {}
    for var_u, alpha in ((0.02, 0.02), (0.05, 0.04), (0.2, 0.04)):
        sums = np.zeros((2, rounds))
        for seed in range(datasets):
            train, held, _ = section_v(seed, var_u, test=200)
            seen: list[tuple[float, float]] = []
            iterates(
                train,
                var_u,
                seed,
                rounds,
                (alpha, var_u),
                lambda U, seen=seen, train=train, held=held: seen.append((error(U, train), error(U, held))),
            )
            sums += np.array(seen).T / datasets / true_error()
        for out, values in ((train_out, sums[0]), (held_out, sums[1])):
            out[var_u] = values.tolist()
    return train_out, held_out


def budgets(datasets: int, most: int = 200) -> list[Cost]:
    """Rounds and bytes until the held-out error is within 1 % of what known variances give."""
    var_u, r, spent = 0.05, 10, dict[str, list[tuple[float, float]]]()
    for seed in range(datasets):
        train, held, _ = section_v(seed, var_u, test=200)
        known = {"k": r, "shrinkage": lam(var_u), "center": "none"}
        goal = 1.01 * error(list(solve(PersonalEigen(**known, tol=1e-6), train, seed).state.collected.U), held)
        auto = solve(PersonalAuto(r, center="none"), train, seed)
        assert error(list(auto.state.collected.U), held) <= goal
        spent.setdefault("auto (no variance known)", []).append((auto.rounds, _sent(auto.ledger)))
        engine, ledger, reached = Watched(train, threads=1), Ledger(), list[tuple[float, float]]()

        def watch(
            info: Info,
            engine: Any = engine,
            ledger: Ledger = ledger,
            reached: list[Any] = reached,
            held: Any = held,
            goal: float = goal,
        ) -> None:
            U = [site.state.U for site in engine.session.sites.values()]
            if not reached and error(U, held) <= goal:
                reached.append((info.round, _sent(ledger)))

        paper = PersonalPaper(**known, noise=NOISE, rounds=most, tol=-1.0, collect=False)
        run_rounds(paper, engine, rounds=most, seed=seed, ledger=ledger, callback=watch)
        name = "Algorithm 1 of the paper (variances known; our safe steps and start)"
        spent.setdefault(name, []).append(reached[0] if reached else (np.inf, np.inf))
    return [
        Cost(JOB, name, *np.mean(values, axis=0).tolist(), name.startswith("Algorithm"))
        for name, values in spent.items()
    ]


def _sent(ledger: Ledger) -> float:
    return (ledger.bytes_up + ledger.bytes_down) / 1e6


def run(size: str, data: Path) -> Found:
    datasets, rounds = (2, 100) if size == "quick" else (20, 300)
    train, held = courses(datasets, rounds)
    low, middle, high = train

    def soon(var_u: float) -> float:
        """Iterations until the training error is within 1 % of its least."""
        curve = np.array(train[var_u])
        return float(np.argmax(curve <= 1.01 * curve.min()) + 1)

    rows = (
        [
            Row(
                f"training converges faster at σ_U² = {b} than at {a} (iterations to within 1 % of its least)",
                soon(b),
                "iterations",
                against=soon(a),
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
    costs = budgets(datasets)
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
