"""A quantile of positive numbers from a noised histogram: for bounds that nobody knows beforehand.

The bins are public: 2^(j/8) for j from -320 to 320, so from 1e-12 to 1e12. Bins that hold no more than noise are taken
for empty.
"""

from __future__ import annotations

import math

import numpy as np

from fedspan._types import Array

_EDGES = 2.0 ** (np.arange(-320, 321) / 8)


def count_in_bins(values: Array) -> Array:
    """How many values are in each bin; those that are too small or too large are in the first and the last."""
    at = np.clip(np.searchsorted(_EDGES, values, side="left") - 1, 0, len(_EDGES) - 2)
    return np.bincount(at, minlength=len(_EDGES) - 1)


def find_quantile(bins: Array, deviation: float, share: float) -> float:
    """The upper edge of the bin in which that share of all values is reached; `deviation` is that of the noise."""
    likely = math.sqrt(2 * math.log(len(bins)))  # of so many normal numbers hardly one is larger
    kept = np.where(bins > likely * deviation, bins, 0.0)
    if kept.sum() <= 0:
        kept = np.where(bins == bins.max(), 1.0, 0.0)
    reached = np.cumsum(kept) / kept.sum()
    return float(_EDGES[1:][int(np.searchsorted(reached, share - 1e-12))])
