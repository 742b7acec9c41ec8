"""How raw columns become what a network learns well from: centred, scaled, cut, and of a common length.

Notation: x a raw row, μ the columns' means, σ their standard deviations, z = clip((x-μ)/σ, ±C)·f, with one factor f
for all columns, so that the mean of ‖z‖² is `LENGTH2` (that of an image with pixels from 0 to 1, for which the step
sizes of mini-batch SSCA were chosen). A constant column becomes 0.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fedspan._types import Array
from fedspan.numerics.operators import HeldMatrix

CUT = 5.0  # C, in standard deviations
LENGTH2 = 100.0  # the mean ‖z‖²
_CONSTANT = 1e-7  # a deviation below this part of the mean absolute value is rounding


@dataclass(frozen=True)
class Scaling:
    """z = clip((x - mean)·slope, ±bound); slope is f/σ, or 0 for a constant column, and bound is C·f."""

    mean: Array  # (P,)
    slope: Array  # (P,)
    bound: float

    @classmethod
    def of(cls, mean: Array, deviation: Array, unit: Array) -> Scaling:
        """The scaling before its factor is known. `unit` is the mean absolute value of each column."""
        varies = deviation > _CONSTANT * unit
        slope = np.zeros_like(deviation)
        slope[varies] = 1 / deviation[varies]
        return cls(mean, slope, CUT)

    @classmethod
    def of_bounds(cls, low: Array, high: Array) -> Scaling:
        """From public bounds of the columns alone: as if their values were spread evenly between them."""
        mean, deviation = (low + high) / 2, (high - low) / np.sqrt(12)
        scaling = cls.of(mean, deviation, np.zeros_like(mean))
        return scaling.with_length(float(np.count_nonzero(scaling.slope)))

    @property
    def deviation(self) -> Array:
        """σ/f of each column; 0 where it is constant."""
        varies = self.slope > 0
        return np.where(varies, 1 / np.where(varies, self.slope, 1.0), 0.0)

    def with_length(self, length2: float) -> Scaling:
        """With the factor that brings a mean ‖z‖² of `length2` to `LENGTH2`."""
        factor = float(np.sqrt(LENGTH2 / length2)) if length2 > 0 else 1.0
        return replace(self, slope=self.slope * factor, bound=self.bound * factor)

    def apply(self, X: HeldMatrix) -> Array:
        """The rows, dense, in their own precision."""
        dense = to_dense(X)
        dtype = np.float32 if dense.dtype == np.float32 else np.float64
        Z = dense - self.mean  # in float64: a large mean leaves float32 no digits
        Z *= self.slope
        np.clip(Z, -self.bound, self.bound, out=Z)
        return Z.astype(dtype, copy=False)


def to_dense(X: HeldMatrix) -> Array:
    """The rows as an array."""
    return X if isinstance(X, np.ndarray) else np.asarray(X.toarray())


def sum_columns(X: HeldMatrix) -> Array:
    """Σ over the rows, in float64."""
    return np.asarray(X.sum(axis=0, dtype=np.float64)).ravel()


def sum_squares(X: HeldMatrix, mean: Array, unit: Array) -> Array:
    """Σ((x - mean)/unit)² over the rows."""
    Z = (to_dense(X) - mean) / unit
    return np.asarray(np.einsum("ij,ij->j", Z, Z))
