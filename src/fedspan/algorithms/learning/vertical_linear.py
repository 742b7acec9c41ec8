"""Linear regression when clients hold columns of the same rows: Newton's method by conjugate gradients on summed rows.

    S. G. Nash, A. Sofer. Assessing a Search Direction within a Truncated-Newton Method. Operations Research Letters,
    1990. https://doi.org/10.1016/0167-6377(90)90065-D
    A. B. Owen. A robust hybrid of lasso and ridge regression. Contemp. Math. 443, 2007 (Huber's loss with its scale)

Notation: X_i (n, P_i) the columns of client i, centred and scaled at home, the first client's with a column of ones for
the intercept; y (n,) the targets, which all clients know; η = Σ X_i β_i the predictors; f the loss of a row, s = f' and
c = f'' in η; λ the penalty, D its diagonal. A step solves (Xᵀ diag(c) X/n + 2λD) x = -g by conjugate gradients: p the
direction, r the residual, u = Σ X_i p_i. M_i, the client's own block of that matrix, is the preconditioner, so that
columns of one client cost no rounds. For the squared loss there is one step; for others the step is cut by halving.
Huber's σ is the best one for the residuals that there are, which every client finds by itself.

What the server sees: u in every round (n numbers, a sum over the clients), scalars, losses; and in the end the
coefficients in the units of the columns. It sees neither targets nor means and deviations of columns. A client sees
u and η.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import scipy.linalg

from fedspan._types import Array, Arrays, Matrix
from fedspan.algorithms.learning._labelled_rows import check_at_least, check_finite_rows, check_labels
from fedspan.algorithms.learning.scaling import Scaling, sum_columns, sum_squares, to_dense
from fedspan.core.protocol import PUBLIC, Ask, Client, Course, Needs, Replay, Round, Server, Sum, Turn, complete, task
from fedspan.core.rng import Streams
from fedspan.errors import InputError
from fedspan.numerics.glm import LinearLoss, LossName
from fedspan.numerics.swish import to_floats

_CUTS = 12  # of a step that makes the loss larger
_STEPS = 0.5 ** np.arange(_CUTS + 1)
_INNER = 0.01  # how far a step is solved if the loss is not quadratic, relative to ‖g‖² in M's inverse
_LEAST_CURVE = 1e-3  # relative curvature that is always assumed
_PERFECT = 1e-12  # a loss below this part of that without columns is none
_LOST = 1e-10  # relative size of a pivot that counts as zero


@dataclass(frozen=True)
class OwnPart:
    """What a client remembers: its coefficients and, within a step, where conjugate gradients are."""

    first: bool = False
    at: int = 0  # where its columns stand,
    features: int = 0  # of how many
    beta: Array | None = None  # (P_i,), with the intercept last at the first client
    x: Array | None = None  # (P_i,) the step so far
    r: Array | None = None
    z: Array | None = None
    p: Array | None = None


class ViewRegressionClient(Client[OwnPart]):
    """A client that holds some columns of all rows, and their targets: `data` is (X_i, y) or (X_i, y, weight)."""

    State = OwnPart
    needs: ClassVar[Needs] = "target"

    def __init__(
        self,
        data: tuple[Matrix, Array] | tuple[Matrix, Array, Array | None],
        loss: LossName = "squared",
        l2: float = 0.0,
        epsilon: float = 1.35,
        intercept: bool = True,
        standardize: bool = True,
    ) -> None:
        X, y = to_floats(data[0]), np.asarray(data[1], dtype=np.float64)
        check_labels(X.shape[0], len(y))
        check_finite_rows(X)
        self.y, self.l2, self.intercept = y, l2, intercept
        self.loss = LinearLoss(loss, epsilon=epsilon)
        self.loss.check_targets(y)
        weight = np.ones(len(y)) if len(data) < 3 or data[2] is None else np.asarray(data[2], dtype=np.float64)
        self.weight = weight / weight.sum()
        n = X.shape[0]
        mean, unit = sum_columns(X) / n, sum_columns(abs(X)) / n
        unit[unit == 0] = 1.0
        scaling = Scaling.of(mean, unit * np.sqrt(sum_squares(X, mean, unit) / n), unit)
        self.mean = mean if intercept else np.zeros_like(mean)
        self.slope = scaling.slope
        self.Z = (to_dense(X) - self.mean) * self.slope
        self.penalty = np.where(self.slope > 0, 1.0 if standardize else self.slope**2, 0.0)

    def init(self) -> OwnPart:
        return OwnPart()

    def _rows(self, first: bool) -> Array:
        """X_i, with the column of ones if that is this client's."""
        return np.column_stack([self.Z, np.ones(len(self.y))]) if first and self.intercept else self.Z

    def _penalties(self, first: bool) -> Array:
        return np.append(self.penalty, 0.0) if first and self.intercept else self.penalty

    def _scale_of(self, eta: Array) -> float:
        """Huber's σ: where the weighted mean of min((r/σ)², ε²) is 1."""
        square = np.square(eta - self.y)
        low, high = np.log(1e-150), 0.5 * np.log(max(float(self.weight @ square), 1e-290)) + 1.0
        for _ in range(80):
            middle = (low + high) / 2
            mean = self.weight @ np.minimum(square * np.exp(-2 * middle), self.loss.epsilon**2)
            low, high = (middle, high) if mean > 1 else (low, middle)
        return float(np.exp(high))

    def _parts(self, eta: Array) -> tuple[float, Array, Array]:
        """The mean loss, and s and c of every row with its weight."""
        predictors = eta[:, None]
        if self.loss.name == "huber":
            predictors = np.column_stack([eta, np.full(len(eta), self._scale_of(eta))])
        with np.errstate(over="ignore", invalid="ignore"):
            loss, slope, curve = self.loss(predictors, self.y)
        c = curve[:, 0, 0]
        if self.loss.name == "huber":
            c = np.maximum(c, _LEAST_CURVE * c.max(initial=0.0))
        return float(self.weight @ loss), self.weight * slope[:, 0], self.weight * c

    def _precondition(self, first: bool, c: Array, r: Array) -> Array:
        """M_i⁻¹ r, with what M_i does not know left at 0."""
        X, penalty = self._rows(first), self._penalties(first)
        M = (X * c[:, None]).T @ X + np.diag(2 * self.l2 * penalty)
        values, V = scipy.linalg.eigh(M)
        keep = values > _LOST * max(float(values[-1]), 0.0)
        return np.asarray(V[:, keep] @ ((V[:, keep].T @ r) / values[keep]))

    @task(releases={"n": PUBLIC, "features": PUBLIC}, shows="its number of rows and its number of features")
    def open_part(self, state: OwnPart, arrays: Arrays, rng: Streams) -> tuple[OwnPart, Arrays]:
        """n and P_i."""
        return state, {"n": np.array(len(self.y)), "features": np.array(self.Z.shape[1])}

    @task(releases={}, shows="")
    def place(self, state: OwnPart, arrays: Arrays, rng: Streams) -> tuple[OwnPart, Arrays]:
        """Where its columns stand; the first client has the intercept."""
        at = int(arrays["at"])
        return OwnPart(at == 0, at, int(arrays["features"])), {}

    @task(releases={"eta": None}, shows="what the best prediction without columns is (from the first client)")
    def start_columns(self, state: OwnPart, arrays: Arrays, rng: Streams) -> tuple[OwnPart, Arrays]:
        """β = 0, but for the intercept, which fits best without columns."""
        X = self._rows(state.first)
        beta = np.zeros(X.shape[1])
        if state.first and self.intercept:
            mean = float(self.weight @ self.y)
            beta[-1] = np.log(max(mean, 1e-12)) if self.loss.name == "poisson" else mean
        return replace(state, beta=beta), {"eta": X @ beta}

    @task(
        releases={"rz": None, "loss": None},
        shows="how steep the loss is along its own coefficients (one number), and the loss (from the first client)",
    )
    def turn(self, state: OwnPart, arrays: Arrays, rng: Streams) -> tuple[OwnPart, Arrays]:
        """Take the step that was found, and begin with another one: g and M⁻¹g at the new η."""
        beta = _known(state.beta)
        if state.x is not None:
            beta = beta + float(arrays["step"]) * state.x
        loss, s, c = self._parts(arrays["eta"])
        penalty = self._penalties(state.first)
        r = -(self._rows(state.first).T @ s + 2 * self.l2 * penalty * beta)
        z = self._precondition(state.first, c, r)
        own = self.l2 * float(penalty @ beta**2) + (loss if state.first else 0.0)
        after = replace(state, beta=beta, x=np.zeros_like(beta), r=r, z=z, p=np.zeros_like(beta))
        return after, {"rz": np.array(float(r @ z)), "loss": np.array(own)}

    @task(releases={"u": None, "ridge": None}, shows="what a change of its coefficients would add to each prediction")
    def propose(self, state: OwnPart, arrays: Arrays, rng: Streams) -> tuple[OwnPart, Arrays]:
        """p ← z + b p, u = X_i p and its part of pᵀ(2λD)p."""
        p = _known(state.z) + float(arrays["b"]) * _known(state.p)
        penalty = self._penalties(state.first)
        ridge = 2 * self.l2 * float(penalty @ p**2)
        return replace(state, p=p), {"u": self._rows(state.first) @ p, "ridge": np.array(ridge)}

    @task(
        releases={"rz": None, "curve": None},
        shows="how steep the loss still is along its own coefficients, and its curvature (from the first client)",
    )
    def advance(self, state: OwnPart, arrays: Arrays, rng: Streams) -> tuple[OwnPart, Arrays]:
        """x ← x + a p, r ← r - a H p, with a = rz / pᵀHp."""
        _, _, c = self._parts(arrays["eta"])
        u, p = arrays["u"], _known(state.p)
        curve = float(c @ u**2)
        bent = curve + float(arrays["ridge"])
        a = float(arrays["rz"]) / bent if bent > 0 else 0.0
        Hp = self._rows(state.first).T @ (c * u) + 2 * self.l2 * self._penalties(state.first) * p
        r = _known(state.r) - a * Hp
        z = self._precondition(state.first, c, r)
        after = replace(state, x=_known(state.x) + a * p, r=r, z=z)
        return after, {"rz": np.array(float(r @ z)), "curve": np.array(curve if state.first else 0.0)}

    @task(releases={"losses": None}, shows="the loss at some lengths of a step (from the first client)")
    def try_steps(self, state: OwnPart, arrays: Arrays, rng: Streams) -> tuple[OwnPart, Arrays]:
        """The objective at η + t v for every t: the losses from the first client, penalties from each."""
        penalty, beta, x = self._penalties(state.first), _known(state.beta), _known(state.x)
        found = np.array([self.l2 * float(penalty @ (beta + t * x) ** 2) for t in _STEPS])
        if state.first:
            losses = np.array([self._parts(arrays["eta"] + t * arrays["v"])[0] for t in _STEPS])
            found += np.where(np.isfinite(losses), losses, 1e300)
        return state, {"losses": found}

    @task(
        releases={"coef": None, "offset": None, "scale": None},
        shows="its coefficients, which are its part of the model, and its part of the intercept",
    )
    def tell_coefficients(self, state: OwnPart, arrays: Arrays, rng: Streams) -> tuple[OwnPart, Arrays]:
        """β in the units of the columns among zeros for all others; and Huber's σ, from the first client."""
        beta = _known(state.beta)
        own = beta[: self.Z.shape[1]] * self.slope
        coef = np.zeros(state.features)
        coef[state.at : state.at + len(own)] = own
        offset = -float(own @ self.mean) + (float(beta[-1]) if state.first and self.intercept else 0.0)
        scale = self._scale_of(arrays["eta"]) if state.first and self.loss.name == "huber" else 0.0
        return state, {"coef": coef, "offset": np.array(offset), "scale": np.array(scale)}


def _known(array: Array | None) -> Array:
    if array is None:
        raise InputError("This client has not begun: 'start_columns' and 'turn' must be asked first.")
    return array


@dataclass(frozen=True)
class VerticalLinearState:
    """η, and where conjugate gradients are; the coefficients stay with the clients until the end."""

    clients: tuple[str, ...]
    features: tuple[int, ...]
    n: int
    t: int
    eta: Array  # (n,)
    v: Array  # (n,) what the step so far changes η by
    rz: float
    first_rz: float  # of this step
    b: float
    loss: float
    decrement: float  # gᵀM⁻¹g where a step began: the loss could fall by about half of it
    coef: Array  # (P,), empty before the end
    inner: int = 0  # directions of this step
    first_loss: float = 0.0  # without columns
    intercept: float = 0.0
    scale: float = 1.0
    closed: bool = False
    failed: bool = False


@dataclass(frozen=True)
class VerticalLinear(Server[VerticalLinearState]):
    """The regression of all columns together. `tol` is the relative fall that the next step promises when it stops."""

    loss: LossName = "squared"
    rounds: int = 200
    l2: float = 0.0
    tol: float = 1e-14
    epsilon: float = 1.35
    intercept: bool = True
    standardize: bool = True

    State = VerticalLinearState
    client: ClassVar[type[Client[object]]] = ViewRegressionClient
    family: ClassVar[str] = "vertical"

    def __post_init__(self) -> None:
        LinearLoss(self.loss, epsilon=self.epsilon)
        check_at_least("rounds", self.rounds, 1)
        for name, value in (("l2", self.l2), ("tol", self.tol)):
            check_at_least(name, value, 0)

    def client_options(self) -> dict[str, float | int | str | bool]:
        return {
            "loss": self.loss,
            "l2": self.l2,
            "epsilon": self.epsilon,
            "intercept": self.intercept,
            "standardize": self.standardize,
        }

    def asks(self) -> frozenset[str]:
        opening = {"open_part", "place", "start_columns"}
        return frozenset(opening | {"turn", "propose", "advance", "try_steps", "tell_coefficients"})

    def course(self) -> Course:
        """A direction in each round; where a step is done, its length and another beginning; in the end what it is."""
        turn = Turn("turn", after=["start_columns"])
        return Course(
            (
                Turn("open_part"),
                Turn("place", after=["open_part"]),
                Turn("start_columns", after=["place"]),
                turn,
            ),
            (
                Turn("propose", after=["turn"]),
                Turn("advance", after=["propose"]),
                Turn("try_steps", after=["advance"]),
                turn,
                Turn("tell_coefficients", rounds=1, after=["turn"]),
            ),
        )

    def replay(self) -> Replay | str:
        return "each client is told by itself where its columns stand"

    def init(self, rng: Streams) -> Round[VerticalLinearState]:
        each = (yield from complete(Ask("open_part"))).each
        rows = {client: int(arrays["n"]) for client, arrays in each.items()}
        first, n = next(iter(rows.items()))
        for client, count in rows.items():
            if count != n:
                raise InputError(
                    f"All clients must have the same rows, but client {first!r} has {n} and client {client!r} has "
                    f"{count}. Match the rows by their ids first."
                )
        clients = tuple(each)
        features = tuple(int(arrays["features"]) for arrays in each.values())
        at = np.cumsum([0, *features])
        for client, start in zip(clients, at[:-1], strict=True):
            told = {"at": np.array(start), "features": np.array(at[-1])}
            yield from complete(Ask("place", told, to=(client,)))
        eta = (yield from complete(Ask("start_columns", want=Sum("eta"), to=clients))).total["eta"]
        blank = VerticalLinearState(
            clients, features, n, 0, eta, np.zeros(n), 0.0, 0.0, 0.0, np.inf, np.inf, coef=np.zeros(0)
        )
        return (yield from self._begin(blank, eta, 0.0))

    def _begin(self, state: VerticalLinearState, eta: Array, step: float) -> Round[VerticalLinearState]:
        """The next step begins at η, where the clients take that part of the last one."""
        ask = Ask("turn", {"eta": eta, "step": np.array(step)}, Sum("rz", "loss"), state.clients)
        total = (yield from complete(ask)).total
        rz, loss = max(float(total["rz"]), 0.0), float(total["loss"])
        first_loss = state.first_loss if np.isfinite(state.loss) else loss
        return replace(
            state,
            eta=eta,
            v=np.zeros(state.n),
            rz=rz,
            first_rz=rz,
            b=0.0,
            loss=loss,
            decrement=rz,
            inner=0,
            first_loss=first_loss,
        )

    def round(self, state: VerticalLinearState, rng: Streams) -> Round[VerticalLinearState]:
        """A direction of conjugate gradients; where the step is solved, its length, and the next one begins."""
        state = replace(state, t=state.t + 1)
        last = state.t >= self.rounds
        if self._is_small(state, state.rz):
            return (yield from self._finish(state, closed=True))
        ask = Ask("propose", {"b": np.array(state.b)}, Sum("u", "ridge"), state.clients)
        found = (yield from complete(ask)).total
        u, ridge = found["u"], found["ridge"]
        told = {"u": u, "eta": state.eta, "rz": np.array(state.rz), "ridge": ridge}
        after = (yield from complete(Ask("advance", told, Sum("rz", "curve"), state.clients))).total
        bent = float(after["curve"]) + float(ridge)
        a = state.rz / bent if bent > 0 else 0.0
        rz = max(float(after["rz"]), 0.0)
        state = replace(state, v=state.v + a * u, rz=rz, b=rz / state.rz, inner=state.inner + 1)
        quadratic = self.loss == "squared"
        solved = self._is_small(state, rz) if quadratic else rz <= _INNER**2 * state.first_rz
        if not (solved or last or bent <= 0 or state.inner >= self._most_inner(state)):
            return state
        told = {"eta": state.eta, "v": state.v}
        losses = (yield from complete(Ask("try_steps", told, Sum("losses"), state.clients))).total["losses"]
        at = 0 if quadratic else int(np.argmax(losses <= state.loss))
        step = float(_STEPS[at]) if losses[at] <= state.loss + 1e-12 * abs(state.loss) else 0.0
        before = state
        state = yield from self._begin(state, state.eta + step * state.v, step)
        stuck = step == 0.0 or (not quadratic and before.loss - state.loss <= 1e-16 * abs(state.loss))
        if last or stuck or self._is_small(state, state.decrement):
            return (yield from self._finish(state, closed=self._is_small(state, state.decrement)))
        return state

    @staticmethod
    def _most_inner(state: VerticalLinearState) -> int:
        """Directions until a step begins anew, which takes out what rounding has put in."""
        return sum(state.features) + 5

    def _is_small(self, state: VerticalLinearState, decrement: float) -> bool:
        return decrement <= self.tol * max(abs(state.loss), _PERFECT * abs(state.first_loss), 1e-300)

    def _finish(self, state: VerticalLinearState, closed: bool) -> Round[VerticalLinearState]:
        ask = Ask("tell_coefficients", {"eta": state.eta}, Sum("coef", "offset", "scale"), state.clients)
        told = (yield from complete(ask)).total
        return replace(
            state,
            coef=told["coef"],
            intercept=float(told["offset"]),
            scale=float(told["scale"]),
            closed=closed,
            failed=not np.isfinite(state.loss),
        )

    def done(self, state: VerticalLinearState) -> bool:
        return bool(len(state.coef)) or state.t >= self.rounds

    def estimate(self, state: VerticalLinearState) -> Array:
        """The coefficients in the units of the columns, and the intercept; empty before the end."""
        return np.append(state.coef, state.intercept) if len(state.coef) else state.coef

    def metrics(self, state: VerticalLinearState) -> dict[str, float]:
        return {"cost": state.loss, "decrement": state.decrement}
