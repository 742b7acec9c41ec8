"""Linear models by Newton's method on sums: logistic, squared, Poisson and Huber losses, with an L2 penalty.

    min F(θ) = (1/N) Σ f(θᵀa, y) + l2·‖θ without intercepts‖²

Notation: a = ((x - μ)/s, 1) a standardised row (P+1,), θ (P+1, K) the parameters in these units, the last row the
intercepts, f the loss of a row (numerics/glm.py), y in units of its own deviation where it has a unit; N the weight of
all rows (their number, if they are not weighted); g and H gradient and Hessian of F in the parameters that are free.

Each round evaluates F, g and H at a candidate: three sums. If F fell as it should, the next candidate is a Newton step
further; else it is halfway back. When gᵀH⁻¹g is below `tol`, a last step is taken, whose error is the square of that.
The squared loss is its own quadratic model: one round. solver="lbfgs" asks for F and g only, for models in which H
would be too large to send, and takes a few dozen rounds.

What the server sees: sums over the clients of their rows' numbers, columns, squares and targets (round 0), and of F, g
and H. H is a weighted second-moment matrix of all rows; secure aggregation hides whose. A client sees θ, μ and s.

Not for differential privacy: a row changes H and g by as much as its features are long, and Newton's method divides by
H, so that no noise that would hide a row leaves a usable step. (A classifier with noise is 'ssca' or 'fedsgd'.)

Where there is no single optimum: if columns depend on each other, the parameters are those of least norm (in these
units), and `rank` says so. If classes can be separated (or a Poisson mean tends to 0), F has its infimum at infinity:
the steps do not become small, or H loses rank on the way, and `infinite` says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
import scipy.sparse as sp

from fedspan._types import Array, Arrays
from fedspan.algorithms.learning._labelled_rows import check_at_least, check_finite_rows, check_labels
from fedspan.algorithms.learning._samples import mark_finite
from fedspan.algorithms.spectral.oneshot import pack_triangle, unpack_triangle
from fedspan.core.protocol import (
    Ask,
    Client,
    Course,
    Needs,
    Replay,
    Round,
    Sensitivity,
    Server,
    Sum,
    Turn,
    complete,
    task,
)
from fedspan.core.replay import Close, Comparison
from fedspan.core.rng import Streams
from fedspan.errors import InputError
from fedspan.numerics.glm import LinearLoss, LossName, invert_curvature, lbfgs_direction
from fedspan.numerics.operators import HeldMatrix

_BLOCK_ENTRIES = 1 << 20  # of rows that are looked at together
_ENOUGH = 1e-4  # of the fall that a straight line promises (Armijo)
_VALUE_ROUNDING = 1e-12  # relative rounding of F
_MOST_HALVINGS = 40
_LONG_STEP = 0.1  # a step of this size where gᵀH⁻¹g is nearly 0 leads to infinity
_NEWTON_LIMIT, _SQUARED_LIMIT = 500, 2000  # parameters up to which H is sent; for the squared loss it is sent once


def prefers_newton(parameters: int, loss: LossName) -> bool:
    """Whether to send H (a dozen rounds at most, parameters²/2 numbers in each), or gradients only (dozens)."""
    return parameters <= (_SQUARED_LIMIT if loss == "squared" else _NEWTON_LIMIT)


class LinearClient(Client[None]):
    """A client that holds rows and class numbers: `data` is (X, y), or (X, y, weight) with a weight for each row."""

    State: ClassVar[type] = type(None)
    needs: ClassVar[Needs] = "labelled"

    def __init__(
        self,
        data: tuple[HeldMatrix, Array] | tuple[HeldMatrix, Array, Array | None],
        loss: LossName = "logistic",
        classes: int = 2,
        epsilon: float = 1.35,
        intercept: bool = True,
    ) -> None:
        self.X, self.y = data[:2]
        weight = data[2] if len(data) > 2 else None
        self.loss = LinearLoss(loss, classes, epsilon)
        self.n, self.features = self.X.shape
        self.weight = np.ones(self.n) if weight is None else np.array(weight, dtype=np.float64)
        self.free = self.loss.free(self.features, intercept)
        check_labels(self.n, len(self.y))

    def init(self) -> None:
        return None

    def _split(self) -> Iterator[tuple[HeldMatrix, Array, Array]]:
        """Rows as they are held, targets and weights, some at a time."""
        step = max(16, _BLOCK_ENTRIES // (self.features + 1))
        kind = np.int64 if self.loss.name == "logistic" else np.float64
        for start in range(0, self.n, step):
            at = slice(start, start + step)
            yield self.X[at], np.array(self.y[at], dtype=kind), self.weight[at]

    def _blocks(self, arrays: Arrays) -> Iterator[tuple[Array, Array, Array]]:
        """Standardised rows with their ones, standardised targets, weights."""
        mean, inverse = arrays["mean"], arrays["inverse"]
        center, unit = arrays["target"]
        for rows, y, weight in self._split():
            A = np.ones((len(y), self.features + 1))
            np.subtract(_densify(rows), mean, out=A[:, :-1])
            A[:, :-1] *= inverse
            yield A, (y - center) / unit if self.loss.measured else y, weight

    @task(
        releases={"n": Sensitivity(0), "weight": None, "columns": None, "targets": None},
        shows="its number of rows, the sums of its columns, and the sum of its targets (or the rows of each class)",
    )
    def totals(self, state: None, arrays: Arrays, rng: Streams) -> tuple[None, Arrays]:
        """Σ 1, Σ w, Σ w x (P,) and Σ w t (T,)."""
        columns, targets = np.zeros(self.features), np.zeros(len(self.loss.contrast))
        for rows, y, weight in self._split():
            self.loss.check_targets(y)
            X = _densify(rows)
            check_finite_rows(X)
            columns += weight @ X
            targets += weight @ self.loss.target_columns(y)
        sums = {"weight": np.array(self.weight.sum()), "columns": columns, "targets": targets}
        return state, {"n": np.array(self.n), **sums}

    @task(
        releases={"squares": None, "deviation": None},
        shows="the squares of its columns and of its targets around the common mean, summed",
    )
    def deviations(self, state: None, arrays: Arrays, rng: Streams) -> tuple[None, Arrays]:
        """Σ w (x - μ)² (P,) and Σ w (y - ȳ)²."""
        squares, deviation = np.zeros(self.features), 0.0
        for rows, y, weight in self._split():
            squares += weight @ (_densify(rows) - arrays["mean"]) ** 2
            deviation += float(weight @ (y - arrays["center"]) ** 2) if self.loss.measured else 0.0
        return state, {"squares": squares, "deviation": np.array(deviation)}

    @task(
        releases={"loss": None, "grad": None, "H": None, "bad": None},
        shows="the loss, its gradient and its second derivatives (a weighted second-moment matrix), summed over its "
        "rows",
    )
    def curve(self, state: None, arrays: Arrays, rng: Streams) -> tuple[None, Arrays]:
        """Σ f, Σ ∇f (F,) and the upper triangle of Σ ∇²f."""
        size = self.free.size
        loss, grad, H = 0.0, np.zeros(self.free.shape), np.zeros((size, size))
        with np.errstate(all="ignore"):
            for A, y, weight in self._blocks(arrays):
                parts = self.loss(A @ arrays["theta"], y)
                loss += float(weight @ parts.loss)
                grad += A.T @ (parts.slope * weight[:, None])
                H += _second_moments(A, parts.curve * weight[:, None, None])
            free = self.free.ravel()
            triangle = pack_triangle(H[np.ix_(free, free)])
            return state, mark_finite(loss=np.array(loss), grad=grad[self.free], H=triangle)

    @task(
        releases={"loss": None, "grad": None, "bad": None},
        shows="the loss and its gradient, summed over all its rows",
    )
    def slope(self, state: None, arrays: Arrays, rng: Streams) -> tuple[None, Arrays]:
        """Σ f and Σ ∇f. Sparse rows stay sparse: they are shifted by what follows from their product."""
        theta, (center, unit) = arrays["theta"], arrays["target"]
        W = theta[:-1] * arrays["inverse"][:, None]
        shift = theta[-1] - arrays["mean"] @ W
        loss, grad = 0.0, np.zeros(self.free.shape)
        with np.errstate(all="ignore"):
            if sp.issparse(self.X):
                for rows, y, weight in self._split():
                    parts = self.loss(rows @ W + shift, (y - center) / unit if self.loss.measured else y)
                    loss += float(weight @ parts.loss)
                    R = parts.slope * weight[:, None]
                    total = R.sum(axis=0)
                    centred = rows.T @ R - np.multiply.outer(arrays["mean"], total)
                    grad[:-1] += centred * arrays["inverse"][:, None]
                    grad[-1] += total
            else:
                for A, y, weight in self._blocks(arrays):
                    parts = self.loss(A @ theta, y)
                    loss += float(weight @ parts.loss)
                    grad += A.T @ (parts.slope * weight[:, None])
            return state, mark_finite(loss=np.array(loss), grad=grad[self.free])

    @task(
        releases={"G": None},
        shows="products of the gradients of its rows' losses, summed (what robust standard errors need)",
    )
    def scores(self, state: None, arrays: Arrays, rng: Streams) -> tuple[None, Arrays]:
        """The upper triangle of Σ ∇f ∇fᵀ."""
        G = np.zeros((self.free.size, self.free.size))
        for A, y, weight in self._blocks(arrays):
            S = self.loss(A @ arrays["theta"], y).slope * weight[:, None]
            G += _second_moments(A, S[:, :, None] * S[:, None, :])
        free = self.free.ravel()
        return state, {"G": pack_triangle(G[np.ix_(free, free)])}


class TargetClient(LinearClient):
    """The same with numbers as targets."""

    needs: ClassVar[Needs] = "target"


def _densify(rows: HeldMatrix) -> Array:
    """In C order: BLAS may round differently for another."""
    held = rows if isinstance(rows, np.ndarray) else rows.toarray()
    return np.asarray(held, dtype=np.float64, order="C")


def _second_moments(A: Array, weights: Array) -> Array:
    """Σ_n weights_n ⊗ a_n a_nᵀ as a matrix over (feature, column), (P+1)K squared."""
    d, K = A.shape[1], weights.shape[1]
    H = np.zeros((d, K, d, K))
    for k in range(K):
        for j in range(k + 1):
            H[:, j, :, k] = (A * weights[:, j, k, None]).T @ A
            H[:, k, :, j] = H[:, j, :, k]
    return H.reshape(d * K, d * K)


@dataclass(frozen=True)
class Standard:
    """What round 0 found: how many rows there are, and the units in which θ is sought."""

    n: int
    weight: float  # N
    mean: Array  # (P,) μ
    inverse: Array  # (P,) 1/s, 0 for a constant column
    target: Array  # (2,) what is subtracted from targets, and what they are divided by
    start: Array  # (P+1, K) θ that fits best without features


@dataclass(frozen=True)
class LinearState:
    """θ is the best that was evaluated; `candidate` is what is asked next, `length`·`step` away from it."""

    standard: Standard
    t: int
    theta: Array  # (P+1, K)
    candidate: Array  # (P+1, K)
    step: Array  # (F,)
    length: float
    value: float  # F(θ), in units of a standardised target
    loss: float  # mean loss alone
    null: float  # mean loss of the start
    gradient: Array  # (F,) of F at θ
    hessian: Array  # (F, F) of the mean loss at θ, without the penalty; empty for L-BFGS
    meat: Array  # (F, F) mean of ∇f ∇fᵀ at θ; empty if it was not asked for
    decrement: float  # gᵀH⁻¹g at θ
    rank: int  # of H at θ,
    full: int  # and at the start
    steps: Array  # (m, F) of L-BFGS, and
    changes: Array  # (m, F) of the slope along them
    halved: int = 0
    closed: bool = False
    failed: bool = False  # no step made F smaller
    infinite: bool = False  # the optimum is at infinity


@dataclass(frozen=True)
class LinearNewton(Server[LinearState]):
    """What the two kinds of linear models share.

    `standardize` False penalises parameters in the units of the columns themselves. `robust` asks for Σ ∇f ∇fᵀ at the
    end, for standard errors that do not assume the model to be right.
    """

    rounds: int = 100
    l2: float = 0.0
    tol: float = 1e-14
    intercept: bool = True
    standardize: bool = True
    solver: Literal["newton", "lbfgs"] = "newton"
    robust: bool = False
    memory: int = 20

    State = LinearState
    client: ClassVar[type[Client[object]]] = LinearClient
    family: ClassVar[str] = "learning"

    def __post_init__(self) -> None:
        if self.solver not in ("newton", "lbfgs"):
            raise InputError(f"solver must be 'newton' or 'lbfgs', but is {self.solver!r}.")
        check_at_least("rounds", self.rounds, 1)
        check_at_least("memory", self.memory, 1)
        for name, value in (("l2", self.l2), ("tol", self.tol)):
            check_at_least(name, value, 0)

    @property
    def row_loss(self) -> LinearLoss:
        """The loss of a row."""
        raise NotImplementedError

    def client_options(self) -> dict[str, float | int | str | bool]:
        loss = self.row_loss
        return {"loss": loss.name, "classes": loss.classes, "epsilon": loss.epsilon, "intercept": self.intercept}

    def asks(self) -> frozenset[str]:
        rounds = "curve" if self.solver == "newton" else "slope"
        return frozenset({"totals", "deviations", rounds} | ({"scores"} if self.robust else set()))

    def course(self) -> Course:
        told, rounds = ["mean", "inverse", "target"], "curve" if self.solver == "newton" else "slope"
        opening = Turn("totals"), Turn("deviations", after=["totals"], tells=["mean", "center"])
        step = Turn(rounds, rounds=self.rounds, after=["deviations"], tells=told)
        scores = (Turn("scores", rounds=1, after=["deviations"], tells=told),) if self.robust else ()
        return Course(opening, (step, *scores))

    def replay(self) -> Replay | str:
        """θ follows from sums by a solve, whose rounding grows with the condition of H."""
        near, exact = Close(1e-6), Close()
        told: dict[str, Comparison] = {"theta": near, "mean": exact, "inverse": exact, "target": exact}
        opening: dict[str, dict[str, Comparison]] = {"totals": {}, "deviations": {"mean": exact, "center": exact}}
        return {task: opening.get(task, told) for task in self.asks()}

    def init(self, rng: Streams) -> Round[LinearState]:
        loss = self.row_loss
        total = (yield from complete(Ask("totals", want=Sum("n", "weight", "columns", "targets")))).total
        n, N = int(total["n"]), float(total["weight"])
        if not N > 0:
            raise InputError(f"The weights of all rows must sum to more than 0, but sum to {N:g}.")
        P, averages = len(total["columns"]), total["targets"] / N
        mean = total["columns"] / N if self.intercept else np.zeros(P)
        center = averages[:1] if self.intercept and loss.measured else np.zeros(1)
        ask = Ask("deviations", {"mean": mean, "center": center}, Sum("squares", "deviation"))
        spread = (yield from complete(ask)).total
        s, u = np.sqrt(np.maximum(spread["squares"], 0.0) / N), float(np.sqrt(max(float(spread["deviation"]), 0.0) / N))
        varies = s > n * np.finfo(np.float64).eps * np.abs(mean)  # else the rounding of the mean is all that is left
        inverse = np.where(varies, 1 / np.where(varies, s, 1.0), 0.0)
        target = np.array([float(center[0]), u if u > 0 else 1.0])
        start = np.zeros((P + 1, loss.columns))
        start[-1] = np.where(loss.free(P, self.intercept)[-1], loss.null_predictors(averages), 0.0)
        standard = Standard(n, N, mean, inverse, target, start)
        return self.begin(standard)

    def begin(self, standard: Standard) -> LinearState:
        """The state before the first round."""
        start = standard.start
        F = int(self.row_loss.free(len(standard.mean), self.intercept).sum())
        none, nothing = np.zeros((0, F)), np.zeros((0, 0))
        return LinearState(
            standard,
            t=0,
            theta=start,
            candidate=start.copy(),
            step=np.zeros(F),
            length=1.0,
            value=np.inf,
            loss=np.nan,
            null=np.nan,
            gradient=np.zeros(F),
            hessian=nothing,
            meat=nothing,
            decrement=np.inf,
            rank=F,
            full=F,
            steps=none,
            changes=none,
        )

    def penalties(self, standard: Standard) -> Array:
        """(P+1, K) 2·l2 for each parameter, in the units in which it is sought (those of Huber's loss are y's)."""
        weights = np.full(standard.start.shape, 2 * self.l2)
        if self.row_loss.name == "huber":
            weights *= standard.target[1]
        if not self.standardize:
            weights[:-1] *= standard.inverse[:, None] ** 2
        weights[-1] = 0.0
        return weights

    def round(self, state: LinearState, rng: Streams) -> Round[LinearState]:
        s = state.standard
        question = {"theta": state.candidate, "mean": s.mean, "inverse": s.inverse, "target": s.target}
        want = ("loss", "grad", "H", "bad") if self.solver == "newton" else ("loss", "grad", "bad")
        total = (yield from complete(Ask("curve" if "H" in want else "slope", question, Sum(*want)))).total
        found = self.advance(state, total)
        return (yield from self._finish(found)) if found.closed and not found.failed and self.robust else found

    def advance(self, state: LinearState, total: Arrays) -> LinearState:
        """The next candidate, from the sums at this one."""
        s, loss = state.standard, self.row_loss
        free = loss.free(len(s.mean), self.intercept)
        weights = self.penalties(s)
        mean_loss = float(total["loss"]) / s.weight
        value = mean_loss + 0.5 * float(np.sum(weights * state.candidate**2))
        promised = _ENOUGH * state.length * float(state.gradient @ state.step)
        if int(total["bad"]) or not value <= state.value + promised + _VALUE_ROUNDING * abs(state.value):
            return self._go_back(state, free)
        gradient = total["grad"] / s.weight + (weights * state.candidate)[free]
        known = replace(
            state,
            t=state.t + 1,
            theta=state.candidate,
            value=value,
            loss=mean_loss,
            null=mean_loss if state.t == 0 else state.null,
            length=1.0,
            halved=0,
        )
        if self.solver == "newton":
            H = unpack_triangle(total["H"]) / s.weight
            found = self._newton(known, gradient, H, weights[free])
        else:
            found = self._lbfgs(known, gradient, (state.candidate - state.theta)[free])
        found = replace(found, candidate=_move(found, free))
        if not found.closed:
            return found
        if loss.name == "squared" and self.solver == "newton":  # its own quadratic model: what it is there is known
            value -= found.decrement / 2
        theta = found.candidate
        mean_loss = value - 0.5 * float(np.sum(weights * theta**2))
        return replace(found, theta=theta, value=value, loss=max(mean_loss, 0.0))

    def _go_back(self, state: LinearState, free: Array) -> LinearState:
        """Half the way; if that has been tried too often, θ is as good as it gets."""
        if state.t == 0 or state.halved >= _MOST_HALVINGS:
            return replace(state, t=state.t + 1, closed=True, failed=True, candidate=state.theta)
        shorter = replace(state, t=state.t + 1, length=state.length / 2, halved=state.halved + 1)
        return replace(shorter, candidate=_move(shorter, free))

    def _newton(self, state: LinearState, gradient: Array, H: Array, weights: Array) -> LinearState:
        """The next step, and whether it is the last."""
        inverse = invert_curvature(H + np.diag(weights))
        step = -inverse.matrix @ gradient
        decrement = float(-gradient @ step)
        closed = self.row_loss.name == "squared" or decrement <= 2 * self.tol * max(state.null, 1e-300)
        full = inverse.rank if state.t == 1 else state.full
        away = (
            closed
            and self.row_loss.name in ("logistic", "poisson")
            and bool(np.abs(step).max(initial=0.0) > _LONG_STEP)
        )
        return replace(
            state,
            gradient=gradient,
            hessian=H,
            step=step,
            decrement=decrement,
            rank=inverse.rank,
            full=full,
            closed=closed,
            infinite=state.infinite or away or inverse.rank < full,
        )

    def _lbfgs(self, state: LinearState, gradient: Array, moved: Array) -> LinearState:
        """The same from the steps before; done when no entry of the gradient counts any more."""
        steps, changes = state.steps, state.changes
        change = gradient - state.gradient
        bent = float(moved @ change)
        if state.t > 1 and bent > 1e-10 * float(np.linalg.norm(moved) * np.linalg.norm(change)):
            steps = np.concatenate([steps, moved[None]])[-self.memory :]
            changes = np.concatenate([changes, change[None]])[-self.memory :]
        step = lbfgs_direction(gradient, steps, changes)
        small = bool(np.abs(gradient).max(initial=0.0) <= np.sqrt(self.tol) * max(state.null, 1e-300))
        if small:
            step = np.zeros_like(step)
        fall = float(-gradient @ step)
        return replace(state, gradient=gradient, step=step, decrement=fall, steps=steps, changes=changes, closed=small)

    def _finish(self, state: LinearState) -> Round[LinearState]:
        """Σ ∇f ∇fᵀ at the end."""
        s = state.standard
        question = {"theta": state.candidate, "mean": s.mean, "inverse": s.inverse, "target": s.target}
        G = (yield from complete(Ask("scores", question, Sum("G")))).total["G"]
        return replace(state, theta=state.candidate, meat=unpack_triangle(G) / s.weight)

    def done(self, state: LinearState) -> bool:
        return state.closed or state.t >= self.rounds

    def estimate(self, state: LinearState) -> Array:
        """(L or 1, P+1) the coefficients of the columns as they are, the last one the intercept."""
        return self.row_loss.contrast @ to_columns(state.standard, state.theta).T

    def metrics(self, state: LinearState) -> dict[str, float]:
        power = {"squared": 2, "huber": 1}.get(self.row_loss.name, 0)
        unit = float(state.standard.target[1]) ** power
        beta = self.estimate(state)[:, :-1]
        return {"cost": state.loss * unit, "decrement": state.decrement, "norm2": float(np.sum(beta**2))}


def _move(state: LinearState, free: Array) -> Array:
    """`length`·`step` from θ."""
    moved = state.theta.copy()
    moved[free] += state.length * state.step
    return moved


def to_columns(standard: Standard, theta: Array) -> Array:
    """(P+1, K) the parameters for columns and targets in their own units."""
    center, unit = standard.target
    out = theta.copy()
    out[:-1] *= standard.inverse[:, None]
    out[-1] -= standard.mean @ out[:-1]
    out *= unit
    out[-1, 0] += center
    return out


@dataclass(frozen=True)
class LogisticNewton(LinearNewton):
    """Logistic regression, multinomial for more than two classes."""

    classes: int = 2

    @property
    def row_loss(self) -> LinearLoss:
        return LinearLoss("logistic", self.classes)


@dataclass(frozen=True)
class RegressionNewton(LinearNewton):
    """Least squares (and ridge) in one round, Poisson regression, or Huber's robust regression with its scale."""

    loss: LossName = "squared"
    epsilon: float = 1.35

    client: ClassVar[type[Client[object]]] = TargetClient

    @property
    def row_loss(self) -> LinearLoss:
        return LinearLoss(self.loss, epsilon=self.epsilon)
