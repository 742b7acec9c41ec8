"""What a server that has multiplied M by Q knows of M V, so that a secure sum of it takes few bits.

Notation: Q (d, m) orthonormal, AQ = M Q up to rounding, V (d, k) the next block, Δ the step of the grid, and C = QᵀV,
W = V - QC the part of V that is new. M is symmetric, so of M V = AQ C + M W also the part of M W in the span of Q is
known: Qᵀ M W = (AQ)ᵀ W. What remains, E = (I - QQᵀ) M W, is of the kind of what it was in the round before, which is
F = (I - Q'Q'ᵀ) M U, for Q' without its last block U. In block Lanczos F = U A + V B, and E = V A' + V'B' with A' and
B' much like A and B before: they say how large the columns of E may be, and the rows of F how large its rows are.

The size of E_jl is taken as r_j c_l. With k numbers in each row of F, r_j is a rough guess; so it may be pulled towards
the other rows, and the factor for safety is what would have sufficed for F itself, each entry guessed from the others
of its row, and a little more. If that does not suffice, columns have to be asked for again: it costs bytes, and never
gives a wrong sum (secure/packing.py).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fedspan._types import Array
from fedspan.core.protocol import NOT_ASKED, Ask, Narrow, Round, complete
from fedspan.errors import ProtocolError

_SAFETY = 1.2
_GROWTH = 1.5  # how much larger B' may be than B
_GROWTH_AT_RANDOM = 2.0  # and after a random block, beyond what follows from its being random
_RANDOM = 2.5  # a random direction is hardly ever twice as far along a given one, in units of 1/√d; ‖M‖ ≤ tr(M)/2
_TIMES, _TIMES_FIRST = 5.0, 8.0  # entries are hardly ever larger than that many times their root mean square
_SMALL, _LEAST_ROW = 0.3, 0.1  # of what is expected of a first product
_AGAIN = 4  # bits more for a column that is asked for again; the next time it takes all
_FULL_WIDTH = 64
_LARGEST = 127  # exponent
_PULLS = (0.0, 3.0, 10.0, 1e6)  # how many numbers the mean over all rows counts for, beside a row's own


@dataclass(frozen=True)
class Shape:
    """How large the entries of a first product are: r_j c_l, in units of tr(M)."""

    rows: Array  # (d,)
    columns: Array  # (w,)


def expect_even(d: int, width: int, size: float) -> Narrow:
    """Entries of either sign that are alike in size, so that their root mean square is at most `size`."""
    return _to_narrow(np.zeros((d, width)), np.ones(d), np.full(width, _TIMES * size))


def guess_first(U: Array, roots: Array, width: int, told: int) -> Shape:
    """What to expect of M V for V = [U …] with `width` columns; the other columns are random.

    If all clients had the same M_i, U would be eigenvectors with values ∝ `roots`⁴. They do not, and each told of
    `told` columns only, so for small values the square is taken, and that of the column `told` for those beyond. M is
    positive, so ‖M u‖² ≤ ‖M‖ uᵀM u: however columns of U are mixed, none has more.
    """
    d, m = U.shape
    share = np.full(width, 1.0 / d)
    if m:
        ratio = np.maximum(roots / roots[0], roots[min(told, m) - 1] / roots[0])
        share[:m] = np.maximum(ratio**4, _SMALL * ratio**2) / np.sum(ratio**4)
    rows = d * (U**2 @ share[:m] ** 2) / np.sum(share[:m] ** 2) if m else np.ones(d)
    return Shape(np.sqrt(rows + _LEAST_ROW), _TIMES_FIRST * np.sqrt(share * share.max()) / np.sqrt(d))


def predict_sum(
    Qt: Array, AQt: Array, V: Array, step: float, trace: float, clients: int, last: int = 0, first: Shape | None = None
) -> Narrow:
    """What to expect of Σ M_i V in steps of Δ, each rounded by its client. trace: tr(M), or what bounds its norm.

    `last`: how many columns were multiplied last; 0: as many as V has. `first`: what is known before any product.
    """
    d, k = V.shape
    if len(Qt) == 0 and first is not None:
        return _to_narrow(np.zeros((d, k)), first.rows, first.columns * (trace / step))
    if len(Qt) == 0:
        return _to_narrow(np.zeros((d, k)), np.ones(d), np.full(k, _RANDOM * trace / np.sqrt(d) / step))
    known = Qt @ V
    center = (AQt.T @ known + Qt.T @ (AQt @ (V - Qt.T @ known))) / step
    last, opened = min(last or k, len(Qt)), first is not None
    F = (AQt[-last:] - (AQt[-last:] @ Qt[:-last].T) @ Qt[:-last]).T / step
    rounding = clients / 12
    growth = _GROWTH if opened or len(Qt) > k else _GROWTH_AT_RANDOM * np.sqrt(d / last)  # U was random, and V is not
    A, B = Qt[-last:] @ F, V.T @ F
    inside = np.sum(A**2, axis=0)
    usual = inside.min() if opened and last == len(Qt) else np.median(inside)  # after the opening U holds the largest
    columns = (usual + growth**2 * np.sum(B**2, axis=1)) / d + rounding
    leaked = d * np.sum(Qt[-last:] ** 2, axis=0) / growth**2  # U Bᵀ is taken off where M W is 0, too
    return _to_narrow(center, np.sqrt(_guess_rows(F**2 + rounding) ** 2 + leaked), np.sqrt(columns))


def _guess_rows(squares: Array) -> Array:
    """How large an entry of each row may be, in units of its column, from squares of such entries."""
    even = squares / squares.mean(axis=0)
    n, own = even.shape[1], even.sum(axis=1)
    usual = np.exp(np.log(own / n).mean())
    guesses = []
    for pull in _PULLS if n > 1 else _PULLS[1:]:
        from_others = (own[:, None] - even + pull * usual) / (n - 1 + pull)
        factor = _SAFETY * np.sqrt((even / from_others).max())
        guesses.append(factor * np.sqrt((own + pull * usual) / (n + pull)))
    return min(guesses, key=lambda rows: float(np.log(rows).sum()))


def _to_narrow(center: Array, rows: Array, columns: Array) -> Narrow:
    """The exponents: of twice the size, for both signs. Those of rows are small numbers, which take little space."""
    of_rows, of_columns = np.ceil(np.log2(rows)), np.ceil(np.log2(columns)) + 1
    usual = np.floor(np.median(of_rows))
    return Narrow(
        np.rint(np.clip(center, -(2.0**62), 2.0**62)).astype(np.int64),
        np.clip(of_rows - usual, -_LARGEST, _LARGEST).astype(np.int8),
        np.clip(of_columns + usual, -_LARGEST, _LARGEST).astype(np.int8),
    )


def ask_near(ask: Ask, name: str, expected: Narrow) -> Round[Array]:
    """The complete sum of an integer array; if it is secure, in few bits, with more for columns that need them.

    What is known of it already is the prediction of columns that are not asked for again, so the last answer has all
    of it. A site that repeats this (secure/replica.py) is shown no sum before that, only which columns are missing.
    """
    replies = yield from complete(replace(ask, narrow={name: expected}))
    more = np.minimum(expected.columns.astype(np.int64) + _AGAIN, _LARGEST)
    for rows, columns in ((expected.rows, more), (np.zeros_like(expected.rows), np.full_like(more, _FULL_WIDTH))):
        wrapped = replies.wrapped.get(name)
        if wrapped is None or not wrapped.any():
            return replies.total[name]
        center = np.where(wrapped, expected.center, replies.total.get(name, expected.center))
        wider = Narrow(center, rows, np.where(wrapped, columns, NOT_ASKED).astype(np.int8))
        replies = yield from complete(replace(ask, narrow={name: wider}))
    wrapped = replies.wrapped.get(name)
    if wrapped is not None and wrapped.any():  # at full width nothing can wrap
        raise ProtocolError(
            f"The sum of {name!r} does not have its check sums, even at full width, so a client has sent something "
            "else than it was asked for. Find out which one, and run again without it."
        )
    return replies.total[name]
