"""Coordinates of rows and their distances from the mean, without a shifted copy of the rows.

Notation: X (n, d) rows, μ (d,), W (d, k), s (d,). Dense rows are shifted in blocks that stay in the cache, in their own
dtype: subtracting μW from XW would be quicker to write, and loses the digits of rows that lie far from zero.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import scipy.sparse as sp

from fedspan._types import Array, Matrix

_BLOCK = 1 << 18  # entries


def project_rows(X: Matrix, mean: Array, W: Array) -> Array:
    """(X - 1μᵀ) W, (n, k); sparse rows stay sparse."""
    if sp.issparse(X):
        return np.asarray(X @ W - mean @ W)
    out = np.empty((len(X), W.shape[1]), dtype=np.result_type(X, mean, W))
    for start, block in _shift_blocks(X, mean):
        np.matmul(block, W, out=out[start : start + len(block)])
    return out


def square_distances(X: Matrix, mean: Array, scale: Array) -> Array:
    """‖(x - μ)/s‖² of each row, (n,); sparse rows stay sparse."""
    W = 1.0 / np.asarray(scale, dtype=np.float64) ** 2
    if sp.issparse(X):
        return np.asarray(X.multiply(X) @ W - 2 * (X @ (mean * W)) + (mean**2 * W).sum())
    out = np.empty(len(X))
    for start, block in _shift_blocks(X, mean):
        out[start : start + len(block)] = np.einsum("ij,ij,j->i", block, block, W)
    return out


def _shift_blocks(X: Array, mean: Array) -> Iterator[tuple[int, Array]]:
    step = max(1, _BLOCK // max(X.shape[1], 1))
    for start in range(0, len(X), step):
        yield start, X[start : start + step] - mean
