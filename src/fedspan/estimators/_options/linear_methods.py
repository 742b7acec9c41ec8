"""The parameters of linear regressions, and the method that they come to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, cast

import numpy as np

from fedspan.algorithms import LogisticNewton, RegressionNewton
from fedspan.algorithms.learning.newton import prefers_newton
from fedspan.errors import InputError
from fedspan.estimators._options.classifier_methods import RowClassifierParameters
from fedspan.estimators._options.common_parameters import MAX_ROUNDS
from fedspan.estimators.parameters import about
from fedspan.numerics.glm import LinearLoss, LossName

REGRESSION_LOSSES = ("squared", "poisson", "huber")


@dataclass(eq=False, repr=False, kw_only=True)
class RegressorParameters:
    """The parameters of a regression whose clients hold rows."""

    loss: str = field(
        default="squared",
        metadata=about(
            'The loss: "squared", "poisson" for counts, "huber" if outliers are feared.', choices=REGRESSION_LOSSES
        ),
    )
    solver: str = field(
        default="auto",
        metadata=about("How the optimum is found.", choices=("auto", "newton", "lbfgs")),
    )
    l2: float = field(default=0.0, metadata=about("The weight λ of ‖β‖² in the objective.", least=0))
    standardize: bool = field(
        default=True, metadata=about("Whether the penalty counts coefficients per standard deviation of their column.")
    )
    intercept: bool = field(default=True, metadata=about("Whether to fit an intercept, which is not penalised."))
    epsilon: float = field(
        default=1.35, metadata=about("From how many deviations on a residual counts linearly (huber).", least=1)
    )
    robust: bool = field(
        default=False, metadata=about("Whether standard errors shall hold even if the model is wrong.")
    )
    tol: float = field(
        default=1e-14, metadata=about("Stop when the next step promises a relative fall below this.", least=0, below=1)
    )
    max_rounds: int = field(default=100, metadata=MAX_ROUNDS)


@dataclass(frozen=True)
class ChosenRegression:
    """The method with all its options, and why its solver was taken."""

    method: RegressionNewton
    why: str


def choose_regression(asked: RegressorParameters, features: int) -> ChosenRegression:
    """The method that the parameters come to."""
    loss = cast(LossName, asked.loss)
    parameters = int(LinearLoss(loss).free(features, asked.intercept).sum())
    robust = asked.robust or loss == "huber"  # whose curvature alone does not tell how residuals spread
    solver, why = asked.solver, "as requested"
    if solver == "auto":
        solver, why = _choose_solver(LinearLoss(loss), features, asked.intercept)
    if solver == "lbfgs" and asked.robust:
        raise InputError(
            f"robust standard errors need the Hessian, but with {parameters:,} parameters it would be too large to "
            "send. Leave robust out, or set solver='newton'."
        )
    method = RegressionNewton(
        rounds=int(asked.max_rounds),
        l2=float(asked.l2),
        tol=float(asked.tol),
        intercept=bool(asked.intercept),
        standardize=bool(asked.standardize),
        solver=cast(Literal["newton", "lbfgs"], solver),
        robust=robust and solver == "newton",
        loss=loss,
        epsilon=float(asked.epsilon),
    )
    return ChosenRegression(method, why)


@dataclass(frozen=True)
class ChosenLogistic:
    """The same for a classifier without a hidden layer."""

    method: LogisticNewton
    why: str


def choose_logistic(asked: RowClassifierParameters, features: int, classes: int, rows: int) -> ChosenLogistic:
    """Logistic regression, for a classifier whose `hidden` is 0; what it cannot do is refused."""
    if asked.method != "auto" or asked.strict:
        raise InputError("hidden=0, a linear model, is for method='auto' without strict; other methods need cells.")
    lost = {
        "limits": asked.limits,
        "cost_limit": asked.cost_limit,
        "participation": asked.participation,
        "local_steps": asked.local_steps,
    }
    for name, value in lost.items():
        if value is not None:
            raise InputError(f"hidden=0, a linear model, cannot do {name}; leave it out, or set hidden to 1 or more.")
    if not isinstance(asked.standardize, bool | np.bool_):
        raise InputError("hidden=0 finds the scaling of the columns itself; set standardize to True or False.")
    chosen = _choose_solver(LinearLoss("logistic", classes), features, bool(asked.intercept))
    method = LogisticNewton(
        rounds=int(asked.rounds),
        l2=0.5 / max(rows, 1) if asked.l2 is None else float(asked.l2),
        intercept=bool(asked.intercept),
        standardize=bool(asked.standardize),
        solver=chosen[0],
        classes=classes,
    )
    return ChosenLogistic(method, chosen[1])


def _choose_solver(loss: LinearLoss, features: int, intercept: bool) -> tuple[Literal["newton", "lbfgs"], str]:
    """The faster solver for a model of that size, and why."""
    parameters = int(loss.free(features, intercept).sum())
    if prefers_newton(parameters, loss.name):
        return "newton", f"{parameters:,} parameters: the Hessian can be sent"
    return "lbfgs", f"{parameters:,} parameters: the Hessian would be too large to send"
