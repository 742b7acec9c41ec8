"""What the learning algorithms share: step sizes, limits, and a client that holds labelled rows.

Notation: ω (d,) the parameters, f_g the loss summed over part g of the rows (a group, or one function of a problem),
g = 1..G, N_g its rows, N_i the rows of client i, B the batch that every client draws, without replacement.
A client sends (N_i/B) Σ over its batch of f_g and ∇f_g; the server sees the sum over the clients, divided by N_g.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fedspan._types import Array, Arrays
from fedspan.core.protocol import Ask, Client, Round, Sensitivity, Sum, complete, task
from fedspan.core.rng import Streams, secret_uniform
from fedspan.errors import ClientError, InputError
from fedspan.numerics.swish import Swish, cross_entropy, floats, gradient, gradient_norms, losses, swish

_BLOCK = 2000  # rows of a pass over all of them


@dataclass(frozen=True)
class Steps:
    """Step sizes a/t^alpha; after round `hold` they fall faster, by (hold/t)^tail."""

    a: float
    alpha: float
    hold: int = 0
    tail: float = 0.0

    def __call__(self, t: int) -> float:
        late = (self.hold / t) ** self.tail if 0 < self.hold < t else 1.0
        return float(self.a / t**self.alpha * late)

    @property
    def exponent(self) -> float:
        """What they fall by in the end."""
        return self.alpha + (self.tail if self.hold > 0 else 0.0)


def check_steps(rho: Steps, gamma: Steps, limits: bool) -> None:
    """Refuse step sizes outside (0, 1], and, if asked, those that break the limits in (4) and (6)."""
    for name, steps, condition in (("rho", rho, "(4)"), ("gamma", gamma, "(6)")):
        if not 0 < steps.a <= 1 or steps.alpha < 0 or steps.tail < 0:
            raise InputError(f"need 0 < {name} ≤ 1 in every round, {condition}, got {steps}")
    if not limits:
        return
    if not 0 < rho.exponent <= 1:
        raise InputError(
            f"need rho to fall to 0 with an infinite sum, (4): an exponent above 0 and at most 1, got {rho.exponent:g}"
        )
    if not 0.5 < gamma.exponent <= 1 or gamma.exponent <= rho.exponent:
        raise InputError(
            "need gamma to fall to 0 with an infinite sum and finite squares, and faster than rho, (6): an exponent "
            f"above 1/2 and above rho's {rho.exponent:g}, at most 1, got {gamma.exponent:g}; "
            "paper=True runs the paper's own step sizes, which break (6)"
        )


@dataclass(frozen=True)
class Limit:
    """A constraint Σ_g coefficients_g · (mean loss of part g) ≤ bound; no coefficients: the mean loss of all rows."""

    bound: float
    coefficients: tuple[float, ...] = ()


@dataclass(frozen=True)
class Opening:
    """What the opening round found."""

    n: Array  # (G,) N_g
    clients: tuple[str, ...]
    features: tuple[int, ...]  # of all clients together, or of each one if they hold different ones


@dataclass(frozen=True)
class Sampling:
    """What is public in a private run: the rows of all clients together, the features, and the rate of sampling.

    Every row is in a batch with probability `rate`, by a draw of its client that nobody else can repeat (unless
    `simulate`, for runs that repeat): so the privacy of a round is that of a secret sample.
    """

    rows: int
    features: int
    rate: float
    simulate: bool = False


class Sums(NamedTuple):
    """What one gathering gives: the rows that each part stands for, mean losses, mean gradients; finite or not."""

    n: Array  # (G,)
    loss: Array  # (G,)
    grad: Array  # (G, d), or empty
    good: bool


class LabelledRows:
    """Rows with class numbers, a weight for each (or None), and the part of each (or None), under the swish network."""

    def __init__(
        self, X: Any, y: Array, weight: Array | None, part: Array | None, parts: int, hidden: int, classes: int
    ) -> None:
        self.X, self.y, self.weight, self.part = X, np.asarray(y), weight, part
        self.n, self.features = X.shape
        self.parts, self.net = parts, Swish(hidden, classes)
        if len(self.y) != self.n:
            raise InputError(f"need a label for each of the {self.n} rows, got {len(self.y)}")

    @property
    def counts(self) -> Array:
        """N_g of this client."""
        return np.array([self.n]) if self.part is None else np.bincount(self.part, minlength=self.parts)

    def check(self) -> None:
        """Refuse rows that are not finite: a loss that is not finite is then the model's doing."""
        for start in range(0, self.n, _BLOCK):
            rows = floats(self.X[start : start + _BLOCK])
            if not np.isfinite(rows.data if hasattr(rows, "tocsr") else rows).all():
                raise InputError("need finite numbers, got NaN or infinity in the rows; drop them or impute the values")

    def _look(self, omega: Array, at: Array | slice) -> tuple[Any, ...]:
        X, (W0, W1) = floats(self.X[at]), self.net.split(omega)
        weight = None if self.weight is None else self.weight[at]
        return X, *cross_entropy(X @ W1.astype(X.dtype, copy=False), W0, self.y[at], weight)

    def sums(self, omega: Array, at: Array | slice) -> tuple[Array, Array]:
        """Σ f_g (G,) and Σ ∇f_g (G, d) over the rows `at`."""
        X, loss, E, S, D = self._look(omega, at)
        if self.part is None:
            return np.array([loss.sum()]), gradient(X, S, E, D)[None]
        part = self.part[at]
        inside = [np.flatnonzero(part == g) for g in range(self.parts)]
        grads = [gradient(X[rows], S[rows], E[rows], D[rows]) for rows in inside]
        return np.bincount(part, weights=loss, minlength=self.parts), np.stack(grads)

    def losses(self, omega: Array, at: Array | slice) -> Array:
        """Σ f_g (G,) alone."""
        X, (W0, W1) = floats(self.X[at]), self.net.split(omega)
        S = swish(X @ W1.astype(X.dtype, copy=False))[0]
        weight = None if self.weight is None else self.weight[at]
        loss, _ = losses(S @ W0.astype(S.dtype, copy=False), self.y[at], weight)
        return np.array([loss.sum()]) if self.part is None else np.bincount(self.part[at], loss, minlength=self.parts)

    def clipped(self, omega: Array, at: Array, clip: float) -> Array:
        """Σ over the rows of ∇f, each shortened to norm `clip` if it is longer; (d,)."""
        X, _, E, S, D = self._look(omega, at)
        factor = np.minimum(1.0, clip / np.maximum(gradient_norms(X, S, E, D), 1e-300))[:, None].astype(E.dtype)
        return gradient(X, S, E * factor, D * factor)


class SampleClient(Client[None]):
    """A client that holds samples. `data` is (X, y), (X, y, weight, part, parts), or a problem of torch_model.py."""

    State = type(None)
    needs = "labelled"

    def __init__(
        self,
        data: Any,
        hidden: int = 0,
        classes: int = 0,
        batch: int = 0,
        clip: float = 0.0,
        rate: float = 0.0,
        simulate: bool = False,
        row_norm: float = 0.0,
    ) -> None:
        clip = row_norm or clip  # a site that protects its rows bounds what each of them says
        if isinstance(data, tuple):
            X, y, weight, part, parts = (*data, *(None, None, 1)[len(data) - 2 :]) if len(data) < 5 else data
            data = LabelledRows(X, y, weight, part, parts, hidden, classes)
        self.rows, self.batch, self.clip, self.rate, self.simulate = data, batch, clip, rate, simulate
        if batch > data.n and not rate:
            raise InputError(
                f"need a batch of at most this client's {data.n} rows, got {batch}; lower batch_size to {data.n}, "
                "or leave this client out"
            )

    def init(self) -> None:
        return None

    def draw(self, rng: Streams, size: int) -> Array:
        """The numbers of a batch of rows, drawn without replacement."""
        return np.sort(rng("batch").choice(self.rows.n, size, replace=False))

    def everything(self) -> list[slice]:
        """All rows, in blocks that fit a cache, without a copy."""
        return [slice(k, min(k + _BLOCK, self.rows.n)) for k in range(0, self.rows.n, _BLOCK)]

    @task(releases={"n": Sensitivity(0), "features": Sensitivity(0)})
    def open(self, state: None, arrays: Arrays, rng: Streams) -> tuple[None, Arrays]:
        """How many rows each part has, and how many features there are."""
        self.rows.check()
        return state, {"n": self.rows.counts, "features": np.array(self.rows.features)}

    @task(releases={"n": Sensitivity(0), "loss": None, "grad": None, "bad": None})
    def gradient(self, state: None, arrays: Arrays, rng: Streams) -> tuple[None, Arrays]:
        """(N_i/B) Σ f_g and (N_i/B) Σ ∇f_g over a batch: q_{s,m} of Algorithms 1 and 2, line 4."""
        n, B = self.rows.n, int(arrays["batch"]) if "batch" in arrays else self.batch
        whole = B in (0, n)
        blocks = self.everything() if whole else np.array_split(self.draw(rng, B), -(-B // _BLOCK))
        with np.errstate(over="ignore", invalid="ignore"):
            pieces = [self.rows.sums(arrays["omega"], at) for at in blocks]
        scale = 1.0 if whole else n / B
        loss, grad = (sum(part[1:], start=part[0]) * scale for part in zip(*pieces, strict=True))
        return state, {"n": self.rows.counts, **finite(loss=loss, grad=grad)}

    @task(releases={"n": Sensitivity(0), "loss": None, "bad": None})
    def losses(self, state: None, arrays: Arrays, rng: Streams) -> tuple[None, Arrays]:
        """Σ f_g over all rows: one number for each part, so that a constraint can be verified."""
        with np.errstate(over="ignore", invalid="ignore"):
            pieces = [self.rows.losses(arrays["omega"], at) for at in self.everything()]
        return state, {"n": self.rows.counts, **finite(loss=np.sum(pieces, axis=0))}

    @task(releases={"n": Sensitivity(0), "grad": Sensitivity(1)})
    def clipped(self, state: None, arrays: Arrays, rng: Streams) -> tuple[None, Arrays]:
        """Σ over a batch of fixed size of ∇f, each of norm at most `clip`: one row changes it by at most `clip`.

        The batch is the same share of every client's rows, so the plain sum weighs clients by their samples.
        """
        size = max(1, round(float(arrays["share"]) * self.rows.n))
        at = self.draw(rng, size)
        return state, {"n": np.array(size), "grad": self.rows.clipped(arrays["omega"], at, self.clip)[None]}

    @task(releases={"grad": Sensitivity(1)})
    def sampled(self, state: None, arrays: Arrays, rng: Streams) -> tuple[None, Arrays]:
        """Σ ∇f over rows that are each in it with probability `rate`, each of norm at most `clip`."""
        uniform = rng("sample").random(self.rows.n) if self.simulate else secret_uniform(self.rows.n)
        at = np.flatnonzero(uniform < self.rate)
        return state, {"grad": self.rows.clipped(arrays["omega"], at, self.clip)[None].astype(np.float64)}


def finite(**arrays: Array) -> dict[str, Array]:
    """The arrays, with the mark that they are finite; else zeros in their place: what is not finite does not leave."""
    bad = not all(np.isfinite(array).all() for array in arrays.values())
    return {**({k: np.zeros_like(a) for k, a in arrays.items()} if bad else arrays), "bad": np.array(int(bad))}


def usable(*arrays: Array) -> bool:
    """Whether even the squares of all numbers can be added up."""
    with np.errstate(over="ignore", invalid="ignore"):
        return all(bool(np.isfinite(np.vdot(array, array))) for array in arrays)


class SampleBased:
    """How a server of sample-based learning comes to its sums. Expects the fields `model`, `batch` and `clip`."""

    client: type[Client] = SampleClient  # type: ignore[type-arg]
    model: Any
    batch: int
    clip: float
    rounds: int
    private: Sampling | None

    def client_options(self) -> dict[str, float | int | str | bool]:
        sizes = {"hidden": self.model.hidden, "classes": self.model.classes} if isinstance(self.model, Swish) else {}
        draw = {"rate": self.private.rate, "simulate": self.private.simulate} if self.private else {}
        return {**sizes, "batch": self.batch, "clip": self.clip, **draw}

    def planned(self) -> list[tuple[str, str, int, float, float]]:
        """What a private run will release: (task, array, how often, share of the budget, rate of sampling)."""
        return [("sampled", "grad", self.rounds, 1.0, self.private.rate)] if self.private else []

    def opening(self, rng: Streams) -> Round[tuple[Opening, Array]]:
        """N_g, and ω¹."""
        if self.private:
            p = self.private
            return Opening(np.array([p.rows]), (), (p.features,)), self.model.start(p.features, rng("start"))
        replies = yield from complete(Ask("open", want=Sum("n", "features")))
        clients, features = len(replies.asked), int(replies.total["features"])
        if features % clients:
            raise InputError("need the same number of features at all clients, got different ones")
        n = replies.total["n"]
        if (n < 1).any():
            raise InputError(f"need at least one row in every part, part {int(np.argmin(n))} has none over all clients")
        features //= clients
        return Opening(n, replies.asked, (features,)), self.model.start(features, rng("start"))

    def gather(self, omega: Array, opening: Opening, rng: Streams) -> Round[Sums]:
        """Mean losses and gradients of a batch: lines 3 and 4 of Algorithms 1 and 2. Clients that fail are left out."""
        if self.private:
            total = _some((yield Ask("sampled", {"omega": omega}, Sum("grad"))).total)
            expected = self.private.rate * self.private.rows
            return Sums(opening.n, np.full(1, np.nan), total["grad"] / expected, True)
        if self.clip:
            share = min(1.0, self.batch * len(opening.clients) / float(opening.n.sum()))
            ask = Ask("clipped", {"omega": omega, "share": np.array(share)}, Sum("n", "grad"))
            total = _some((yield ask).total)
            return Sums(total["n"][None], np.full(1, np.nan), total["grad"] / total["n"], True)
        return _means((yield Ask("gradient", {"omega": omega}, Sum("n", "loss", "grad", "bad"))).total)

    def gather_all(self, omega: Array, opening: Opening, gradients: bool = True) -> Round[Sums]:
        """The same over all rows of all clients; without gradients it costs a number for each part and client."""
        if gradients:
            arrays, want = {"omega": omega, "batch": np.array(0)}, Sum("n", "loss", "grad", "bad")
            return _means((yield from complete(Ask("gradient", arrays, want, opening.clients))).total)
        ask = Ask("losses", {"omega": omega}, Sum("n", "loss", "bad"), opening.clients)
        return _means((yield from complete(ask)).total)


def _some(total: Arrays) -> Arrays:
    if not total:
        raise ClientError("need an answer from at least one client of this round, got none; resume from the checkpoint")
    return total


def _means(total: Arrays) -> Sums:
    n = np.maximum(_some(total)["n"], 1)
    grad = total["grad"] / n[:, None] if "grad" in total else np.zeros((0, 0))
    return Sums(n, total["loss"] / n, grad, not int(total["bad"]))


def mean(sums: Sums) -> float:
    """The mean loss over all parts."""
    return float(sums.loss @ sums.n / sums.n.sum())
