"""The opening of the wide form of block Krylov: a sum of what the clients hold most of, which leads to the first block.

Notation: M_i (d, d) of client i, m clients, t = tr(M)/m; U_i (d, r) its r = k + 3 leading eigenvectors with values λ_i,
F_i = U_i diag((λ_i/t)^¼) U_iᵀ, F = Σ F_i; Ω (d, w) random numbers that everyone makes from a seed, so that they are not
sent; H an orthonormal (d, d) transform from the same seed (random signs, then a cosine transform). What is summed are
the H F_iΩ in whole multiples of a step. H makes their entries alike in size, whatever the columns of the table are, so
that a secure sum of them takes few bits. S = FΩ.

The fourth root keeps λ_1 from drowning the others. As each F_i is cut to r columns, S cannot point at what all clients
have a little of. So the first block has a few random columns besides those of S: otherwise M might map the span into
itself, and a component outside of it would never be found.
"""

from __future__ import annotations

import numpy as np

from fedspan._types import Array
from fedspan.algorithms._moments import Moments
from fedspan.algorithms.spectral.narrow_sums import Shape, ask_near, expect_even, guess_first
from fedspan.core.protocol import Ask, Round, Sum
from fedspan.core.rng import Streams
from fedspan.numerics.orthonormal import orthonormalize, turn_back
from fedspan.numerics.rayleigh_ritz import extension

OPENING, OPENING_ARRAYS = "blend", ("seed", "shape", "unit", "step")  # the client's task
_MORE = 3  # eigenvectors of a client beyond k
_COARSENESS = 1 / 200  # the opening's rounding errors over its size: coarser ones cost a round
_LEAST_SINGULAR = 1e-6  # of the largest singular value of S: less is rounding
_LEAST_LEAD = 0.05  # of a column that was multiplied: what a second operator makes of it is rounded, and less is noise


def first_width(width: int | str | None, d: int, k: int) -> int:
    """Columns of the opening and of the first block: as asked for, or 6k (4k if that were half of d), from k to d."""
    usual = 6 * k if 12 * k <= d else 4 * k
    return min(max(width if isinstance(width, int) else usual, k), d)


def later_width(k: int) -> int:
    """Columns of every later block: wide enough to keep the lead, and no more, because bytes count."""
    return k + (k + 1) // 2


def random_width(k: int) -> int:
    """Random columns in the first block."""
    return max(2, (2 * k + 4) // 5)


def ask_opening(moments: Moments, k: int, width: int, rng: Streams) -> Round[tuple[Array, Shape]]:
    """The first block (d, width), orthonormal, and how large the sum of its products will be."""
    d, m = len(moments.mean), moments.clients
    seed, few = int(rng("opening").integers(2**62)), max(width - random_width(k), 1)
    count, step = min(k + _MORE, d), _COARSENESS * np.sqrt(12 * m / d)
    arrays = {
        "seed": np.array(seed),
        "shape": np.array([d, few, count]),
        "unit": np.array(moments.trace / m),
        "step": np.array(step),
    }
    size = m * count**0.25 / np.sqrt(d) / step  # by Cauchy and Schwarz it is at most that
    codes = yield from ask_near(Ask(OPENING, arrays, Sum("S")), "S", expect_even(d, few, size))
    U, s, _ = np.linalg.svd(turn_back(codes * step, seed), full_matrices=False)
    kept = s > _LEAST_SINGULAR * s[0]
    U, s = U[:, kept], s[kept]
    fill = rng("start").uniform(-1.0, 1.0, size=(d, width - U.shape[1]))
    return orthonormalize(np.hstack([U, fill])), guess_first(U, s, width, count)


def point_along(E: Array, Q: Array, R: Array) -> Array:
    """What a second operator E = T V points at outside of the span Q, as many columns as V; if it is less, then R, too.

    R (d, m) residuals, the most wanted first.
    """
    width = E.shape[1]
    outside = E - Q @ (Q.T @ E)
    U, s, _ = np.linalg.svd(outside - Q @ (Q.T @ outside), full_matrices=False)
    U = U[:, s > _LEAST_LEAD]
    return np.hstack([U, extension(U, R[:, :width])[0][:, : width - U.shape[1]]])
