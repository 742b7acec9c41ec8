"""Highly variable genes from sums: normalised dispersions, as scanpy computes them with flavor="seurat".

Of normalised counts x (before log1p): mean m and variance v of each gene, its dispersion log(v/m); genes are put into
20 bins of log1p(m), and a dispersion is normalised by mean and deviation of those in its bin.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedspan._types import Array

_BINS = 20
_LEAST_MEAN = 1e-12


class Dispersions(NamedTuple):
    """What a gene's variability is: the columns that scanpy writes."""

    means: Array
    dispersions: Array
    dispersions_norm: Array


def find_dispersions(n: float, total: Array, squares: Array) -> Dispersions:
    """From the number of cells, and of each gene Σx and Σx², (d,) each."""
    m = total / n
    v = np.maximum(squares / n - m**2, 0.0) * n / max(n - 1.0, 1.0)
    m = np.where(m == 0, _LEAST_MEAN, m)
    with np.errstate(divide="ignore", invalid="ignore"):
        dispersions = np.where(v > 0, np.log(v / m), np.nan)
    means = np.log1p(m)
    return Dispersions(means, dispersions, _normalise(means, dispersions))


def _normalise(means: Array, dispersions: Array) -> Array:
    low, high = float(means.min()), float(means.max())
    if low == high:
        edges = np.linspace(low - 0.001 * abs(low), high + 0.001 * abs(high), _BINS + 1)
    else:
        edges = np.linspace(low, high, _BINS + 1)
        edges[0] -= 0.001 * (high - low)
    bins = np.searchsorted(edges, means, side="left")
    out = np.full(len(means), np.nan)
    for each in np.unique(bins):
        here = bins == each
        known = dispersions[here & ~np.isnan(dispersions)]
        if len(known) == 0:
            continue
        average, deviation = float(known.mean()), float(known.std(ddof=1)) if len(known) > 1 else np.nan
        if np.isnan(deviation):  # one gene in its bin counts as variable: 1
            average, deviation = 0.0, average
        with np.errstate(divide="ignore", invalid="ignore"):
            out[here] = (dispersions[here] - average) / deviation
    return out


def choose_most_variable(dispersions_norm: Array, count: int) -> Array:
    """The genes whose normalised dispersion is among the `count` largest, (d,) of bool."""
    known = np.sort(dispersions_norm[~np.isnan(dispersions_norm)])[::-1]
    if len(known) == 0:
        return np.zeros(len(dispersions_norm), dtype=bool)
    least = known[min(count, len(known)) - 1]
    return np.nan_to_num(dispersions_norm, nan=-np.inf) >= least
