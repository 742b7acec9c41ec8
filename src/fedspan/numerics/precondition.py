"""A low-rank guess of M, and what it says about the error of a Ritz vector (Davidson's preconditioner).

Notation: M̃ = P diag(λ) Pᵀ with P (d, p) orthonormal; R (d, k) residuals of Ritz vectors with values θ (k,).
The correction of column j is (M̃ - θ_j)⁻¹ R_j; outside span(P) that is -R_j / θ_j.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from fedspan._types import Array


def low_rank_sum(factors: Iterable[Array], most: int) -> tuple[Array, Array]:
    """(P, λ), the leading first, of Σ F Fᵀ over factors F (d, p), cut to `most` columns after each."""
    P, s = np.zeros((0, 0)), np.zeros(0)
    for F in factors:
        joined = np.hstack([P * s, F]) if len(s) else F
        P, s, _ = np.linalg.svd(joined, full_matrices=False)
        keep = min(most, int(np.sum(s > 1e-12 * s[0])))
        P, s = P[:, :keep], s[:keep]
    return P, s**2


def low_rank_sum_at_once(factors: Iterable[Array]) -> tuple[Array, Array]:
    """The same without a cut, through the small matrix FᵀF of all columns together.

    Directions of less than 1e-8 of the largest λ are left out: in the squares they are lost in rounding errors.
    """
    F = np.hstack(list(factors))
    lam, V = np.linalg.eigh(F.T @ F)
    kept = np.flatnonzero(lam > 1e-8 * lam[-1])[::-1]
    return F @ (V[:, kept] / np.sqrt(lam[kept])), lam[kept]


def corrections(R: Array, theta: Array, P: Array, lam: Array) -> Array:
    """(M̃ - θ_j)⁻¹ R_j for every column; a denominator near zero is held at a thousandth of θ_j."""
    inside = P.T @ R
    gaps = lam[:, None] - theta
    least = 1e-3 * np.abs(theta)
    gaps = np.where(np.abs(gaps) < least, np.where(gaps < 0, -least, least), gaps)
    return P @ (inside / gaps) - (R - P @ inside) / theta
