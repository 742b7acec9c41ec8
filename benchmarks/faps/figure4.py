"""FAPS figure 4: convergence rates for singular values that fall in equal steps, κ = 10, 100, 1000.

n = 1000, 10 components, 128 clients of 1250 rows; quick: n = 100 and 16 clients of 1250 rows (the gap at p is of the
order 1/n, and with it the rate). Rounds are those to a scaled KKT violation of 1e-8; the rate is the slope of its
logarithm from a tenth of the first to the last round.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from synthetic import THREE, Pooled, problem

from harness import Config, Found, Row

WHERE = "section 5.6, figure 4"


def run(config: Config, data: Path) -> Found:
    seed, rows, lines = 0, [], {}
    n, m, clients, most = config.features, config.rows, config.clients, config.rounds
    ssi = {}
    for kappa in (10, 100, 1000):
        singular = 1 - np.arange(n) / (n - 1) * (1 - 1 / kappa)
        pooled = Pooled(problem(seed, singular, [m // clients] * clients), 10)
        found = {name: pooled.until(solver, seed, most, kkt=1e-8) for name, solver in THREE.items()}
        print(kappa, {name: spent.rounds for name, spent in found.items()}, flush=True)
        ssi[kappa] = found["SSI"].rounds
        for fast, slow in (("FAPS", "LocalPower"), ("FAPS", "SSI"), ("LocalPower", "SSI")):
            rows.append(
                Row(
                    f"κ = {kappa}: {fast} needs fewer rounds than {slow}",
                    found[fast].rounds,
                    "rounds",
                    against=found[slow].rounds,
                    where=WHERE,
                )
            )
        for name, spent in found.items():
            t, y = np.array(spent.curve[len(spent.curve) // 10 :]).T
            straight = float(np.corrcoef(t, np.log(y))[0, 1] ** 2)
            rows.append(
                Row(
                    f"κ = {kappa}: {name} converges at a linear rate (R² of log KKT)",
                    straight,
                    "",
                    "higher",
                    1.0,
                    against=0.9,
                    where=WHERE,
                )
            )
            lines[f"{name}, κ = {kappa}"] = [(float(a), b) for a, b in spent.curve[:: max(1, len(spent.curve) // 60)]]
    rows.append(Row("SSI: κ = 1000 is easier than κ = 10", ssi[1000], "rounds", against=ssi[10], where=WHERE))
    setting = {"features": n, "rows": m, "clients": clients, "components": 10}
    return Found(rows, [seed], setting, (), lines, ("round", "scaled KKT violation"))
