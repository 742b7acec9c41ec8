"""Classification when the features of the same rows are spread over clients; scikit-learn's conventions."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import scipy.sparse as sp
from sklearn.metrics import accuracy_score
from sklearn.utils.validation import check_is_fitted

from fedspan._types import Array
from fedspan.algorithms.learning.views.torch_views import TorchViewRows, TorchViews
from fedspan.core.ledger import Ledger
from fedspan.core.protection import RETRIES
from fedspan.data.ids_and_labels import check_weights
from fedspan.data.remote_tables import is_remote
from fedspan.errors import InputError
from fedspan.estimators._bases.beside_rows import join_weights, scale_weights, split_groups
from fedspan.estimators._bases.feature_views import open_feature_views, open_new_feature_views
from fedspan.estimators._bases.federated_estimator import ClientData, FitOptions
from fedspan.estimators._bases.fitted_classifier import OF_CLASSIFIERS, FittedClassifier
from fedspan.estimators._bases.labels import encode_labels, guessing_loss, match_to_rows, tell_labels, weigh_rows
from fedspan.estimators._options.classifier_methods import (
    VIEW_METHODS,
    ViewClassifierParameters,
    build_network,
    choose_method,
    read_bounds,
)
from fedspan.estimators.gcca import NO_PRIVACY_OF_VIEWS
from fedspan.estimators.limit_requests import (
    LimitPlan,
    LimitRequest,
    find_group_column,
    plan_limits,
    read_limits,
)
from fedspan.estimators.matching.match_views import Match, Matching
from fedspan.estimators.parameters import check_parameters
from fedspan.numerics.swish import Swish


@dataclass(eq=False, repr=False, kw_only=True)
class VerticalFederatedClassifier(FittedClassifier, ViewClassifierParameters):
    """A classifier of rows whose features are spread over clients. All clients know the labels, as in the paper.

    Parameters:
        method: The method: one that needs no tuning, mini-batch SSCA, or a baseline. "auto" takes SSCA as momentum SGD,
            guarded by held-out rows; with a cost_limit it takes "ssca", the paper's method. The baselines are "sgd" and
            "sgdm" (with momentum). Or an object of `fedspan.algorithms` with its own options.
        hidden: Cells of the hidden layer of the built-in network; 0: none, which is a linear model. Views need at least
            one cell. "auto": 128.
        batch_size: Rows that are drawn in each round, by the server and by their numbers; None: all rows.
        rounds: How many rounds to run. With a cost_limit, the last few are exact ones that verify it.
        standardize: Whether to scale the columns by their means and deviations. Values are cut at five deviations. The
            scaling is part of the model: `predict` takes raw rows. Or a pair (lower, upper) of public bounds of the
            columns, in the order of the clients' names, from which the scaling is made.
        intercept: Whether both layers of the network have intercepts. The paper's network has none.
        l2: The weight λ of ‖ω‖² in the objective, where the loss is the objective; None: 1 / number of rows (auto), or
            1e-5 (all others).
        validation: The share of rows that is held out of training (auto). They guard it, and evaluate the model.
        early_stopping: Whether to stop when the held-out loss falls no more (auto): after six halvings of the step.
        calibrate: Whether to fit a temperature to the held-out rows (auto), so that probabilities mean what they say.
        cost_limit: Minimise ‖ω‖² subject to a mean training loss of at most this (ssca).
        limits: Limits on the mean losses of all rows, of groups or of classes, and on gaps between groups, as in
            `FederatedClassifier`. A column of groups is in one of the views, or several that agree.
        warm_start: Whether `fit` goes on from the model of the last `fit`, with its scaling and its classes: new rows
            of the same views.
        class_weight: How to weigh the losses of the classes; "balanced" weighs rare ones as much as frequent ones. Or a
            mapping from class to weight.
        model: Torch modules in place of the built-in network: a `TorchViews`, which has a module for each view's
            columns, a head, and its own objective and constraints. They see the columns as they are.
        exchange: What is exchanged: "sum" shows only sums over the clients, "each" what every client contributes, to
            all others through the server, as in the paper. Both learn the same model.
        privacy: Not available: what leaves a view has no known sensitivity.
        secure: Whether the server may see only sums over the clients: True, or `Secure(threshold=…)`; it needs
            exchange="sum".
        engine: Where the clients run; None runs all of them in this process.
        callback: A function that is called after each round; `info.estimate` is all parameters.
        verbose: Whether to show the rounds as they come: a bar in terminals and notebooks, a line a second elsewhere.
        checkpoint: A folder in which the run is saved after every round. A `fit` that finds it continues from there.
        random_state: The seed of all random streams. None draws one, which is kept as `seed_`.

    Attributes:
        views_: The number of features of each client, by its name.
        column_names_: What the columns of each client are called; None where they have no names.
        matched_: Where the rows are in each view, if `fit` has matched them by their ids; else None.
        classes_, coef_, scaling_, evaluation_, verified_, limits_, converged_, history_: As in `FederatedClassifier`.
        n_features_in_, n_samples_, n_clients_, n_rounds_, ledger_, seed_: As in `FederatedPCA`.

    Examples:
        >>> import numpy as np
        >>> from fedspan import VerticalFederatedClassifier
        >>> X = np.random.default_rng(0).normal(size=(200, 4))
        >>> y = np.where(X[:, 0] + X[:, 3] > 0, "yes", "no")
        >>> model = VerticalFederatedClassifier(hidden=8, batch_size=50, rounds=80, random_state=0)
        >>> model = model.fit({"bank": X[:, :3], "shop": X[:, 3:]}, y)
        >>> model.score({"bank": X[:, :3], "shop": X[:, 3:]}, y) > 0.9
        True
    """

    privacy: None = field(default=None, kw_only=True, metadata=NO_PRIVACY_OF_VIEWS)

    task: ClassVar[str] = "vertical-classifier"
    learned: ClassVar[tuple[str, ...]] = (*OF_CLASSIFIERS, "views_", "column_names_")

    def fit(
        self,
        views: ClientData,
        y: object = None,
        *,
        groups: object = None,
        sample_weight: object = None,
        ids: object = None,
        match: Match = None,
        secret: str = "",
        retries: int = RETRIES,
        ledger: Ledger | None = None,
    ) -> Self:
        """Learn from the views and the labels that all clients know.

        Parameters:
            views: One entry per client: some columns of the same rows in the same order, or of rows that have ids.
            y: The label of each row of the first view; or a mapping from views (at least one) to the labels of their
                rows, which must agree. In a federation every site has them, as in the paper, and `y` is left out.
            ids: The ids of the rows, one list per view (or one for all), or the name of a column that every table has.
                Rows are then matched by their ids; those that not all views have are left out.
            match: How: "psi" blinds the ids, "digest" compares keyed digests, "order" only compares the clients' orders
                and refuses a difference. None: "digest" if the ids differ. See `match_entities`.
            secret: A text that all clients know and the server does not, which keys the digests.
            groups: The group of each row, for `limits`, which all clients know; None: they are in the column that a
                limit names, in one of the views, and are then no feature.
            sample_weight: The weight of each row's loss; only relative sizes count. None: 1.
            retries: How often a client that did not answer is asked again.
            ledger: Where to write what happens; by default a new `Ledger`.
        """
        check_parameters(self)
        requests = read_limits(self.limits)
        column = find_group_column(requests)
        if column is not None and groups is None:
            if ids is not None or match is not None:
                raise InputError("With ids, give the groups of the first view's rows to fit, instead of a column.")
            views, found = split_groups(views, column, of_views=True)
            groups = next(iter(found.values()))
        options = FitOptions(ledger if ledger is not None else Ledger(), retries)
        matching = Matching(match, secret, compare=True, engine=self.engine, ledger=options.ledger, retries=retries)
        opened = open_feature_views(views, ids, matching)
        data, widths = opened.data, opened.widths
        beside = _Beside(requests, opened.arrange("groups", groups), opened.arrange("sample_weight", sample_weight))
        labels, clients, rows, limits, guessing = self._label_views(data, opened.arrange("y", y), beside, options)
        extras, prior = {"exchange": self.exchange}, read_bounds(self.standardize, sum(widths.values()))
        known: dict[str, int] | None = vars(self).get("views_")
        if self.warm_start and known is not None and widths != known:
            raise InputError(f"The model was fitted on the views {known}, but {widths} were given.")
        prior = self._find_earlier(sum(widths.values()), None) or prior
        network = self._make_network(len(labels))
        chosen = choose_method(self, VIEW_METHODS, network, limits.limits, extras, prior)
        result = self._run(
            chosen.method,
            clients,
            options,
            why=chosen.why,
            rounds=int(self.rounds),
            facts={"features": sum(widths.values()), "classes": len(labels)},
        )
        self.views_, self.n_features_in_ = widths, sum(widths.values())
        self.column_names_, self.matched_ = opened.columns, opened.matched
        self.n_samples_, self.n_clients_ = rows, len(data)
        self._keep_run(result)
        self._learn(chosen, result, labels, guessing)
        return self

    def partial_fit(self, views: ClientData, y: object = None, **options: Any) -> Self:
        """Go on learning from new rows of the same views; the first time this is `fit`.

        Parameters:
            views: One entry per client: some columns of the same rows in the same order.
            y: The label of each row, among the known classes.
            options: All others of `fit`.
        """
        before, self.warm_start = self.warm_start, True
        try:
            return self.fit(views, y, **options)
        finally:
            self.warm_start = before

    def _label_views(self, data: Mapping[str, Any], y: object, beside: _Beside, options: FitOptions) -> _Labelled:
        """The classes, and what belongs to them."""
        if is_remote(data):
            if self.model is not None:
                raise InputError("Torch modules cannot be sent to the sites of a federation; leave model out.")
            labels, tables = tell_labels(
                data, self.class_weight, lambda counting, told: self._count_classes(counting, told, options)
            )
            counts = {name: table.rows for name, table in tables.items()}
            if len(set(counts.values())) > 1:
                raise InputError(
                    f"All views must have the same rows, but they have {counts} rows; match the rows by their ids "
                    "first."
                )
            if beside.groups is not None or beside.weight is not None:
                raise InputError(
                    "groups and sample_weight cannot be given for sites of a federation, whose rows stay there."
                )
            limits = plan_limits(beside.requests, [], labels)
            if limits.classes:
                tables = {name: table.tell(limited=list(limits.classes)) for name, table in tables.items()}
            return _Labelled(labels, dict(tables), next(iter(counts.values())), limits, guessing_loss(labels, {}, {}))
        if y is None:
            raise InputError("The labels of the rows are missing; call fit(views, y).")
        labels, codes = self._encode({"all": np.asarray(y).reshape(-1)})
        code = codes["all"]
        for name, source in data.items():
            if source.shape[0] != len(code):
                raise InputError(
                    f"All views must have the same rows, one for each of the {len(code)} labels, but client {name!r} "
                    f"has {source.shape[0]} rows; match the rows by their ids first."
                )
        whole = {"all": code}
        groups: list[Any] = []
        group = None
        if beside.groups is not None:
            groups, numbers = encode_labels(match_to_rows({"all": beside.groups}, whole, "groups"), least=1)
            group = numbers["all"]
        given = {}
        if beside.weight is not None:
            weights = match_to_rows({"all": beside.weight}, whole, "weights")
            given = scale_weights({"all": check_weights(weights["all"], "sample_weight")})
        weight = join_weights(weigh_rows(self.class_weight, labels, codes), given).get("all")
        limits = plan_limits(beside.requests, groups, labels)
        part = limits.number(code, group)
        network = self._make_network(len(labels))
        if isinstance(network, TorchViews):
            network.check_widths({name: X.shape[1] for name, X in data.items()}, len(labels))
            if weight is not None:
                raise InputError(
                    "class_weight and sample_weight are for the built-in network; weigh the loss in the Problem of the "
                    "torch modules."
                )
            rows = {name: TorchViewRows(network, name, X, code, group) for name, X in data.items()}
            return _Labelled(labels, dict(rows), len(code), limits, guessing_loss(labels, codes, {}))
        made = {name: (X, code, weight, part, limits.parts) for name, X in data.items()}
        weights = {} if weight is None else {"all": weight}
        return _Labelled(labels, dict(made), len(code), limits, guessing_loss(labels, codes, weights))

    def _make_network(self, classes: int) -> Swish | TorchViews:
        if self.model is None:
            return build_network(self, classes)
        if isinstance(self.model, TorchViews):
            return self.model
        raise InputError(
            "model must be None or a fedspan.algorithms.learning.views.torch_views.TorchViews, which has a module for "
            f"each view and a head, but is a {type(self.model).__name__}."
        )

    def predict_proba(self, views: ClientData, ids: object = None) -> Array:
        """The probability of each class, (n, L), from the same views as were learned from.

        With `ids`, as in `fit`, the rows of all views are taken in the order of the first one's.
        """
        check_is_fitted(self)
        parts = open_new_feature_views(views, ids, self.views_, self.column_names_)
        network = self._make_network(len(self.labels_))
        if isinstance(network, TorchViews):
            network.check_widths(self.views_, len(self.labels_))
            return network.proba(self.coef_, dict(zip(self.views_, parts, strict=True)))
        X = sp.hstack(parts, format="csr") if any(map(sp.issparse, parts)) else np.hstack(parts)
        return network.proba(self.coef_, self._scale_rows(X))

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, model: object = None) -> Self:
        """Read a model that `save` wrote; `model` are the torch modules, if there were any."""
        return cls._load(path) if model is None else cls._load(path, model=model)

    def _name_inputs(self) -> dict[str, int]:
        if self.model is not None:
            raise InputError("Only the built-in network can be exported; use torch.onnx.export for torch modules.")
        return dict(self.views_)

    def predict(self, views: ClientData, ids: object = None) -> Array:
        """The most probable class of each row."""
        return self.classes_[self.predict_proba(views, ids).argmax(axis=1)]

    def score(self, views: ClientData, y: object, sample_weight: object = None, ids: object = None) -> float:
        """The share of rows whose class is right. With `ids`, as in `predict`, `y` is that of the first view's rows."""
        return float(accuracy_score(y, self.predict(views, ids), sample_weight=sample_weight))


class _Labelled(NamedTuple):
    """What becomes of views and labels.

    Attributes:
        labels: The classes.
        clients: What each client is made of.
        rows: How many rows each of them has.
        limits: What is limited.
        guessing: The loss of a model that knows only the shares of the classes.
    """

    labels: list[Any]
    clients: dict[str, object]
    rows: int
    limits: LimitPlan
    guessing: float


class _Beside(NamedTuple):
    """What is known of the rows beside the views."""

    requests: tuple[LimitRequest, ...]
    groups: object
    weight: object
