"""FedPower Table 2: error of FedPower and of one-shot methods on LIBSVM data sets.

The error is ‖(I - ZZᵀ)V_k‖₂ against the exact eigenvectors of the pooled rows, k = 5. As in the paper: columns
divided by their largest absolute value, n rows dealt at random to max(⌊n/1000⌋, 3) clients, p = 4 fixed, run until Z
stands still. The paper does not say how many columns it iterates for this table; r = 10 is what it says for its Table
3 (with r = 5, w8a and covtype miss a factor of 2). Its vanilla column depends on the signs of the QR factorisation:
ours are fixed, so vanilla comes out as sign-fixing. For the headline, every method of the paper (also p = 1 and a p
that decays) and ours run until the error is at most 1.1 times what OPT ends at (ours with the default tolerance of
1e-6), and on to 1e-6 (with 1e-9), in 300 rounds at most. Quick: 2 seeds (MNIST and covtype 1; one-shot methods 5);
full: 10.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from shards import AWAY, HERE, MISSING, K, R, Step, deal, exact, scaled, watched

from fedspan.algorithms import Davidson, DrSvd, FedPower, Krylov, Uda, Wda
from fedspan.channel import Channel, pack
from fedspan.core.protocol import Server
from harness import Config, Cost, Found, Printed, Row, openings

NEEDS = ("a9a", "housing", "w8a", "mnist", "covtype")
LARGE, ONCE = ("mnist", "covtype"), ("DR-SVD", "UDA", "WDA")
FIXED = FedPower(K, tol=1e-5, center=False, p=4, decay=False, width=R)
METHODS: dict[str, Server[Any]] = {
    "OPT": FIXED,
    "sign-fixing": replace(FIXED, align="sign"),
    "vanilla": replace(FIXED, align="none"),
    "DR-SVD": DrSvd(K, center=False),
    "UDA": Uda(K, center=False),
    "WDA": Wda(K, center=False),
}
FASTER = {"OPT, p decays": replace(FIXED, decay=True), "p = 1": replace(FIXED, p=1)}
OURS = {  # as bits='auto' has them
    "krylov, bits='auto'": Krylov(K, center=False, rounded=True, width="auto"),
    "davidson, bits='auto'": Davidson(K, center=False, rounded=True),
}
EVERY: dict[str, Server[Any]] = METHODS | FASTER | OURS
PACKED, NEAR, FAR = Channel(up=pack(), down=pack()), "1.1 times OPT's error", "an error of 1e-6"


def run(config: Config, data: Path) -> Found:
    printed, many = Printed("fedpower", "table2"), config.seeds
    rows, costs = [], []
    for name in HERE:
        A = scaled(data, name)
        V = exact(A)
        errors: dict[str, list[float]] = {label: [] for label in METHODS}
        spent: dict[str, dict[str, list[tuple[float, float]]]] = {NEAR: {}, FAR: {}}
        few = config.seeds_of_large if name in LARGE else many
        for seed in range(max(many, 5)):
            clients, courses = deal(A, seed), {}
            for label, method in METHODS.items():
                if seed < few or label in ONCE:
                    courses[label] = watched(method, clients, V, seed)
                    errors[label].append(courses[label][-1].error)
            if seed >= few:
                continue
            for job, goal, tol in ((NEAR, 1.1 * errors["OPT"][-1], 1e-6), (FAR, 1e-6, 1e-9)):
                for label, method in (FASTER | OURS).items():
                    channel = PACKED if label in OURS else None
                    courses[label] = watched(replace(method, tol=tol), clients, V, seed, goal, channel)
                for label, course in courses.items():
                    spent[job].setdefault(label, []).append(_first(course, goal, label))
        error = {label: float(np.mean(values)) for label, values in errors.items()}
        print(name, {label: f"{value:.2e}" for label, value in error.items()}, flush=True)
        rows += [printed.row(name, label, error[label]) for label in METHODS]
        opened = {label: openings(m, clients, PACKED if label in OURS else None) for label, m in EVERY.items()}
        for job, kept in spent.items():
            mean = {label: np.mean(values, axis=0).tolist() for label, values in kept.items()}
            print(job, mean, flush=True)
            title = f"SVD of {name} (FedPower Table 2, to {job})"
            costs += [Cost(title, label, *mean[label], label not in OURS, opened[label]) for label in EVERY]
            ours, theirs = (mean[label][0] + opened[label] for label in ("krylov, bits='auto'", "OPT, p decays"))
            text = f"{name}: krylov, bits='auto' needs fewer rounds than OPT with a p that decays, to {job}"
            rows.append(Row(text, ours, "rounds", against=theirs, where="beyond the paper"))
    rows += [printed.row(name, "OPT", None, impossible=MISSING) for name in AWAY]
    setting = {"k": K, "r": R, "p": 4, "rows per client": 1000}
    return Found(rows, range(many), setting, costs)


def _first(course: Sequence[Step], goal: float, label: str) -> tuple[float, float]:
    """Rounds and MB to that error. DR-SVD asks twice in its one round; the last exchange of the one-shot methods only
    tells variances."""
    for step in course:
        if step.error <= goal:
            return step.exchanges - 1 if label in ONCE else step.round, step.megabytes
    return np.inf, np.inf
