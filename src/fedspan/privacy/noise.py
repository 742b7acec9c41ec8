"""Gaussian noise on a grid, from the operating system.

Why a grid: the low bits of a floating-point sum x + N tell which x can have led to it (Mironov 2012). So x is first
rounded to whole multiples of a public step g, and the noise is rounded to whole multiples of g too: the release is an
integer, every integer can come from every x, and because x/g is an integer, rint(N/g) + x/g = rint(N/g + x/g) is the
rounded real-valued Gaussian mechanism: post-processing, which costs nothing. Rounding x moves two neighbours apart by
at most g in each entry; the step is so fine (`step`) that this adds less than a thousandth to the sensitivity, and
that is added (`widen`).

Why not numpy's generator: where a column is zero, its noise is released as it is, and a generator that is not made for
cryptography could be continued from there. Uniform bits come from the operating system, and normal numbers from them by
the inverse of the distribution function: 53 bits and a sign, so up to 8.3 deviations.
"""

from __future__ import annotations

import math
import os

import numpy as np

from fedspan._types import Array

_FINE = 2.0**-10


def step(sensitivity: float, size: int) -> float:
    """g, a power of two: rounding `size` entries moves neighbours apart by at most a thousandth of the sensitivity."""
    return 2.0 ** math.floor(math.log2(sensitivity * _FINE / math.sqrt(max(size, 1))))


def widen(sensitivity: float, size: int) -> float:
    """The sensitivity after rounding."""
    return sensitivity + step(sensitivity, size) * math.sqrt(size)


def system_normal(size: int) -> Array:
    """Standard normal numbers from the operating system's random bytes."""
    from scipy.special import ndtri  # here, because `fedspan --help` need not wait for scipy

    bits = np.frombuffer(os.urandom(8 * size), dtype=np.uint64)
    tail = ((bits >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-54  # in (0, 1/2): the lower tail is exact
    return np.where(bits & np.uint64(1), ndtri(tail), -ndtri(tail))


def add_on_grid(x: Array, g: float, deviation: float, normal: Array) -> Array:
    """x with Gaussian noise of that deviation, in whole multiples of g."""
    return np.rint(x / g).astype(np.int64) + np.rint(normal.reshape(x.shape) * (deviation / g)).astype(np.int64)
