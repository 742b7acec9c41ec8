"""FAPS Table 3 and figure 3: image data at 16 clients.

MNIST (60000 × 784) and the first batch of CIFAR-10 (10000 × 3072), 5 components, pixels from 0 to 1, no centering,
stop (27). The printed errors are means of four data sets, ours of these two; Fashion-MNIST and CIFAR-100 are not to
be had here. Quick: 12000 rows of MNIST, 4000 of CIFAR-10.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from synthetic import THREE, Pooled, Spent

from fedspan.algorithms import Faps, Krylov
from harness import Found, Printed, Row

NEEDS = ("mnist", "cifar10-batch1")


def run(size: str, data: Path) -> Found:
    printed, seed, rows = Printed("faps", "table3"), 0, []
    most = {"mnist": 12000, "cifar10-batch1": 4000} if size == "quick" else {}
    kept: dict[str, list[Spent]] = {name: [] for name in THREE}
    lines = {}
    for name in NEEDS:
        A = np.load(data / f"{name}.npz")["X"][: most.get(name)] / 255.0
        pooled = Pooled(np.array_split(A, 16), 5)
        for method, solver in THREE.items():
            kept[method].append(pooled.until(solver, seed, 1000, change=1e-10))
            lines[f"{method}, {name[:5]}"] = [(float(t), y) for t, y in kept[method][-1].curve]
        print(name, {method: runs[-1].rounds for method, runs in kept.items()}, flush=True)
        faps = kept["FAPS"][-1]
        rows += [
            Row(
                f"{name}: FAPS needs fewer rounds than {other}",
                faps.rounds,
                "rounds",
                against=kept[other][-1].rounds,
                where="section 5.5, figure 3",
            )
            for other in ("SSI", "LocalPower")
        ]
        for method, solver in (("krylov", Krylov()), ("faps, accelerated", Faps(accelerate=True))):
            rounds = pooled.until(solver, seed, 100, kkt=kept["SSI"][-1].kkt).rounds
            text = f"{name}: {method} needs fewer rounds than SSI to SSI's last KKT"
            rows.append(Row(text, rounds, "rounds", against=kept["SSI"][-1].rounds, where="beyond the paper"))
    for what, column in (("kkt", "KKT"), ("error", "relative error")):
        for method, runs in kept.items():
            mean = float(np.mean([getattr(r, what) for r in runs]))
            rows.append(printed.row("image data", f"{method}, {column}", mean))
    for name in ("Fashion-MNIST", "CIFAR-100"):
        rows.append(Row(f"{name}: rounds", None, where="figure 3", impossible="the data set is not to be had here"))
    setting = {"clients": 16, "components": 5, "rows": most or "all"}
    return Found(rows, [seed], setting, (), lines, ("round", "scaled KKT violation"), (True, True))
