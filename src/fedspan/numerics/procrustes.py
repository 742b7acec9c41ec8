"""The orthogonal matrix that turns one orthonormal basis towards another.

Notation: Z, Z1 (d, r) orthonormal, D (r, r) orthogonal, D = argmin ‖Z D - Z1‖_F.
"""

from __future__ import annotations

import numpy as np

from fedspan._types import Array


def procrustes(Z: Array, Z1: Array) -> Array:
    """D over all orthogonal matrices: W₁W₂ᵀ for the SVD W₁ΣW₂ᵀ of ZᵀZ1 (FedPower, (3.2))."""
    W1, _, W2t = np.linalg.svd(Z.T @ Z1)
    return W1 @ W2t


def sign_fixing(Z: Array, Z1: Array) -> Array:
    """D over the diagonal matrices of ±1: the signs of the columns' inner products (FedPower, (3.16))."""
    return np.diag(np.where(np.einsum("ij,ij->j", Z, Z1) < 0, -1.0, 1.0))
