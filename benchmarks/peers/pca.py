"""PCA beside scikit-learn and dask-ml on pooled rows.

Ours is a whole federation in one process: 8 clients, their messages and the server; the peers have all rows in one
array (dask-ml: in 8 chunks). Seconds are the processor's, on one BLAS thread; memory is the peak in MB above the
process with the data in it; both are the least of the runs (quick: 3, full: 5), each in a process of its own. Accuracy
is the variance captured, over the most that 10 components can. The rows are centred beforehand, so that TruncatedSVD
solves the same problem. Full: 50,000×1000.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from environment import least, versions

from harness import Config, Found, Row

K, CLIENTS = 10, 8
SOLVERS = ("full", "covariance_eigh", "arpack", "randomized")
Arrays = list[np.ndarray]


def ours(arrays: Arrays, **options: Any) -> Any:
    from fedspan import FederatedPCA

    return FederatedPCA(K, random_state=0, **options).fit(np.array_split(arrays[0], CLIENTS))


def sklearn(name: str, **options: Any) -> Callable[[Arrays], Any]:
    def fit(arrays: Arrays) -> Any:
        from sklearn import decomposition

        return getattr(decomposition, name)(K, **options).fit(arrays[0])

    return fit


def dask(solver: str, arrays: Arrays) -> Any:
    import dask.array as da
    from dask_ml.decomposition import PCA

    X = arrays[0]
    return PCA(K, svd_solver=solver, random_state=0).fit(da.from_array(X, (len(X) // CLIENTS, X.shape[1])))


METHODS: dict[str, Callable[[Arrays], Any]] = {
    "ours": ours,
    **{f"scikit-learn PCA, {name}": sklearn("PCA", svd_solver=name, random_state=0) for name in SOLVERS},
    "scikit-learn TruncatedSVD": sklearn("TruncatedSVD", random_state=0),
    "scikit-learn IncrementalPCA": sklearn("IncrementalPCA"),
    "dask-ml PCA, full": partial(dask, "full"),
    "dask-ml PCA, randomized": partial(dask, "randomized"),
}


def small(arrays: Arrays) -> Arrays:
    return [arrays[0][:400, :30]]


def judge(arrays: Arrays, model: Any) -> dict[str, float]:
    X, V = arrays[0], np.linalg.qr(np.asarray(model.components_).T)[0]
    found = {"captured": float(np.sum((X @ V) ** 2) / np.linalg.eigvalsh(X.T @ X)[-K:].sum())}
    if hasattr(model, "ledger_"):
        found["rounds"] = float(model.n_rounds_)
        found["wire"] = (model.ledger_.bytes_up + model.ledger_.bytes_down) / 1e6
    return found


def run(config: Config, data: Path) -> Found:
    n, d = config.rows, config.features
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 300)) * 0.97 ** np.arange(300) @ rng.normal(size=(300, d)) + rng.normal(size=(n, d))
    X -= X.mean(axis=0)
    found = least("pca", list(METHODS), [X], config.runs)
    mine, rows = found.pop("ours"), []
    for name, peer in found.items():
        if isinstance(peer, str):
            rows.append(Row(name, None, impossible=peer))
            continue
        rows += [
            Row(f"{name}: processor seconds", mine["seconds"], "s", against=peer["seconds"]),
            Row(f"{name}: peak memory", mine["megabytes"], "MB", against=peer["megabytes"]),
            Row(f"{name}: variance captured", mine["captured"], "", "higher", 1 + 1e-6, against=peer["captured"]),
        ]
    rows.append(
        Row("megabytes on both links, beside sending all rows once", mine["wire"], "MB", against=X.nbytes / 1e6)
    )
    setting = {"rows": n, "features": d, "components": K, "clients": CLIENTS, "rounds": int(mine["rounds"])}
    return Found(rows, [0], {**setting, "beside": versions("scikit-learn", "dask-ml")})
