"""Handwritten digits in six views: `python benchmarks/cutemaxvar/mfeat.py [--write docs/gcca.md]`.

UCI Multiple Features (2000 digits; 76, 216, 64, 240, 47 and 6 features), features scaled at their clients, K = 40,
ridge 0.1·J. Seven tenths of the digits of each class are fitted; an RBF support vector machine (C = 10) learns
from their mean representation, `transform` of the fitted views, and is tested on that of the others, which no fit
has seen. "best raw view": the same machine on one view's scaled features, the view that is best on the mean of all
splits. Means over the splits.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from fedspan import FederatedGCCA

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from page import put

METHODS: dict[str, dict[str, Any]] = {
    "krylov": {"solver": "krylov", "tol": 1e-6},
    "altmaxvar, 50 rounds": {"solver": "altmaxvar", "tol": 0, "max_rounds": 50},
    "cutemaxvar, 3 bits, 50 rounds": {"bits": 3, "tol": 0, "max_rounds": 50},
}


def accuracy(train: np.ndarray, y: np.ndarray, test: np.ndarray, y_test: np.ndarray) -> float:
    return float(make_pipeline(StandardScaler(), SVC(C=10)).fit(train, y).score(test, y_test))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--components", type=int, default=40)
    parser.add_argument("--ridge", type=float, default=0.1, help="times the number of entities (default 0.1)")
    parser.add_argument("--splits", type=int, default=6)
    parser.add_argument("--write", type=Path, nargs="+", default=[], help="put the table into these Markdown files")
    args = parser.parse_args()
    warnings.simplefilter("ignore")  # the alternations are stopped by rounds
    folder = Path(os.environ.get("FEDSPAN_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))
    with np.load(folder / "mfeat.npz", allow_pickle=False) as z:
        X, y, names = [z[f"X{i}"].astype(np.float64) for i in range(6)], z["y"], [str(n) for n in z["view_names"]]
    found: dict[str, list[float]] = {name: [] for name in [*METHODS, *names]}
    rounds: dict[str, list[int]] = {name: [] for name in METHODS}
    sent: dict[str, list[float]] = {name: [] for name in METHODS}
    for split in range(args.splits):
        fit, rest = train_test_split(np.arange(len(y)), test_size=0.3, stratify=y, random_state=split)
        for name, options in METHODS.items():
            model = FederatedGCCA(
                args.components, scale=True, ridge=args.ridge * len(fit), random_state=split, **options
            ).fit([x[fit] for x in X])
            train, test = (model.transform([x[at] for x in X]) for at in (fit, rest))
            found[name].append(accuracy(train, y[fit], test, y[rest]))
            rounds[name].append(model.n_rounds_)
            sent[name].append((model.ledger_.bytes_up + model.ledger_.bytes_down) / 1e6)
        for name, x in zip(names, X, strict=True):
            found[name].append(accuracy(x[fit], y[fit], x[rest], y[rest]))
        print(split, {name: kept[-1] for name, kept in found.items()}, file=sys.stderr, flush=True)
    best = max(names, key=lambda name: np.mean(found[name]))
    lines = [
        f"| mfeat, K = {args.components}, {args.splits} splits | RBF SVM | splits above the best raw view | rounds "
        "| MB |",
        "|---|--:|--:|--:|--:|",
    ]
    for name in METHODS:
        above = int(np.sum(np.array(found[name]) > np.array(found[best])))
        mean = np.mean(found[name])
        lines.append(f"| {name} | {mean:.4f} | {above} | {np.mean(rounds[name]):.0f} | {np.mean(sent[name]):.1f} |")
    lines.append(f"| best raw view ({best}) | {np.mean(found[best]):.4f} | – | – | – |")
    print("\n".join(lines))
    for path in args.write:
        put(lines, path, "mfeat")


if __name__ == "__main__":
    main()
