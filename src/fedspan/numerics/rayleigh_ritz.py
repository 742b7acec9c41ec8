"""Rayleigh-Ritz: the best eigenpairs of a symmetric M that a subspace holds, from Q and MQ alone.

Notation: Q (d, m) orthonormal, AQ = M Q (d, m), T = QᵀMQ, (θ, S) its eigenpairs in descending order, Z = Q S.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy.linalg

from fedspan.protocol import Array


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


def extend(Q: Array, AQ: Array, V: Array, Y: Array, drop: float = 1e-10) -> tuple[Array, Array]:
    """(Q, AQ) with the new directions of V added, where Y = M V: the same linear map is applied to both.

    Columns that V adds nothing to are dropped (a pivoted QR shows them); Gram-Schmidt runs twice, which is enough.
    """
    size = np.linalg.norm(V, axis=0)
    V, Y = V / np.where(size > 0, size, 1.0), Y / np.where(size > 0, size, 1.0)
    for _ in range(2):
        H = Q.T @ V
        V, Y = V - Q @ H, Y - AQ @ H
        U, R, pivot = scipy.linalg.qr(V, mode="economic", pivoting=True)
        keep = int(np.sum(np.abs(np.diagonal(R)) > drop))
        if keep == 0:
            return Q, AQ
        V = U[:, :keep]
        Y = scipy.linalg.solve_triangular(R[:keep, :keep], Y[:, pivot[:keep]].T, trans="T").T
    return np.hstack([Q, V]), np.hstack([AQ, Y])
