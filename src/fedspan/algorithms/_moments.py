"""The opening round of every algorithm on rows: how many there are, their mean, their scale; and the client's side.

Notation: n the number of rows of all clients, μ (d,) their mean, s (d,) their standard deviation (1 where a column is
constant, or if no scaling is requested), trace = Σ ‖(a - μ)/s‖². B_i = (A_i - 1μᵀ) diag(1/s) are the shifted rows of
client i, M_i = B_iᵀB_i (d, d). Two passes over the data: squares are taken around the common mean, so nothing cancels.

What the server sees of `measure`: sums over the clients of their rows (if they are centered or scaled), of their
columns' squares (if they are scaled), and how many rows, columns and squares they have in all.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from fedspan._types import Array, Arrays
from fedspan.algorithms._operator import blend_leading, round_product, search_eigenpairs
from fedspan.core.protocol import Ask, Client, Round, Sensitivity, Sum, Turn, complete, task
from fedspan.core.replay import CLOSE, Comparison
from fedspan.core.rng import Streams
from fedspan.errors import InputError
from fedspan.numerics.grid import to_grid
from fedspan.numerics.operators import Rows, prefers_gram

SHOWS_PRODUCTS = "products of its second-moment matrix with the server's blocks (enough of them give the matrix itself)"


@dataclass(frozen=True)
class Moments:
    """What the opening round found."""

    n: float  # how many rows; with weights their sum
    mean: Array  # (d,), zero if no centering is requested
    scale: Array  # (d,)
    trace: float
    clients: int = 1


@dataclass(frozen=True)
class Shift:
    """What a client remembers: what to subtract from its rows, and what to divide them by."""

    mean: Array | None = None
    scale: Array | None = None


def measure(center: bool, scale: bool) -> Round[Moments]:
    """Ask all clients for sums, then for squares around the common mean, as far as needed; tell them the result."""
    shift: dict[str, Array] = {}
    if center or scale:
        counts = (yield from complete(Ask("count", want=Sum("n", "total")))).total
        n, mean = _read_count(counts["n"]), counts["total"] / counts["n"]
        if center:
            shift["mean"] = mean
        if scale:
            squares = (yield from complete(Ask("spread", {"mean": mean}, Sum("squares")))).total["squares"]
            s = np.sqrt(squares / n)
            # A constant column stays as it is; the rounding of its mean is no deviation (scikit-learn's rule).
            shift["scale"] = np.where(s > n * np.finfo(np.float64).eps * np.abs(mean), s, 1.0)
    settled = yield from complete(Ask("settle", shift, Sum("n", "energy", "features")))
    n, clients = _read_count(settled.total["n"]), len(settled.asked)
    d = int(settled.total["features"]) // clients
    if d * clients != int(settled.total["features"]):
        raise InputError("The clients have different numbers of features. Give all clients the same columns.")
    if settled.total["energy"] == 0:
        raise InputError("All rows are equal (after centering), so there is no component to find. Check the data.")
    return Moments(
        n, shift.get("mean", np.zeros(d)), shift.get("scale", np.ones(d)), float(settled.total["energy"]), clients
    )


def _read_count(n: Array) -> float:
    """A number of rows: an integer, unless rows have weights."""
    value = float(n)
    return int(value) if value.is_integer() else value


def measure_tasks(center: bool, scale: bool) -> frozenset[str]:
    """The tasks that `measure` asks for."""
    tasks = {"settle"}
    if center or scale:
        tasks.add("count")
    if scale:
        tasks.add("spread")
    return frozenset(tasks)


def measure_turns(center: bool, scale: bool) -> tuple[Turn, ...]:
    """The same in their order: what is told comes after the sum that it follows from."""
    turns = (Turn("count"),) if center or scale else ()
    if scale:
        turns = (*turns, Turn("spread", after=["count"], tells=["mean"]))
    told = [name for name, tells in (("mean", center), ("scale", scale)) if tells]
    before = ["spread"] if scale else ["count"] if center else []
    return (*turns, Turn("settle", after=before, tells=told))


def measure_replay(center: bool, scale: bool) -> dict[str, dict[str, Comparison]]:
    """How the questions of `measure` are compared."""
    told: dict[str, dict[str, Comparison]] = {"count": {}, "spread": {"mean": CLOSE}}
    told["settle"] = {"mean": CLOSE, "scale": CLOSE}
    return {task: told[task] for task in measure_tasks(center, scale)}


def ask_sizes() -> Round[dict[str, float]]:
    """How many rows each client has (with weights, their sum), for algorithms whose weights or cohorts need it.

    The server sees every size.
    """
    replies = yield from complete(Ask("size"))
    return {client: _read_count(arrays["n"]) for client, arrays in replies.each.items()}


class RowsClient(Client[Shift]):
    """A client that holds rows. Its tasks are those of the opening round, and products with M_i = B_iᵀB_i."""

    State = Shift

    def __init__(self, data: object, columns: int = 0) -> None:
        self.rows = Rows(data)
        self.columns = columns  # how many columns the algorithm expects to multiply in all

    @cached_property
    def by_gram(self) -> bool:
        """Whether to form M_i once, rather than multiply with the rows every time."""
        return prefers_gram(self.rows.n, self.rows.d, self.columns, self.rows.batched)

    def init(self) -> Shift:
        return Shift()

    @task(releases={"n": Sensitivity(0), "total": Sensitivity(1)}, shows="its number of rows and its column sums")
    def count(self, state: Shift, arrays: Arrays, rng: Streams) -> tuple[Shift, Arrays]:
        """n_i and the column sums of A_i; with weights, both are weighted."""
        return state, {"n": np.array(self.rows.total), "total": self.check_finite(self.rows.sums())}

    @task(releases={"n": Sensitivity(0)}, shows="its number of rows")
    def size(self, state: Shift, arrays: Arrays, rng: Streams) -> tuple[Shift, Arrays]:
        """n_i."""
        return state, {"n": np.array(self.rows.total)}

    @task(releases={"squares": Sensitivity(2)}, shows="its column sums of squares around the common mean")
    def spread(self, state: Shift, arrays: Arrays, rng: Streams) -> tuple[Shift, Arrays]:
        """The sums of squares of every column around the mean that is sent along."""
        return state, {"squares": self.rows.squares(arrays["mean"])}

    @task(
        releases={"n": Sensitivity(0), "energy": Sensitivity(2), "features": Sensitivity(0)},
        shows="its number of rows and columns, and its total sum of squares",
    )
    def settle(self, state: Shift, arrays: Arrays, rng: Streams) -> tuple[Shift, Arrays]:
        """Remember what to subtract and divide by; say how large the rows are then."""
        state = replace(state, mean=arrays.get("mean"), scale=arrays.get("scale"))
        squares = self.check_finite(self.rows.squares(state.mean))
        energy = (squares if state.scale is None else squares / state.scale**2).sum()
        return state, {"n": np.array(self.rows.total), "energy": np.array(energy), "features": np.array(self.rows.d)}

    def check_finite(self, sums: Array) -> Array:
        """Return the sums. If they are not finite, neither are the rows: finding out costs no pass over the data."""
        if np.isfinite(sums).all():
            return sums
        raise describe_not_finite(self.rows)

    def product(self, state: Shift, V: Array) -> Array:
        """M_i V."""
        multiply = self.rows.multiply_by_gram if self.by_gram else self.rows.multiply
        return multiply(V, state.mean, state.scale)

    @task(releases={"Y": Sensitivity(2)}, shows=SHOWS_PRODUCTS)
    def multiply(self, state: Shift, arrays: Arrays, rng: Streams) -> tuple[Shift, Arrays]:
        """M_i Z as it is."""
        return state, {"Y": self.product(state, arrays["Z"])}

    # Rounding adds to what one row can change, so no sensitivity is claimed.
    @task(releases={"Y": None}, shows=f"{SHOWS_PRODUCTS}, rounded")
    def multiply_on_grid(self, state: Shift, arrays: Arrays, rng: Streams) -> tuple[Shift, Arrays]:
        """M_i V̂ in whole multiples of the run's step."""
        return state, {"Y": round_product(lambda V: self.product(state, V), arrays)}

    @task(
        releases={"U": None, "scale": None, "w": None},
        shows="the leading eigenvectors and variances of its own second-moment matrix, rounded to 8 bits",
    )
    def leading(self, state: Shift, arrays: Arrays, rng: Streams) -> tuple[Shift, Arrays]:
        """The leading eigenpairs of this client's own M_i, to 8 bits a number: it shows the client's own subspace."""
        count, d = int(arrays["count"]), int(arrays["size"])
        w, U = search_eigenpairs(lambda V: self.product(state, V), d, count, rng)
        codes, scale = to_grid(U)
        return state, {"U": codes, "scale": scale, "w": np.maximum(w, 0.0)}

    @task(
        releases={"S": None},
        shows="a random mix of the leading eigenvectors of its own second-moment matrix, rounded (by itself it shows "
        "its own leading subspace; summed with the others', only what they hold together)",
    )
    def blend(self, state: Shift, arrays: Arrays, rng: Streams) -> tuple[Shift, Arrays]:
        """Its part of the opening of krylov's wide form."""
        return state, {"S": blend_leading(lambda V: self.product(state, V), arrays, rng)}


def describe_not_finite(rows: Rows, drop: str = "those rows") -> InputError:
    """The error for rows whose sums are not finite: where the first bad value is, and what to do."""
    values, bad, first = rows.count_not_finite()
    if values == 0:
        return InputError("Some numbers are too large: their squares cannot be added up. Rescale the columns.")
    return InputError(
        f"Rows must be finite numbers, but NaN or infinity was found in {bad} of {rows.n} rows (values affected: "
        f"{values}; first in column {first}). Drop {drop}, or impute the values (sklearn.impute.SimpleImputer)."
    )
