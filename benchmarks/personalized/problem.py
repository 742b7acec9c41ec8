"""What the benchmarks of personalized PCA share: the generator of the paper's section V, baselines, real clients."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import svds

from fedspan.core.protocol import Array
from fedspan.numerics.folds import top_eigenvectors
from fedspan.numerics.stiefel import lift, random_point, retract, tangent

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from page import put as put  # for the scripts beside

DATA = Path(os.environ.get("FEDSPAN_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))
REAL = ("mnist_writers", "wisdm_v1_users", "hmp_adl_volunteers", "inaugural_speeches", "gas_drift_batches")
Clients = list[Array]


def section_v(
    seed: int, var_u: float, d: int = 30, r: int = 10, m: int = 50, n: int = 20, noise: float = 0.5, test: int = 500
) -> tuple[Clients, Clients, Clients]:
    """Training rows, held-out rows and true components U_i of the m clients."""
    rng = np.random.default_rng(seed)
    V = random_point(rng, d, r)
    train, held, true = [], [], []
    for _ in range(m):
        U = retract(V, lift(V, V + np.sqrt(var_u) * rng.normal(size=(d, r))))
        rows = rng.normal(size=(n + test, r)) @ U.T + np.sqrt(noise) * rng.normal(size=(n + test, d))
        train.append(rows[:n])
        held.append(rows[n:])
        true.append(U)
    return train, held, true


def error(U: Sequence[Array], rows: Sequence[Array]) -> float:
    """Mean squared distance of rows to the clients' subspaces."""
    lost = sum(float((Y**2).sum() - ((Y @ U_i) ** 2).sum()) for U_i, Y in zip(U, rows, strict=True))
    return lost / sum(map(len, rows))


def true_error(d: int = 30, r: int = 10, noise: float = 0.5) -> float:
    """E‖y - UUᵀy‖² for the true U: only noise in d - r directions is left."""
    return (d - r) * noise


def local_pca(rows: Sequence[Array], r: int) -> Clients:
    """Each client alone (its own leading r directions; any, where it has fewer)."""
    return [np.linalg.svd(np.vstack([X, np.zeros((r, X.shape[1]))]), full_matrices=False)[2][:r].T for X in rows]


def global_pca(rows: Sequence[Array], r: int) -> Clients:
    """The leading r directions of all rows together, for all."""
    pooled = np.vstack(rows)
    d = pooled.shape[1]
    U = top_eigenvectors(pooled.T @ pooled, r) if d < 1000 else svds(pooled, k=r, rng=np.random.default_rng(0))[2].T
    return [U] * len(rows)


def averaged_gradients(rows: Sequence[Array], U: Array, alpha: float, noise: float = 0.5) -> Iterator[Array]:
    """The paper's "global averaging": the clients' gradients are gathered before projection and retraction."""
    m, M = len(rows), sum(X.T @ X for X in rows)
    while True:
        yield U
        U = retract(U, alpha / (noise * (1 + noise) * m) * tangent(U, M @ U))


def real_clients(name: str) -> dict[str, Array]:
    """Rows by client. WISDM without the three columns that hold NaN; gas robustly standardised over all batches
    (median and MAD of each column) and cut at ±5; MNIST 60 writers, the first by number; speeches as word counts."""
    with np.load(DATA / f"{name}.npz", allow_pickle=False) as z:
        who = z["client"]
        if name == "inaugural_speeches":
            X = sp.csr_array((z["X_data"].astype(float), z["X_indices"], z["X_indptr"]), shape=tuple(z["X_shape"]))
        elif name == "mnist_writers":
            with np.load(DATA / "mnist.npz", allow_pickle=False) as mnist:
                X = mnist["X"]
        else:
            X = z["X"].astype(float)
    if name == "wisdm_v1_users":
        X = X[:, ~np.isnan(X).any(axis=0)]
    if name == "gas_drift_batches":
        middle = np.median(X, axis=0)
        mad = np.median(np.abs(X - middle), axis=0)
        X = np.clip((X - middle) / np.where(mad > 0, mad, 1.0), -5, 5)
    ids = np.unique(who)[:60]
    out = {f"{i:04d}": X[np.nonzero(who == i)[0]] for i in ids.tolist()}
    if name == "mnist_writers":
        out = {key: rows / 255.0 for key, rows in out.items()}
    return {key: rows.toarray() if sp.issparse(rows) else rows for key, rows in out.items()}


def halves(clients: dict[str, Array], seed: int, most: int | None = None) -> tuple[dict[str, Array], dict[str, Array]]:
    """Half of each client's rows to learn from (at most `most`), the other half held out."""
    rng = np.random.default_rng(seed)
    train, held = {}, {}
    for name, X in clients.items():
        order = rng.permutation(len(X))
        half = len(X) // 2
        train[name], held[name] = X[order[:half][:most]], X[order[half:]]
    return train, held
