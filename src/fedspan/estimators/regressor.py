"""Linear regression of rows that stay at their clients, with standard errors; scikit-learn's conventions."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.metrics import d2_tweedie_score, r2_score
from sklearn.utils.validation import check_is_fitted

from fedspan._types import Array
from fedspan.algorithms.learning.inference import infer
from fedspan.algorithms.learning.newton import LinearState
from fedspan.core.ledger import Ledger
from fedspan.core.protection import RETRIES
from fedspan.core.run import Result
from fedspan.data.clients import open_clients
from fedspan.data.remote_tables import is_remote
from fedspan.errors import InputError
from fedspan.estimators._bases.coefficients import CoefficientTable, tabulate_coefficients
from fedspan.estimators._bases.export import linear_to_sklearn
from fedspan.estimators._bases.federated_estimator import (
    OF_RUN,
    OF_TABLES,
    ClientData,
    FederatedEstimator,
    FitOptions,
    name_coefficients,
)
from fedspan.estimators._bases.fitted_classifier import warn_of_fit
from fedspan.estimators._bases.labels import check_targets, match_to_rows
from fedspan.estimators._bases.new_rows_as_fitted import prepare_rows
from fedspan.estimators._bases.onnx_export import linear_to_onnx
from fedspan.estimators._options.linear_methods import ChosenRegression, RegressorParameters, choose_regression
from fedspan.estimators.parameters import about, check_parameters

_NO_PRIVACY = about(
    "None: there is no differential privacy for linear regression yet.",
    reason="A row changes the sums by as much as its features are long, and the solution divides by them, so that "
    "noise that hides a row would not leave a usable answer.",
    in_job=False,
)


@dataclass(eq=False, repr=False, kw_only=True)
class FederatedRegressor(RegressorMixin, FederatedEstimator, RegressorParameters):  # type: ignore[misc]
    """A linear regression of samples that are spread over clients: that of all rows together, to rounding.

    Parameters:
        loss: The loss: "squared", "poisson" for counts, "huber" if outliers are feared. Counts have mean e^(Xβ + b);
            Huber's loss finds the scale of the residuals by itself, as scikit-learn's does.
        solver: How the optimum is found. "auto" takes "newton" (sums of second moments: one round for the squared loss,
            about nine for the others) up to 500 parameters, 2000 for the squared loss, else "lbfgs" (sums of gradients:
            some dozen rounds, and no standard errors).
        l2: The weight λ of ‖β‖² in the objective, which is the mean loss (half the mean square, or half the deviance)
            plus l2·‖β‖²: `alpha` of scikit-learn's Ridge is 2·n·l2, that of PoissonRegressor 2·l2.
        standardize: Whether the penalty counts coefficients per standard deviation of their column. Without a penalty
            the answer is the same.
        intercept: Whether to fit an intercept, which is not penalised.
        epsilon: From how many deviations on a residual counts linearly (huber).
        robust: Whether standard errors shall hold even if the model is wrong. Always so for "huber".
        tol: Stop when the next step promises a relative fall below this.
        max_rounds: Stop after this many rounds in any case.
        privacy: None: there is no differential privacy for linear regression yet.
        secure: Whether the server may see only sums over the clients: True, or `Secure(threshold=…)`.
        engine: Where the clients run; None runs all of them in this process.
        callback: A function that is called after each round; `info.estimate` has the coefficients, the intercept last.
        verbose: Whether to show the rounds as they come: a bar in terminals and notebooks, a line a second elsewhere.
        checkpoint: A folder in which the run is saved after every round. A `fit` that finds it continues from there.
        random_state: The seed of all random streams. Nothing is drawn here, so it does not change the answer.

    Attributes:
        coef_: (n_features,) in the units of the columns.
        intercept_: The intercept, 0 without one.
        covariance_: (n_features + 1, n_features + 1) of the coefficients, the intercept last; empty after "lbfgs".
        deviance_, null_deviance_: Of this model, and of one without features (squared: sums of squares).
        residual_scale_: The standard deviation of the residuals; σ of Huber's loss; 1 for counts.
        degrees_of_freedom_, rank_: Rows minus independent parameters, and how many of these there are.
        converged_: Whether the optimum was found, and is finite.
        n_features_in_, n_samples_, n_clients_, n_rounds_, history_, ledger_, seed_: As in `FederatedPCA`.

    Examples:
        >>> import numpy as np
        >>> from fedspan import FederatedRegressor
        >>> X = np.random.default_rng(0).normal(size=(100, 2))
        >>> y = 3 * X[:, 0] - X[:, 1] + 5
        >>> model = FederatedRegressor().fit([X[:60], X[60:]], [y[:60], y[60:]])
        >>> model.coef_.round(6).tolist(), round(model.intercept_, 6), model.n_rounds_
        ([3.0, -1.0], 5.0, 1)
    """

    privacy: None = field(default=None, kw_only=True, metadata=_NO_PRIVACY)

    task: ClassVar[str] = "regressor"
    learned: ClassVar[tuple[str, ...]] = (
        "coef_",
        "intercept_",
        "covariance_",
        "deviance_",
        "null_deviance_",
        "residual_scale_",
        "degrees_of_freedom_",
        "rank_",
        *OF_TABLES,
        *OF_RUN,
    )

    def fit(
        self,
        Xs: ClientData,
        ys: ClientData | None = None,
        *,
        sample_weight: ClientData | None = None,
        retries: int = RETRIES,
        ledger: Ledger | None = None,
    ) -> Self:
        """Learn from the clients' rows and their targets.

        Parameters:
            Xs: One entry per client; rows are samples.
            ys: One entry per client: the number to predict for each row. In a federation it is a column at the sites,
                and `ys` is left out.
            sample_weight: One entry per client: the weight of each row; None: 1.
            retries: How often a client that did not answer is asked again. All must answer: a sum over some of them
                is another problem.
            ledger: Where to write what happens; by default a new `Ledger`.
        """
        check_parameters(self)
        data, schema = open_clients(Xs)
        chosen = choose_regression(self, schema.n_features)
        rows: dict[str, object] = dict(data)
        if not is_remote(data):
            if ys is None:
                raise InputError("The targets of every client's rows are missing; call fit(Xs, ys).")
            targets = {name: check_targets(name, y) for name, y in match_to_rows(ys, data, "targets").items()}
            weights = {} if sample_weight is None else _check_weights(match_to_rows(sample_weight, data, "weights"))
            rows = {name: _join(source, targets[name], weights.get(name)) for name, source in data.items()}
        result = self._run(
            chosen.method,
            rows,
            FitOptions(ledger, retries),
            why=chosen.why,
            rounds=int(self.max_rounds),
            facts={"features": schema.n_features},
        )
        self._keep_columns(schema)
        self.n_samples_, self.n_clients_ = int(result.state.standard.n), len(data)
        self._keep_run(result)
        self._learn_coefficients(chosen, result)
        return self

    def _learn_coefficients(self, chosen: ChosenRegression, result: Result[LinearState]) -> None:
        """Keep what a run found, and warn of what it could not."""
        state, found = result.state, infer(chosen.method, result.state)
        self.coef_, self.intercept_ = found.estimate[0, :-1].copy(), float(found.estimate[0, -1])
        self.covariance_, self.degrees_of_freedom_, self.rank_ = found.covariance, found.degrees, found.rank
        self.deviance_, self.null_deviance_ = found.deviance, found.null_deviance
        self.residual_scale_ = found.residual_scale
        parameters = self.n_features_in_ + int(self.intercept)
        if state.infinite:
            warn_of_fit(
                "Some coefficients have no finite optimum: for some value of a column all counts are 0. They and their "
                "standard errors mean nothing; set l2 above 0, or leave that column out."
            )
        elif found.rank < parameters and self.l2 == 0 and state.hessian.size:
            warn_of_fit(
                f"Only {found.rank} of {parameters} parameters can be told apart, because some columns are constant or "
                "depend on others (or there are too few rows). The coefficients are those of least norm, and what is "
                "not determined has no standard error; set l2 above 0, or leave such columns out."
            )
        if state.failed:
            warn_of_fit(
                f"The loss could not be made smaller in round {result.rounds}, before tol was reached. The best "
                "coefficients are kept; set l2 above 0, or another loss."
            )
        elif not state.closed:
            warn_of_fit(f"The optimum was not reached in {result.rounds} rounds; raise max_rounds.")
        self.converged_ = bool(state.closed and not state.failed and not state.infinite)

    def summary(self, level: float = 0.95) -> CoefficientTable:
        """Every coefficient with its standard error, p-value and confidence interval: `print(model.summary())`.

        Parameters:
            level: Of the confidence intervals.
        """
        check_is_fitted(self)
        names = name_coefficients(self, intercept=bool(self.intercept))
        estimate = np.append(self.coef_, self.intercept_)[None, : len(names)]
        variances = np.diag(self.covariance_) if self.covariance_.size else np.full(self.n_features_in_ + 1, np.nan)
        errors = np.sqrt(variances)[None, : len(names)]
        degrees = self.degrees_of_freedom_ if self.loss == "squared" else np.inf
        return tabulate_coefficients(names, estimate, errors, degrees, level)

    @property
    def standard_errors_(self) -> Array:
        """(n_features,) of `coef_`; NaN where they are not known. Those of the intercept are in `summary()`."""
        rows = self.summary().rows[: self.n_features_in_]
        return np.array([row.standard_error for row in rows])

    @property
    def p_values_(self) -> Array:
        """(n_features,) how likely a coefficient at least as far from 0 is if the true one is 0."""
        return np.array([row.p_value for row in self.summary().rows[: self.n_features_in_]])

    @property
    def confidence_intervals_(self) -> Array:
        """(n_features, 2) the 95 % confidence intervals of `coef_`; `summary(level)` has others."""
        return np.array([(row.low, row.high) for row in self.summary().rows[: self.n_features_in_]])

    def predict(self, X: object) -> Array:
        """The expected target of each row."""
        check_is_fitted(self)
        rows = prepare_rows(self, X, dtype=[np.float64, np.float32])
        eta = np.asarray(rows @ self.coef_, dtype=np.float64) + self.intercept_
        return np.exp(eta) if self.loss == "poisson" else eta

    def score(self, X: object, y: object, sample_weight: object = None) -> float:
        """R², the share of the targets' variance that is explained; for counts D², that of their deviance."""
        predicted = self.predict(X)
        if self.loss == "poisson":
            return float(d2_tweedie_score(y, predicted, sample_weight=sample_weight, power=1))
        return float(r2_score(y, predicted, sample_weight=sample_weight))

    def to_sklearn(self) -> BaseEstimator:
        """A fitted scikit-learn model with the same predictions, for use without fedspan."""
        check_is_fitted(self)
        return linear_to_sklearn(self)

    def to_onnx(self, path: str | os.PathLike[str]) -> None:
        """Write `predict` as an ONNX graph of float64: X (n, d) → predicted (n,)."""
        check_is_fitted(self)
        linear_to_onnx(self, path, exponential=self.loss == "poisson")


def _check_weights(weights: Mapping[str, Array]) -> dict[str, Array]:
    out = {name: check_targets(name, weight) for name, weight in weights.items()}
    for name, weight in out.items():
        if (weight < 0).any():
            raise InputError(f"Client {name!r}: weights must be at least 0, but one is {weight.min():g}.")
    return out


def _join(source: object, y: Array, weight: Array | None) -> object:
    """What a client is made of, opened when it is needed if it is a file."""
    return partial(_open_joined, source, y, weight) if callable(source) else (source, y, weight)


def _open_joined(source: Callable[[], object], y: Array, weight: Array | None) -> object:
    return (source(), y, weight)
