"""Mini-batch SSCA with several local iterations in a round, under the guard of held-out rows: what "auto" runs.

    Y. Cui, Y. Li, C. Ye. Sample-based and Feature-based Federated Learning for Unconstrained and Constrained Nonconvex
    Optimization via Mini-batch SSCA. arXiv, 2022. https://arxiv.org/abs/2104.06011 (Remark 2)
    S. P. Karimireddy et al. SCAFFOLD: Stochastic Controlled Averaging for Federated Learning. ICML, 2020.
    https://arxiv.org/abs/1910.06378 (the correction by c - c_i)

Notation: ω (d,) the parameters, g the mean gradient of a batch, v the momentum, η the step, β the momentum parameter, E
the local steps, a_i = n_i/n the share of client i's training rows, δ_i = ω_i - ω what its local steps changed, c_i the
mean of its own gradients in a round, c = Σ a_i c_i.

By Remark 2 an iteration of unconstrained SSCA is one of momentum SGD with η = γρ/2τ and β = (1-ρ)(1-γ). So a client
that iterates SSCA by itself, and a server that averages ω and the surrogate's linear part, are

    average:  v ← βv + g, ω_i ← ω_i - ηv, E times; then ω and v are averaged
    correct:  v = 0, then v ← .8v + g + c - c_i, ω_i ← ω_i - ηv/2, E times; D = Σ a_i δ_i, M ← .8M + D, ω ← ω + .8M + D

The second is for clients whose rows are unlike each other: then local steps lead apart. drift="auto" begins with the
first and changes to the second if Σ a_i‖δ_i‖² / ‖Σ a_i δ_i‖² of the first round is above `DRIFT` (1: all go the same
way).

blend: for tables of fewer rows than that, a logistic regression is found beside the network, from the same scaled rows
by L-BFGS on sums, one step in each round; the model is then the mean of both models' probabilities, unless held-out
rows clearly say that the network alone is better.

Each answer also has the loss of the held-out rows at the ω that was asked about, so the guard (training_guard.py) costs
no exchange of its own. In the end a temperature of at least 1 is fitted to the held-out rows (`calibrate`), and sums
over them evaluate the model.

What the server sees: sums over the clients, of their numbers of rows and of rows of each class, weighted by n_i of ω, v
or c_i and of losses; of ‖δ_i‖²; of the linear model's losses and their gradients; and of the losses, the confusion
matrix and the calibration curve of held-out rows.

What differs from the paper: local steps, the guard, held-out rows. No theorem covers them; Ssca has the paper's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from fedspan._types import Array, Arrays
from fedspan.algorithms.learning._labelled_rows import LabelledRows, Samples, check_at_least
from fedspan.algorithms.learning._samples import (
    DEFAULT_NET,
    LocalMemory,
    Opening,
    SampleBased,
    SampleClient,
    Sampling,
    mark_finite,
)
from fedspan.algorithms.learning.held_out import (
    Evaluation,
    count_held_out,
    deal_rows,
    measure_outputs,
    tell_site,
    temper_rows,
)
from fedspan.algorithms.learning.newton import LinearClient, LinearState, LogisticNewton, Standard, to_columns
from fedspan.algorithms.learning.scaling import EarlierModel, RowsMemory, Scaling, find_factor
from fedspan.algorithms.learning.training_guard import (
    SPREAD,
    HeldOutGuard,
    choose_temperature,
    judge,
    prior_loss,
    shorten,
)
from fedspan.core.protocol import Ask, Client, Course, Replay, Round, Server, Sum, Turn, complete, task
from fedspan.core.replay import CLOSE, Comparison
from fedspan.core.rng import Streams
from fedspan.errors import InputError
from fedspan.numerics.swish import Swish, join_models, linear_proba, softmax

DRIFT = 2.0  # on MNIST and digits 1.1 to 1.2 if rows were dealt at random, 4 to 5 in two shards; two classes apart: 2.3
_TURN, _OUTER = 0.8, 0.8  # momentum of corrected local steps, and of the server's
_CAREFUL = 0.5  # of η in corrected steps: both momenta together make them longer
_TOL_BESIDE = 1e-10  # of the linear model beside the network
_EVIDENCE = 2.0  # nats over all held-out rows: evidence of 7 to 1 that the network alone is better
_TOL_ALONE, _STEPS_ALONE = 1e-8, 40  # of a linear model that a client finds by itself
_LARGE_LOSS = 1e6  # stands for a loss that is not finite
_STEP_NUMBERS = ("rate", "momentum", "l2", "steps")


class LocalSscaClient(SampleClient):
    """A client that takes local steps, and holds rows out."""

    State = LocalMemory

    def __init__(
        self,
        data: tuple[object, ...] | Samples,
        hidden: int = 0,
        classes: int = 0,
        batch: int = 0,
        clip: float = 0.0,
        intercept: bool = False,
        validation: float = 0.1,
    ) -> None:
        super().__init__(data, hidden, classes, batch, clip, intercept=intercept)
        if not isinstance(self.rows, LabelledRows):
            raise InputError("Held-out rows need the built-in network; use method 'ssca' for a torch model.")
        self.labelled = self.rows
        self.train, self.held = deal_rows(self.labelled.y, validation)
        self.beside: LinearClient | None = None

    def init(self) -> LocalMemory:
        return LocalMemory()

    def _weigh_held(self) -> Array:
        """The weight of the held-out rows: losses are divided by that of the clients that answered."""
        weight = self.labelled.weight
        return np.array(float(len(self.held) if weight is None else weight[self.held].sum()))

    def _evaluate_held(self, state: RowsMemory, omega: Array) -> float:
        """Σ loss over the held-out rows: a number that can be added."""
        rows = self.recall(state)
        with np.errstate(over="ignore", invalid="ignore"):
            loss = sum(float(rows.losses(omega, at).sum()) for at in _blocks(self.held))
        return float(loss) if np.isfinite(loss) else _LARGE_LOSS * len(self.held)

    def _step_locally(
        self, rows: Samples, arrays: Arrays, v: Array, shift: Array | float, rng: Streams
    ) -> tuple[Array, Array, Array, float]:
        """ω_i and v after E steps, the mean of the gradients, and the mean loss on the way."""
        omega, n = arrays["omega"].copy(), len(self.train)
        rate, momentum, l2 = (float(arrays[name]) for name in ("rate", "momentum", "l2"))
        E, B = int(arrays["steps"]), min(self.batch or n, n)
        passes = -(-E * B // n)
        order = np.concatenate([rng(f"pass {k}").permutation(self.train) for k in range(passes)])
        v, mean, total = v.copy(), np.zeros_like(omega), 0.0
        with np.errstate(over="ignore", invalid="ignore"):
            for k in range(E):
                loss, grad = rows.sums(omega, order[k * B : (k + 1) * B])
                g = grad.sum(axis=0)
                g /= B
                g += 2 * l2 * omega
                mean += g / E
                v *= momentum
                v += g + shift
                omega -= rate * v
                total += float(loss.sum()) / (B * E)
        return omega, v, mean, total

    @task(
        releases={"held": None, "all": None},
        shows="how many of its rows have which class, and how many of those that it holds out",
    )
    def survey_labels(self, state: LocalMemory, arrays: Arrays, rng: Streams) -> tuple[LocalMemory, Arrays]:
        """The weight of each class among the held-out rows, and among all."""
        weight, y, L = self.labelled.weight, self.labelled.y, self.labelled.net.classes
        w = np.ones(len(y)) if weight is None else weight
        held, every = (np.bincount(y[at], w[at], minlength=L).astype(np.float64) for at in (self.held, slice(None)))
        return state, {"held": held, "all": every}

    @task(
        releases=dict.fromkeys(("n", "held", "held_weight", "loss", "omega", "v", "square", "bad")),
        shows="the model's parameters and momentum after its own local steps, how far these led, its losses (also of "
        "rows that it holds out), and its number of training rows",
    )
    def learn(self, state: LocalMemory, arrays: Arrays, rng: Streams) -> tuple[LocalMemory, Arrays]:
        """E steps with momentum from the server's ω and v, and n_i times where they led."""
        rows, n = self.recall(state), len(self.train)
        omega, v, _, loss = self._step_locally(rows, arrays, arrays["v"], 0.0, rng)
        sent = _weigh(n, arrays["omega"], loss, omega, v=v)
        held = np.array(self._evaluate_held(state, arrays["omega"]))
        return state, {"n": np.array(n), "held": held, "held_weight": self._weigh_held(), **sent}

    @task(
        releases=dict.fromkeys(("n", "held", "held_weight", "loss", "omega", "control", "square", "bad")),
        shows="the model's parameters after its own local steps, its mean gradient on the way, how far these led, its "
        "losses (also of rows that it holds out), and its number of training rows",
    )
    def learn_corrected(self, state: LocalMemory, arrays: Arrays, rng: Streams) -> tuple[LocalMemory, Arrays]:
        """E steps that are corrected by c - c_i, once c_i is known, and n_i times where they led."""
        rows, n = self.recall(state), len(self.train)
        shift = 0.0 if state.control is None else arrays["control"] - state.control
        omega, _, mean, loss = self._step_locally(rows, arrays, np.zeros_like(arrays["omega"]), shift, rng)
        sent = _weigh(n, arrays["omega"], loss, omega, control=mean)
        held = np.array(self._evaluate_held(state, arrays["omega"]))
        after = state if int(sent["bad"]) else replace(state, control=mean)
        return after, {"n": np.array(n), "held": held, "held_weight": self._weigh_held(), **sent}

    def _open_beside(self, state: RowsMemory) -> LinearClient:
        """The client of the linear model: the rows to train on, as the network takes them."""
        if self.beside is None:
            rows, at = self.labelled, self.train
            rows.use(state.scaling)
            weight = None if rows.weight is None else rows.weight[at]
            self.beside = LinearClient((rows.scale(at), rows.y[at], weight), "logistic", rows.net.classes)
        return self.beside

    @task(
        releases={"loss": None, "grad": None, "bad": None},
        shows="the loss of a linear model and its gradient, summed over its rows",
    )
    def slope_beside(self, state: LocalMemory, arrays: Arrays, rng: Streams) -> tuple[LocalMemory, Arrays]:
        """Σ f and Σ ∇f of the linear model beside the network."""
        return state, self._open_beside(state).slope(None, _ask_beside(arrays["theta"], state.scaling), rng)[1]

    @task(
        releases={"held": None, "held_weight": None},
        shows="the loss summed over the rows that it holds out, and their weight",
    )
    def look_at_held_out(self, state: LocalMemory, arrays: Arrays, rng: Streams) -> tuple[LocalMemory, Arrays]:
        """Σ loss over the held-out rows."""
        held = np.array(self._evaluate_held(state, arrays["omega"]))
        return state, {"held": held, "held_weight": self._weigh_held()}

    @task(
        releases={"losses": None, "wrong": None},
        shows="the loss summed over the rows that it holds out, and what it would be if all were wrong, at several "
        "temperatures",
    )
    def temper(self, state: LocalMemory, arrays: Arrays, rng: Streams) -> tuple[LocalMemory, Arrays]:
        """Σ loss over the held-out rows at every temperature."""
        outputs, y, _ = self._compute_outputs(state, arrays["omega"])
        losses, wrong = temper_rows(outputs, y, SPREAD)
        return state, {"losses": losses, "wrong": wrong}

    @task(
        releases={"network": None, "both": None},
        shows="the loss summed over the rows that it holds out, of the network and of its mean with the linear model",
    )
    def compare_models(self, state: LocalMemory, arrays: Arrays, rng: Streams) -> tuple[LocalMemory, Arrays]:
        """Σ loss over the held-out rows, without the linear model and with it."""
        outputs, y, weight = self._compute_outputs(state, arrays["omega"])
        both = self._add_beside(outputs, arrays["beside"])
        network, mean = (measure_outputs(each, y, weight)["loss"] for each in (outputs, both))
        return state, {"network": network, "both": mean}

    def _add_beside(self, outputs: Array, W: Array) -> Array:
        """The logarithms of the mean of both models' probabilities for the held-out rows."""
        Q = (softmax(outputs) + linear_proba(W, self.labelled.scale(self.held))) / 2
        return np.asarray(np.log(np.maximum(Q, 1e-300)))

    @task(
        releases=dict.fromkeys(("n", "held_weight", "loss", "confusion", "curve", "alone")),
        shows="how the model does on the rows that it holds out: loss, confusion matrix and calibration curve, summed; "
        "and how many of them a linear model of its own rows alone gets right, with its loss",
    )
    def evaluate(self, state: LocalMemory, arrays: Arrays, rng: Streams) -> tuple[LocalMemory, Arrays]:
        """The held-out rows by their class, the predicted class, and the probability of it."""
        outputs, y, weight = self._compute_outputs(state, arrays["omega"])
        if "beside" in arrays:
            outputs = self._add_beside(outputs, arrays["beside"])
        alone, found = self._measure_alone(state, y, weight, rng), measure_outputs(outputs, y, weight)
        tell_site(found, alone)
        return state, {**found, "held_weight": self._weigh_held(), "alone": alone}

    def _measure_alone(self, state: RowsMemory, y: Array, weight: Array | None, rng: Streams) -> Array:
        """How many held-out rows a linear model of this client's other rows gets right, and Σ of its losses."""
        if not len(y):
            return np.zeros(2)
        twin, L = self._open_beside(state), self.labelled.net.classes
        by_class = np.bincount(twin.y, twin.weight, minlength=L).astype(np.float64)
        server = LogisticNewton(classes=L, l2=0.5 / twin.n, tol=_TOL_ALONE, solver="lbfgs")
        linear = server.begin(_standardise(server, twin.features, state.scaling, by_class))
        for _ in range(_STEPS_ALONE):
            sums = twin.slope(None, _ask_beside(linear.candidate, state.scaling), rng)[1]
            linear = server.advance(linear, sums)
            if linear.closed:
                break
        Q = linear_proba(_weigh_classes(linear, L), self.labelled.scale(self.held))
        loss = -np.log(np.maximum(Q[np.arange(len(y)), y], 1e-15))
        right = float(np.sum(Q.argmax(axis=1) == y))
        return np.array([right, float(loss.sum() if weight is None else loss @ weight)])

    def _compute_outputs(self, state: RowsMemory, omega: Array) -> tuple[Array, Array, Array | None]:
        """The model's outputs for the held-out rows, their classes and weights."""
        rows = self.labelled
        rows.use(state.scaling)
        weight = None if rows.weight is None else rows.weight[self.held]
        parts = [rows.outputs(omega, at) for at in _blocks(self.held)]
        outputs = np.concatenate(parts) if parts else np.zeros((0, rows.net.classes))
        return outputs, rows.y[self.held], weight


def _ask_beside(theta: Array, scaling: Scaling | None) -> dict[str, Array]:
    """What a client of the linear model is asked: scaled rows have mean 0, and deviations of f."""
    P = len(theta) - 1
    inverse = np.full(P, 1 / find_factor(scaling))
    return {"theta": theta, "mean": np.zeros(P), "inverse": inverse, "target": np.array([0.0, 1.0])}


def _standardise(server: LogisticNewton, features: int, scaling: Scaling | None, by_class: Array) -> Standard:
    """Where the linear model begins: it knows the shares of the classes, and no column."""
    weight, loss = float(by_class.sum()), server.row_loss
    start = np.zeros((features + 1, loss.columns))
    start[-1] = loss.null_predictors(by_class / weight)
    known = _ask_beside(start, scaling)
    return Standard(round(weight), weight, known["mean"], known["inverse"], known["target"], start)


def _weigh_classes(linear: LinearState, classes: int) -> Array:
    """W (P+1, L) of the linear model, for the rows as the network takes them."""
    contrast = LogisticNewton(classes=classes).row_loss.contrast
    return to_columns(linear.standard, linear.theta) @ contrast.T


def _blocks(at: Array, size: int = 2000) -> list[Array]:
    return [at[k : k + size] for k in range(0, len(at), size)]


def _weigh(n: int, before: Array, loss: float, omega: Array, **more: Array) -> dict[str, Array]:
    """What local steps led to, times n_i, with n_i‖δ_i‖²."""
    with np.errstate(over="ignore", invalid="ignore"):
        square = np.array(n * float(np.sum((omega - before) ** 2)))
        weighed = {name: n * array for name, array in {"omega": omega, **more}.items()}
        return mark_finite(loss=np.array(n * loss), square=square, **weighed)


@dataclass(frozen=True)
class LocalSscaState:
    """ω, what moves it, and what the guard knows."""

    opening: Opening
    t: int
    omega: Array  # (d,)
    v: Array  # (d,), of averaged steps
    outer: Array  # (d,) M, of corrected ones
    control: Array  # (d,) c
    guard: HeldOutGuard
    held_rows: float  # 0: there are none, and the training loss is looked at
    loss: float = np.nan  # mean training loss along the last local steps
    held: float = np.nan  # mean loss of the held-out rows at the last ω that was asked about
    corrected: bool = False
    drift: float = np.nan  # Σ a_i‖δ_i‖² / ‖Σ a_i δ_i‖² of the last round
    linear: LinearState | None = None  # of the model beside the network, if there is one
    finished: bool = False
    temperature: float = 1.0
    evaluation: Evaluation | None = None
    failed: bool = False


@dataclass(frozen=True)
class LocalSsca(SampleBased, Server[LocalSscaState]):
    """E local iterations of SSCA, guarded by held-out rows. `l2` 0 takes 1/(number of rows).

    Below `blend` rows of all clients the model is the mean with a linear one.
    """

    model: Swish = DEFAULT_NET
    batch: int = 100
    rounds: int = 1000
    steps: int = 10
    rate: float = 0.2
    momentum: float = 0.9
    l2: float = 0.0
    drift: Literal["auto", "average", "correct"] = "auto"
    validation: float = 0.1
    early_stopping: bool = True
    calibrate: bool = True
    blend: int = 0
    standardize: bool = False
    prior: EarlierModel | None = None
    clip: float = 0.0
    private: Sampling | None = None

    State = LocalSscaState
    client: ClassVar[type[Client[object]]] = LocalSscaClient

    def __post_init__(self) -> None:
        if not self.rate > 0:
            raise InputError(f"rate, the step, must be above 0, but is {self.rate!r}.")
        if not 0 <= self.momentum < 1:
            raise InputError(f"momentum must be from 0 to below 1, but is {self.momentum!r}.")
        if not 0 <= self.validation < 1:
            raise InputError(f"validation, the share of held-out rows, must be below 1, but is {self.validation!r}.")
        if self.drift not in ("auto", "average", "correct"):
            raise InputError(f"drift must be 'auto', 'average' or 'correct', but is {self.drift!r}.")
        if self.clip or self.private:
            raise InputError(
                "LocalSsca cannot be combined with clip or private, because nothing bounds where local steps lead. "
                "Use Ssca or FedSgd."
            )
        for name, value in (("rounds", self.rounds), ("steps", self.steps)):
            check_at_least(name, value, 1)
        for name, number in (("batch", self.batch), ("l2", self.l2), ("blend", self.blend)):
            check_at_least(name, number, 0)

    def client_options(self) -> dict[str, float | int | str | bool]:
        return {**super().client_options(), "validation": self.validation}

    def held_out_rows(self, rows: int) -> int:
        return count_held_out(rows, self.validation)

    def asks(self) -> frozenset[str]:
        kinds = {"auto": {"learn", "learn_corrected"}, "average": {"learn"}, "correct": {"learn_corrected"}}
        after = {"look_at_held_out", "evaluate"} if self.validation else set()
        calibrated = {"temper"} if self.validation and self.calibrate else set()
        beside = {"slope_beside"} | ({"compare_models"} if self.validation else set()) if self.blend else set()
        tasks = {"open", "survey_labels"} | kinds[self.drift] | beside | after | calibrated
        return frozenset(tasks) | self.scaling_tasks()

    def course(self) -> Course:
        """The opening, local steps in each round, and in the last one what the held-out rows say."""
        steps = sorted(self.asks() & {"learn", "learn_corrected"})
        last = [task for task in ("look_at_held_out", "temper", "compare_models", "evaluate") if task in self.asks()]
        beside = (Turn("slope_beside", rounds=self.rounds, after=["survey_labels"]),) if self.blend else ()
        return Course(
            (*self.opening_turns(), Turn("survey_labels", after=["open"])),
            (
                *beside,
                Turn(*steps, rounds=self.rounds, after=["survey_labels"]),
                *(Turn(task, rounds=1, after=["survey_labels"]) for task in last),
            ),
        )

    def replay(self) -> Replay | str:
        known = super().replay()
        if isinstance(known, str):
            return known
        told: dict[str, Comparison] = dict.fromkeys(("omega", "v", "control", *_STEP_NUMBERS), CLOSE)
        seen: dict[str, dict[str, Comparison]] = {
            "open": {},
            "survey_labels": {},
            "learn": told,
            "learn_corrected": told,
            "slope_beside": {"theta": CLOSE},
            "compare_models": {"omega": CLOSE, "beside": CLOSE},
            "evaluate": {"omega": CLOSE, "beside": CLOSE},
        }
        return {task: seen.get(task, {"omega": CLOSE}) for task in self.asks()} | self.scaling_replay()

    def init(self, rng: Streams) -> Round[LocalSscaState]:
        opening, omega = yield from self.opening(rng)
        labels = (yield from complete(Ask("survey_labels", want=Sum("held", "all")))).total
        held = float(labels["held"].sum())
        prior = prior_loss(labels["held"] if held else labels["all"], labels["all"])
        guard = HeldOutGuard(omega, np.inf, prior, self.rate)
        zero = np.zeros_like(omega)
        first = self.drift == "correct"
        state = LocalSscaState(opening, 0, omega, zero, zero, zero, guard, held, corrected=first)
        if self.count_rows(opening.n) >= self.blend:
            return state
        return replace(state, linear=self._start_beside(opening, labels["all"] - labels["held"]))

    def _start_beside(self, opening: Opening, by_class: Array) -> LinearState:
        server = self._beside(opening)
        return server.begin(_standardise(server, opening.features[0], opening.scaling, by_class))

    def _beside(self, opening: Opening) -> LogisticNewton:
        """How the linear model is found: with scikit-learn's usual penalty, C = 1."""
        l2 = 0.5 / self.count_rows(opening.n)
        return LogisticNewton(classes=self.model.classes, l2=l2, tol=_TOL_BESIDE, solver="lbfgs")

    def round(self, state: LocalSscaState, rng: Streams) -> Round[LocalSscaState]:
        if state.linear is not None and not state.linear.closed:
            ask = Ask("slope_beside", {"theta": state.linear.candidate}, Sum("loss", "grad", "bad"))
            total = (yield from complete(ask)).total
            state = replace(state, linear=self._beside(state.opening).advance(state.linear, total))
        name = "control" if state.corrected else "v"
        momentum = _TURN if state.corrected else self.momentum
        l2 = self.l2 or 1 / float(state.opening.n.sum())
        rate = state.guard.rate * (_CAREFUL if state.corrected else 1.0)
        numbers = {"rate": rate, "momentum": momentum, "l2": l2, "steps": self.steps}
        arrays = {"omega": state.omega, name: state.control if state.corrected else state.v}
        arrays |= {key: np.array(value) for key, value in numbers.items()}
        want = Sum("n", "held", "held_weight", "loss", "omega", name, "square", "bad")
        total = (yield Ask("learn_corrected" if state.corrected else "learn", arrays, want)).total
        n = float(total["n"])
        loss = np.inf if int(total["bad"]) else float(total["loss"]) / n
        held_out = float(total["held_weight"])  # of the clients that answered
        held = float(total["held"]) / held_out if held_out else loss
        state = self._move(replace(state, t=state.t + 1, loss=loss, held=held), total, n)
        last = state.t >= self.rounds or (state.guard.closed and self.early_stopping)
        return (yield from self._finish(state)) if last else state

    def _move(self, state: LocalSscaState, total: Arrays, n: float) -> LocalSscaState:
        """Where to go from here: on, or back to the best ω with half the step."""
        n_all = float(state.opening.n.sum())
        guard, back = judge(state.guard, state.omega, state.held, n_all, rough=state.corrected)
        if not back and int(total["bad"]):  # the steps themselves led to infinity
            guard, back = shorten(guard), True
        if back:
            zero = np.zeros_like(state.omega)
            return replace(state, guard=guard, omega=guard.best, v=zero, outer=zero)
        D = total["omega"] / n - state.omega
        length = float(D @ D)
        drift = float(total["square"]) / n / length if length > 0 else 1.0
        state = replace(state, guard=guard, drift=drift)
        if state.corrected:
            outer = _OUTER * state.outer + D
            return replace(state, omega=state.omega + _OUTER * outer + D, outer=outer, control=total["control"] / n)
        changes = self.drift == "auto" and state.t == 1 and drift > DRIFT
        v = np.zeros_like(D) if changes else total["v"] / n
        return replace(state, omega=state.omega + D, v=v, corrected=changes)

    def _finish(self, state: LocalSscaState) -> Round[LocalSscaState]:
        """The best ω, with a temperature, and how it does on held-out rows."""
        guard, everyone = state.guard, state.opening.clients
        if not state.held_rows:
            return replace(state, omega=guard.best, finished=True)
        if not np.array_equal(state.omega, guard.best):
            ask = Ask("look_at_held_out", {"omega": state.omega}, Sum("held", "held_weight"), everyone)
            seen = (yield ask).total
            held = float(seen["held"]) / max(float(seen["held_weight"]), 1e-300)
            guard, _ = judge(guard, state.omega, held, np.inf)
            guard = replace(guard, cuts=state.guard.cuts, explosions=state.guard.explosions)
        omega, T = guard.best, 1.0
        if self.calibrate:
            ask = Ask("temper", {"omega": omega}, Sum("losses", "wrong"), everyone)
            tempered = (yield ask).total
            T = choose_temperature(tempered["losses"], tempered["wrong"], state.held_rows)
            omega = self._cool(omega, T)
        beside = {}
        if state.linear is not None:
            beside = {"beside": _weigh_classes(state.linear, self.model.classes)}
            ask = Ask("compare_models", {"omega": omega, **beside}, Sum("network", "both"), everyone)
            losses = (yield ask).total
            if float(losses["both"]) - float(losses["network"]) > _EVIDENCE:
                beside, state = {}, replace(state, linear=None)
        want = Sum("n", "held_weight", "loss", "confusion", "curve", "alone")
        sums = (yield Ask("evaluate", {"omega": omega, **beside}, want, everyone)).total
        rows, weight = max(float(sums["n"]), 1.0), max(float(sums["held_weight"]), 1e-300)
        alone = (float(sums["alone"][0]) / rows, float(sums["alone"][1]) / weight)
        found = Evaluation(rows, float(sums["loss"]) / weight, sums["confusion"], sums["curve"], alone)
        guard = replace(guard, best=omega)
        return replace(state, omega=omega, guard=guard, temperature=T, evaluation=found, finished=True)

    def _cool(self, omega: Array, T: float) -> Array:
        """ω with all outputs divided by T."""
        cooled = omega.copy()
        self.model.split(cooled)[0][...] /= T
        return cooled

    def done(self, state: LocalSscaState) -> bool:
        return state.finished

    def estimate(self, state: LocalSscaState) -> Array:
        """ω, and behind it the linear model's weights, if there is one."""
        omega = state.guard.best if state.finished else state.omega
        return omega if state.linear is None else join_models(omega, _weigh_classes(state.linear, self.model.classes))

    def metrics(self, state: LocalSscaState) -> dict[str, float]:
        found = {
            "cost": state.loss,
            "held_out_loss": state.held,
            "best_held_out_loss": state.guard.loss,
            "step": state.guard.rate,
            "drift": state.drift,
            "norm2": float(state.omega @ state.omega),
        }
        if state.evaluation is not None:
            seen = state.evaluation
            found |= {"held_out_accuracy": seen.accuracy, "calibrated_loss": seen.loss}
            if seen.alone is not None:
                found |= {"accuracy_alone": seen.alone[0], "loss_alone": seen.alone[1]}
        return found
