"""Limits for watching rows by a fitted PCA: Hotelling's T² inside the components, the squared error outside of them.

    J. E. Jackson, G. S. Mudholkar. Control Procedures for Residuals Associated with Principal Component Analysis.
    Technometrics, 1979. https://doi.org/10.1080/00401706.1979.10489779

Notation: k components of n rows, θ_i = Σ_{j>k} λ_j^i for i = 1, 2, 3 over the variances λ that are left out, and
h = 1 - 2θ₁θ₃/(3θ₂²): Q^h is then nearly normal for a sum Q of squares with those variances.
"""

from __future__ import annotations

import numpy as np
from scipy.special import fdtri, ndtri

from fedspan._types import Array


def limit_t2(k: int, n: float, confidence: float) -> float:
    """What T² of a new row of the same normal distribution exceeds with probability 1 - confidence."""
    return float(k * (n**2 - 1) / (n * (n - k)) * fdtri(k, n - k, confidence))


def limit_spe(theta: Array, confidence: float) -> float:
    """The same for its squared prediction error; θ (3,)."""
    first, second, third = map(float, theta)
    if not second > 0:
        return 0.0
    h = 1 - 2 * first * third / (3 * second**2)
    c = np.sign(h) * ndtri(confidence)
    inside = 1 + c * np.sqrt(2 * second * h**2) / first + second * h * (h - 1) / first**2
    return float(first * inside ** (1 / h))


def sum_powers(M: Array) -> Array:
    """tr M, tr M² and tr M³ of a symmetric matrix, (3,); the third to the digits of float32, which a limit needs."""
    single = M.astype(np.float32)
    cubed = np.einsum("ij,ij->", single @ single.T, single, dtype=np.float64)
    return np.array([np.trace(M), np.einsum("ij,ij->", M, M), cubed])
