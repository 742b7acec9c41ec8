"""How clients with the same columns come to one scaling of them, by sums alone (numerics/scaling.py has the maths).

Notation: n the number of all rows, μ = Σx/n, u = Σ|x|/n the size of a column, σ² = u² Σ((x-μ)/u)²/n: in units of u no
square is too large or too small for the fixed point of a secure sum, whatever the units of a column are.

What the server sees: sums over all clients, of each column's values, of their sizes and squares, and of ‖z‖².
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from fedspan._types import Array, Arrays
from fedspan.core.protocol import Ask, Client, Round, Sum, complete, task
from fedspan.core.replay import CLOSE, Comparison
from fedspan.core.rng import Streams
from fedspan.numerics.operators import HeldMatrix
from fedspan.numerics.scaling import Scaling, sum_columns, sum_squares

SCALING_TASKS = frozenset({"total_columns", "square_columns", "size_rows", "take_scaling"})
_TOLD: dict[str, Comparison] = {"mean": CLOSE, "slope": CLOSE, "bound": CLOSE}
SCALING_REPLAY: dict[str, dict[str, Comparison]] = {
    "total_columns": {},
    "square_columns": {"mean": CLOSE, "unit": CLOSE},
    "size_rows": _TOLD,
    "take_scaling": _TOLD,
}


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
        return RowsMemory(scaling_from(arrays)), {}


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
