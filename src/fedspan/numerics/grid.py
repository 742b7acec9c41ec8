"""Rounding to a grid, which a server or client does itself, so that both know exactly what was sent."""

from __future__ import annotations

import numpy as np

from fedspan._types import Array


def to_grid(V: Array, bits: int = 8) -> tuple[Array, Array]:
    """Codes and a step per column: codes · step is V, rounded to `bits` bits of each column's range."""
    S = 2 ** (bits - 1) - 1
    step = np.abs(V).max(axis=0, initial=0.0) / S
    step = np.where(step > 0, step, 1.0)
    return np.rint(V / step).astype(np.int8 if bits <= 8 else np.int16), step


def from_grid(codes: Array, step: Array) -> Array:
    """The array that those codes stand for."""
    return codes * step
