"""FAPS Table 1: SSI and FAPS on a small example with 128 clients.

n = 2000, ξ = 1.01, p = 20, 128 clients of 1000 rows; quick: n = 400, 32 clients of 1000 rows. (Rounds depend on the
spectrum at p, which is the same, and on how unlike the clients are, for which their rows count.) Both stop by (27);
the rounds that are beside printed ones are those until the relative error is the printed one. Means over starts:
SSI's rounds differ by a factor of two between them. Quick: 3 starts; full: 1.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from synthetic import THREE, Pooled, Spent, geometric, means, problem

from fedspan.algorithms import Krylov
from harness import Config, Found, Printed, Row


def run(config: Config, data: Path) -> Found:
    printed, seeds = Printed("faps", "table1"), range(config.starts)
    n, clients = config.features, config.clients
    pooled = Pooled(problem(0, geometric(n, 1.01), [1000] * clients), 20)
    runs: dict[str, list[Spent]] = {"SSI": [], "FAPS": [], "krylov": []}
    for seed in seeds:
        for name in ("SSI", "FAPS"):
            runs[name].append(pooled.until(THREE[name], seed, 1000, change=1e-10))
        runs["krylov"].append(pooled.until(Krylov(), seed, 100, kkt=runs["FAPS"][-1].kkt))
        print(seed, {name: kept[-1].rounds for name, kept in runs.items()}, flush=True)
    ssi, faps, krylov = (means(kept) for kept in runs.values())
    goal = printed.value("SSI", "relative error")
    rows = [
        printed.row("SSI", "rounds", float(np.mean([run.rounds_to(goal) for run in runs["SSI"]]))),
        printed.row("SSI", "relative error", ssi["error"]),
        printed.row("FAPS", "relative error", faps["error"]),
        Row("FAPS needs fewer rounds than SSI", faps["rounds"], "rounds", against=ssi["rounds"], where="section 1.3"),
        Row(
            "krylov: rounds to the KKT of FAPS, beside SSI as printed",
            krylov["rounds"],
            "rounds",
            factor=1.5,
            printed=printed.value("SSI", "rounds"),
            where="beyond the paper",
        ),
    ]
    lines = {name: [(float(t), y) for t, y in kept[0].curve] for name, kept in runs.items()}
    setting = {"features": n, "rows": 1000 * clients, "clients": clients, "components": 20}
    return Found(rows, list(seeds), setting, (), lines, ("round", "scaled KKT violation"), (True, True))
