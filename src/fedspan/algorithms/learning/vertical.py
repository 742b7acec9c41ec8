"""Mini-batch SSCA, feature-based (Cui, Li and Ye 2022, Algorithms 3 and 4): the clients hold columns of the same rows.

Notation: X_i (N, P_i) the columns of client i, y (N,) the labels, which all clients know; ω_0 = W0 (J, L) the head,
ω_i (P_i, J) the weights of client i's features, h_i = X_i ω_i (B, J) for the rows of a batch, H = Σ_i h_i.
The rest is ssca.py and fedsgd.py: only how the sums are gathered differs. The server draws the batch by row numbers.

What is seen. exchange="each" is the paper's: the server passes every h_i on to all clients, and so sees them itself;
every client sees them too. exchange="sum": the server asks for Σ h_i and for the sum of the gradients (each client's
in its own place, zeros elsewhere; that of the head from the first client), so that nobody sees one client's h_i under
secure aggregation. Both add up in the order of client ids, and agree to the bit. A client never sees the weights ω_j
of another: with them, its h_j would be equations for its features. The server does not see labels; the head's gradient
is computed by the first client (line 5).

Differs from the paper: ω_i is sent by a message to each client, h_i through the server instead of from client to
client. A pass over all rows (closing rounds) goes in blocks of rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fedspan._types import Array, Arrays
from fedspan.algorithms.learning.samples import Opening, Steps, Sums, finite
from fedspan.algorithms.learning.sgd import FedSgd
from fedspan.algorithms.learning.ssca import Ssca
from fedspan.core.protocol import PUBLIC, Ask, Client, Each, Round, Sum, complete, task
from fedspan.core.rng import Streams
from fedspan.errors import InputError
from fedspan.numerics.swish import Swish, cross_entropy, floats

_RHO, _GAMMA = Steps(0.9, 0.1, hold=800, tail=0.5), Steps(0.5, 0.1, hold=800, tail=0.8)
_BLOCK = 5000  # rows of a pass over all of them


@dataclass(frozen=True)
class Block:
    """What a client remembers: the weights of its features, and where they stand among all."""

    omega: Array | None = None  # (P_i, J)
    first: int = 0
    features: int = 0


class FeatureClient(Client[Block]):
    """A client that holds some columns of all rows, and their labels: `data` is (X_i, y) or (X_i, y, weight)."""

    State = Block
    needs = "labelled"

    def __init__(self, data: Any, hidden: int = 0, classes: int = 0) -> None:
        self.X, self.y, self.weight = (*data, None) if len(data) == 2 else data
        self.net = Swish(hidden, classes)
        if self.X.shape[0] != len(self.y):
            raise InputError(f"need one row for each of the {len(self.y)} labels, got {self.X.shape[0]} rows")

    def init(self) -> Block:
        return Block()

    @task(releases={"n": PUBLIC, "features": PUBLIC})
    def open(self, state: Block, arrays: Arrays, rng: Streams) -> tuple[Block, Arrays]:
        rows = floats(self.X)
        if not np.isfinite(rows.data if hasattr(rows, "tocsr") else rows).all():
            raise InputError("need finite numbers, got NaN or infinity in the rows; drop them or impute the values")
        return state, {"n": np.array(self.X.shape[0]), "features": np.array(self.X.shape[1])}

    @task(releases={})
    def take(self, state: Block, arrays: Arrays, rng: Streams) -> tuple[Block, Arrays]:
        """Remember ω_i: line 3."""
        return Block(arrays["omega"], int(arrays["first"]), int(arrays["features"])), {}

    @task(releases={"h": None})
    def forward(self, state: Block, arrays: Arrays, rng: Streams) -> tuple[Block, Arrays]:
        """h_i of the batch: line 4."""
        X = floats(self.X[arrays["rows"]])
        with np.errstate(over="ignore", invalid="ignore"):
            h = np.asarray(X @ _known(state).astype(X.dtype, copy=False), dtype=np.float64)
        return state, {
            "h": np.nan_to_num(h, nan=1e300, posinf=1e300, neginf=-1e300)
        }  # the head will see it is too large

    def _look(self, arrays: Arrays) -> tuple[Array, ...]:
        rows, H = arrays["rows"], arrays["H"]
        H = H.sum(axis=0) if H.ndim == 3 else H
        weight = None if self.weight is None else self.weight[rows]
        with np.errstate(over="ignore", invalid="ignore"):
            return cross_entropy(H, arrays["W0"], self.y[rows], weight)

    @task(releases={"loss": None, "head": None, "bad": None})
    def head(self, state: Block, arrays: Arrays, rng: Streams) -> tuple[Block, Arrays]:
        """Σ f and Σ ∇ω_0 over the batch: line 5, (20). The first client computes it, the others add zeros."""
        if state.first > 0:
            classes = self.net.classes
            zeros = {"loss": np.zeros(1), "head": np.zeros((self.net.hidden, classes))}
            return state, finite(**zeros)
        loss, E, S, _ = self._look(arrays)
        with np.errstate(over="ignore", invalid="ignore"):
            return state, finite(loss=np.array([loss.sum()]), head=S.T @ E)

    @task(releases={"block": None})
    def backward(self, state: Block, arrays: Arrays, rng: Streams) -> tuple[Block, Arrays]:
        """Σ ∇ω_i over the batch: line 6, (21)."""
        D = self._look(arrays)[3]
        X = floats(self.X[arrays["rows"]])
        grad = np.asarray(X.T @ D.astype(X.dtype, copy=False), dtype=np.float64)
        return state, {"block": finite(grad=grad)["grad"]}

    @task(releases={"block": None})
    def backward_in_place(self, state: Block, arrays: Arrays, rng: Streams) -> tuple[Block, Arrays]:
        """The same among zeros for all other features, so that a sum puts the blocks together."""
        _, reply = self.backward(state, arrays, rng)
        whole = np.zeros((state.features, self.net.hidden))
        whole[state.first : state.first + self.X.shape[1]] = reply["block"]
        return state, {"block": whole}


def _known(state: Block) -> Array:
    if state.omega is None:
        raise InputError("need the weights of this client's features before a batch; ask 'take' first")
    return state.omega


class FeatureBased:
    """How a server of feature-based learning comes to its sums. Expects `model`, `batch`, `clip`, `exchange`."""

    client: type[Client] = FeatureClient  # type: ignore[type-arg]
    model: Swish
    batch: int
    exchange: str

    def client_options(self) -> dict[str, float | int | str | bool]:
        return {"hidden": self.model.hidden, "classes": self.model.classes}

    def opening(self, rng: Streams) -> Round[tuple[Opening, Array]]:
        """N, the features of every client, and ω¹."""
        each = (yield from complete(Ask("open"))).each
        rows = {client: int(arrays["n"]) for client, arrays in each.items()}
        first, n = next(iter(rows.items()))
        for client, count in rows.items():
            if count != n:
                raise InputError(
                    f"need the same rows in all views, got {count} (client {client!r}) and {n} (client {first!r}); "
                    "match the rows by their ids first"
                )
        if self.batch > n:
            raise InputError(f"need a batch of at most the {n} rows, got {self.batch}; lower batch_size")
        features = tuple(int(arrays["features"]) for arrays in each.values())
        return Opening(np.array([n]), tuple(each), features), self.model.start(sum(features), rng("start"))

    def gather(self, omega: Array, opening: Opening, rng: Streams) -> Round[Sums]:
        """Mean loss and gradient of a batch: lines 3 to 6 of Algorithms 3 and 4."""
        n = int(opening.n[0])
        rows = np.arange(n) if self.batch in (0, n) else np.sort(rng("batch").choice(n, self.batch, replace=False))
        return (yield from self._pass(omega, opening, [rows] if self.batch not in (0, n) else _blocks(n), True))

    def gather_all(self, omega: Array, opening: Opening, gradients: bool = True) -> Round[Sums]:
        """The same over all rows; without gradients, only h_i goes up."""
        return (yield from self._pass(omega, opening, _blocks(int(opening.n[0])), gradients))

    def _pass(self, omega: Array, opening: Opening, batches: Any, gradients: bool) -> Round[Sums]:
        W0, W1 = self.model.split(omega)
        at, P = np.cumsum([0, *opening.features]), sum(opening.features)
        for i, client in enumerate(opening.clients):  # line 3
            told = {"omega": W1[at[i] : at[i + 1]], "first": np.array(at[i]), "features": np.array(P)}
            yield from complete(Ask("take", told, to=(client,)))
        loss, grad, count = np.zeros(1), np.zeros_like(omega), 0
        for rows in batches:
            h = yield from complete(Ask("forward", {"rows": rows}, self._want("h"), opening.clients))  # line 4
            H = np.stack([arrays["h"] for arrays in h.each.values()]) if h.each else h.total["h"]
            seen = {"rows": rows, "H": H, "W0": W0}
            head = yield from self._head(seen, opening.clients)  # line 5
            if int(head["bad"]):
                return Sums(opening.n, loss, grad[None], False)
            loss, count = loss + head["loss"], count + len(rows)
            if gradients:
                name = "backward" if self.exchange == "each" else "backward_in_place"
                block = yield from complete(Ask(name, seen, self._want("block"), opening.clients))  # line 6
                blocks = [arrays["block"] for arrays in block.each.values()] or [block.total["block"]]
                grad += np.concatenate([head["head"].ravel(), *(part.ravel() for part in blocks)])
        return Sums(opening.n, loss / count, grad[None] / count if gradients else np.zeros((0, 0)), True)

    def _head(self, seen: Arrays, clients: tuple[str, ...]) -> Round[Arrays]:
        """From the first client; in a sum with zeros of the others, so that it can be masked."""
        if self.exchange == "each":
            return (yield from complete(Ask("head", seen, to=clients[:1]))).each[clients[0]]
        return (yield from complete(Ask("head", seen, Sum("loss", "head", "bad"), clients))).total

    def _want(self, name: str) -> Each | Sum:
        return Each() if self.exchange == "each" else Sum(name)


def _blocks(n: int) -> Iterator[Array]:
    return (np.arange(start, min(start + _BLOCK, n)) for start in range(0, n, _BLOCK))


def _check(server: Any) -> None:
    if server.exchange not in ("each", "sum"):
        raise InputError(f"need exchange 'each' (the paper's) or 'sum', got {server.exchange!r}")
    if server.clip:
        raise InputError("clip is for sample-based learning: one row is spread over all clients here")


@dataclass(frozen=True)
class VerticalSsca(FeatureBased, Ssca):
    """Algorithms 3 and 4, with the paper's settings for batches of 100."""

    tau: float = 0.2
    rho: Steps = _RHO
    gamma: Steps = _GAMMA
    exchange: Literal["each", "sum"] = "sum"

    def __post_init__(self) -> None:
        super().__post_init__()
        _check(self)


@dataclass(frozen=True)
class VerticalSgd(FeatureBased, FedSgd):
    """Feature-based SGD ([13] for any number of clients), with momentum or without."""

    exchange: Literal["each", "sum"] = "sum"

    def __post_init__(self) -> None:
        super().__post_init__()
        _check(self)
