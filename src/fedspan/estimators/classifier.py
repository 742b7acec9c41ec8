"""Classification of rows that stay at their clients, with or without limits on the loss; scikit-learn's conventions."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from fedspan._types import Array
from fedspan.algorithms import LogisticNewton
from fedspan.algorithms.learning.inference import infer
from fedspan.algorithms.learning.newton import LinearState
from fedspan.algorithms.learning.scaling import EarlierModel
from fedspan.algorithms.learning.torch import TorchModel, TorchRows
from fedspan.core.ledger import Ledger
from fedspan.core.protection import RETRIES
from fedspan.core.run import Result
from fedspan.data.clients import Schema, open_clients
from fedspan.data.remote_tables import is_remote
from fedspan.errors import InputError
from fedspan.estimators._bases.beside_rows import join_weights, read_weights, split_groups
from fedspan.estimators._bases.coefficients import CoefficientTable, tabulate_coefficients
from fedspan.estimators._bases.export import logistic_to_sklearn
from fedspan.estimators._bases.federated_estimator import ClientData, FitOptions, name_coefficients
from fedspan.estimators._bases.fitted_classifier import OF_CLASSIFIERS, FittedClassifier, warn_of_fit
from fedspan.estimators._bases.labels import encode_labels, guessing_loss, match_to_rows, tell_labels, weigh_rows
from fedspan.estimators._bases.new_rows_as_fitted import prepare_rows
from fedspan.estimators._bases.onnx_export import logistic_to_onnx
from fedspan.estimators._options.classifier_methods import (
    BLEND,
    ROW_METHODS,
    ChosenMethod,
    RowClassifierParameters,
    build_network,
    build_private_method,
    choose_method,
    read_bounds,
)
from fedspan.estimators._options.linear_methods import choose_logistic
from fedspan.estimators.launch import count_sharers, secure_from
from fedspan.estimators.limit_requests import NamedLimit, find_group_column, plan_limits, read_limits
from fedspan.estimators.parameters import about, check_parameters
from fedspan.numerics.swish import Swish, linear_proba, mean_proba, split_models
from fedspan.privacy.request import RowDP


@dataclass(eq=False, repr=False, kw_only=True)
class FederatedClassifier(FittedClassifier, RowClassifierParameters):
    """A classifier learned from samples that are spread over clients, from tables as they are.

    Parameters:
        method: The method: one that needs no tuning, mini-batch SSCA, or a baseline. "auto" takes local iterations of
            SSCA that held-out rows guard; with limits, privacy or a torch model it takes "ssca", the paper's method.
            The baselines are "fedsgd", "fedsgdm" (with momentum), "fedavg" (local steps), "scaffold" and "fedadam". Or
            an object of `fedspan.algorithms` with options that only this method has, for example
            `Ssca(tau=0.2, paper=True)`.
        hidden: Cells of the hidden layer of the built-in network; 0: none, which is a linear model. Its coefficients
            are those of all rows together (`summary()`). "auto": 128, and with method="auto" and fewer than 2000 rows
            the mean of the network's probabilities and a linear model's, because small tables make networks too
            certain (not with participation or min_clients: the linear model needs every client).
        batch_size: Rows that are drawn in each round, by every client; one that has fewer takes all. None: all rows.
        rounds: How many rounds to run. With limits, the last few are exact ones that verify them.
        standardize: Whether to scale the columns by their means and deviations, over all clients and found by sums.
            Values are cut at five deviations. The scaling is part of the model: `predict` takes raw rows. Or a pair
            (lower, upper) of public bounds, each a number or one for each column, from which the scaling is made: for
            private runs, which may not tell means. A torch model sees the rows as they are.
        intercept: Whether both layers of the network have intercepts. The paper's network has none.
        l2: The weight λ of ‖ω‖² in the objective, where the loss is the objective; None: 1 / number of rows (auto),
            half of that for a linear model (C=1 of scikit-learn), or 1e-5 (all others).
        validation: The share of rows that is held out of training (auto), at every client: they guard the training and
            evaluate the model.
        early_stopping: Whether to stop when the held-out loss falls no more (auto): after six halvings of the step.
        calibrate: Whether to fit a temperature to the held-out rows (auto), so that probabilities mean what they say.
        cost_limit: Minimise ‖ω‖² subject to a mean training loss of at most this (ssca): U in (40) of the paper.
        limits: Limits on the mean losses of all rows, of groups or of classes, and on gaps between groups. Each is a
            mapping: {"on": "cost", "at_most": 0.13}, {"on": "group", "column": "sex", "gap": 0.02}
            or with "at_most" (of one "group"), {"on": "class", "class": "ill", "recall": 0.9} or with "at_most"; or any
            combination of groups, {"on": "group", "column": "sex", "coefficients": {"f": 1, "m": -1}, "at_most": 0.02},
            for short ({"f": 1, "m": -1}, 0.02) if the groups are given to `fit`. All but recall bound mean losses; a
            recall is reached by a bound on the loss of its class. They are verified over all training rows, and looked
            at on the rows that `validation` holds out.
        warm_start: Whether `fit` goes on from the model of the last `fit`, with its scaling and its classes. New rows
            and new clients are welcome, new columns and classes are not.
        strict: Whether only a method with a proof of convergence will do (auto takes ssca). Its steps keep the paper's
            conditions (4) and (6), as they do without strict unless an `Ssca(paper=True)` is given.
        class_weight: How to weigh the losses of the classes; "balanced" weighs rare ones as much as frequent ones. Or a
            mapping from class to weight. In a federation, "balanced" takes one more sum: the rows of each class. With
            privacy it weighs by noised counts, for 1 % of the budget, and row_norm bounds the weighted gradient.
        model: A torch model in place of the built-in network: a torch.nn.Module, or a `TorchModel` with its own
            `Problem`.
        local_steps: Local steps in each round (auto, fedavg, scaffold, fedadam); 10 if None.
        participation: How many clients take part in each round, as a `Participation`; None: all.
        privacy: The differential privacy to keep, or None to add no noise. In `RowDP(epsilon, delta, row_norm)` the
            row_norm is the largest norm of the gradient of one row's loss; longer ones are shortened. `batch_size` rows
            are then drawn on average, by secret draws that are accounted for; the number of all rows is a noised count,
            for 1 % of the budget. For "ssca" (which "auto" then is) and "fedsgd" without limits, with the built-in
            network.
        secure: Whether the server may see only sums over the clients: True, or `Secure(threshold=…)`.
        engine: Where the clients run; None runs all of them in this process.
        callback: A function that is called after each round; `info.estimate` is all parameters.
        verbose: Whether to show the rounds as they come: a bar in terminals and notebooks, a line a second elsewhere.
        checkpoint: A folder in which the run is saved after every round. A `fit` that finds it continues from there.
        random_state: The seed of all random streams. None draws one, which is kept as `seed_`.

    Attributes:
        classes_: In the order of the columns of `predict_proba`.
        coef_: All parameters as one vector. With hidden=0 equation by equation, in the units of the columns, each with
            its intercept last; `summary()` names them.
        covariance_: Of `coef_`, for hidden=0; else empty, and also where the Hessian is too large to be sent.
        scaling_: How columns are scaled, as a `Scaling` (z = clip((x - mean)·slope, ±bound)); None: they are not.
        verified_: The left-hand side of every limit over all training rows, by its name.
        limits_: Of every limit, as a `LimitOutcome`: its value over the training rows and over the rows held out, and
            whether it is met by each.
        evaluation_: How the model does on held-out rows (auto), as an `Evaluation`: accuracy, loss, confusion matrix
            and calibration curve, summed over all clients; None without held-out rows.
        client_accuracy_: By client its number of rows, and the share of them that is predicted rightly, training rows
            among them: of jobs that run in one process without protection; else None.
        converged_: Whether all limits hold and every loss was finite; with "auto", whether the held-out rows stopped
            the run, and are predicted better than by the shares of the classes alone.
        history_: Cost, ‖ω‖², constraints, slacks and multipliers of every round.
        n_features_in_, n_samples_, n_clients_, n_rounds_, ledger_, seed_: As in `FederatedPCA`.

    Examples:
        >>> import numpy as np
        >>> from fedspan import FederatedClassifier
        >>> X = np.random.default_rng(0).normal(size=(200, 4))
        >>> y = np.where(X[:, 0] > 0, "yes", "no")
        >>> model = FederatedClassifier(rounds=60, random_state=0)
        >>> model = model.fit([X[:120], X[120:]], [y[:120], y[120:]])
        >>> model.predict([[3.0, 0, 0, 0], [-3.0, 0, 0, 0]]).tolist()
        ['yes', 'no']
    """

    privacy: RowDP | None = field(
        default=None, metadata=about("The differential privacy to keep, or None to add no noise.", in_job=False)
    )

    task: ClassVar[str] = "classifier"
    learned: ClassVar[tuple[str, ...]] = (*OF_CLASSIFIERS, "client_accuracy_", "covariance_")

    def fit(
        self,
        Xs: ClientData,
        ys: ClientData | None = None,
        *,
        groups: ClientData | None = None,
        sample_weight: ClientData | None = None,
        min_clients: int | None = None,
        retries: int = RETRIES,
        ledger: Ledger | None = None,
    ) -> Self:
        """Learn from the clients' rows and labels.

        Parameters:
            Xs: One entry per client; rows are samples.
            ys: One entry per client: the label of each row. A client need not have seen all classes. In a federation
                the labels are at the sites, and `ys` is left out.
            groups: One entry per client: the group of each row, for `limits`; None: they are in the column that a
                limit names, which is then no feature unless the preparation of the tables names it.
            sample_weight: One entry per client: the weight of each row's loss; only relative sizes count. None: 1.
            min_clients: Go on if at least this many clients answer; by default all must.
            retries: How often a client that did not answer is asked again. With privacy nothing is repeated.
            ledger: Where to write what happens; by default a new `Ledger`.
        """
        check_parameters(self)
        requests = read_limits(self.limits)
        column = find_group_column(requests)
        if column is not None and groups is None:
            Xs, groups = split_groups(Xs, column)
        data, schema = open_clients(Xs)
        ledger = ledger if ledger is not None else Ledger()
        options = FitOptions(ledger, retries, min_clients)
        parts, part = ([], {}) if groups is None else encode_labels(match_to_rows(groups, data, "groups"), least=1)
        noised = self.privacy is not None and self.class_weight == "balanced"  # weights from noised counts, later
        known_weight = None if noised else self.class_weight
        codes: dict[str, Array] = {}
        rows: dict[str, object] = {}
        if is_remote(data):
            if self.model is not None:
                raise InputError("A torch model cannot be sent to the sites of a federation; leave model out.")
            labels, tables = tell_labels(
                data, known_weight, lambda counting, told: self._count_classes(counting, told, options)
            )
            rows = {**tables}
        elif ys is None:
            raise InputError("The labels of every client's rows are missing; call fit(Xs, ys).")
        else:
            labels, codes = self._encode(match_to_rows(ys, data, "labels"))
        given_weight = {}
        if sample_weight is not None:
            if is_remote(data):
                raise InputError("sample_weight cannot be given for sites of a federation, whose rows stay there.")
            given_weight = read_weights(sample_weight, data)
        limits = plan_limits(requests, parts, labels)
        if is_remote(data) and limits.classes:
            rows = {name: table.tell(limited=list(limits.classes)) for name, table in tables.items()}
        network = self._make_network(labels)
        if isinstance(network, TorchModel):
            network.check_widths(schema.n_features, len(labels))
        chosen = self._choose(network, labels, schema, limits.limits, everyone=min_clients is None)
        method, plan, secure = chosen.method, None, secure_from(self.secure)

        def label_all(weight: Mapping[str, Array]) -> dict[str, object]:
            weight = join_weights(weight, given_weight)
            number = {name: limits.number(codes[name], part.get(name)) for name in data}
            if isinstance(network, TorchModel):  # its functions are given the groups themselves
                number = {name: part.get(name) for name in data}
            return {
                name: _label_rows(source, network, codes[name], weight.get(name), number[name], limits.parts)
                for name, source in data.items()
            }

        if not is_remote(data):
            rows = label_all(weigh_rows(known_weight, labels, codes))
        samples = schema.rows
        if self.privacy is not None:
            private = build_private_method(
                self,
                method,
                self.privacy,
                lambda count, plan: self._run_opening(rows, options, count, plan, "census").state,
                options.ledger or Ledger(),
                schema,
                len(labels),
                len(data),
                count_sharers(secure, len(data), min_clients),
            )
            method, plan, samples = private.method, private.plan, private.rows
            by_class = private.by_class
            if by_class is not None and is_remote(data):
                rows = {**tell_labels(data, self.class_weight, lambda counting, told: by_class)[1]}
            elif by_class is not None:
                rows = label_all(weigh_rows(self.class_weight, labels, codes, by_class))
        result = self._run(
            method,
            rows,
            options,
            why=chosen.why,
            rounds=int(self.rounds),
            participation=self.participation,
            plan=plan,
            facts={"features": schema.n_features, "classes": len(labels)},
        )
        self._keep_columns(schema)
        self.n_samples_, self.n_clients_ = samples, len(data)
        self._keep_run(result)
        if isinstance(method, LogisticNewton):
            self._learn_coefficients(method, result, labels)
        else:
            self._learn(chosen, result, labels, guessing_loss(labels, codes, self._weigh(labels, codes, given_weight)))
        return self

    def _weigh(self, labels: list[Any], codes: Mapping[str, Array], given: Mapping[str, Array]) -> dict[str, Array]:
        """The weight of each row's loss; empty where all are 1, or known to the sites only."""
        return join_weights(weigh_rows(self.class_weight, labels, codes), given) if codes else {}

    def _choose(
        self,
        network: Swish | TorchModel,
        labels: list[Any],
        schema: Schema,
        limits: Sequence[NamedLimit],
        *,
        everyone: bool,
    ) -> ChosenMethod:
        """The method that the parameters come to; what it cannot do is refused."""
        if self._is_linear():
            if self.privacy is not None:
                raise InputError(
                    "hidden=0, a linear model by Newton's method, cannot be private: no noise that hides a row would "
                    "leave a usable step. Set hidden to 1 or more."
                )
            linear = choose_logistic(self, schema.n_features, len(labels), schema.rows)
            return ChosenMethod(linear.method, (), linear.why)
        bounds = read_bounds(self.standardize, schema.n_features) if self.model is None else None
        return choose_method(
            self,
            ROW_METHODS,
            network,
            limits,
            {} if self.local_steps is None else {"steps": self.local_steps},
            self._find_start(network, schema) or bounds,
            private=self.privacy is not None,
            strict=bool(self.strict),
            blend=BLEND if self.hidden == "auto" and self.participation is None and everyone else 0,
        )

    def _find_start(self, network: Swish | TorchModel, schema: Schema) -> EarlierModel | None:
        """The network to go on from; a linear model beside it (hidden="auto") is found anew."""
        earlier = self._find_earlier(schema.n_features, schema.names)
        if earlier is None or isinstance(network, TorchModel):
            return earlier
        return replace(earlier, omega=split_models(network, earlier.omega, schema.n_features)[0])

    def _is_linear(self) -> bool:
        return self.model is None and self.hidden == 0

    def weigh_columns(self) -> Array:
        """(P+1, L) of a linear model: the weight of each column in each class's output, the intercepts last."""
        equations = self.coef_.reshape(-1, self.n_features_in_ + 1)
        return np.concatenate([np.zeros((1, equations.shape[1])), equations]).T

    def _learn_coefficients(self, method: LogisticNewton, result: Result[LinearState], labels: list[Any]) -> None:
        """Keep what Newton's method found, and warn of what it could not."""
        state, found = result.state, infer(method, result.state)
        self.labels_, self.coef_, self.covariance_ = labels, found.estimate.ravel(), found.covariance
        self.scaling_, self.evaluation_, self.client_accuracy_, self.verified_, self.limits_ = None, None, None, {}, []
        if state.infinite:
            warn_of_fit(
                "Some coefficients have no finite optimum, because the columns separate the classes. They and their "
                "standard errors mean nothing; set l2 above 0."
            )
        elif state.failed or not state.closed:
            warn_of_fit(f"The optimum was not reached in {result.rounds} rounds; raise rounds, or set l2 above 0.")
        self.converged_ = bool(state.closed and not state.failed and not state.infinite)

    def summary(self, level: float = 0.95) -> CoefficientTable:
        """Every coefficient of a linear model (hidden=0) with its standard error, p-value and confidence interval.

        With two classes they are about the odds of the second one, else of each class against the first one.

        Parameters:
            level: Of the confidence intervals.
        """
        check_is_fitted(self)
        if not self._is_linear():
            raise InputError("Only a linear model has coefficients that mean something by themselves; set hidden=0.")
        names = name_coefficients(self, intercept=True)
        estimate = self.coef_.reshape(-1, len(names))
        variances = np.diag(self.covariance_) if self.covariance_.size else np.full(estimate.size, np.nan)
        errors = np.sqrt(variances).reshape(estimate.shape)
        keep = len(names) if self.intercept else len(names) - 1
        equations = [str(label) for label in self.labels_[1:]] if len(self.labels_) > 2 else [""]
        return tabulate_coefficients(names[:keep], estimate[:, :keep], errors[:, :keep], np.inf, level, equations)

    def partial_fit(self, Xs: ClientData, ys: ClientData | None = None, **options: Any) -> Self:
        """Go on learning from new rows, of the same clients or of others; the first time this is `fit`.

        The model goes on from its parameters, and keeps its scaling and its classes. It sees the new rows only: what it
        knew of earlier ones it may forget, so give some of them again where the new ones are different.

        Parameters:
            Xs: One entry per client; rows are samples.
            ys: One entry per client: the label of each row, among the known classes.
            options: All others of `fit`.
        """
        if self._is_linear() and "coef_" in vars(self):
            raise InputError(
                "A linear model (hidden=0) keeps nothing of earlier rows, so it cannot go on from them. Call fit with "
                "all rows, or set hidden to 1 or more."
            )
        before, self.warm_start = self.warm_start, True
        try:
            return self.fit(Xs, ys, **options)
        finally:
            self.warm_start = before

    def _make_network(self, labels: list[Any]) -> Swish | TorchModel:
        if self.model is None:
            return build_network(self, len(labels))
        return self.model if isinstance(self.model, TorchModel) else TorchModel(self.model)  # type: ignore[arg-type]

    def predict_proba(self, X: object) -> Array:
        """The probability of each class, (n, L)."""
        check_is_fitted(self)
        rows = prepare_rows(self, X, dtype=[np.float64, np.float32])
        if self._is_linear():
            return linear_proba(self.weigh_columns(), rows.astype(np.float64))
        network = self._make_network(self.labels_)
        if isinstance(network, TorchModel):
            return network.proba(self.coef_, rows)
        return mean_proba(network, self.coef_, self._scale_rows(rows))

    def predict(self, X: object) -> Array:
        """The most probable class of each row."""
        return self.classes_[self.predict_proba(X).argmax(axis=1)]

    def _name_inputs(self) -> dict[str, int]:
        if self.model is not None:
            raise InputError("Only the built-in network can be exported; use torch.onnx.export for a torch model.")
        return {"X": self.n_features_in_}

    def to_onnx(self, path: str | os.PathLike[str]) -> None:
        """Write the model as an ONNX graph of float64: X (n, d) → label, probabilities."""
        check_is_fitted(self)
        if self._is_linear():
            logistic_to_onnx(self, self.weigh_columns(), path)
        else:
            super().to_onnx(path)

    def to_sklearn(self) -> BaseEstimator:
        """A fitted scikit-learn classifier with the same probabilities: a `Pipeline`, or if linear a regression."""
        if self._is_linear():
            check_is_fitted(self)
            return logistic_to_sklearn(self, self.weigh_columns())
        return super().to_sklearn()

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, model: object = None) -> Self:
        """Read a model that `save` wrote; `model` is the torch module, if there was one."""
        return cls._load(path) if model is None else cls._load(path, model=model)


def _label_rows(
    source: Any, network: Swish | TorchModel, y: Array, weight: Array | None, part: Array | None, parts: int
) -> object:
    """What a client is made of: rows with all that belongs to them, opened when they are needed if they are a file."""
    if callable(source):
        return partial(_open_labelled, source, network, y, weight, part, parts)
    if isinstance(network, TorchModel):
        if weight is not None:
            raise InputError(
                "class_weight and sample_weight are for the built-in network; weigh the loss in the torch model's "
                "Problem."
            )
        return TorchRows(network, source, y, part)
    return (source, y, weight, part, parts)


def _open_labelled(
    source: Callable[[], object],
    network: Swish | TorchModel,
    y: Array,
    weight: Array | None,
    part: Array | None,
    parts: int,
) -> object:
    return _label_rows(source(), network, y, weight, part, parts)
