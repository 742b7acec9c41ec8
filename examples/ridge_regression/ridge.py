"""Ridge regression in closed form: exact, in two rounds, for rows that are spread over clients.

    A. E. Hoerl, R. W. Kennard. Ridge Regression: Biased Estimation for Nonorthogonal Problems. Technometrics, 1970.

Notation: X_i (n_i, d) the features and y_i (n_i,) the targets of client i, x̄ and ȳ their means over all clients,
A_i = [X_i - x̄, y_i - ȳ] (n_i, d+1), α the penalty. The weights w minimise ‖y - ȳ - (X - x̄)w‖² + α‖w‖², so

    (Σ A_iᵀA_i over the features + αI) w = Σ (X_i - x̄)ᵀ(y_i - ȳ)

What the server sees: n, the sums of all columns, and Σ A_iᵀA_i, the pooled second moments; then, if `check`, the sum of
squared errors and the gradient of the loss at w, which prove the answer. Only sums: secure aggregation hides all parts.

Sensitivities: in a private run the rows [x, y] are shortened to norm C (again after the means are subtracted). Then one
row more or less changes n by 1, the column sums by at most C, and A_iᵀA_i by ‖aaᵀ‖_F ≤ C². The errors depend on w
without a bound, so they have none: a private run needs check=False.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from fedspan.protocol import (
    Array,
    Arrays,
    Ask,
    Client,
    Release,
    Round,
    Sensitivity,
    Server,
    Streams,
    Sum,
    complete,
    task,
)


class RidgeClient(Client[None]):
    """A client that holds rows with a target for each: `data` is (X, y)."""

    State: ClassVar[type] = type(None)  # it remembers nothing
    needs: ClassVar[str] = "labelled"

    def __init__(self, data: tuple[Array, Array], row_norm: float | None = None) -> None:
        X, y = data
        self.rows, self.row_norm = np.column_stack([X, y]).astype(np.float64), row_norm

    def init(self) -> None:
        return None

    def shorten(self, rows: Array) -> Array:
        """The rows, each of norm at most C in a private run."""
        if self.row_norm is None:
            return rows
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        return rows * np.minimum(1.0, self.row_norm / np.maximum(norms, 1e-300))

    @task(releases={"n": Sensitivity(0), "total": Sensitivity(1)}, shows="its number of rows and its column sums")
    def count(self, state: None, arrays: Arrays, rng: Streams) -> tuple[None, Arrays]:
        """n_i and the sums of [X_i, y_i]."""
        return state, {"n": np.array(len(self.rows)), "total": self.shorten(self.rows).sum(axis=0)}

    @task(
        releases={"moments": Sensitivity(2)},
        shows="the second moments of its features and targets around the common means",
    )
    def second_moments(self, state: None, arrays: Arrays, rng: Streams) -> tuple[None, Arrays]:
        """A_iᵀA_i."""
        A = self.shorten(self.rows - arrays["mean"])
        return state, {"moments": A.T @ A}

    @task(
        releases={"squared_error": None, "gradient": None},
        shows="its sum of squared errors, and the gradient of its loss",
    )
    def residuals(self, state: None, arrays: Arrays, rng: Streams) -> tuple[None, Arrays]:
        """‖r‖² and X_iᵀr for the errors r of the model that is sent along."""
        A = self.rows - arrays["mean"]
        X, r = A[:, :-1], A[:, -1] - A[:, :-1] @ arrays["weights"]
        return state, {"squared_error": np.array(r @ r), "gradient": X.T @ r}


@dataclass(frozen=True)
class RidgeState:
    """The model, and what is known of it."""

    n: float
    mean: Array  # (d+1,) of the features, and of the target
    weights: Array  # (d,)
    variance: float = np.nan  # of the targets, times n
    error: float = np.nan  # the sum of squared errors, once it is checked
    gradient: float = np.nan  # ‖(X - x̄)ᵀr - αw‖, once it is checked: 0 up to rounding
    t: int = 0

    @property
    def intercept(self) -> float:
        """What is predicted where all features are 0."""
        return float(self.mean[-1] - self.mean[:-1] @ self.weights)


@dataclass(frozen=True)
class Ridge(Server[RidgeState]):
    """Ridge regression with an intercept, as scikit-learn's `Ridge(alpha)`.

    `check` takes a second round, in which the clients evaluate the model: its error is known then, and that it solves
    the problem.
    """

    alpha: float = 1.0
    check: bool = True

    State: ClassVar[type] = RidgeState
    client: ClassVar[type[Client[object]]] = RidgeClient
    family: ClassVar[str] = "regression"

    def asks(self) -> frozenset[str]:
        return frozenset({"count", "second_moments"} | ({"residuals"} if self.check else set()))

    def planned(self) -> tuple[Release, ...]:
        if self.check:
            return ()  # the residuals have no sensitivity
        opening = (Release("count", "n", 1, 0.02), Release("count", "total", 1, 0.08))
        return (*opening, Release("second_moments", "moments", 1, 0.9))

    def init(self, rng: Streams) -> Round[RidgeState]:
        sums = (yield from complete(Ask("count", want=Sum("n", "total")))).total
        n = max(float(sums["n"]), 1.0)
        mean = sums["total"] / n
        return RidgeState(n, mean, np.zeros(len(mean) - 1))

    def round(self, state: RidgeState, rng: Streams) -> Round[RidgeState]:
        if state.t == 0:
            return (yield from self.solve(state))
        return (yield from self.evaluate(state))

    def solve(self, state: RidgeState) -> Round[RidgeState]:
        """The weights, from the pooled second moments."""
        ask = Ask("second_moments", {"mean": state.mean}, Sum("moments"))
        M = (yield from complete(ask)).total["moments"]
        M = (M + M.T) / 2  # noise is not symmetric
        weights = np.linalg.solve(M[:-1, :-1] + self.alpha * np.eye(len(M) - 1), M[:-1, -1])
        return RidgeState(state.n, state.mean, weights, variance=float(M[-1, -1]), t=1)

    def evaluate(self, state: RidgeState) -> Round[RidgeState]:
        """How large the errors of the model are, and that no other weights are better."""
        model = {"mean": state.mean, "weights": state.weights}
        sums = (yield from complete(Ask("residuals", model, Sum("squared_error", "gradient")))).total
        gradient = float(np.linalg.norm(sums["gradient"] - self.alpha * state.weights))
        error = float(sums["squared_error"])
        return RidgeState(state.n, state.mean, state.weights, state.variance, error, gradient, t=2)

    def done(self, state: RidgeState) -> bool:
        return state.t == (2 if self.check else 1)

    def estimate(self, state: RidgeState) -> Array:
        return state.weights

    def metrics(self, state: RidgeState) -> dict[str, float]:
        return {"r2": 1 - state.error / state.variance, "gradient": state.gradient} if state.t == 2 else {}
