"""The components that gram finds, against a dense decomposition of the pooled rows, where numbers are difficult."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from fedspan import FederatedPCA
from fedspan.numerics.orthonormal import largest_angle

rng = np.random.default_rng(5)
BASE = rng.normal(size=(120, 6)) * [9, 6, 4, 1, 0.5, 0.2]
TURN = np.linalg.qr(rng.normal(size=(6, 6)))[0]
X = BASE @ TURN
CENTRED = BASE - BASE.mean(axis=0)
DOUBLED = np.linalg.qr(CENTRED)[0] * [3, 3, 2, 1, 1, 0.5] @ TURN  # the leading two have one variance


@pytest.mark.parametrize(
    ("rows", "k", "tol"),
    [
        (X * 1e150, 3, 1e-9),
        (X * 1e-150, 3, 1e-9),
        (X + 1e8, 3, 1e-6),
        (X[:, :1], 1, 1e-12),
        (np.c_[X, X[:, :2] - X[:, 2:4]], 3, 1e-9),
        (X, 6, 1e-9),
        (DOUBLED, 2, 1e-9),
        (X.astype(np.float32), 3, 1e-5),
        ((4 * X).clip(-127, 127).astype(np.int8), 3, 1e-9),
        (sp.csr_array(np.where(np.abs(X) > 3, X, 0)), 3, 1e-9),
    ],
    ids=["large", "small", "offset", "d=1", "rank", "k=d", "doubled", "float32", "int8", "sparse"],
)
@pytest.mark.parametrize("clients", [3, 120])
def test_angles_to_a_dense_decomposition(rows: Any, k: int, tol: float, clients: int) -> None:
    parts = [rows[part] for part in np.array_split(np.arange(120), clients)]  # 120: one row at each client
    model = FederatedPCA(k, solver="gram", random_state=0).fit(parts)
    dense = (rows.toarray() if sp.issparse(rows) else rows).astype(np.float64)
    unit = np.abs(dense).max()
    B = dense / unit - (dense / unit).mean(axis=0)
    values, V = np.linalg.svd(B, full_matrices=False)[1:]
    assert largest_angle(model.components_.T.astype(float), V[:k].T) < tol
    np.testing.assert_allclose(model.singular_values_, values[:k] * unit, rtol=10 * tol)
    assert model.converged_
