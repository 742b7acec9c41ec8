"""A symmetric operator M_i that one client holds: its products on a grid, and its leading eigenpairs.

Notation: M_i (d, d), known by `multiply`: V (d, w) ↦ M_i V (d, w); V̂ a block that stands on a grid (numerics/grid.py);
Δ the step to whose multiples the products are rounded.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import scipy.linalg
from scipy.sparse.linalg import LinearOperator, eigsh

from fedspan._types import Array, Arrays
from fedspan.core.rng import Streams
from fedspan.errors import InputError
from fedspan.numerics.grid import from_grid
from fedspan.numerics.orthonormal import draw_mix, orthonormalize, turn
from fedspan.numerics.rayleigh_ritz import extension, rayleigh_ritz

Multiply = Callable[[Array], Array]
_MOST_DENSE = 3000  # features up to which M_i is formed to find its eigenpairs
_LOCAL_BLOCKS, _OVERSAMPLED = 4, 5
_MOST_STEPS, _CUT = 2.0**52, 2.0**62


def check_step(largest: float, step: float) -> None:
    """Refuse a step of which products of that size would be too many. The server asks this, before it asks anything."""
    if not 2 * largest < _MOST_STEPS * step:
        raise InputError(
            "The products are too large for this rounding step: they exceed 2^52 steps. Raise tol, or use bits=None."
        )


def round_product(multiply: Multiply, arrays: Arrays) -> Array:
    """M_i V̂ in whole multiples of Δ: integers, which can be summed without any rounding error.

    What does not fit into 63 bits, because a server lies about Δ, is cut off there: a refusal would tell of it.
    """
    return _to_steps(multiply(from_grid(arrays["Z"], arrays["scale"])), arrays["step"])


def _to_steps(Y: Array, step: Array) -> Array:
    """Y in whole multiples of a step, cut off where they would not be whole numbers of 64 bits."""
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        return np.rint(np.clip(np.nan_to_num(Y / step, nan=_CUT), -_CUT, _CUT)).astype(np.int64)


def search_eigenpairs(multiply: Multiply, d: int, count: int, rng: Streams) -> tuple[Array, Array]:
    """(values, vectors) of the `count` leading eigenpairs of M_i, the largest first."""
    if d <= _MOST_DENSE:
        M = multiply(np.eye(d))
        w, U = scipy.linalg.eigh((M + M.T) / 2, subset_by_index=[d - count, d - 1])
    else:
        M = LinearOperator((d, d), matvec=lambda v: multiply(v.reshape(d, 1)), dtype=np.float64)
        w, U = eigsh(M, k=count, v0=rng("leading").normal(size=d), tol=1e-3)
    return w[::-1], U[:, ::-1]


def blend_leading(multiply: Multiply, arrays: Arrays, rng: Streams) -> Array:
    """H F_iΩ in whole multiples of the step, F_i = U diag((λ/t)^¼) Uᵀ of the leading eigenpairs (spectral/_wide.py)."""
    d, width, count = (int(x) for x in arrays["shape"])
    seed, unit = int(arrays["seed"]), float(arrays["unit"])
    w, U = approximate_eigenpairs(multiply, d, count, rng)
    root = np.sqrt(np.sqrt(np.maximum(w, 0.0) / unit))
    S = U @ (root[:, None] * (U.T @ draw_mix(seed, d, width)))
    return _to_steps(turn(S, seed), arrays["step"])


def approximate_eigenpairs(multiply: Multiply, d: int, count: int, rng: Streams) -> tuple[Array, Array]:
    """(values, vectors) of about the `count` leading eigenpairs of M_i: the best that a few blocks of products span."""
    V = orthonormalize(rng("leading").normal(size=(d, min(count + _OVERSAMPLED, d))))
    Q = AQ = np.zeros((d, 0))
    for _ in range(_LOCAL_BLOCKS):
        Y = multiply(V)
        Q, AQ = np.hstack([Q, V]), np.hstack([AQ, Y])
        V = extension(Q, Y)[0]
        if not V.size:
            break
    theta, S, _ = rayleigh_ritz(Q, AQ, 0)
    return theta[:count], Q @ S[:, :count]
