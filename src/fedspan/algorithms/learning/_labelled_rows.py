"""Labelled rows under a model: the sums of losses and gradients that the learning algorithms need of them."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import scipy.sparse as sp

from fedspan._types import Array, Matrix
from fedspan.algorithms.learning.constraints.limits import sum_parts
from fedspan.algorithms.learning.scaling import Scaling
from fedspan.errors import InputError
from fedspan.numerics.operators import HeldMatrix
from fedspan.numerics.swish import (
    Swish,
    gradient,
    gradient_norms,
    losses,
    losses_and_slopes,
    multiply,
    swish,
    to_floats,
)

ROWS_AT_ONCE = 2000  # rows of a pass over all of them
_FAR_TOO_LONG = 1e200  # clips: a gradient beyond cannot be shortened in float64


class Samples(Protocol):
    """One client's rows under a model: what the algorithms need of them. `at` are numbers of rows, or a slice."""

    n: int
    features: int

    @property
    def counts(self) -> Array: ...
    @property
    def class_counts(self) -> Array: ...
    def check(self) -> None: ...
    def use(self, scaling: Scaling | None) -> None: ...
    def take(self, at: Array | slice) -> HeldMatrix: ...
    def sums(self, omega: Array, at: Array | slice) -> tuple[Array, Array]: ...
    def losses(self, omega: Array, at: Array | slice) -> Array: ...
    def clipped(self, omega: Array, at: Array, clip: float) -> Array: ...


def check_at_least(name: str, value: float, least: float) -> None:
    """Refuse an option below its least value."""
    if not value >= least:
        raise InputError(f"{name} must be at least {least}, but is {value!r}.")


def check_labels(rows: int, labels: int) -> None:
    """Refuse labels that are not as many as the rows."""
    if labels != rows:
        raise InputError(f"There must be one label for each of the {rows} rows, but there are {labels}.")


def check_finite_rows(X: Matrix) -> None:
    """Refuse rows that are not finite: a loss that is not finite is then the model's doing."""
    if not np.isfinite(X.data if sp.issparse(X) else X).all():
        raise InputError("Rows must be finite numbers, but some are NaN or infinite. Drop them, or impute the values.")


class LabelledRows:
    """Rows with class numbers, a weight for each (or None), and the part of each (or None), under the swish network."""

    def __init__(
        self,
        X: Matrix,
        y: Array,
        weight: Array | None,
        part: Array | None,
        parts: int,
        net: Swish,
    ) -> None:
        self.X, self.y, self.weight, self.part = X, np.asarray(y), weight, part
        self.n, self.features = X.shape
        self.parts, self.net = parts, net
        self.scaling: Scaling | None = None
        check_labels(self.n, len(self.y))

    @property
    def counts(self) -> Array:
        """N_g of this client."""
        return np.array([self.n]) if self.part is None else np.bincount(self.part, minlength=self.parts)

    @property
    def class_counts(self) -> Array:
        """How many rows each class has; the shape is the job's, whatever the labels are."""
        return np.bincount(self.y[self.y < self.net.classes], minlength=self.net.classes)

    def check(self) -> None:
        """Refuse rows that are not finite."""
        for start in range(0, self.n, ROWS_AT_ONCE):
            check_finite_rows(self.take(slice(start, start + ROWS_AT_ONCE)))

    def choose(self, at: Array) -> LabelledRows:
        """Some of the rows, with all that belongs to them."""
        weight, part = (None if each is None else each[at] for each in (self.weight, self.part))
        return LabelledRows(self.X[at], self.y[at], weight, part, self.parts, self.net)

    def measure(self, omega: Array) -> dict[str, Array]:
        """n, Σ loss and how many are predicted rightly, by part."""
        loss, right = np.zeros(self.n), np.zeros(self.n)
        for start in range(0, self.n, ROWS_AT_ONCE):
            at = slice(start, start + ROWS_AT_ONCE)
            outputs = self.outputs(omega, at)
            loss[at], _ = losses(outputs, self.y[at], None if self.weight is None else self.weight[at])
            right[at] = outputs.argmax(axis=1) == self.y[at]
        return sum_parts(loss, right, self.part, self.parts)

    def use(self, scaling: Scaling | None) -> None:
        """Scale the columns like this from now on."""
        self.scaling = scaling

    def take(self, at: Array | slice) -> HeldMatrix:
        """The rows `at` as they are."""
        return to_floats(self.X[at])

    def scale(self, at: Array | slice) -> HeldMatrix:
        """The rows `at` as the network takes them."""
        X = self.take(at)
        return X if self.scaling is None else self.scaling.apply(X)

    def _evaluate(self, omega: Array, at: Array | slice) -> tuple[Array, Array, Array, Array, Array]:
        """X, then the four results of `losses_and_slopes` (losses, E, S, D), of the rows `at`."""
        X, (W0, W1) = self.scale(at), self.net.split(omega)
        weight = None if self.weight is None else self.weight[at]
        return X, *losses_and_slopes(multiply(X, W1), W0, self.y[at], weight)

    def sums(self, omega: Array, at: Array | slice) -> tuple[Array, Array]:
        """Σ f_g (G,) and Σ ∇f_g (G, d) over the rows `at`."""
        X, loss, E, S, D = self._evaluate(omega, at)
        if self.part is None:
            return np.array([loss.sum()]), gradient(X, S, E, D, self.net.intercept)[None]
        part = self.part[at]
        inside = [np.flatnonzero(part == g) for g in range(self.parts)]
        grads = [gradient(X[rows], S[rows], E[rows], D[rows], self.net.intercept) for rows in inside]
        return np.bincount(part, weights=loss, minlength=self.parts), np.stack(grads)

    def outputs(self, omega: Array, at: Array | slice) -> Array:
        """What the network puts out for the rows `at`, before the softmax; (n, L)."""
        W0, W1 = self.net.split(omega)
        S, _ = swish(multiply(self.scale(at), W1))
        return multiply(S, W0)

    def losses(self, omega: Array, at: Array | slice) -> Array:
        """Σ f_g (G,) alone."""
        weight = None if self.weight is None else self.weight[at]
        loss, _ = losses(self.outputs(omega, at), self.y[at], weight)
        return np.array([loss.sum()]) if self.part is None else np.bincount(self.part[at], loss, minlength=self.parts)

    def clipped(self, omega: Array, at: Array, clip: float) -> Array:
        """Σ over the rows of ∇f, each shortened to norm `clip` if it is longer; (d,).

        A row whose gradient is not finite, because of the row or of ω, counts as one without a gradient; so does one
        that is too long to be shortened with accuracy.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            X, _, E, S, D = self._evaluate(omega, at)
            norms = gradient_norms(X, S, E, D, self.net.intercept)
        fine = np.flatnonzero(norms <= _FAR_TOO_LONG * clip)
        factor = np.minimum(1.0, clip / np.maximum(norms[fine], 1e-300))[:, None]
        return gradient(X[fine], S[fine], E[fine] * factor, D[fine] * factor, self.net.intercept)
