"""How much a client leans on the shared part: U_i = top_r(M_i + λ K_i), and which λ to take.

Notation: M_i (d, d) the second moments of client i's rows, t_i = tr M_i, n_i their number; (Q, w) the leading
eigenpairs of M = Σ M_i over T = tr M, N = Σ n_i, v = T/N, n̄ = N/m; r components; ω = λ/(1 + λ). The kinds of shared
part K_i are

    0  (t_i + v) Q w Qᵀ / T                     as large as the client's own moments: λ is a ratio
    1  n̄ (t_i + v)/(n_i + 1) Q w Qᵀ / T         λ n̄ rows of the pooled distribution: large clients lean on it less
    2  n̄ v V Vᵀ / r                             the paper's prior, alike for all: λ n̄ v / r = σ_ε²(1+σ_ε²)/σ_U²

λ = 0 is local PCA, λ = ∞ global PCA; v is one row of average size, so that a client without any variance has a K_i.
"""

from __future__ import annotations

import math

import numpy as np

from fedspan._types import Array, Arrays
from fedspan.numerics.folds import RowPart, top_eigenvectors
from fedspan.numerics.stiefel import align

LAMBDAS = (0.0, *(10.0**e for e in np.linspace(-3, 2, 12)), math.inf)  # those that cross-validation tries


def to_shares(lam: Array) -> Array:
    """ω = λ/(1 + λ): from 0 (local) to 1 (global), so that no infinity is sent or computed with."""
    lam = np.asarray(lam, dtype=np.float64)
    return np.where(np.isinf(lam), 1.0, lam / (1.0 + np.where(np.isinf(lam), 0.0, lam)))


def mix_moments(M: Array, K: Array, omega: Array, r: int) -> Array:
    """top_r((1 - ω) M + ω K) for every ω, (len(ω), p, r); at both ends the other part still breaks ties."""
    ends = np.clip(omega, 1e-10, 1.0 - 1e-10)
    if len(M) > 128:
        return np.stack([top_eigenvectors((1.0 - o) * M + o * K, r) for o in ends])
    mixed = (1.0 - ends)[:, None, None] * M + ends[:, None, None] * K
    return np.linalg.eigh(mixed)[1][:, :, : -r - 1 : -1]


def size_prior(own: RowPart, kind: int, v: Array, rows: Array) -> float:
    """The factor of Q w Qᵀ (or VVᵀ) in K_i, for client i's own part of the rows."""
    if kind == 0:
        return float(own.trace + v)
    if kind == 1:
        return float(rows * (own.trace + v) / (own.n + 1))
    return float(rows * v)


def personal_basis(own: RowPart, arrays: Arrays, r: int) -> Array:
    """top_r(M_i + λ K_i) for the shared part in `arrays`, (d, r), turned towards its first r columns."""
    Q = arrays["Q"]
    P = own.basis(Q)
    C = Q if P is None else P.T @ Q
    K = size_prior(own, int(arrays["kind"]), arrays["v"], arrays["rows"]) * (C * arrays["w"]) @ C.T
    (U,) = mix_moments(own.within(P), K, np.atleast_1d(arrays["omega"]), r)
    return align(U if P is None else P @ U, Q[:, :r])


def choose_shrinkage(losses: Array) -> tuple[int, int]:
    """(kind, λ) as indices into held-out losses (F, kinds, 14): the least sum over the folds.

    But where that is better than the better of local and global by less than 2 %, and by less than two standard errors
    (over the folds), that one: a small gain which a few outlying rows of one fold make is none.
    """
    total = losses.sum(axis=0)
    row, column = (int(i) for i in np.unravel_index(int(np.argmin(total)), total.shape))
    end = 0 if total[0, 0] <= total[0, -1] else total.shape[1] - 1
    gain = losses[:, 0, end] - losses[:, row, column]
    if gain.sum() <= min(0.02 * total[0, end], 2 * gain.std(ddof=1) * np.sqrt(len(gain))):
        return 0, end
    return row, column
