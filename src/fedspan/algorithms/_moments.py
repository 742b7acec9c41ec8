"""The opening round of every algorithm on rows: how many there are, their mean, their scale.

Notation: n the number of rows of all clients, μ (d,) their mean, s (d,) their standard deviation (1 where a column is
constant, or if no scaling is asked for), trace = Σ ‖(a - μ)/s‖². The server sees sums over the clients only. Two
passes over the data: squares are taken around the common mean, so nothing cancels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from fedspan._types import Array, Arrays
from fedspan.algorithms._operator import OperatorClient
from fedspan.core.protocol import Ask, Round, Sensitivity, Sum, complete, task
from fedspan.core.rng import Streams
from fedspan.errors import InputError
from fedspan.numerics.operators import Rows, prefers_gram


@dataclass(frozen=True)
class Moments:
    """What the opening round found."""

    n: int
    mean: Array  # (d,), zero if no centering is asked for
    scale: Array  # (d,)
    trace: float
    clients: int = 1


@dataclass(frozen=True)
class Shift:
    """What a client of such an algorithm remembers: what to take off its rows, and what to divide them by."""

    mean: Array | None = None
    scale: Array | None = None


def measure(center: bool, scale: bool) -> Round[Moments]:
    """Ask all clients for sums, then for squares around the common mean, as far as they are needed; tell the result."""
    shift: dict[str, Array] = {}
    if center or scale:
        counts = (yield from complete(Ask("count", want=Sum("n", "total")))).total
        n, mean = int(counts["n"]), counts["total"] / counts["n"]
        if center:
            shift["mean"] = mean
        if scale:
            squares = (yield from complete(Ask("spread", {"mean": mean}, Sum("squares")))).total["squares"]
            s = np.sqrt(squares / n)
            # A constant column stays as it is; the rounding of its mean is no deviation (scikit-learn's rule).
            shift["scale"] = np.where(s > n * np.finfo(np.float64).eps * np.abs(mean), s, 1.0)
    settled = yield from complete(Ask("settle", shift, Sum("n", "energy", "features")))
    n, clients = int(settled.total["n"]), len(settled.asked)
    d = int(settled.total["features"]) // clients
    if d * clients != int(settled.total["features"]):
        raise InputError("need the same number of features at all clients, got different ones")
    if settled.total["energy"] == 0:
        raise InputError("need data that vary, all rows are equal (after centering); there is no component")
    return Moments(
        n, shift.get("mean", np.zeros(d)), shift.get("scale", np.ones(d)), float(settled.total["energy"]), clients
    )


def sizes() -> Round[dict[str, int]]:
    """How many rows each client has: for algorithms whose weights or cohorts need it. The server sees every size."""
    replies = yield from complete(Ask("size"))
    return {client: int(arrays["n"]) for client, arrays in replies.each.items()}


MEASURE = frozenset({"count", "settle", "spread"})  # the tasks of `measure`


class RowsClient(OperatorClient[Shift]):
    """A client that holds rows. Its tasks are those of the opening round, and the product with M = BᵀB."""

    State = Shift

    def __init__(self, data: Any, columns: int = 0) -> None:
        self.rows = Rows(data)
        self.columns = columns  # how many columns the algorithm expects to multiply in all

    @cached_property
    def by_gram(self) -> bool:
        return prefers_gram(self.rows.n, self.rows.d, self.columns, self.rows.batched)

    def init(self) -> Shift:
        return Shift()

    @task(releases={"n": Sensitivity(0), "total": Sensitivity(1)})
    def count(self, state: Shift, arrays: Arrays, rng: Streams) -> tuple[Shift, Arrays]:
        return state, {"n": np.array(self.rows.n), "total": self._finite(self.rows.sums())}

    @task(releases={"n": Sensitivity(0)})
    def size(self, state: Shift, arrays: Arrays, rng: Streams) -> tuple[Shift, Arrays]:
        return state, {"n": np.array(self.rows.n)}

    @task(releases={"squares": Sensitivity(2)})
    def spread(self, state: Shift, arrays: Arrays, rng: Streams) -> tuple[Shift, Arrays]:
        return state, {"squares": self.rows.squares(arrays["mean"])}

    @task(releases={"n": Sensitivity(0), "energy": Sensitivity(2), "features": Sensitivity(0)})
    def settle(self, state: Shift, arrays: Arrays, rng: Streams) -> tuple[Shift, Arrays]:
        """Remember what to take off and divide by; say how large the rows are then."""
        state = replace(state, mean=arrays.get("mean"), scale=arrays.get("scale"))
        squares = self._finite(self.rows.squares(state.mean))
        energy = (squares if state.scale is None else squares / state.scale**2).sum()
        return state, {"n": np.array(self.rows.n), "energy": np.array(energy), "features": np.array(self.rows.d)}

    def _finite(self, sums: Array) -> Array:
        """The sums; if they are not finite, neither are the rows: so finding out costs no pass over the data."""
        if np.isfinite(sums).all():
            return sums
        values, rows, first = self.rows.not_finite()
        if values == 0:
            raise InputError(
                "need numbers whose sums and squares can be added up, got some too large; rescale the columns"
            )
        raise InputError(
            f"need finite numbers, got NaN or infinity in {values} entries of {rows} of {self.rows.n} rows "
            f"(first in column {first}); drop those rows or impute the values"
        )

    def product(self, state: Shift, V: Array) -> Array:
        multiply = self.rows.multiply_by_gram if self.by_gram else self.rows.multiply
        return multiply(V, state.mean, state.scale)
