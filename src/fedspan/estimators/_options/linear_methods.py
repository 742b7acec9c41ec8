"""The parameters of linear regressions, and the method that they come to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, cast

from fedspan.algorithms import RegressionNewton
from fedspan.algorithms.learning.newton import prefers_newton
from fedspan.errors import InputError
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
    small = prefers_newton(parameters, loss)
    solver = ("newton" if small else "lbfgs") if asked.solver == "auto" else asked.solver
    why = "as requested"
    if asked.solver == "auto":
        size = f"{parameters:,} parameters"
        why = f"{size}: the Hessian can be sent" if small else f"{size}: the Hessian would be too large to send"
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
