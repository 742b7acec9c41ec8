"""Feature-based SSCA as momentum SGD, under the guard of held-out rows: what "auto" runs for views.

    Y. Cui, Y. Li, C. Ye. Sample-based and Feature-based Federated Learning for Unconstrained and Constrained Nonconvex
    Optimization via Mini-batch SSCA. arXiv, 2022. https://arxiv.org/abs/2104.06011 (Algorithm 3, Remark 2)

Notation as in local_ssca.py, with E = 1: a step of all clients together needs every client. The server draws the
held-out rows by their numbers, once, and batches from the others; every `every` rounds it looks at the held-out rows.

What the server and the clients see: as in vertical.py; and the server the sums that evaluate the model (the labels are
known to all clients; the first one computes them).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np

from fedspan._types import Array, Arrays
from fedspan.algorithms.learning._labelled_rows import check_at_least
from fedspan.algorithms.learning._samples import DEFAULT_NET, Opening
from fedspan.algorithms.learning.held_out import Evaluation, measure_outputs, temper_rows
from fedspan.algorithms.learning.scaling import EarlierModel
from fedspan.algorithms.learning.training_guard import (
    SPREAD,
    HeldOutGuard,
    choose_temperature,
    judge,
    prior_loss,
    shorten,
)
from fedspan.algorithms.learning.vertical import Block, FeatureBased, FeatureClient
from fedspan.algorithms.learning.views.view_rows import SwishViewRows, ViewRows
from fedspan.core.protocol import Ask, Client, Course, Replay, Round, Server, Sum, Turn, complete, task
from fedspan.core.replay import CLOSE, Comparison
from fedspan.core.rng import Streams
from fedspan.errors import InputError
from fedspan.numerics.swish import Swish, multiply, swish

_MOST_PASSES = 4  # in a round: held-out rows, a batch, and in the last one held-out rows at two ω
_MOST_HELD = 5000  # rows that are looked at: they travel as (rows, J)


class GuardedFeatureClient(FeatureClient):
    """A client that holds some columns of all rows, and can say how a model does on rows that are held out."""

    def __init__(
        self, data: tuple[Any, ...] | ViewRows, hidden: int = 0, classes: int = 0, intercept: bool = False
    ) -> None:
        super().__init__(data, hidden, classes, intercept)
        if not isinstance(self.rows, SwishViewRows):
            raise InputError("Held-out rows need the built-in network; use method 'ssca' for torch modules.")
        self.labelled = self.rows

    @task(releases={"held": None, "all": None}, shows="how many rows have which class, and how many of those held out")
    def survey_held_out(self, state: Block, arrays: Arrays, rng: Streams) -> tuple[Block, Arrays]:
        """The weight of each class among the held-out rows, and among all; from the first client."""
        known = self.labelled
        L = known.net.classes
        self.check_batch(arrays["rows"])
        w = np.ones(known.n) if known.weight is None else known.weight
        held, every = (
            np.bincount(known.y[at], w[at], minlength=L).astype(np.float64) for at in (arrays["rows"], slice(None))
        )
        return state, {"held": held * (state.first == 0), "all": every * (state.first == 0)}

    def _compute_outputs(self, arrays: Arrays) -> tuple[Array, Array, Array | None]:
        H = arrays["H"].sum(axis=0) if arrays["H"].ndim == 3 else arrays["H"]
        outputs = multiply(swish(H)[0], arrays["W0"])
        rows, known = arrays["rows"], self.labelled
        self.check_batch(rows)
        return outputs, known.y[rows], None if known.weight is None else known.weight[rows]

    @task(
        releases={"losses": None, "wrong": None},
        shows="the loss summed over the rows held out, and what it would be if all were wrong, at several temperatures",
    )
    def temper_together(self, state: Block, arrays: Arrays, rng: Streams) -> tuple[Block, Arrays]:
        """Σ loss over the held-out rows at every temperature; from the first client."""
        losses, wrong = temper_rows(*self._compute_outputs(arrays)[:2], SPREAD)
        return state, {"losses": losses * (state.first == 0), "wrong": wrong * (state.first == 0)}

    @task(
        releases=dict.fromkeys(("n", "loss", "confusion", "curve")),
        shows="how the model does on the rows held out: loss, confusion matrix and calibration curve, summed",
    )
    def evaluate_together(self, state: Block, arrays: Arrays, rng: Streams) -> tuple[Block, Arrays]:
        """The held-out rows by their class, the predicted class, and the probability of it; from the first client."""
        found = measure_outputs(*self._compute_outputs(arrays))
        return state, {name: array if state.first == 0 else np.zeros_like(array) for name, array in found.items()}


@dataclass(frozen=True)
class GuardedState:
    """ω, its momentum, and what the guard knows."""

    opening: Opening
    t: int
    omega: Array  # (d,)
    v: Array  # (d,)
    guard: HeldOutGuard
    train: Array  # row numbers
    held_out: Array
    loss: float = np.nan  # of the last batch
    held: float = np.nan  # mean loss of the held-out rows, when they were looked at last
    mean: float = np.nan  # of the batches' losses since then
    finished: bool = False
    temperature: float = 1.0
    evaluation: Evaluation | None = None
    failed: bool = False


@dataclass(frozen=True)
class VerticalGuarded(FeatureBased, Server[GuardedState]):
    """v ← βv + g, ω ← ω - ηv over all views, guarded by held-out rows. `l2` 0 takes 1/(number of rows)."""

    model: Swish = DEFAULT_NET
    batch: int = 100
    rounds: int = 2000
    rate: float = 0.1
    momentum: float = 0.9
    l2: float = 0.0
    every: int = 10
    validation: float = 0.1
    early_stopping: bool = True
    calibrate: bool = True
    standardize: bool = False
    prior: EarlierModel | None = None
    exchange: Literal["each", "sum"] = "sum"

    State = GuardedState
    client: ClassVar[type[Client[object]]] = GuardedFeatureClient

    def __post_init__(self) -> None:
        if self.exchange not in ("each", "sum"):
            raise InputError(f"exchange must be 'each' (the paper's) or 'sum', but is {self.exchange!r}.")
        if not self.rate > 0 or not 0 <= self.momentum < 1:
            raise InputError("rate must be above 0, and momentum from 0 to below 1.")
        if not 0 <= self.validation < 1:
            raise InputError(f"validation, the share of held-out rows, must be below 1, but is {self.validation!r}.")
        for name, value in (("rounds", self.rounds), ("every", self.every)):
            check_at_least(name, value, 1)
        for name, number in (("batch", self.batch), ("l2", self.l2)):
            check_at_least(name, number, 0)

    def held_out_rows(self, rows: int) -> int:
        return min(round(self.validation * rows), _MOST_HELD, rows - 1)

    def asks(self) -> frozenset[str]:
        after = {"survey_held_out", "evaluate_together"} if self.validation else {"survey_held_out"}
        calibrated = {"temper_together"} if self.validation and self.calibrate else set()
        return super().asks() | after | calibrated

    def course(self) -> Course:
        """The opening; in each round a batch and maybe the held-out rows; in the last one what these say in the end."""
        scaling = sorted(self.scaling_tasks())
        opening = (Turn("open"), Turn("take", *scaling, after=["open"]), Turn("survey_held_out", after=["take"]))
        last = [task for task in ("temper_together", "evaluate_together") if task in self.asks()]
        return Course(
            opening, (self.pass_turn(_MOST_PASSES), *(Turn(task, rounds=1, after=["survey_held_out"]) for task in last))
        )

    def replay(self) -> Replay | str:
        known = super().replay()
        if isinstance(known, str):
            return known
        seen: dict[str, Comparison] = {"rows": CLOSE, "H": CLOSE, "W0": CLOSE}
        more = self.asks() & {"temper_together", "evaluate_together"}
        return {**known, "survey_held_out": {"rows": CLOSE}, **dict.fromkeys(more, seen)}

    def init(self, rng: Streams) -> Round[GuardedState]:
        opening, omega = yield from self.opening(rng)
        n = int(opening.n[0])
        order = rng("held out").permutation(n)
        k = self.held_out_rows(n)
        held, train = np.sort(order[:k]), np.sort(order[k:])
        yield from self._tell_weights(omega, opening)
        labels = (
            yield from complete(Ask("survey_held_out", {"rows": held}, Sum("held", "all"), opening.clients))
        ).total
        guard = HeldOutGuard(
            omega, np.inf, prior_loss(labels["held"] if k else labels["all"], labels["all"]), self.rate
        )
        return GuardedState(opening, 0, omega, np.zeros_like(omega), guard, train, held)

    def round(self, state: GuardedState, rng: Streams) -> Round[GuardedState]:
        if state.t % self.every == 0:
            state = yield from self._look(state)
        train = state.train
        B = min(self.batch or len(train), len(train))
        rows = np.sort(rng("batch").choice(train, B, replace=False))
        sums = yield from self._pass(state.omega, state.opening, [rows], True)
        state = replace(state, t=state.t + 1)
        if sums.good:
            state = self._step(state, sums.grad[0], float(sums.loss[0]))
        else:
            state = self._go_back(replace(state, loss=np.inf), shorten(state.guard))
        last = state.t >= self.rounds or (state.guard.closed and self.early_stopping)
        return (yield from self._finish(state)) if last else state

    def _step(self, state: GuardedState, grad: Array, loss: float) -> GuardedState:
        l2 = self.l2 or 1 / float(state.opening.n[0])
        with np.errstate(over="ignore", invalid="ignore"):
            v = self.momentum * state.v + grad + 2 * l2 * state.omega
            omega = state.omega - state.guard.rate * v
        if not np.isfinite(omega).all():
            return self._go_back(replace(state, loss=np.inf), shorten(state.guard))
        mean = loss if np.isnan(state.mean) else 0.9 * state.mean + 0.1 * loss
        return replace(state, omega=omega, v=v, loss=loss, mean=mean)

    def _go_back(self, state: GuardedState, guard: HeldOutGuard) -> GuardedState:
        return replace(state, guard=guard, omega=guard.best, v=np.zeros_like(state.v), mean=np.nan)

    def _look(self, state: GuardedState) -> Round[GuardedState]:
        """The held-out rows at this ω; without any, the running mean of the batches' losses is what is known."""
        if len(state.held_out):
            sums = yield from self._pass(state.omega, state.opening, [state.held_out], False)
            held = float(sums.loss[0]) if sums.good else np.inf
        elif state.t == 0:
            return state
        else:
            held = state.mean
        guard, back = judge(state.guard, state.omega, held, float(state.opening.n[0]))
        state = replace(state, held=held)
        return self._go_back(state, guard) if back else replace(state, guard=guard)

    def _finish(self, state: GuardedState) -> Round[GuardedState]:
        """The best ω, with a temperature, and how it does on held-out rows."""
        before = state.guard
        state = yield from self._look(state)
        guard = replace(state.guard, cuts=before.cuts, explosions=before.explosions)
        omega, T, rows = guard.best, 1.0, state.held_out
        if not len(rows):
            return replace(state, omega=omega, guard=guard, finished=True)
        clients = state.opening.clients
        yield from self._tell_weights(omega, state.opening)
        h = yield from complete(Ask("forward", {"rows": rows}, self._want("h"), clients))
        H = np.stack([arrays["h"] for arrays in h.each.values()]) if h.each else h.total["h"]
        seen = {"rows": rows, "H": H, "W0": self.model.split(omega)[0]}
        if self.calibrate:
            tempered = (yield from complete(Ask("temper_together", seen, Sum("losses", "wrong"), clients))).total
            T = choose_temperature(tempered["losses"], tempered["wrong"], len(rows))
            omega = omega.copy()
            self.model.split(omega)[0][...] /= T
            seen = {**seen, "W0": self.model.split(omega)[0]}
        want = Sum("n", "loss", "confusion", "curve")
        sums = (yield from complete(Ask("evaluate_together", seen, want, clients))).total
        n = float(sums["n"])
        found = Evaluation(n, float(sums["loss"]) / n, sums["confusion"], sums["curve"])
        guard = replace(guard, best=omega)
        return replace(state, omega=omega, guard=guard, temperature=T, evaluation=found, finished=True)

    def done(self, state: GuardedState) -> bool:
        return state.finished

    def estimate(self, state: GuardedState) -> Array:
        return state.guard.best if state.finished else state.omega

    def metrics(self, state: GuardedState) -> dict[str, float]:
        found = {
            "cost": state.loss,
            "held_out_loss": state.held,
            "best_held_out_loss": state.guard.loss,
            "step": state.guard.rate,
            "norm2": float(state.omega @ state.omega),
        }
        if state.evaluation is not None:
            found |= {"held_out_accuracy": state.evaluation.accuracy, "calibrated_loss": state.evaluation.loss}
        return found
