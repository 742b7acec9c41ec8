"""Income classes with a bound on how much worse the model may be for one group: a9a, two groups, four clients.

    python examples/fairness_a9a.py [FOLDER OF DATA SETS]

The mean losses of women and men may differ by at most 0.02. Two limits say so; SSCA learns under them, and the closing
rounds verify them over all training rows. The same model without limits shows what the bound costs.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np

from fedspan import FederatedClassifier

GAP = 0.02
FEMALE, MALE = 71, 72  # columns of a9a: Adult's "sex"


def main() -> None:
    shared = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else os.environ.get("FEDSPAN_DATA", shared))
    if not (folder / "a9a.npz").is_file():
        sys.exit(f"{folder} does not contain a9a.npz; give the folder that does as an argument.")
    with np.load(folder / "a9a.npz") as z:
        X, y, X_test, y_test = (z[name].astype(np.float64) for name in ("X", "y", "X_test", "y_test"))
    known = X[:, FEMALE] + X[:, MALE] == 1
    assert known.mean() > 0.999
    groups, groups_test = (np.where(part[:, FEMALE] == 1, "women", "men") for part in (X, X_test))
    deal = np.array_split(np.random.default_rng(0).permutation(len(y)), 4)
    clients = [X[rows] for rows in deal], [y[rows] for rows in deal]
    limits = [({"men": 1, "women": -1}, GAP), ({"men": -1, "women": 1}, GAP)]
    for name, limit in (("without limits", None), (f"gap at most {GAP}", limits)):
        model = FederatedClassifier(hidden=16, batch_size=500, rounds=300, limits=limit, random_state=0)
        model.fit(*clients, groups=[groups[rows] for rows in deal])
        print(name)
        for part, rows, labels, who in (("training", X, y, groups), ("test", X_test, y_test, groups_test)):
            loss = -np.log(model.predict_proba(rows)[np.arange(len(labels)), (labels > 0).astype(int)])
            men, women = loss[who == "men"].mean(), loss[who == "women"].mean()
            print(
                f"  {part:8}: loss of men {men:.4f}, of women {women:.4f}, gap {men - women:+.4f}; "
                f"accuracy {100 * model.score(rows, labels):.2f} %"
            )
        for limit_name, value in model.verified_.items():
            print(f"  verified by the federation: {limit_name}: {value:+.4f}")


if __name__ == "__main__":
    main()
