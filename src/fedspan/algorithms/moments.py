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

from fedspan.errors import InputError
from fedspan.numerics.operators import Rows, prefers_gram
from fedspan.protocol import Array, Arrays, Ask, Client, Round, Sensitivity, Sum, complete, task
from fedspan.rng import Streams


@dataclass(frozen=True)
class Moments:
    """What the opening round found."""

    n: int
    mean: Array  # (d,), zero if no centering is asked for
    scale: Array  # (d,)
    trace: float


@dataclass(frozen=True)
class Shift:
    """What a client of such an algorithm remembers: what to take off its rows, and what to divide them by."""

    mean: Array | None = None
    scale: Array | None = None


def measure(center: bool, scale: bool) -> Round[Moments]:
    """Ask all clients for sums, then for squares around the common mean, and tell them the result."""
    counts = (yield from complete(Ask("count", want=Sum("n", "total")))).total
    n = int(counts["n"])
    mean = counts["total"] / n if center else np.zeros_like(counts["total"])
    squares = (yield from complete(Ask("spread", {"mean": mean}, Sum("squares")))).total["squares"]
    if not scale:
        return Moments(n, mean, np.ones_like(mean), float(squares.sum()))
    centered = squares if center else squares - counts["total"] ** 2 / n
    s = np.sqrt(np.maximum(centered, 0.0) / n)
    s[s <= 1e-12 * np.sqrt(squares / n)] = 1.0  # a constant column stays as it is, as in scikit-learn's StandardScaler
    s[s == 0.0] = 1.0
    yield from complete(Ask("rescale", {"scale": s}))
    return Moments(n, mean, s, float((squares / s**2).sum()))


def sizes() -> Round[dict[str, int]]:
    """How many rows each client has: for algorithms whose weights or cohorts need it. The server sees every size."""
    replies = yield from complete(Ask("size"))
    return {client: int(arrays["n"]) for client, arrays in replies.each.items()}


class RowsClient(Client[Shift]):
    """A client that holds rows. Its tasks are those of the opening round, and the product with M = BᵀB."""

    State = Shift

    def __init__(self, data: Any, columns: int = 0) -> None:
        self.rows = Rows(data)
        self.columns = columns  # how many columns the algorithm expects to multiply in all

    @cached_property
    def by_gram(self) -> bool:
        return prefers_gram(self.rows.n, self.rows.d, self.columns)

    def init(self) -> Shift:
        return Shift()

    @task(releases={"n": Sensitivity(0), "total": Sensitivity(1)})
    def count(self, state: Shift, arrays: Arrays, rng: Streams) -> tuple[Shift, Arrays]:
        total = self.rows.sums()
        if not np.isfinite(total).all():
            values, rows, first = self.rows.not_finite()
            raise InputError(
                f"need finite numbers, got NaN or infinity in {values} entries of {rows} of {self.rows.n} rows "
                f"(first in column {first}); drop those rows or impute the values"
            )
        return state, {"n": np.array(self.rows.n), "total": total}

    @task(releases={"n": Sensitivity(0)})
    def size(self, state: Shift, arrays: Arrays, rng: Streams) -> tuple[Shift, Arrays]:
        return state, {"n": np.array(self.rows.n)}

    @task(releases={"squares": Sensitivity(2)})
    def spread(self, state: Shift, arrays: Arrays, rng: Streams) -> tuple[Shift, Arrays]:
        mean = arrays["mean"] if arrays["mean"].any() else None
        return replace(state, mean=mean), {"squares": self.rows.squares(mean)}

    @task(releases={})
    def rescale(self, state: Shift, arrays: Arrays, rng: Streams) -> tuple[Shift, Arrays]:
        return replace(state, scale=arrays["scale"]), {}

    @task(releases={"Y": Sensitivity(2)})
    def multiply(self, state: Shift, arrays: Arrays, rng: Streams) -> tuple[Shift, Arrays]:
        product = self.rows.multiply_by_gram if self.by_gram else self.rows.multiply
        return state, {"Y": product(arrays["Z"], state.mean, state.scale)}
