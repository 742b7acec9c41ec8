"""FedPower Table 2: error of FedPower and of one-shot methods on LIBSVM data sets.

The error is ‖(I - ZZᵀ)V_k‖₂ against the exact eigenvectors of the pooled rows, k = 5. As in the paper: columns
divided by their largest absolute value, n rows dealt at random to max(⌊n/1000⌋, 3) clients, p = 4 fixed, run until Z
stands still. The paper does not say how many columns it iterates for this table; r = 10 is what it says for its Table
3 (with r = 5, w8a and covtype miss a factor of 2). Its vanilla column depends on the signs of the QR factorisation:
ours are fixed, so vanilla comes out as sign-fixing. For the headline, every method of the paper (also p = 1 and a p
that decays) and ours (with their default tolerance) run until the error is at most 1.1 times what OPT ends at. Quick:
2 seeds (MNIST and covtype 1; one-shot methods 5); full: 10.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from shards import AWAY, HERE, MISSING, K, R, deal, exact, scaled, watched

from fedspan.algorithms import Davidson, DrSvd, FedPower, Krylov, Uda, Wda
from fedspan.channel import Channel, pack
from fedspan.protocol import Server
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
FASTER: dict[str, Server[Any]] = {"OPT, p decays": replace(FIXED, decay=True), "p = 1": replace(FIXED, p=1)}
OURS: dict[str, Server[Any]] = {
    "krylov, bits='auto'": Krylov(K, center=False, rounded=True),
    "davidson, bits='auto'": Davidson(K, center=False, rounded=True),
}
PACKED, NEAR = Channel(up=pack(), down=pack()), 1.1


def run(config: Config, data: Path) -> Found:
    printed, many = Printed("fedpower", "table2"), config.seeds
    rows, costs = [], []
    for name in HERE:
        A = scaled(data, name)
        V = exact(A)
        errors: dict[str, list[float]] = {label: [] for label in METHODS}
        spent: dict[str, list[tuple[float, float]]] = {label: [] for label in [*METHODS, *FASTER, *OURS]}
        few = config.seeds_of_large if name in LARGE else many
        for seed in range(max(many, 5)):
            clients, courses = deal(A, seed), {}
            for label, method in METHODS.items():
                if seed < few or label in ONCE:
                    courses[label] = watched(method, clients, V, seed)
                    errors[label].append(courses[label][-1].error)
            if seed >= few:
                continue
            goal = NEAR * errors["OPT"][-1]
            for label, method in (FASTER | OURS).items():
                courses[label] = watched(method, clients, V, seed, goal, PACKED if label in OURS else None)
            for label, course in courses.items():
                reached = next((step for step in course if step.error <= goal), None)
                spent[label].append((reached.round, reached.megabytes) if reached else (np.inf, np.inf))
        error = {label: float(np.mean(values)) for label, values in errors.items()}
        mean = {label: np.mean(values, axis=0).tolist() for label, values in spent.items()}
        print(name, {label: f"{value:.2e}" for label, value in error.items()}, mean, flush=True)
        rows += [printed.row(name, label, error[label]) for label in METHODS]
        ours, theirs = mean["krylov, bits='auto'"][0], mean["OPT"][0]
        text = f"{name}: krylov, bits='auto' needs fewer rounds than OPT to {NEAR} times OPT's error"
        rows.append(Row(text, ours, "rounds", against=theirs, where="beyond the paper"))
        job = f"SVD of {name} (FedPower Table 2, to {NEAR} times OPT's error)"
        for label, method in (METHODS | FASTER | OURS).items():
            opened = openings(method, clients, PACKED if label in OURS else None)
            costs.append(Cost(job, label, *mean[label], label not in OURS, opened))
    rows += [printed.row(name, "OPT", None, impossible=MISSING) for name in AWAY]
    setting = {"k": K, "r": R, "p": 4, "rows per client": 1000}
    return Found(rows, range(many), setting, costs)
