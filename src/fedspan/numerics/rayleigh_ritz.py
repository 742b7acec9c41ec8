"""Rayleigh-Ritz: the best eigenpairs of a symmetric M that a subspace holds, from Q and MQ alone.

Notation: Q (d, m) orthonormal, AQ = M Q (d, m), T = QᵀMQ, (θ, S) its eigenpairs in descending order, Z = Q S.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy.linalg

from fedspan._types import Array


class Ritz(NamedTuple):
    """All m Ritz values and their coordinates in Q; the residual R = (I - QQᵀ) M Z of the first k."""

    theta: Array  # (m,)
    S: Array  # (m, m)
    R: Array  # (d, k)


def rayleigh_ritz(Q: Array, AQ: Array, k: int) -> Ritz:
    """The Ritz pairs of M on span(Q), and the residual of the leading k. For Z = Q S_k, R = (I - ZZᵀ) M Z."""
    T = Q.T @ AQ
    theta, S = scipy.linalg.eigh((T + T.T) / 2)
    theta, S = theta[::-1], S[:, ::-1]
    W = AQ @ S[:, :k]
    R = W - Q @ (Q.T @ W)
    return Ritz(theta, S, R - Q @ (Q.T @ R))


def nystrom(AQ: Array, ritz: Ritz, k: int, least: float) -> tuple[Array, Array] | None:
    """(values (k,), vectors (d, k)) of the leading eigenpairs of the Nyström approximation AQ T⁻¹ AQᵀ of a positive M.

    It has seen M once more than the Ritz vectors: θ ≤ values ≤ eigenvalues of M. Ritz values up to `least` are left
    out, because errors in AQ are divided by their square roots. None: fewer than k are left.
    """
    kept = ritz.theta > least
    if np.sum(kept) < k:
        return None
    F = AQ @ (ritz.S[:, kept] / np.sqrt(ritz.theta[kept]))
    U, s, _ = np.linalg.svd(F, full_matrices=False)
    return s[:k] ** 2, U[:, :k]


def append_rows(rows: Array, more: Array, room: int) -> Array:
    """`rows` followed by `more` rows, in a buffer of `room` rows.

    If `rows` is already the beginning of such a buffer, it is not copied. Rows that are there are never changed, so an
    older view of the buffer stays what it was.
    """
    (m, d), w = rows.shape, len(more)
    buffer = rows.base
    if not isinstance(buffer, np.ndarray) or buffer.shape != (room, d) or m + w > room:
        buffer = np.empty((max(room, m + w), d))
        buffer[:m] = rows
    buffer[m : m + w] = more
    return buffer[: m + w]


def extension(Q: Array, V: Array, drop: float = 1e-10) -> tuple[Array, Array]:
    """Orthonormal columns U, orthogonal to Q, with which Q spans V too, and L with U = [Q V] L, so that MU = [MQ MV] L.

    Columns of V that add nothing are dropped (a pivoted QR finds them). Gram-Schmidt runs twice, which is enough.
    """
    m, size = Q.shape[1], np.linalg.norm(V, axis=0)
    U = V / np.where(size > 0, size, 1.0)
    L = np.vstack([np.zeros((m, V.shape[1])), np.diag(1.0 / np.where(size > 0, size, 1.0))])
    for _ in range(2):
        H = Q.T @ U
        U, L = U - Q @ H, np.vstack([L[:m] - H, L[m:]])
        U, R, pivot = scipy.linalg.qr(U, mode="economic", pivoting=True)
        keep = int(np.sum(np.abs(np.diagonal(R)) > drop))
        U = U[:, :keep]
        L = scipy.linalg.solve_triangular(R[:keep, :keep], L[:, pivot[:keep]].T, trans="T").T
    return U, L
