"""How many components the data support: Minka's Bayesian choice, and a share of the variance.

    T. P. Minka. Automatic Choice of Dimensionality for PCA. NIPS, 2000.
    https://proceedings.neurips.cc/paper/2000/hash/7503cfacd12053d309b6bed5c89de212-Abstract.html

Notation: λ (d,) the variances, the largest first, n rows, k a number of components, v the mean of the d - k variances
that are left out, λ̂ = λ with v in their place. Equation (30) is Laplace's approximation of log p(rows | k).
"""

from __future__ import annotations

import numpy as np
from scipy.special import gammaln

from fedspan._types import Array

_TINY = 1e-15  # of the largest variance counts as 0: so, unlike in scikit-learn, the unit of the rows does not matter


def infer_dimension(spectrum: Array, n: int) -> int:
    """The most probable number of components, from 1 to d - 1; 1 for a single feature."""
    d = len(spectrum)
    spectrum = spectrum / (float(spectrum.max()) or 1.0)
    rank = min(int(np.sum(spectrum >= _TINY)), d - 1)  # where a variance is 0, the likelihood is, too
    if rank < 1:
        return 1
    lam = np.asarray(spectrum, dtype=np.float64)
    ks = np.arange(1, rank + 1)
    kept = np.cumsum(lam)[:rank]
    v = np.maximum(_TINY, np.maximum(lam.sum() - kept, 0.0) / (d - ks))
    halves = (d - np.arange(rank)) / 2.0
    prior = np.cumsum(gammaln(halves) - np.log(np.pi) * halves) - ks * np.log(2.0)
    likelihood = -n / 2.0 * (np.cumsum(np.log(lam[:rank])) + (d - ks) * np.log(v))
    m = d * ks - ks * (ks + 1) / 2.0
    evidence = prior + likelihood + np.log(2 * np.pi) * (m + ks) / 2.0 - ks * np.log(n) / 2.0
    evidence -= (_log_determinants(lam, v) + m * np.log(n)) / 2.0
    return int(np.argmax(np.where(np.isnan(evidence), -np.inf, evidence))) + 1


def _log_determinants(lam: Array, v: Array) -> Array:
    """Σ log (λ_i - λ_j)(1/λ̂_j - 1/λ̂_i) over i < k and j > i, for k = 1, 2, …; one row and column of pairs at a time."""
    d, rank = len(lam), len(v)
    with np.errstate(divide="ignore", invalid="ignore"):  # equal variances: log 0
        rows = np.array([np.log(lam[i] - lam[i + 1 :]).sum() for i in range(rank)])
        columns = np.array([np.log(1.0 / lam[j] - 1.0 / lam[:j]).sum() for j in range(rank)])
        outside = np.array([(d - k) * np.log(1.0 / v[k - 1] - 1.0 / lam[:k]).sum() for k in range(1, rank + 1)])
    return np.cumsum(rows) + np.cumsum(columns) + outside


def count_for_share(ratio: Array, share: float) -> int:
    """How many components explain more than that share of the variance."""
    return min(int(np.searchsorted(np.cumsum(ratio), share, side="right")) + 1, len(ratio))
