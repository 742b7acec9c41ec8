"""One client's columns of all rows, under its part of the built-in network.

Notation as in vertical.py: ω_0 the head, ω_i the weights of client i's features, h_i what they contribute to each row,
H = Σ_i h_i; f_g the loss summed over part g of the rows, g = 1..G.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from fedspan._types import Array, Matrix
from fedspan.algorithms.learning._labelled_rows import check_finite_rows, check_labels
from fedspan.algorithms.learning.constraints.limits import sum_parts
from fedspan.algorithms.learning.scaling import Scaling
from fedspan.numerics.operators import HeldMatrix
from fedspan.numerics.swish import Swish, layer_gradient, losses_and_slopes, multiply, to_floats


class ViewRows(Protocol):
    """One client's columns of all rows: what the algorithms need of them. `at` are numbers of rows."""

    n: int
    features: int
    parts: int  # G

    def count(self, at: Array | slice) -> Array:
        """How many of the rows are in each part, (G,)."""

    def check(self) -> None:
        """Refuse rows that are not finite."""

    def take(self, at: Array | slice) -> HeldMatrix:
        """The rows as they are."""

    def use(self, scaling: Scaling | None) -> None:
        """Scale the columns like this from now on."""

    def forward(self, own: Array, at: Array) -> Array:
        """h_i of the rows, (B, J), from ω_i."""

    def head(self, head: Array, H: Array, at: Array) -> tuple[Array, Array]:
        """Σ f_g (G,) and Σ ∇ω_0 f_g (G, *the shape of ω_0)."""

    def zeros_of_head(self) -> tuple[Array, Array]:
        """What `head` gives, if nothing is to be added."""

    def backward(self, own: Array, head: Array, H: Array, at: Array) -> Array:
        """Σ ∇ω_i f_g (G, *the shape of ω_i)."""

    def measure(self, head: Array, H: Array, at: Array) -> dict[str, Array]:
        """n, Σ loss and how many rows are predicted rightly, by part."""


class SwishViewRows:
    """Columns, class numbers, a weight for each row (or None), and the part of each (or None), of the swish network."""

    def __init__(self, X: Matrix, y: Array, weight: Array | None, part: Array | None, parts: int, net: Swish) -> None:
        self.X, self.y, self.weight, self.part = X, np.asarray(y), weight, part
        self.n, self.features = X.shape
        self.parts, self.net = parts, net
        self.scaling: Scaling | None = None
        check_labels(self.n, len(self.y))

    def count(self, at: Array | slice) -> Array:
        """How many of the rows are in each part, (G,)."""
        return np.bincount(self._parts_of(at), minlength=self.parts)

    def check(self) -> None:
        """Refuse rows that are not finite."""
        check_finite_rows(to_floats(self.X))

    def take(self, at: Array | slice) -> HeldMatrix:
        """The rows as they are."""
        return to_floats(self.X[at])

    def use(self, scaling: Scaling | None) -> None:
        """Scale the columns like this from now on."""
        self.scaling = scaling

    def _scaled(self, at: Array) -> HeldMatrix:
        X = self.take(at)
        return X if self.scaling is None else self.scaling.apply(X)

    def _parts_of(self, at: Array | slice) -> Array:
        return np.zeros(self.n, dtype=np.int64)[at] if self.part is None else self.part[at]

    def _split(self, at: Array) -> list[Array | slice]:
        """Where the rows of each part stand in a batch."""
        if self.part is None:
            return [slice(None)]
        part = self._parts_of(at)
        return [np.flatnonzero(part == g) for g in range(self.parts)]

    def forward(self, own: Array, at: Array) -> Array:
        """h_i of the rows."""
        return np.asarray(multiply(self._scaled(at), own), dtype=np.float64)

    def _evaluate(self, head: Array, H: Array, at: Array) -> tuple[Array, ...]:
        H = H.astype(to_floats(self.X[:1]).dtype, copy=False)  # with float32 columns as fast as where clients hold rows
        return losses_and_slopes(H, head, self.y[at], None if self.weight is None else self.weight[at])

    def head(self, head: Array, H: Array, at: Array) -> tuple[Array, Array]:
        """Σ f_g and Σ ∇ω_0 f_g: line 5, (20)."""
        loss, E, S, _ = self._evaluate(head, H, at)
        inside = self._split(at)
        grads = np.stack([layer_gradient(S[own], E[own], self.net.intercept) for own in inside]).astype(np.float64)
        return np.array([loss[own].sum() for own in inside]), grads

    def zeros_of_head(self) -> tuple[Array, Array]:
        """What `head` gives, if nothing is to be added."""
        shape = (self.parts, self.net.hidden + self.net.intercept, self.net.classes)
        return np.zeros(self.parts), np.zeros(shape)

    def backward(self, own: Array, head: Array, H: Array, at: Array) -> Array:
        """Σ ∇ω_i f_g: line 6, (21)."""
        X, D = self._scaled(at), self._evaluate(head, H, at)[3]
        last, D = len(own) > X.shape[1], D.astype(X.dtype, copy=False)
        return np.stack([layer_gradient(X[rows], D[rows], last) for rows in self._split(at)]).astype(np.float64)

    def measure(self, head: Array, H: Array, at: Array) -> dict[str, Array]:
        """n, Σ loss and how many rows are predicted rightly, by part."""
        loss, E, _, _ = self._evaluate(head, H, at)
        y, Q = self.y[at], E.copy()
        Q[np.arange(len(y)), y] += 1.0 if self.weight is None else self.weight[at]  # E is w(Q - 1 at y)
        return sum_parts(loss, Q.argmax(axis=1) == y, self._parts_of(at), self.parts)
