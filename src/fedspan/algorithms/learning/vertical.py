"""Mini-batch SSCA, feature-based: the clients hold columns of the same rows.

    Y. Cui, Y. Li, C. Ye. Sample-based and Feature-based Federated Learning for Unconstrained and Constrained Nonconvex
    Optimization via Mini-batch SSCA. arXiv, 2022. https://arxiv.org/abs/2104.06011 (Algorithms 3 and 4)

Notation: X_i (N, P_i) the columns of client i, y (N,) the labels, which all clients know; ω_0 = W0 (J, L) the head,
ω_i (P_i, J) the weights of client i's features, h_i = X_i ω_i (B, J) for the rows of a batch, H = Σ_i h_i.
The rest is ssca.py and sgd.py: only how the sums are gathered differs. The server draws the batch by row numbers.

What the server and the clients see. The server: how many rows and features each client has, and the loss and gradient
of every batch. exchange="each" is the paper's: the server passes every h_i on to all clients, and so sees them itself;
every client sees them too. exchange="sum": the server asks for Σ h_i and for the sum of the gradients (each client's
in its own place, zeros elsewhere; that of the head from the first client), so that nobody sees one client's h_i under
secure aggregation. Both add up in the order of client ids, and agree to the bit. A client never sees the weights ω_j
of another: with them, its h_j would be equations for its features. The server does not see labels; the head's gradient
is computed by the first client (line 5). With `standardize` every client scales its columns by itself, and the server
is told the means and deviations of the columns, which are part of the model; and the sum of ‖z‖², for the factor.

Instead of the built-in network there can be any torch modules (views/torch_views.py): h_i any function of ω_i and the
client's columns, the losses any functions of ω_0 and H. Then ω_0 is flat, and every ω_i one column.

What differs from the paper: ω_i is sent by a message to each client, h_i through the server instead of from client to
client. A pass over all rows (closing rounds) goes in blocks of rows. Intercepts of the hidden cells stand after the
last client's weights, and are its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Protocol

import numpy as np

from fedspan._types import Array, Arrays
from fedspan.algorithms.learning._samples import DEFAULT_NET, Opening, Sampling, Steps, Sums, mark_finite
from fedspan.algorithms.learning.constraints.limits import PartSums
from fedspan.algorithms.learning.scaling import EarlierModel, Scaling, scaling_arrays, sum_columns, sum_squares
from fedspan.algorithms.learning.sgd import FedSgd
from fedspan.algorithms.learning.ssca import DOUBLINGS, Ssca
from fedspan.algorithms.learning.views.view_rows import SwishViewRows, ViewRows
from fedspan.core.protocol import (
    PUBLIC,
    Ask,
    Client,
    Course,
    Each,
    Needs,
    Replay,
    Round,
    Sum,
    Turn,
    complete,
    require_rows,
    task,
)
from fedspan.core.replay import CLOSE, Comparison
from fedspan.core.rng import Streams
from fedspan.errors import InputError
from fedspan.numerics.operators import HeldMatrix
from fedspan.numerics.swish import Swish

_VERTICAL_RHO, _VERTICAL_GAMMA = Steps(0.9, 0.1, hold=800, tail=0.5), Steps(0.5, 0.1, hold=800, tail=0.8)
_MOST_BLOCKS = 10_000  # of rows in a pass over all of them; how many there are, a site cannot know of a job
_ROWS_OF_A_PASS = 5000  # in one exchange, when all rows are looked at


@dataclass(frozen=True)
class Block:
    """What a client remembers: the weights of its features, and where they stand among all."""

    omega: Array | None = None  # (P_i, J), and a row more for the client that has the intercepts
    first: int = 0
    features: int = 0
    scaling: Scaling | None = None  # of its columns


class FeatureClient(Client[Block]):
    """A client that holds some columns of all rows, and their labels.

    `data` is (X_i, y), (X_i, y, weight), (X_i, y, weight, part, parts), as where clients hold rows, or `ViewRows`.
    """

    State = Block
    needs: ClassVar[Needs] = "labelled"

    def __init__(
        self,
        data: tuple[Any, ...] | ViewRows,
        hidden: int = 0,
        classes: int = 0,
        intercept: bool = False,
    ) -> None:
        if isinstance(data, tuple):
            X, y, *more = data
            weight = more[0] if more else None
            part, parts = more[1:] if len(more) == 3 else (None, 1)  # None: all rows are one part
            data = SwishViewRows(X, y, weight, part, int(parts), Swish(hidden, classes, intercept))
        self.rows = data

    def init(self) -> Block:
        return Block()

    @task(
        releases={"n": PUBLIC, "features": PUBLIC},
        shows="its number of rows (with limits on groups or classes, of each of them) and its number of features",
    )
    def open(self, state: Block, arrays: Arrays, rng: Streams) -> tuple[Block, Arrays]:
        """N_g, the same at all clients, and P_i."""
        self.rows.check()
        return state, {"n": self.rows.count(slice(None)), "features": np.array(self.rows.features)}

    @task(releases={"n": None}, shows="how many of the rows that are held out belong to which group or class")
    def count_parts(self, state: Block, arrays: Arrays, rng: Streams) -> tuple[Block, Arrays]:
        """Rows by part; from the first client."""
        self.check_batch(arrays["rows"])
        return state, {"n": self.rows.count(arrays["rows"]) * (state.first == 0)}

    def check_batch(self, rows: Array) -> None:
        """Refuse a batch, or rows to hold out, that are fewer than this site sums over; one row counts once."""
        require_rows(self, len(np.unique(rows)))

    def recall(self, state: Block, rows: Array) -> ViewRows:
        """The rows, scaled as this client remembers, once there are enough of them in a batch."""
        self.check_batch(rows)
        self.rows.use(state.scaling)
        return self.rows

    @task(releases={}, shows="")
    def take(self, state: Block, arrays: Arrays, rng: Streams) -> tuple[Block, Arrays]:
        """Remember ω_i: line 3."""
        return replace(state, omega=arrays["omega"], first=int(arrays["first"]), features=int(arrays["features"])), {}

    @task(
        releases={"mean": None, "deviation": None, "length2": None},
        shows="the mean and deviation of each of its columns, and the sum of the squared lengths of its scaled rows",
    )
    def scale_own_columns(self, state: Block, arrays: Arrays, rng: Streams) -> tuple[Block, Arrays]:
        """μ and σ of its columns (0 if constant), among zeros for all others, and its part of Σ‖z‖²."""
        X = self.rows.take(slice(None))
        scaling = _scale(X)
        length2 = float(np.square(scaling.apply(X), dtype=np.float64).sum())
        mean, deviation = np.zeros((2, state.features))
        own = slice(state.first, state.first + self.rows.features)
        mean[own], deviation[own] = scaling.mean, scaling.deviation
        return replace(state, scaling=scaling), {"mean": mean, "deviation": deviation, "length2": np.array(length2)}

    @task(releases={}, shows="")
    def take_length(self, state: Block, arrays: Arrays, rng: Streams) -> tuple[Block, Arrays]:
        """Remember the common factor, by the mean ‖z‖² over all clients."""
        if state.scaling is None:
            raise InputError("This client has not scaled its columns: 'scale_own_columns' must be asked first.")
        return replace(state, scaling=state.scaling.with_length(float(arrays["length2"]))), {}

    @task(releases={}, shows="")
    def take_scaling(self, state: Block, arrays: Arrays, rng: Streams) -> tuple[Block, Arrays]:
        """Remember how all columns are scaled, of which its own are a part."""
        own = slice(state.first, state.first + self.rows.features)
        scaling = Scaling(arrays["mean"][own], arrays["slope"][own], float(arrays["bound"]))
        return replace(state, scaling=scaling), {}

    @task(releases={"h": None}, shows="for each row of a batch what its features contribute to the hidden cells")
    def forward(self, state: Block, arrays: Arrays, rng: Streams) -> tuple[Block, Arrays]:
        """h_i of the batch: line 4."""
        rows = self.recall(state, arrays["rows"])
        with np.errstate(over="ignore", invalid="ignore"):
            h = rows.forward(_require_weights(state), arrays["rows"])
        h = np.nan_to_num(h, nan=1e300, posinf=1e300, neginf=-1e300)  # the head will see that it is too large
        return state, {"h": h}

    @task(
        releases={"loss": None, "head": None, "bad": None},
        shows="the loss, and the gradient of the output layer, summed over a batch (from the labels, which all clients "
        "know)",
    )
    def head(self, state: Block, arrays: Arrays, rng: Streams) -> tuple[Block, Arrays]:
        """Σ f and Σ ∇ω_0 over the batch: line 5, (20). The first client computes it, the others add zeros."""
        rows = self.recall(state, arrays["rows"])
        if state.first > 0:
            loss, head = rows.zeros_of_head()
        else:
            with np.errstate(over="ignore", invalid="ignore"):
                loss, head = rows.head(arrays["W0"], _add_up(arrays["H"]), arrays["rows"])
        return state, mark_finite(loss=loss, head=head)

    @task(
        releases={"n": None, "loss": None, "right": None},
        shows="of the rows that are held out, by part: how many there are, the sum of their losses, and how many are "
        "predicted rightly",
    )
    def measure_together(self, state: Block, arrays: Arrays, rng: Streams) -> tuple[Block, Arrays]:
        """What the rows that are held out say of the limits; from the first client."""
        rows = self.recall(state, arrays["rows"])
        with np.errstate(over="ignore", invalid="ignore"):
            found = rows.measure(arrays["W0"], _add_up(arrays["H"]), arrays["rows"])
        sent = {name: np.nan_to_num(sums, nan=1e300, posinf=1e300) for name, sums in found.items()}
        return state, {name: sums * (state.first == 0) for name, sums in sent.items()}

    @task(releases={"block": None}, shows="the gradient of its own part of the parameters, summed over a batch")
    def backward(self, state: Block, arrays: Arrays, rng: Streams) -> tuple[Block, Arrays]:
        """Σ ∇ω_i over the batch: line 6, (21)."""
        rows, own = self.recall(state, arrays["rows"]), _require_weights(state)
        with np.errstate(over="ignore", invalid="ignore"):
            grad = rows.backward(own, arrays["W0"], _add_up(arrays["H"]), arrays["rows"])
        return state, {"block": mark_finite(grad=grad)["grad"]}

    @task(releases={"block": None}, shows="the gradient of its own part of the parameters, summed over a batch")
    def backward_in_place(self, state: Block, arrays: Arrays, rng: Streams) -> tuple[Block, Arrays]:
        """The same among zeros for all other features, so that a sum puts the blocks together."""
        _, reply = self.backward(state, arrays, rng)
        block = reply["block"]
        whole = np.zeros((len(block), state.features, block.shape[2]))
        whole[:, state.first : state.first + block.shape[1]] = block
        return state, {"block": whole}


def _add_up(H: Array) -> Array:
    """H from every h_i (I, B, J), or H as it is (B, J)."""
    return np.asarray(H.sum(axis=0)) if H.ndim == 3 else H


def _scale(X: HeldMatrix) -> Scaling:
    """The scaling of one client's own columns, before the common factor is known."""
    n = X.shape[0]
    mean, unit = sum_columns(X) / n, sum_columns(abs(X)) / n
    unit[unit == 0] = 1.0
    return Scaling.of(mean, unit * np.sqrt(sum_squares(X, mean, unit) / n), unit)


def _require_weights(state: Block) -> Array:
    if state.omega is None:
        raise InputError("This client has no weights for its features yet: 'take' must be asked before a batch.")
    return state.omega


class ViewModel(Protocol):
    """What is learned, if it is not the built-in network: a head and a module for each client."""

    def start(self, features: Mapping[str, int]) -> Array:
        """ω¹, once the clients and their features are known."""

    def split(self, omega: Array) -> tuple[Array, Array]:
        """ω_0, and all ω_i one after the other in rows, in the order of the clients."""

    def count_weights(self, client: str) -> int:
        """How many rows ω_i has."""


class FeatureBased:
    """How a server of feature-based learning comes to its sums; the fields are those of its subclasses."""

    client: ClassVar[type[Client[object]]] = FeatureClient
    family: ClassVar[str] = "vertical"
    model: Swish | ViewModel
    batch: int
    exchange: str
    standardize: bool
    prior: EarlierModel | None

    def client_options(self) -> dict[str, float | int | str | bool]:
        if not isinstance(self.model, Swish):
            return {}
        more = {"intercept": True} if self.model.intercept else {}
        return {"hidden": self.model.hidden, "classes": self.model.classes, **more}

    def batch_rows(self) -> int:
        return self.batch

    @property
    def block_task(self) -> str:
        """What asks for the gradients of the clients' own parameters."""
        return "backward" if self.exchange == "each" else "backward_in_place"

    def asks(self) -> frozenset[str]:
        return frozenset({"open", "take", "forward", "head", self.block_task}) | self.scaling_tasks()

    def scaling_tasks(self) -> frozenset[str]:
        """The tasks by which the scaling of the columns is found or told."""
        if self.prior is not None and self.prior.scaling is not None:
            return frozenset({"take_scaling"})
        return frozenset({"scale_own_columns", "take_length"}) if self.standardize else frozenset()

    def course(self) -> Course:
        """The opening, and in each round passes over a batch or, in blocks, over all rows."""
        blocks = -(-self.batch // _ROWS_OF_A_PASS) or _MOST_BLOCKS
        return Course(self.opening_turns(), (self.pass_turn(blocks),))

    def opening_turns(self) -> tuple[Turn, ...]:
        """What is asked first; then weights, and how the columns are scaled."""
        scaling = sorted(self.scaling_tasks())
        return (Turn("open"), Turn("take", *scaling, after=["open"])) if scaling else (Turn("open"),)

    def pass_turn(self, most: int) -> Turn:
        """That of a round: what its tasks are told differs from pass to pass, and from block to block."""
        return Turn("take", "forward", "head", self.block_task, most=most, after=["open"])

    def replay(self) -> Replay | str:
        """The rows of a batch follow from the seed, H is a sum, ω_i goes to its client only."""
        if not isinstance(self.model, Swish):
            return "the sites do not have the model of the job"
        if self.exchange == "each":
            return "with exchange='each' every client's own contribution is passed on, not a sum"
        if self.prior is not None:
            return "the sites do not have the model that the run starts from"
        take: dict[str, Comparison] = {"omega": CLOSE, "first": CLOSE, "features": CLOSE}
        seen: dict[str, Comparison] = {"rows": CLOSE, "H": CLOSE, "W0": CLOSE}
        scaled: dict[str, dict[str, Comparison]] = {"scale_own_columns": {}, "take_length": {"length2": CLOSE}}
        return {
            "open": {},
            "take": take,
            "forward": {"rows": CLOSE},
            "head": seen,
            self.block_task: seen,
            **(scaled if self.standardize else {}),
        }

    def opening(self, rng: Streams) -> Round[tuple[Opening, Array]]:
        """N, the features of every client, and ω¹."""
        each = (yield from complete(Ask("open"))).each
        rows = {client: self._count_rows(arrays["n"]) for client, arrays in each.items()}
        first, n = next(iter(rows.items()))
        for client, count in rows.items():
            if count != n:
                raise InputError(
                    f"All clients must have the same rows, but client {first!r} has {n} and client {client!r} has "
                    f"{count}. Match the rows by their ids first."
                )
        features = tuple(int(arrays["features"]) for arrays in each.values())
        opening = Opening(next(iter(each.values()))["n"], tuple(each), features)
        prior = self.prior
        started = self._start(opening, rng("start"))
        omega = prior.omega.copy() if prior is not None and len(prior.omega) else started
        return replace(opening, scaling=(yield from self._scale_columns(omega, opening))), omega

    def _start(self, opening: Opening, rng: np.random.Generator) -> Array:
        if isinstance(self.model, Swish):
            return self.model.start(sum(opening.features), rng)
        return self.model.start(dict(zip(opening.clients, opening.features, strict=True)))

    def _count_rows(self, n: Array) -> int:
        """N from the rows of each part; the functions of a torch model are of all rows each."""
        return int(n.sum() if isinstance(self.model, Swish) else n.max())

    def _place_weights(self, opening: Opening, rows: int) -> list[tuple[int, int]]:
        """Which rows of all clients' weights are whose: from where to where."""
        if isinstance(self.model, Swish):
            ends = [*np.cumsum(opening.features)[:-1].tolist(), rows]  # the last client has the intercepts, too
        else:
            ends = np.cumsum([self.model.count_weights(client) for client in opening.clients]).tolist()
        return list(zip([0, *ends[:-1]], ends, strict=True))

    def _scale_columns(self, omega: Array, opening: Opening) -> Round[Scaling | None]:
        """The scaling of all columns, in the order of the clients; None: there is none."""
        known, clients = self.prior.scaling if self.prior is not None else None, opening.clients
        if known is None and not self.standardize:
            return None
        yield from self._tell_weights(omega, opening)  # and with them where each client's columns stand
        if known is not None:
            yield from complete(Ask("take_scaling", scaling_arrays(known), to=clients))
            return known
        P = sum(opening.features)
        want = Sum("mean", "deviation", "length2")
        total = (yield from complete(Ask("scale_own_columns", want=want, to=clients))).total
        scaling = Scaling.of(total["mean"][:P], total["deviation"][:P], np.zeros(P))
        length2 = total["length2"] / float(self._count_rows(opening.n))
        yield from complete(Ask("take_length", {"length2": length2}, to=clients))
        return scaling.with_length(float(length2))

    def _tell_weights(self, omega: Array, opening: Opening) -> Round[None]:
        """ω_i to every client: line 3."""
        _, W1 = self.model.split(omega)
        for client, (start, end) in zip(opening.clients, self._place_weights(opening, len(W1)), strict=True):
            told = {"omega": W1[start:end], "first": np.array(start), "features": np.array(len(W1))}
            yield from complete(Ask("take", told, to=(client,)))

    def most_rows(self, opening: Opening) -> int:
        """What a batch may grow to: what is asked about at once."""
        return _ROWS_OF_A_PASS

    def gather(self, omega: Array, opening: Opening, rng: Streams, batch: int | None = None) -> Round[Sums]:
        """Mean loss and gradient of a batch: lines 3 to 6 of Algorithms 3 and 4."""
        rows, size = self._training_rows(opening), self.batch if batch is None else batch
        if size == 0 or size >= len(rows):
            return (yield from self.gather_all(omega, opening))
        drawn = rows[np.sort(rng("batch").choice(len(rows), size, replace=False))]
        return (yield from self._pass(omega, opening, [drawn], True))

    def gather_all(self, omega: Array, opening: Opening, gradients: bool = True) -> Round[Sums]:
        """The same over all rows; without gradients, only h_i goes up."""
        return (yield from self._pass(omega, opening, _split_rows(self._training_rows(opening)), gradients))

    def _training_rows(self, opening: Opening) -> Array:
        """The numbers of all rows that are not held out."""
        held, n = opening.held_out, self._count_rows(opening.n)
        return np.arange(n) if held is None else np.delete(np.arange(n + len(held)), held)

    def measure_held_out(self, omega: Array, opening: Opening) -> Round[PartSums]:
        """What the rows that were held out say, by part."""
        held = np.zeros(0, dtype=np.int64) if opening.held_out is None else opening.held_out
        W0, _ = self.model.split(omega)
        yield from self._tell_weights(omega, opening)
        total = PartSums(*np.zeros((3, len(opening.n))))
        for rows in _split_rows(held):
            h = yield from complete(Ask("forward", {"rows": rows}, self._want("h"), opening.clients))
            H = np.stack([arrays["h"] for arrays in h.each.values()]) if h.each else h.total["h"]
            ask = Ask("measure_together", {"rows": rows, "H": H, "W0": W0}, Sum("n", "loss", "right"), opening.clients)
            found = PartSums.of((yield from complete(ask)).total)
            total = PartSums(total.n + found.n, total.loss + found.loss, total.right + found.right)
        return total

    def _pass(self, omega: Array, opening: Opening, batches: Iterable[Array], gradients: bool) -> Round[Sums]:
        W0, _ = self.model.split(omega)
        yield from self._tell_weights(omega, opening)
        parts = len(opening.n)
        loss, grad, count = np.zeros(parts), np.zeros((parts, len(omega))), 0
        for rows in batches:
            h = yield from complete(Ask("forward", {"rows": rows}, self._want("h"), opening.clients))  # line 4
            H = np.stack([arrays["h"] for arrays in h.each.values()]) if h.each else h.total["h"]
            seen = {"rows": rows, "H": H, "W0": W0}
            head = yield from self._head(seen, opening.clients)  # line 5
            if int(head["bad"]):
                return Sums(opening.n, loss, grad, False)
            loss, count = loss + head["loss"], count + len(rows)
            if gradients:
                block = yield from complete(Ask(self.block_task, seen, self._want("block"), opening.clients))  # line 6
                blocks = [arrays["block"] for arrays in block.each.values()] or [block.total["block"]]
                pieces = (piece.reshape(parts, -1) for piece in (head["head"], *blocks))
                grad += np.concatenate([*pieces], axis=1)
        scale = count * opening.n / max(float(self._count_rows(opening.n)), 1.0)  # N_g of a batch, on average
        scale = np.where(scale > 0, scale, 1.0)
        return Sums(opening.n, loss / scale, grad / scale[:, None] if gradients else np.zeros((0, 0)), True)

    def _head(self, seen: Arrays, clients: tuple[str, ...]) -> Round[Arrays]:
        """From the first client; in a sum with zeros of the others, so that it can be masked."""
        if self.exchange == "each":
            return (yield from complete(Ask("head", seen, to=clients[:1]))).each[clients[0]]
        return (yield from complete(Ask("head", seen, Sum("loss", "head", "bad"), clients))).total

    def _want(self, name: str) -> Each | Sum:
        return Each() if self.exchange == "each" else Sum(name)


def _split_rows(rows: Array) -> list[Array]:
    """Blocks of about the same size: the last is not the few rows that remain, over which there would be a sum."""
    return np.array_split(rows, -(-len(rows) // _ROWS_OF_A_PASS)) if len(rows) else []


def _check_exchange(exchange: str, clip: float, private: Sampling | None) -> None:
    if exchange not in ("each", "sum"):
        raise InputError(f"exchange must be 'each' (the paper's) or 'sum', but is {exchange!r}.")
    if clip or private:
        raise InputError(
            "clip and private work for sample-based learning only, because here one row is spread over all clients."
        )


@dataclass(frozen=True)
class VerticalSsca(FeatureBased, Ssca):
    """Algorithms 3 and 4, with the paper's settings for batches of 100."""

    model: Swish | ViewModel = DEFAULT_NET  # type: ignore[assignment]

    tau: float = 0.2
    rho: Steps = _VERTICAL_RHO
    gamma: Steps = _VERTICAL_GAMMA
    exchange: Literal["each", "sum"] = "sum"

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_exchange(self.exchange, self.clip, self.private)

    def asks(self) -> frozenset[str]:
        return FeatureBased.asks(self) | ({"count_parts", "measure_together"} if self.validation else set())

    def course(self) -> Course:
        """With limits, batches may grow, and closing rounds pass over all rows again and again."""
        if self.stochastic == self.rounds:
            return FeatureBased.course(self)
        passes = self.pass_turn((1 + DOUBLINGS) * _MOST_BLOCKS)
        if not self.validation:
            return Course(self.opening_turns(), (passes,))
        count = Turn("take", "count_parts", after=["open"])
        measure = Turn("measure_together", most=_MOST_BLOCKS, rounds=1, after=["count_parts"])
        return Course((*self.opening_turns(), count), (passes, measure))

    def replay(self) -> Replay | str:
        known = FeatureBased.replay(self)
        if isinstance(known, str) or not self.validation:
            return known
        return {**known, "count_parts": {"rows": CLOSE}, "measure_together": known["head"]}

    def held_out_rows(self, rows: int) -> int:
        return min(round(self.validation * rows), rows - 1)

    def opening(self, rng: Streams) -> Round[tuple[Opening, Array]]:
        """The same, with rows that are held out; the server draws their numbers."""
        opening, omega = yield from FeatureBased.opening(self, rng)
        if not self.validation:
            return opening, omega
        n = self._count_rows(opening.n)
        held = np.sort(rng("held out").permutation(n)[: self.held_out_rows(n)])
        yield from self._tell_weights(omega, opening)  # and with them who is the first client
        counts = (yield from complete(Ask("count_parts", {"rows": held}, Sum("n"), opening.clients))).total["n"]
        return replace(opening, n=opening.n - counts, held_out=held), omega


@dataclass(frozen=True)
class VerticalSgd(FeatureBased, FedSgd):
    """Feature-based SGD ([13] for any number of clients), with momentum or without."""

    model: Swish | ViewModel = DEFAULT_NET  # type: ignore[assignment]

    exchange: Literal["each", "sum"] = "sum"

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_exchange(self.exchange, self.clip, self.private)
