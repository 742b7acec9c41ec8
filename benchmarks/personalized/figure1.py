"""Personalized PCA figure 1: error against iterations, heterogeneity, rows per client and number of clients.

The panels as printed: (d, r) = (30, 10), m = 200 for (a) and (b); (100, 20), σ_U² = 0.1 for (c) and (d); σ_ε² = 0.5.
Errors are on held-out rows, over the true reconstruction error. "ours" solves the paper's problem with known
variances, "auto" is what PersonalizedPCA does without them. Panel (d) is repeated with a deviation σ_U of 0.1 where
the caption has a variance σ_U² of 0.1. The paper draws curves, and says which is best where. Quick: 1 data set, 60
iterations, every other point; full: 5 data sets (the paper: 10 or 20), 300.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from pathlib import Path

import numpy as np
from figures import NOISE, finals
from iterate import iterates, settled
from problem import averaged_gradients, error, section_v, true_error

from fedspan.core.protocol import Array
from fedspan.numerics.folds import Folded, Prep
from fedspan.numerics.stiefel import random_point, retract, tangent
from harness import Config, Found, Row

NAMES = {"1b": "(b)", "1c": "(c)", "1d": "(d)", "1d, σ_U = 0.1": "(d), σ_U = 0.1"}
Series = dict[str, list[tuple[float, float]]]


def local_training(X: Array, U: Array, alpha: float) -> Iterable[Array]:
    """Stiefel gradient steps on one client's likelihood alone."""
    own = Folded(X, Prep(False)).whole
    while True:
        yield U
        U = retract(U, alpha / (NOISE * (1 + NOISE)) * tangent(U, own.multiply(U)))


def iterations(datasets: int, rounds: int, alpha: float = 0.02, beta: float = 0.2) -> Series:
    """(d, r) = (30, 10), m = 200, n = 10, σ_U² = 0.2: error against iterations."""
    totals = {"ours": np.zeros(rounds), "local": np.zeros(rounds), "global": np.zeros(rounds)}
    for seed in range(datasets):
        train, held, _ = section_v(seed, 0.2, m=200, n=10, test=100)
        ours: list[float] = []
        iterates(train, 0.2, seed, rounds, (alpha, beta), lambda U, ours=ours, held=held: ours.append(error(U, held)))
        totals["ours"] += ours
        rng = np.random.default_rng(seed)
        walks = [islice(local_training(X, random_point(rng, 30, 10), alpha), rounds) for X in train]
        totals["local"] += [error(list(U), held) for U in zip(*walks, strict=True)]
        walk = islice(averaged_gradients(train, random_point(rng, 30, 10), alpha), rounds)
        totals["global"] += [error([U] * 200, held) for U in walk]
    return {
        name: [(float(t), float(y)) for t, y in enumerate(total / datasets / true_error(), 1)]
        for name, total in totals.items()
    }


def panel(name: str, datasets: int, skip: int) -> Series:
    """Panels b, c, d: error against σ_U², n, m."""
    grid: tuple[float, ...] = {
        "1b": (0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2),
        "1c": (5, 10, 20, 40, 80),
        "1d": (5, 20, 50, 75, 100),
        "1d, σ_U = 0.1": (5, 50, 100),
    }[name][::skip]
    methods = ("ours", "auto", "local", "global")
    out: Series = {method: [] for method in methods}
    for x in grid:
        sums = dict.fromkeys(methods, 0.0)
        for seed in range(datasets):
            if name == "1b":
                d, r, var_u = 30, 10, float(x)
                train, held, _ = section_v(seed, var_u, m=200, n=20, test=100)
            else:
                d, r, var_u = 100, 20, 0.01 if "σ_U" in name else 0.1
                m, n = (100, int(x)) if name == "1c" else (int(x), 10)
                train, held, _ = section_v(seed, var_u, d, r, m, n, test=100)
            for method, value in finals(train, held, r, var_u, seed, more=False).items():
                sums[method] += value / datasets / true_error(d, r)
        for method in methods:
            out[method].append((float(x), sums[method]))
        print(name, x, {k: f"{v:.4f}" for k, v in sums.items()}, flush=True)
    return out


def run(config: Config, data: Path) -> Found:
    datasets, steps = config.datasets, config.iterations
    a = iterations(datasets, steps)
    rows = [
        Row(
            f"(a) after {steps} iterations ours is better than {other}",
            a["ours"][-1][1],
            "",
            factor=1.001,
            against=a[other][-1][1],
            where="figure 1 (a): our algorithm performs the best",
        )
        for other in ("local", "global")
    ]
    rows.append(
        Row(
            "(a) local training converges faster than ours (iterations until it stays within 1 % of its end)",
            settled([y for _, y in a["local"]]),
            "iterations",
            against=settled([y for _, y in a["ours"]]),
            where="figure 1 (a)",
        )
    )
    panels = {name: panel(name, datasets, config.every_point) for name in NAMES}
    for name, found in panels.items():
        for i, (x, ours) in enumerate(found["ours"]):
            best = min(found["local"][i][1], found["global"][i][1])
            for method, value in (("ours", ours), ("auto", found["auto"][i][1])):
                rows.append(
                    Row(
                        f"{NAMES[name]} at {x:g}, {method} is as good as the better of local and global",
                        value,
                        "",
                        factor=1.005,
                        against=best,
                        where=f"figure 1 ({name[1]}): the smallest error",
                    )
                )
    c = panels["1c"]
    rows += [
        Row(
            "(c) local training beats global averaging with many rows",
            c["local"][-1][1],
            against=c["global"][-1][1],
            where="figure 1 (c)",
        ),
        Row(
            "(c) global averaging does not converge to the true error (at the most rows)",
            c["global"][-1][1],
            better="higher",
            against=1.05,
            where="figure 1 (c)",
        ),
    ]
    for name in ("1d", "1d, σ_U = 0.1"):
        for method, claim, factor in (
            ("ours", "ours gains from more clients", 1.0),
            ("global", "global averaging gains from more clients", 1.0),
            ("local", "local training does not depend on their number", 1.02),
        ):
            few, many = panels[name][method][0][1], panels[name][method][-1][1]
            what = f"{NAMES[name]} {claim} (error with the most, against the fewest)"
            rows.append(Row(what, many, factor=factor, against=few, where="figure 1 (d)"))
    lines = {
        f"({name[1]}) {method}": line
        for name, found in panels.items()
        if name == "1b"
        for method, line in found.items()
    }
    setting = {"data sets": datasets, "iterations": steps}
    return Found(rows, range(datasets), setting, (), lines, ("σ_U²", "error over the true error"), (True, False))
