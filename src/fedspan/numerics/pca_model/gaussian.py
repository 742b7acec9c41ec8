"""The distribution of rows that a PCA stands for: probabilistic PCA, of Tipping and Bishop.

    M. E. Tipping, C. M. Bishop. Probabilistic Principal Component Analysis. J. R. Stat. Soc. B, 1999.
    https://doi.org/10.1111/1467-9868.00196

Notation: V (k, d) orthonormal rows, λ (k,) their variances, σ² the variance in every other direction, s (d,) what the
rows were divided by. The covariance of (x - μ)/s is Vᵀ diag(λ - σ²) V + σ² I.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedspan._types import Array
from fedspan.errors import InputError


@dataclass(frozen=True)
class GaussianModel:
    """Rows x with (x - μ)/s of that covariance; in no direction do they vary less than σ²."""

    components: Array  # V
    variances: Array  # λ
    noise: float  # σ²
    scale: Array  # s

    @property
    def _inside(self) -> Array:
        """λ; noise that was added for privacy may have put it below σ²."""
        return np.maximum(self.variances, self.noise)

    def covariance(self) -> Array:
        """Of the rows as they are given, (d, d)."""
        C = (self.components.T * (self._inside - self.noise)) @ self.components
        C[np.diag_indices_from(C)] += self.noise
        return C * np.outer(self.scale, self.scale)

    def precision(self) -> Array:
        """Its inverse, (d, d), without inverting it."""
        self._check_noise()
        if len(self.components) == self.components.shape[1]:
            P = (self.components.T / self._inside) @ self.components
        else:
            P = (self.components.T * (1.0 / self._inside - 1.0 / self.noise)) @ self.components
            P[np.diag_indices_from(P)] += 1.0 / self.noise
        return P / np.outer(self.scale, self.scale)

    def log_likelihoods(self, coordinates: Array, squares: Array) -> Array:
        """log p(x) of rows, (n,), from their coordinates V(x - μ)/s, (n, k), and ‖(x - μ)/s‖², (n,)."""
        self._check_noise()
        k, d = self.components.shape
        logdet = np.log(self._inside).sum() + 2 * np.log(self.scale).sum()
        distance = (coordinates**2 / self._inside).sum(axis=1)
        if k < d:
            logdet += (d - k) * np.log(self.noise)
            distance += np.maximum(squares - (coordinates**2).sum(axis=1), 0.0) / self.noise
        return -0.5 * (d * np.log(2 * np.pi) + logdet + distance)

    def _check_noise(self) -> None:
        k, d = self.components.shape
        if k < d and not self.noise > 0:
            raise InputError(
                "The likelihood needs a positive noise variance, but the components leave nothing out although there "
                f"are only {k} of them for {d} features, so the covariance has no inverse. Use fewer components."
            )
