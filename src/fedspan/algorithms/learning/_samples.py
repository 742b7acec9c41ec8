"""What the learning algorithms share: step sizes, limits, and a client that holds labelled rows.

Notation: ω (d,) the parameters, f_g the loss summed over part g of the rows (a group, or one function of a problem),
g = 1..G, N_g its rows, N_i the rows of client i, B the batch that every client draws, without replacement; one that has
fewer rows takes all of them, B_i = min(B, N_i). A client sends (N_i/B_i) Σ over its batch of f_g and ∇f_g; the server
sees the sum over the clients, divided by N_g: so a client weighs N_i/N, as in (3), whatever its batch is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from fedspan._types import Array, Arrays
from fedspan.algorithms.learning._labelled_rows import (
    ROWS_AT_ONCE,
    LabelledRows,
    Samples,
)
from fedspan.algorithms.learning.constraints.limits import PartSums
from fedspan.algorithms.learning.held_out import deal_rows
from fedspan.algorithms.learning.scaling import (
    SCALING_REPLAY,
    SCALING_TASKS,
    EarlierModel,
    RowsMemory,
    Scaling,
    ScalingClient,
    find_scaling,
    scaling_arrays,
    scaling_from,
    tell_scaling,
)
from fedspan.core.protocol import (
    Ask,
    Client,
    Course,
    Needs,
    Release,
    Replay,
    Round,
    Sensitivity,
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
from fedspan.numerics.swish import (
    Swish,
)
from fedspan.privacy.release import HISTOGRAM

DEFAULT_NET = Swish()


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
            raise InputError(f"{name} must be above 0 and at most 1 in every round, {condition}, but is {steps}.")
    if not limits:
        return
    if not 0 < rho.exponent <= 1:
        raise InputError(
            "rho must fall to 0 with an infinite sum, (4): its exponent must be above 0 and at most 1, but is "
            f"{rho.exponent:g}."
        )
    if not 0.5 < gamma.exponent <= 1 or gamma.exponent <= rho.exponent:
        raise InputError(
            "gamma must fall to 0 with an infinite sum and finite squares, and faster than rho, (6): its exponent must "
            f"be above 1/2 and above rho's {rho.exponent:g}, and at most 1, but is {gamma.exponent:g}. "
            "paper=True runs the paper's own step sizes, which break (6)."
        )


@dataclass(frozen=True)
class Opening:
    """What the opening round found."""

    n: Array  # (G,) N_g
    clients: tuple[str, ...]
    features: tuple[int, ...]  # of all clients together, or of each one if they hold different ones
    scaling: Scaling | None = None  # of the columns; None: they are taken as they are
    held_out: Array | None = None  # row numbers, where all clients have the same rows and some are held out


@dataclass(frozen=True)
class Sampling:
    """What is public in a private run: about how many rows all clients have, the features, and the rate of sampling.

    The number of rows is a noised count; `spent` is the share of the budget that it took.

    Every row is in a batch with probability `rate`, by a draw of its client that nobody else can repeat (unless
    `simulate`, for runs that repeat): so the privacy of a round is that of a secret sample.
    """

    rows: int
    features: int
    rate: float
    simulate: bool = False
    spent: float = 0.0


@dataclass(frozen=True)
class LocalMemory(RowsMemory):
    """What a client that corrects its steps remembers: the scaling of its columns, and c_i; None: not known yet."""

    control: Array | None = None  # (d,)


class Sums(NamedTuple):
    """What one gathering gives: the rows that each part stands for, mean losses, mean gradients; finite or not."""

    n: Array  # (G,)
    loss: Array  # (G,)
    grad: Array  # (G, d), or empty
    good: bool


class Model(Protocol):
    """What is learned: a vector ω of parameters, and where it starts."""

    def start(self, features: int, rng: np.random.Generator) -> Array: ...


class SampleClient(ScalingClient):
    """A client that holds samples. `data` is (X, y), (X, y, weight), (X, y, weight, part, parts), or `Samples`."""

    needs: ClassVar[Needs] = "labelled"

    def __init__(
        self,
        data: tuple[Any, ...] | Samples,
        hidden: int = 0,
        classes: int = 0,
        batch: int = 0,
        clip: float = 0.0,
        rate: float = 0.0,
        simulate: bool = False,
        intercept: bool = False,
        row_norm: float = 0.0,
        validation: float = 0.0,
    ) -> None:
        clip = row_norm or clip  # a site that protects its rows bounds what each of them says
        if isinstance(data, tuple):
            X, y, *more = data
            weight = more[0] if more else None
            part, parts = more[1:] if len(more) == 3 else (None, 1)
            data = LabelledRows(X, y, weight, part, parts, Swish(hidden, classes, intercept))
        self.held_rows: LabelledRows | None = None
        if validation and isinstance(data, LabelledRows):
            train, held = deal_rows(data.y, validation)
            data, self.held_rows = data.choose(train), data.choose(held)
        self.rows, self.batch, self.clip, self.rate, self.simulate = data, batch, clip, rate, simulate

    def recall(self, state: RowsMemory) -> Samples:
        """The rows, scaled as this client remembers."""
        self.rows.use(state.scaling)
        return self.rows

    def raw_blocks(self) -> Iterator[HeldMatrix]:
        return (self.rows.take(at) for at in self.split_rows())

    def draw(self, rng: Streams, size: int) -> Array:
        """The numbers of a batch of rows, drawn without replacement."""
        return np.sort(rng("batch").choice(self.rows.n, size, replace=False))

    def _draw_batch(self, rng: Streams, B: int) -> tuple[Array, Array]:
        """The numbers of a batch of rows, and by how much the sums over its parts are multiplied, (G,) or (1,).

        Where a site has a rule, every part is drawn by itself: a part of the batch, too, is no fewer rows than that.
        """
        n, rows = self.rows.n, self.rows
        if self.least_rows == 1 or not isinstance(rows, LabelledRows) or rows.part is None:
            return self.draw(rng, B), np.full(1, n / B)
        counts, draw = rows.counts, rng("batch")
        sizes = np.minimum(counts, np.maximum(np.rint(B * counts / n).astype(np.int64), self.least_rows))
        drawn = [draw.choice(np.flatnonzero(rows.part == g), size, replace=False) for g, size in enumerate(sizes)]
        return np.sort(np.concatenate(drawn)), counts / np.maximum(sizes, 1)

    def split_rows(self) -> list[slice]:
        """All rows, in blocks that fit a cache, without a copy."""
        return [slice(k, min(k + ROWS_AT_ONCE, self.rows.n)) for k in range(0, self.rows.n, ROWS_AT_ONCE)]

    @task(
        releases={"n": Sensitivity(0), "features": Sensitivity(0)},
        shows="its number of rows (with limits on groups or classes, of each of them) and its number of features",
    )
    def open(self, state: RowsMemory, arrays: Arrays, rng: Streams) -> tuple[RowsMemory, Arrays]:
        """How many rows each part has, and how many features there are."""
        self.rows.check()
        return state, {"n": self.rows.counts, "features": np.array(self.rows.features)}

    @task(releases={"n": Sensitivity(0)}, shows="its number of rows")
    def tally(self, state: RowsMemory, arrays: Arrays, rng: Streams) -> tuple[RowsMemory, Arrays]:
        """How many rows there are; with noise, in private runs."""
        return state, {"n": np.array(self.rows.n)}

    @task(releases={"rows": HISTOGRAM}, shows="how many of its rows have which class")
    def count_classes(self, state: RowsMemory, arrays: Arrays, rng: Streams) -> tuple[RowsMemory, Arrays]:
        """How many rows each class has; with noise, in private runs."""
        return state, {"rows": self.rows.class_counts}

    @task(
        releases={"n": Sensitivity(0), "loss": None, "grad": None, "bad": None},
        shows="the loss and its gradient, summed over a batch of its rows, and its number of rows",
    )
    def gradient(self, state: RowsMemory, arrays: Arrays, rng: Streams) -> tuple[RowsMemory, Arrays]:
        """(N_i/B) Σ f_g and (N_i/B) Σ ∇f_g over a batch: q_{s,m} of Algorithms 1 and 2, line 4."""
        rows, n, B = self.recall(state), self.rows.n, int(arrays["batch"]) if "batch" in arrays else self.batch
        whole = B == 0 or n <= B
        require_rows(self, n if whole else B)
        at, scale = (np.arange(0), np.ones(1)) if whole else self._draw_batch(rng, B)
        blocks = self.split_rows() if whole else np.array_split(at, -(-len(at) // ROWS_AT_ONCE))
        with np.errstate(over="ignore", invalid="ignore"):
            pieces = [rows.sums(arrays["omega"], at) for at in blocks]
        loss, grad = (sum(part[1:], start=part[0]) for part in zip(*pieces, strict=True))
        return state, {"n": self.rows.counts, **mark_finite(loss=loss * scale, grad=grad * scale[:, None])}

    @task(
        releases={"n": Sensitivity(0), "loss": None, "bad": None},
        shows="the loss summed over all its rows, and its number of rows",
    )
    def losses(self, state: RowsMemory, arrays: Arrays, rng: Streams) -> tuple[RowsMemory, Arrays]:
        """Σ f_g over all rows: one number for each part, so that a constraint can be verified."""
        rows = self.recall(state)
        with np.errstate(over="ignore", invalid="ignore"):
            pieces = [rows.losses(arrays["omega"], at) for at in self.split_rows()]
        return state, {"n": self.rows.counts, **mark_finite(loss=np.sum(pieces, axis=0))}

    @task(
        releases={"n": None, "loss": None, "right": None},
        shows="of the rows that it holds out, by part: how many there are, the sum of their losses, and how many are "
        "predicted rightly",
    )
    def measure_parts(self, state: RowsMemory, arrays: Arrays, rng: Streams) -> tuple[RowsMemory, Arrays]:
        """What the rows that were held out say of the limits."""
        if self.held_rows is None:
            zeros = np.zeros(len(self.rows.counts))
            return state, {"n": zeros, "loss": zeros, "right": zeros}
        self.held_rows.use(state.scaling)
        with np.errstate(over="ignore", invalid="ignore"):
            found = self.held_rows.measure(arrays["omega"])
        enough = found["n"] >= self.least_rows  # of a part with fewer nothing is said
        kept = {name: np.nan_to_num(sums, nan=1e300, posinf=1e300) for name, sums in found.items()}
        return state, {name: np.where(enough, sums, 0.0) for name, sums in kept.items()}

    @task(
        releases={"n": Sensitivity(0), "grad": Sensitivity(1)},
        shows="gradients of a batch of its rows, each cut to a bound, summed, and the size of the batch",
    )
    def clipped(self, state: RowsMemory, arrays: Arrays, rng: Streams) -> tuple[RowsMemory, Arrays]:
        """Σ over a batch of fixed size of ∇f, each of norm at most `clip`: one row changes it by at most `clip`.

        The batch is the same share of every client's rows, so the plain sum weighs clients by their samples.
        """
        size = min(self.rows.n, max(self.least_rows, round(float(arrays["share"]) * self.rows.n)))
        at = self.draw(rng, size)
        return state, {"n": np.array(size), "grad": self.recall(state).clipped(arrays["omega"], at, self.clip)[None]}

    @task(releases={"grad": Sensitivity(1)}, shows="gradients of rows drawn in secret, each cut to a bound, summed")
    def sampled(self, state: RowsMemory, arrays: Arrays, rng: Streams) -> tuple[RowsMemory, Arrays]:
        """Σ ∇f over rows that are each in it with probability `rate`, each of norm at most `clip`."""
        n = self.rows.n
        uniform = rng("sample").random(n) if self.simulate else rng.draw_in_secret("sample", n)
        at = np.flatnonzero(uniform < self.rate)
        scaled = RowsMemory(scaling_from(arrays)) if "mean" in arrays else state  # public bounds come with the question
        grad = self.recall(scaled).clipped(arrays["omega"], at, self.clip)[None]
        return state, {"grad": grad.astype(np.float64)}


def mark_finite(**arrays: Array) -> dict[str, Array]:
    """The arrays, with the mark that they are finite; else zeros in their place: what is not finite does not leave."""
    bad = not all(np.isfinite(array).all() for array in arrays.values())
    sent = {name: np.zeros_like(array) for name, array in arrays.items()} if bad else arrays
    return {**sent, "bad": np.array(int(bad))}


def can_be_squared(*arrays: Array) -> bool:
    """Whether even the squares of all numbers can be added up."""
    with np.errstate(over="ignore", invalid="ignore"):
        return all(bool(np.isfinite(np.vdot(array, array))) for array in arrays)


class SampleBased:
    """How a server of sample-based learning comes to its sums; the fields are those of its subclasses."""

    client: ClassVar[type[Client[object]]] = SampleClient
    family: ClassVar[str] = "learning"
    model: Model
    batch: int
    clip: float
    rounds: int
    private: Sampling | None
    standardize: bool
    prior: EarlierModel | None

    def client_options(self) -> dict[str, float | int | str | bool]:
        net = self.model
        sizes = {"hidden": net.hidden, "classes": net.classes} if isinstance(net, Swish) else {}
        more = {"intercept": True} if isinstance(net, Swish) and net.intercept else {}
        draw = {"rate": self.private.rate, "simulate": self.private.simulate} if self.private else {}
        return {**sizes, **more, "batch": self.batch, "clip": self.clip, **draw}

    def batch_rows(self) -> int:
        return 0 if self.private else self.batch

    def asks(self) -> frozenset[str]:
        """The tasks of the opening and of a batch."""
        if self.private:
            return frozenset({"sampled"})
        return frozenset({"open", "clipped" if self.clip else "gradient"}) | self.scaling_tasks()

    def scaling_tasks(self) -> frozenset[str]:
        """The tasks by which the scaling of the columns is found or told."""
        if self.private:
            return frozenset()
        if self.prior is not None and self.prior.scaling is not None:
            return frozenset({"take_scaling"})
        return SCALING_TASKS if self.standardize else frozenset()

    def course(self) -> Course:
        """The opening, and one batch in each of the rounds."""
        if self.private:
            return Course((), (Turn("sampled", rounds=self.rounds),))
        batch = "clipped" if self.clip else "gradient"
        return Course(self.opening_turns(), (Turn(batch, rounds=self.rounds, after=["open"]),))

    def opening_turns(self) -> tuple[Turn, ...]:
        """What is asked first, and then how the scaling of the columns is found or told."""
        scaling = sorted(self.scaling_tasks())
        return (Turn("open"), Turn(*scaling, after=["open"])) if scaling else (Turn("open"),)

    def replay(self) -> Replay | str:
        """All that is sent is ω, shares of rows that follow from the sums, and the scaling, which does too."""
        if not isinstance(self.model, Swish):
            return "the sites do not have the model of the job"
        if self.prior is not None:
            return "the sites do not have the model that the run starts from"
        told: dict[str, Comparison] = {"omega": CLOSE, "share": CLOSE, "batch": CLOSE}
        tasks = self.asks() - SCALING_TASKS
        return {**{task: told if task != "open" else {} for task in tasks}, **self.scaling_replay()}

    def scaling_replay(self) -> dict[str, dict[str, Comparison]]:
        """How the questions about the scaling are compared."""
        return {task: SCALING_REPLAY[task] for task in self.scaling_tasks()}

    def planned(self) -> tuple[Release, ...]:
        """What a private run will release: sums of gradients of rows that are drawn in secret."""
        p = self.private
        return (Release("sampled", "grad", self.rounds, 1.0 - p.spent, p.rate),) if p else ()

    def simulates(self) -> bool:
        return self.private is not None and self.private.simulate

    def opening(self, rng: Streams) -> Round[tuple[Opening, Array]]:
        """N_g, and ω¹."""
        if self.private:
            if self.standardize and not (self.prior and self.prior.scaling):
                raise InputError("The scaling of a private run must be known beforehand; give it as prior.")
            p, scaling = self.private, self.prior.scaling if self.prior else None
            return Opening(np.array([p.rows]), (), (p.features,), scaling), self.begin(p.features, rng)
        replies = yield from complete(Ask("open", want=Sum("n", "features")))
        clients, features = len(replies.asked), int(replies.total["features"])
        if features % clients:
            raise InputError("The clients have different numbers of features. Give all clients the same columns.")
        n = replies.total["n"]
        if not n.any():
            raise InputError("No client has a row to learn from.")
        features //= clients
        scaling = yield from self.scale_columns(self.count_rows(n))
        return Opening(n, replies.asked, (features,), scaling), self.begin(features, rng)

    def count_rows(self, n: Array) -> float:
        """How many rows there are, from the rows of each part; the functions of a torch model are of all rows each."""
        return float(n.sum() if isinstance(self.model, Swish) else n.max())

    def scale_columns(self, n: float) -> Round[Scaling | None]:
        """The scaling of the columns, which is known beforehand, or found by sums; None: there is none."""
        if self.prior is not None and self.prior.scaling is not None:
            yield from tell_scaling(self.prior.scaling)
            return self.prior.scaling
        return (yield from find_scaling(n)) if self.standardize else None

    def begin(self, features: int, rng: Streams) -> Array:
        """ω¹: that of an earlier model, or the model's own start."""
        if self.prior is None or not len(self.prior.omega):
            return self.model.start(features, rng("start"))
        return self.prior.omega.copy()

    def most_rows(self, opening: Opening) -> int:
        """What a batch may grow to: about all rows of a client."""
        return int(opening.n.sum()) // max(len(opening.clients), 1)

    def gather(self, omega: Array, opening: Opening, rng: Streams, batch: int | None = None) -> Round[Sums]:
        """Mean losses and gradients of a batch: lines 3 and 4 of Algorithms 1 and 2. Clients that fail are left out."""
        if self.private:
            known = scaling_arrays(opening.scaling) if opening.scaling else {}
            total = (yield Ask("sampled", {"omega": omega, **known}, Sum("grad"))).total
            expected = self.private.rate * self.private.rows
            return Sums(opening.n, np.full(1, np.nan), total["grad"] / expected, True)
        if self.clip:
            share = min(1.0, self.batch * len(opening.clients) / float(opening.n.sum()))
            ask = Ask("clipped", {"omega": omega, "share": np.array(share)}, Sum("n", "grad"))
            total = (yield ask).total
            return Sums(total["n"][None], np.full(1, np.nan), total["grad"] / total["n"], True)
        grown = {} if batch is None or batch == self.batch else {"batch": np.array(batch)}
        return _means((yield Ask("gradient", {"omega": omega, **grown}, Sum("n", "loss", "grad", "bad"))).total)

    def gather_all(self, omega: Array, opening: Opening, gradients: bool = True) -> Round[Sums]:
        """The same over all rows of all clients; without gradients it costs a number for each part and client."""
        if gradients:
            arrays, want = {"omega": omega, "batch": np.array(0)}, Sum("n", "loss", "grad", "bad")
            return _means((yield from complete(Ask("gradient", arrays, want, opening.clients))).total)
        ask = Ask("losses", {"omega": omega}, Sum("n", "loss", "bad"), opening.clients)
        return _means((yield from complete(ask)).total)

    def measure_held_out(self, omega: Array, opening: Opening) -> Round[PartSums]:
        """What the rows that were held out say, by part."""
        ask = Ask("measure_parts", {"omega": omega}, Sum("n", "loss", "right"), opening.clients)
        return PartSums.of((yield from complete(ask)).total)


def _means(total: Arrays) -> Sums:
    n = np.maximum(total["n"], 1)
    grad = total["grad"] / n[:, None] if "grad" in total else np.zeros((0, 0))
    return Sums(n, total["loss"] / n, grad, not int(total["bad"]))


def mean_loss(sums: Sums) -> float:
    """The mean loss over all parts."""
    return float(sums.loss @ sums.n / sums.n.sum())
