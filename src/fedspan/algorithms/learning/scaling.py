"""Raw columns as a network learns well from them: centred, scaled, cut, of a common length; found by sums alone.

Notation: x a raw row, n the number of all rows, μ = Σx/n, u = Σ|x|/n the size of a column, σ² = u² Σ((x-μ)/u)²/n (in
units of u no square is too large or too small for the fixed point of a secure sum, whatever the units of a column are),
z = clip((x-μ)/σ, ±C)·f, with one factor f for all columns, so that the mean of ‖z‖² is `LENGTH2` (that of an image with
pixels from 0 to 1, for which the step sizes of mini-batch SSCA were chosen). A constant column becomes 0.

What the server sees: sums over all clients, of each column's values, of their sizes and squares, and of ‖z‖².
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from fedspan._types import Array, Arrays
from fedspan.core.protocol import Ask, Client, Round, Sum, complete, task
from fedspan.core.replay import CLOSE, Comparison
from fedspan.core.rng import Streams
from fedspan.numerics.operators import HeldMatrix

CUT = 5.0  # C, in standard deviations
LENGTH2 = 100.0  # the mean ‖z‖²
_CONSTANT = 1e-7  # a deviation below this part of the mean absolute value is rounding
SCALING_TASKS = frozenset({"total_columns", "square_columns", "size_rows", "take_scaling"})
_TOLD: dict[str, Comparison] = {"mean": CLOSE, "slope": CLOSE, "bound": CLOSE}
SCALING_REPLAY: dict[str, dict[str, Comparison]] = {
    "total_columns": {},
    "square_columns": {"mean": CLOSE, "unit": CLOSE},
    "size_rows": _TOLD,
    "take_scaling": _TOLD,
}


@dataclass(frozen=True)
class Scaling:
    """z = clip((x - mean)·slope, ±bound); slope is f/σ, or 0 for a constant column, and bound is C·f."""

    mean: Array  # (P,)
    slope: Array  # (P,)
    bound: float

    @classmethod
    def of(cls, mean: Array, deviation: Array, unit: Array) -> Scaling:
        """The scaling before its factor is known. `unit` is the mean absolute value of each column."""
        varies = deviation > _CONSTANT * unit
        slope = np.zeros_like(deviation)
        slope[varies] = 1 / deviation[varies]
        return cls(mean, slope, CUT)

    @classmethod
    def of_bounds(cls, low: Array, high: Array) -> Scaling:
        """From public bounds of the columns alone: as if their values were spread evenly between them."""
        mean, deviation = (low + high) / 2, (high - low) / np.sqrt(12)
        scaling = cls.of(mean, deviation, np.zeros_like(mean))
        return scaling.with_length(float(np.count_nonzero(scaling.slope)))

    @property
    def deviation(self) -> Array:
        """σ/f of each column; 0 where it is constant."""
        varies = self.slope > 0
        return np.where(varies, 1 / np.where(varies, self.slope, 1.0), 0.0)

    def with_length(self, length2: float) -> Scaling:
        """With the factor that brings a mean ‖z‖² of `length2` to `LENGTH2`."""
        factor = float(np.sqrt(LENGTH2 / length2)) if length2 > 0 else 1.0
        return replace(self, slope=self.slope * factor, bound=self.bound * factor)

    def apply(self, X: HeldMatrix) -> Array:
        """The rows, dense, in their own precision."""
        dense = to_dense(X)
        dtype = np.float32 if dense.dtype == np.float32 else np.float64
        Z = dense - self.mean  # in float64: a large mean leaves float32 no digits
        Z *= self.slope
        np.clip(Z, -self.bound, self.bound, out=Z)
        return Z.astype(dtype, copy=False)


def find_factor(scaling: Scaling | None) -> float:
    """f: the length of a standard deviation in scaled rows; 1 if rows are as they are."""
    return 1.0 if scaling is None else scaling.bound / CUT


def to_dense(X: HeldMatrix) -> Array:
    """The rows as an array."""
    return X if isinstance(X, np.ndarray) else np.asarray(X.toarray())


def sum_columns(X: HeldMatrix) -> Array:
    """Σ over the rows, in float64."""
    return np.asarray(X.sum(axis=0, dtype=np.float64)).ravel()


def sum_squares(X: HeldMatrix, mean: Array, unit: Array) -> Array:
    """Σ((x - mean)/unit)² over the rows."""
    Z = (to_dense(X) - mean) / unit
    return np.asarray(np.einsum("ij,ij->j", Z, Z))


@dataclass(frozen=True)
class RowsMemory:
    """What a client of rows remembers: how its columns are scaled; None: not at all."""

    scaling: Scaling | None = None


@dataclass(frozen=True)
class EarlierModel:
    """Where a run starts: parameters (empty: as usual), and a scaling of the columns that is known beforehand."""

    omega: Array
    scaling: Scaling | None = None


class ScalingClient(Client[RowsMemory]):
    """A client that helps to find the scaling of its columns, and remembers it."""

    State = RowsMemory

    def init(self) -> RowsMemory:
        return RowsMemory()

    @abstractmethod
    def raw_blocks(self) -> Iterable[HeldMatrix]:
        """The rows as they are, in blocks that fit into memory."""

    @task(releases={"total": None, "size": None}, shows="its column sums, and those of its absolute values")
    def total_columns(self, state: RowsMemory, arrays: Arrays, rng: Streams) -> tuple[RowsMemory, Arrays]:
        """Σx and Σ|x|."""
        sums = [(sum_columns(X), sum_columns(abs(X))) for X in self.raw_blocks()]
        total, size = np.sum(sums, axis=0)
        return state, {"total": total, "size": size}

    @task(releases={"squares": None}, shows="its column sums of squares around the common mean, in the column's size")
    def square_columns(self, state: RowsMemory, arrays: Arrays, rng: Streams) -> tuple[RowsMemory, Arrays]:
        """Σ((x-μ)/u)²."""
        squares = [sum_squares(X, arrays["mean"], arrays["unit"]) for X in self.raw_blocks()]
        return state, {"squares": np.sum(squares, axis=0)}

    @task(releases={"length2": None}, shows="the sum of the squared lengths of its scaled rows")
    def size_rows(self, state: RowsMemory, arrays: Arrays, rng: Streams) -> tuple[RowsMemory, Arrays]:
        """Σ‖z‖²."""
        scaling = scaling_from(arrays)
        total = sum(float(np.square(scaling.apply(X), dtype=np.float64).sum()) for X in self.raw_blocks())
        return state, {"length2": np.array(total)}

    @task(releases={}, shows="")
    def take_scaling(self, state: RowsMemory, arrays: Arrays, rng: Streams) -> tuple[RowsMemory, Arrays]:
        """Remember how the columns are scaled."""
        return replace(state, scaling=scaling_from(arrays)), {}


def scaling_from(arrays: Arrays) -> Scaling:
    """The scaling in a question."""
    return Scaling(arrays["mean"], arrays["slope"], float(arrays["bound"]))


def find_scaling(n: float) -> Round[Scaling]:
    """The scaling of the columns over all n rows, which every client remembers then."""
    total = (yield from complete(Ask("total_columns", want=Sum("total", "size")))).total
    mean, unit = total["total"] / n, total["size"] / n
    unit[unit == 0] = 1.0
    asked = Ask("square_columns", {"mean": mean, "unit": unit}, Sum("squares"))
    squares = (yield from complete(asked)).total["squares"]
    scaling = Scaling.of(mean, unit * np.sqrt(squares / n), unit)
    sizes = (yield from complete(Ask("size_rows", scaling_arrays(scaling), Sum("length2")))).total
    scaling = scaling.with_length(float(sizes["length2"]) / n)
    yield from tell_scaling(scaling)
    return scaling


def tell_scaling(scaling: Scaling) -> Round[None]:
    """Let every client remember a scaling."""
    yield from complete(Ask("take_scaling", scaling_arrays(scaling)))


def scaling_arrays(scaling: Scaling) -> dict[str, Array]:
    """The scaling as a question holds it."""
    return {"mean": scaling.mean, "slope": scaling.slope, "bound": np.array(scaling.bound)}
