"""The second moments of rows that are gone, as far as a model keeps them, and how new ones are added.

Notation: n rows (or the sum of their weights) with mean μ (d,), M ≈ Σ_j λ_j p_jp_jᵀ their second moments around it,
total tr M; γ the factor by which what is kept counts less than before. With n' = γn + n_b and δ = μ - μ_b,
    M' = γM + M_b + (γ n n_b / n') δδᵀ,    μ' = (γnμ + n_bμ_b) / n'
are the moments of all rows with weight γ on the old ones. If all eigenpairs are kept this is exact.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedspan._types import Array


class KeptSums(NamedTuple):
    """n, μ, λ (m,), the rows p_j (m, d), and tr M."""

    n: float
    mean: Array
    values: Array
    vectors: Array
    total: float


def add_sums(old: KeptSums, new: KeptSums, factor: float, most: int) -> KeptSums:
    """The moments of both, with the old ones times `factor`; at most `most` eigenpairs are kept."""
    n_old = factor * old.n
    n = n_old + new.n
    apart = n_old * new.n / n
    difference = old.mean - new.mean
    rows = np.vstack(
        [
            np.sqrt(factor * old.values)[:, None] * old.vectors,
            np.sqrt(new.values)[:, None] * new.vectors,
            np.sqrt(apart) * difference[None, :],
        ]
    )
    _, s, P = np.linalg.svd(rows, full_matrices=False)
    total = factor * old.total + new.total + apart * float(difference @ difference)
    mean = (n_old * old.mean + new.n * new.mean) / n
    return KeptSums(n, mean, s[:most] ** 2, P[:most], total)
