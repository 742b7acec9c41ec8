"""A limit on mean losses, and what rows that are held out say of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedspan._types import Array, Arrays


@dataclass(frozen=True)
class Limit:
    """A constraint Σ_k coefficients_k · (mean loss of the rows in set k) ≤ bound; none: the mean loss of all rows.

    A set is a tuple of parts of the rows; if no sets are given, set k is part k alone.
    """

    bound: float
    coefficients: tuple[float, ...] = ()
    sets: tuple[tuple[int, ...], ...] = ()

    @property
    def on_loss(self) -> bool:
        """Whether lower losses can only help to keep it."""
        return all(coefficient >= 0 for coefficient in self.coefficients)

    def row(self, n: Array) -> Array:
        """(G,) its coefficients on the mean losses of the parts, of which each has n rows."""
        if not self.coefficients:
            return np.asarray(n / n.sum())
        if not self.sets:
            return np.array(self.coefficients)
        row = np.zeros(len(n))
        for coefficient, parts in zip(self.coefficients, self.sets, strict=True):
            at = list(parts)
            row[at] += coefficient * n[at] / max(float(n[at].sum()), 1.0)
        return row


@dataclass(frozen=True)
class PartSums:
    """Rows that are held out, by part: how many there are, the sum of their losses, how many are predicted rightly."""

    n: Array  # (G,)
    loss: Array  # (G,)
    right: Array  # (G,)

    @classmethod
    def of(cls, total: Arrays) -> PartSums:
        """As a sum over the clients brings them."""
        return cls(*(np.asarray(total[name], dtype=np.float64) for name in ("n", "loss", "right")))

    def value(self, limit: Limit) -> float:
        """The left-hand side of a limit."""
        return float(limit.row(self.n) @ (self.loss / np.maximum(self.n, 1)))

    def share_right(self, parts: tuple[int, ...]) -> float:
        """How many of the rows in some parts are predicted rightly; NaN if there are no such rows."""
        at, n = list(parts), float(self.n[list(parts)].sum())
        return float(self.right[at].sum()) / n if n else float("nan")


@dataclass(frozen=True)
class LimitOutcome:
    """Whether a limit is met, by the rows that were trained on and by those that were held out."""

    name: str
    bound: float
    value: float  # of the rows that were trained on
    met: bool
    held_out: float | None  # of rows that were held out; of a recall, the recall itself
    held_out_met: bool | None  # None: there are no such rows
    held_out_rows: int  # that it speaks of


def sum_parts(loss: Array, right: Array, part: Array | None, parts: int) -> dict[str, Array]:
    """n, Σ loss and how many are right, of rows by their part."""
    at = np.zeros(len(loss), dtype=np.int64) if part is None else part
    weighed = (None, loss, right)
    n, losses, rights = (np.bincount(at, weights=weight, minlength=parts).astype(np.float64) for weight in weighed)
    return {"n": n, "loss": losses, "right": rights}
