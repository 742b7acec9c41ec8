"""FedPower Table 3: error under the paper's own noise, by its ε₁ for one communication.

100 clients, k = 5, r = 10, decaying p = 4, sign-fixing, ε₂ = 0.1, δ = 0.01 (inferred; private.py and docs/privacy.md
say what this noise is worth). The least distance in the first 40 rounds. ε₁ = ∞ is FedPower without noise: there the
errors are those of rounding, and a factor of 100 counts as the same. Quick: 2 seeds (MNIST and covtype 1); full: 20
(5).
"""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
from shards import AWAY, HERE, MISSING, K, R, course, deal, exact, scaled

from fedspan.algorithms import FedPower
from harness import Config, Found, Printed
from private import CLIENTS, least

NEEDS = ("a9a", "housing", "w8a", "mnist", "covtype")
EPSILONS = (100.0, 10.0, 1.0, 0.1)


def run(config: Config, data: Path) -> Found:
    printed, rows = Printed("fedpower", "table3"), []
    many, few = config.seeds, config.seeds_of_large
    warnings.simplefilter("ignore", UserWarning)  # PaperDP says that it is no guarantee
    for name in HERE:
        A = scaled(data, name)
        V, seeds = exact(A), range(few if name in ("mnist", "covtype") else many)
        plain = FedPower(K, tol=0, center=False, p=4, align="sign", width=R)
        errors = {"ε₁ = ∞": [min(course(plain, deal(A, seed, CLIENTS), V, seed, 40)) for seed in seeds]}
        for epsilon in EPSILONS:
            errors[f"ε₁ = {epsilon:g}"] = [least(V, deal(A, seed, CLIENTS), epsilon, seed) for seed in seeds]
        rows += [printed.row(name, column, float(np.mean(values))) for column, values in errors.items()]
        print(name, {column: float(np.mean(values)) for column, values in errors.items()}, flush=True)
    rows += [printed.row(name, "ε₁ = 1", None, impossible=MISSING) for name in AWAY]
    return Found(rows, range(many), {"clients": CLIENTS, "k": K, "r": R, "seeds of MNIST and covtype": few})
