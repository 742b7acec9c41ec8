"""The server's half of MAX-VAR GCCA: the common representation from the views' projections, and its residual.

Notation: J entities, K components, I views; M_i (J, K) what view i makes of the entities (X_i Q_i, or a network's
output), M = Σ M_i, G (J, K) the common representation, GᵀG = I; α the proximal weight (infinite: no such term).
"""

from __future__ import annotations

import math

import numpy as np

from fedspan._types import Array
from fedspan.numerics.orthonormal import polar


def center_columns(M: Array) -> Array:
    """(I - 11ᵀ/J) M."""
    return M - M.mean(axis=0)


def common_step(M: Array, G: Array | None = None, alpha: float = math.inf, center: bool = True) -> Array:
    """argmin Σ ½‖M_i - G⁺‖² + ‖G⁺ - G‖²/(2α) over G⁺ᵀG⁺ = I, and 1ᵀG⁺ = 0 if `center`; CuteMaxVar (14).

    The G before it must be centred itself. Only the sum of the views is needed: their squares are constants.
    """
    Y = center_columns(M) if center else M
    if G is not None and alpha < math.inf:
        Y = Y + G / alpha  # (15)
    return polar(Y)  # (16)


def projected_residual(M: Array, G: Array, views: int) -> float:
    """‖(I - GGᵀ)M‖_F / (I·K): how far the views' sum is from the span of G, and so G from a critical point of (7)."""
    return float(np.linalg.norm(M - G @ (G.T @ M))) / (views * G.shape[1])


def edge_by_chance(ranks: Array, J: int) -> float:
    """About the largest eigenvalue of Σ P_i if the views have nothing to do with each other (and no ridge).

    P_i are then projectors of those ranks that lie in general position in J dimensions. For large J their sum is one of
    free variables: the largest eigenvalue is the least value of 1/z + Σ R_i(z) over z > 0, with the R-transform of a
    projector of share α, R(z) = (z - 1 + √((1 - z)² + 4αz)) / (2z).
    """
    shares = np.asarray(ranks, dtype=np.float64)[:, None] / J
    z = np.geomspace(1e-3, 1e4, 4001)[None, :]
    transforms = (z - 1 + np.sqrt((1 - z) ** 2 + 4 * shares * z)) / (2 * z)
    return float(min(np.min(1 / z[0] + transforms.sum(axis=0)), len(shares)))
