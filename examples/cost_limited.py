"""A classifier with a promise: the smallest model whose training cost is at most U. MNIST, ten clients.

    python examples/cost_limited.py [U] [FOLDER OF DATA SETS]

Instead of tuning the weight of a penalty until the cost is right, you give the cost. It takes about a minute.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np

from fedspan import FederatedClassifier


def main() -> None:
    U = float(sys.argv[1]) if len(sys.argv) > 1 else 0.2
    shared = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(sys.argv[2] if len(sys.argv) > 2 else os.environ.get("FEDSPAN_DATA", shared))
    if not (folder / "mnist.npz").is_file():
        sys.exit(f"{folder} does not contain mnist.npz; give the folder that does as the second argument.")
    with np.load(folder / "mnist.npz") as z:
        X, X_test = ((z[name] / 255.0).astype(np.float32) for name in ("X", "X_test"))
        y, y_test = z["y"], z["y_test"]
    deal = np.array_split(np.random.default_rng(0).permutation(len(y)), 10)
    model = FederatedClassifier(hidden=128, batch_size=100, rounds=500, cost_limit=U, random_state=0)
    model.fit([X[rows] for rows in deal], [y[rows] for rows in deal])
    for row in (*model.history_[50:-1:50], model.history_[-1]):
        print(
            f"round {row['round']:4d}: cost {row['cost']:.4f}, ‖ω‖² {row['norm2']:6.1f}, "
            f"slack {row['slack_1']:.4f}, multiplier {row['multiplier_1']:.3g}"
        )
    for name, value in model.verified_.items():
        print(f"verified over all rows of all clients: {name}: {value:.5f}")
    print(f"‖ω‖² {model.coef_ @ model.coef_:.1f}, test accuracy {100 * model.score(X_test, y_test):.2f} %")


if __name__ == "__main__":
    main()
