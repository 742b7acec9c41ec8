"""Linear regression when the features of the same rows are spread over clients; scikit-learn's conventions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Self, cast

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import d2_tweedie_score, r2_score
from sklearn.utils.validation import check_is_fitted

from fedspan._types import Array
from fedspan.algorithms import VerticalLinear
from fedspan.core.ledger import Ledger
from fedspan.core.protection import RETRIES
from fedspan.data.ids_and_labels import check_weights
from fedspan.data.remote_tables import is_remote
from fedspan.errors import InputError
from fedspan.estimators._bases.feature_views import open_feature_views, open_new_feature_views
from fedspan.estimators._bases.federated_estimator import (
    OF_RUN,
    OF_TABLES,
    ClientData,
    FederatedEstimator,
    FitOptions,
)
from fedspan.estimators._bases.labels import check_targets, match_to_rows
from fedspan.estimators._options.common_parameters import MAX_ROUNDS
from fedspan.estimators._options.linear_methods import REGRESSION_LOSSES
from fedspan.estimators.gcca import NO_PRIVACY_OF_VIEWS
from fedspan.estimators.launch import warn_caller
from fedspan.estimators.matching.match_views import Match, Matching
from fedspan.estimators.parameters import about, check_parameters
from fedspan.numerics.glm import LossName


@dataclass(eq=False, repr=False, kw_only=True)
class ViewRegressorParameters:
    """The parameters of a regression whose clients hold different features of the same rows."""

    loss: str = field(
        default="squared",
        metadata=about(
            'The loss: "squared", "poisson" for counts, "huber" if outliers are feared.', choices=REGRESSION_LOSSES
        ),
    )
    l2: float = field(default=0.0, metadata=about("The weight λ of ‖β‖² in the objective.", least=0))
    standardize: bool = field(
        default=True,
        metadata=about("Whether the penalty counts coefficients per standard deviation of their column."),
    )
    intercept: bool = field(default=True, metadata=about("Whether to fit an intercept, which is not penalised."))
    epsilon: float = field(
        default=1.35,
        metadata=about("From how many deviations on a residual counts linearly (huber).", least=1),
    )
    tol: float = field(
        default=1e-14, metadata=about("Stop when the next step promises a relative fall below this.", least=0)
    )
    max_rounds: int = field(default=500, metadata=MAX_ROUNDS)


@dataclass(eq=False, repr=False, kw_only=True)
class VerticalFederatedRegressor(RegressorMixin, FederatedEstimator, ViewRegressorParameters):  # type: ignore[misc]
    """A linear regression of rows whose features are spread over clients: that of all columns together.

    All clients know the targets. Every client centres and scales its columns by itself, and its means and deviations
    stay with it, as do its coefficients until the end.

    Parameters:
        loss: The loss: "squared", "poisson" for counts, "huber" if outliers are feared. Counts have mean e^(Xβ + b);
            Huber's loss finds the scale of the residuals by itself, as scikit-learn's does.
        l2: The weight λ of ‖β‖² in the objective, which is the mean loss (half the mean square, or half the deviance)
            plus l2·‖β‖², as in `FederatedRegressor`.
        standardize: Whether the penalty counts coefficients per standard deviation of their column.
        intercept: Whether to fit an intercept, which is not penalised.
        epsilon: From how many deviations on a residual counts linearly (huber).
        tol: Stop when the next step promises a relative fall below this.
        max_rounds: Stop after this many rounds in any case.
        privacy: Not available: what leaves a view has no known sensitivity.
        secure: Whether the server may see only sums over the clients: True, or `Secure(threshold=…)`.
        engine: Where the clients run; None runs all of them in this process.
        callback: A function that is called after each round; `info.estimate` is empty before the last one.
        verbose: Whether to show the rounds as they come: a bar in terminals and notebooks, a line a second elsewhere.
        checkpoint: A folder in which the run is saved after every round. A `fit` that finds it continues from there.
        random_state: The seed of all random streams. Nothing is drawn here, so it does not change the answer.

    Attributes:
        coef_: (n_features_in_,) in the units of the columns, in the order of the clients' names.
        intercept_: The intercept, 0 without one.
        residual_scale_: σ of Huber's loss; 1 for the others.
        views_: The number of features of each client, by its name.
        column_names_: What the columns of each client are called; None where they have no names.
        matched_: Where the rows are in each view, if `fit` has matched them by their ids; else None.
        converged_: Whether the optimum was found.
        n_features_in_, n_samples_, n_clients_, n_rounds_, history_, ledger_, seed_: As in `FederatedPCA`.

    Examples:
        >>> import numpy as np
        >>> from fedspan import VerticalFederatedRegressor
        >>> X = np.random.default_rng(0).normal(size=(100, 4))
        >>> y = 3 * X[:, 0] - X[:, 3] + 5
        >>> model = VerticalFederatedRegressor().fit({"bank": X[:, :2], "shop": X[:, 2:]}, y)
        >>> model.coef_.round(6).tolist(), round(model.intercept_, 6)
        ([3.0, 0.0, 0.0, -1.0], 5.0)
    """

    privacy: None = field(default=None, kw_only=True, metadata=NO_PRIVACY_OF_VIEWS)

    task: ClassVar[str] = "vertical-regressor"
    learned: ClassVar[tuple[str, ...]] = (
        "coef_",
        "intercept_",
        "residual_scale_",
        "views_",
        "column_names_",
        *OF_TABLES,
        *OF_RUN,
    )

    def fit(
        self,
        views: ClientData,
        y: object = None,
        *,
        sample_weight: object = None,
        ids: object = None,
        match: Match = None,
        secret: str = "",
        retries: int = RETRIES,
        ledger: Ledger | None = None,
    ) -> Self:
        """Learn from the views and the targets that all clients know.

        Parameters:
            views: One entry per client: some columns of the same rows in the same order, or of rows that have ids.
            y: The number to predict for each row of the first view; or a mapping from views (at least one) to the
                targets of their rows, which must agree.
            sample_weight: The weight of each row, as `y`; only relative sizes count. None: 1.
            ids: The ids of the rows, one list per view (or one for all), or the name of a column that every table has.
                Rows are then matched by their ids; those that not all views have are left out.
            match: How: "psi", "digest" or "order" (which only compares the orders), as in `FederatedGCCA.fit`.
            secret: A text that all clients know and the server does not, which keys the digests.
            retries: How often a client that did not answer is asked again.
            ledger: Where to write what happens; by default a new `Ledger`.
        """
        check_parameters(self)
        ledger = ledger if ledger is not None else Ledger()
        matching = Matching(match, secret, compare=True, engine=self.engine, ledger=ledger, retries=retries)
        opened = open_feature_views(views, ids, matching)
        data, widths = opened.data, opened.widths
        if is_remote(data):
            raise InputError(
                "A vertical regression runs in one process so far: the sites of a federation do not offer targets for "
                "views. Use FederatedRegressor where sites hold rows."
            )
        if y is None:
            raise InputError("The targets of the rows are missing; call fit(views, y).")
        targets = check_targets("all", np.asarray(opened.arrange("y", y)).reshape(-1))
        for name, source in data.items():
            if source.shape[0] != len(targets):
                raise InputError(
                    f"All views must have the same rows, one for each of the {len(targets)} targets, but client "
                    f"{name!r} has {source.shape[0]} rows; match the rows by their ids first."
                )
        weight = None
        if sample_weight is not None:
            given = opened.arrange("sample_weight", sample_weight)
            weights = match_to_rows({"all": given}, {"all": targets}, "weights")
            weight = check_weights(weights["all"], "sample_weight")
        method = VerticalLinear(
            loss=cast(LossName, self.loss),
            rounds=int(self.max_rounds),
            l2=float(self.l2),
            tol=float(self.tol),
            epsilon=float(self.epsilon),
            intercept=bool(self.intercept),
            standardize=bool(self.standardize),
        )
        result = self._run(
            method,
            {name: (X, targets, weight) for name, X in data.items()},
            FitOptions(ledger, retries),
            why="the only one for views",
            rounds=int(self.max_rounds),
            facts={"features": sum(widths.values())},
        )
        state = result.state
        self.coef_, self.intercept_, self.residual_scale_ = state.coef, state.intercept, state.scale
        self.views_, self.n_features_in_ = widths, sum(widths.values())
        self.column_names_, self.matched_ = opened.columns, opened.matched
        self.n_samples_, self.n_clients_ = len(targets), len(data)
        self._keep_run(result)
        self.converged_ = bool(state.closed and not state.failed)
        if not self.converged_:
            warn_caller(
                f"The optimum was not reached in {result.rounds} rounds; raise max_rounds, or set l2 above 0.",
                ConvergenceWarning,
            )
        return self

    def predict(self, views: ClientData, ids: object = None) -> Array:
        """The expected target of each row, from the same views as were learned from.

        With `ids`, as in `fit`, the rows of all views are taken in the order of the first one's.
        """
        check_is_fitted(self)
        parts = open_new_feature_views(views, ids, self.views_, self.column_names_)
        ends = np.cumsum([*self.views_.values()])
        pieces = zip(parts, np.split(self.coef_, ends[:-1]), strict=True)
        eta = sum((np.asarray(X @ beta, dtype=np.float64) for X, beta in pieces), np.array(self.intercept_))
        return np.exp(eta) if self.loss == "poisson" else np.asarray(eta)

    def score(self, views: ClientData, y: object, sample_weight: object = None, ids: object = None) -> float:
        """R², the share of the targets' variance that is explained; for counts D², that of their deviance.

        With `ids`, as in `predict`, targets and weights are those of the first view's rows.
        """
        predicted = self.predict(views, ids)
        if self.loss == "poisson":
            return float(d2_tweedie_score(y, predicted, sample_weight=sample_weight, power=1))
        return float(r2_score(y, predicted, sample_weight=sample_weight))
