"""Personalized PCA on real clients: `python benchmarks/personalized/real_clients.py [--write docs/personalized.md]`.

Half of each client's rows is held out. Figures are held-out reconstruction errors over the better of local and global
PCA of the same seed: mean over the seeds, and the worst seed. Everything is centered by each client's training mean;
WISDM is scaled. PerPCA shares half of its components (rounded up).
"""

from __future__ import annotations

import argparse
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from problem import REAL, error, global_pca, halves, local_pca, put, real_clients

from fedspan import PersonalizedPCA
from fedspan.algorithms import PerPca
from fedspan.core.run import run
from fedspan.engines import InProcess


def one(train: dict[str, Any], held: dict[str, Any], r: int, scale: bool, seed: int) -> tuple[dict[str, float], str]:
    """Held-out errors of all methods on one split, and what auto chose."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # on features of different scales
        model = PersonalizedPCA(r, scale=scale, random_state=seed).fit(train)
    names = list(train)
    A = [(train[c] - train[c].mean(axis=0)) / model.scale_ for c in names]
    B = [(held[c] - train[c].mean(axis=0)) / model.scale_ for c in names]
    perpca = run(PerPca(r, tol=1e-5), InProcess(dict(zip(names, A, strict=True))), rounds=300, seed=seed)
    out = {
        "auto": model.reconstruction_error(held),
        "local": error(local_pca(A, r), B),
        "global": error(global_pca(A, r), B),
        "PerPCA": error(list(perpca.state.collected.U), B),
    }
    np.testing.assert_allclose(out["auto"], error([U.T for U in model.components_], B), rtol=1e-8)
    return out, f"{model.shrinkage_:.3g}"


def _others(path: Path, lines: list[str]) -> list[str]:
    """The rows in that file that were not measured again."""
    inside = path.read_text(encoding="utf-8").split("<!-- real clients begins -->")[1].split("<!-- real")[0]
    known = {tuple(line.split("|")[1:4]) for line in lines}
    rows = [line for line in inside.splitlines() if line.startswith("| ")]
    return [row for row in rows if tuple(row.split("|")[1:4]) not in known]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--sets", default=",".join(REAL))
    parser.add_argument("--write", type=Path, help="put the table into this Markdown file")
    args = parser.parse_args()
    lines = [
        "| clients | training rows | r | auto | worst seed | local | global | PerPCA | λ |",
        "|---|---|--:|--:|--:|--:|--:|--:|---|",
    ]
    print("\n".join(lines), flush=True)
    for most in (20, None):
        for name in args.sets.split(","):
            if most and name not in ("wisdm_v1_users", "gas_drift_batches"):
                continue
            clients = real_clients(name)
            for r in (5, 10):
                started, ratios, chosen = time.perf_counter(), [], []
                for seed in range(args.seeds):
                    got, lam = one(*halves(clients, seed, most), r, name.startswith("wisdm"), seed)
                    best = min(got["local"], got["global"])
                    ratios.append([got[k] / best for k in ("auto", "local", "global", "PerPCA")])
                    chosen.append(lam)
                mean, worst = np.mean(ratios, axis=0), np.max(ratios, axis=0)
                cells = [f"{x:.3f}" for x in (mean[0], worst[0], *mean[1:])]
                print("   seeds:", [[round(float(x), 4) for x in row] for row in ratios], flush=True)
                lines.append(f"| {name} | {most or 'half'} | {r} | {' | '.join(cells)} | {', '.join(chosen)} |")
                print(lines[-1], f"{time.perf_counter() - started:.0f} s", flush=True)
                if args.write:
                    put([*lines[:2], *sorted(_others(args.write, lines)), *lines[2:]], args.write, "real clients")


if __name__ == "__main__":
    main()
