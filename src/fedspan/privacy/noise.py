"""Gaussian noise on a grid, from a secret key.

Why a grid: the low bits of a floating-point sum x + N tell which x can have led to it (Mironov 2012). So x is first
rounded to whole multiples of a public step g, and the noise is rounded to whole multiples of g too: the release is an
integer, every integer can come from every x, and because x/g is an integer, rint(N/g) + x/g = rint(N/g + x/g) is the
rounded real-valued Gaussian mechanism: post-processing, which costs nothing. Rounding x moves two neighbours apart by
at most g in each entry; the step is so fine (`step`) that this adds less than a thousandth to the sensitivity, and
that is added (`widen`).

Why not numpy's generator: where a column is zero, its noise is released as it is, and a generator that is not made for
cryptography could be continued from there. Uniform bits are a cryptographic hash (SHAKE-256) of a seed that is itself
derived from the client's secret key and from the release, and normal numbers come from them by the inverse of the
distribution function: 53 bits and a sign, so up to 8.3 deviations. So the same release again has the same noise, and
repeating a question teaches nothing.
"""

from __future__ import annotations

import math
from hashlib import shake_256

import numpy as np

from fedspan._types import Array

_FINE = 2.0**-10


def step(sensitivity: float, size: int) -> float:
    """g, a power of two: rounding `size` entries moves neighbours apart by at most a thousandth of the sensitivity."""
    return 2.0 ** math.floor(math.log2(sensitivity * _FINE / math.sqrt(max(size, 1))))


def widen(sensitivity: float, size: int) -> float:
    """The sensitivity after rounding."""
    return sensitivity + step(sensitivity, size) * math.sqrt(size)


def keyed_uniform(seed: bytes, size: int) -> Array:
    """Whole numbers of 64 uniform bits that follow from a secret seed, and tell nothing of it."""
    return np.frombuffer(shake_256(seed).digest(8 * size), dtype="<u8")


def keyed_normal(seed: bytes, size: int) -> Array:
    """Standard normal numbers that follow from a secret seed."""
    from scipy.special import ndtri  # here, because `fedspan --help` need not wait for scipy

    bits = keyed_uniform(seed, size)
    tail = ((bits >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-54  # in (0, 1/2): the lower tail is exact
    return np.where(bits & np.uint64(1), ndtri(tail), -ndtri(tail))


def to_grid_steps(x: Array, g: float) -> Array:
    """x in whole multiples of g."""
    return np.rint(x / g).astype(np.int64)


def draw_on_grid(normal: Array, g: float, deviation: float) -> Array:
    """Gaussian noise of that deviation from standard normal numbers, in whole multiples of g."""
    return np.rint(normal * (deviation / g)).astype(np.int64)
