"""Classification of rows that stay at their clients, with or without limits on the loss; scikit-learn's conventions."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from fedspan._types import Array
from fedspan.algorithms import FedAvg, FedSgd, Limit, Sampling, Ssca
from fedspan.algorithms.learning.torch import TorchModel, TorchRows
from fedspan.core.ledger import Ledger
from fedspan.core.participation import Participation
from fedspan.core.protocol import Server
from fedspan.core.run import Info, Result
from fedspan.data.clients import open_clients
from fedspan.data.common_schema import Schema
from fedspan.data.remote_table import is_remote
from fedspan.errors import InputError, nearest
from fedspan.estimators.base import load_model, save_model
from fedspan.estimators.export import network_to_onnx
from fedspan.estimators.labels import encode, matched, row_weights, told_labels
from fedspan.estimators.launch import launch, secure_from, seed_from, sharing, whole
from fedspan.estimators.prepare import as_fitted
from fedspan.numerics.surrogate import CERTIFIED
from fedspan.numerics.swish import Swish
from fedspan.privacy.plan import Plan, Release, plan_for
from fedspan.privacy.request import RowDP

LEARNED = (
    "coef_", "labels_", "verified_", "n_features_in_", "n_samples_", "n_clients_", "n_rounds_", "converged_", "seed_",
)  # fmt: skip
_METHODS = {"ssca": Ssca(), "fedsgd": FedSgd(), "fedsgdm": FedSgd(momentum=0.1), "fedavg": FedAvg()}


class FederatedClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier learned from samples that are spread over clients, by mini-batch SSCA or a baseline.

    Parameters:
        method: "ssca", "fedsgd", "fedsgdm" (with momentum), "fedavg" (local steps), or an object of
            `fedspan.algorithms` with options that only this method knows, for example `Ssca(tau=0.2, paper=True)`.
        hidden: Cells of the hidden layer of the built-in network.
        batch_size: Rows that every client draws in each round; None: all its rows.
        rounds: Communication rounds. With limits, the last few are exact ones that verify them.
        l2: Weight λ of ‖ω‖² in the objective, where the loss is the objective.
        cost_limit: U. Minimise ‖ω‖² subject to a mean training loss of at most U, as in (40) of the paper.
        limits: Pairs (coefficients by group, bound): Σ coefficient · (mean loss of the group) ≤ bound, for example
            ({"women": 1, "men": -1}, 0.02). The groups of the rows are given to `fit`.
        class_weight: None, "balanced", or a mapping from class to weight of its loss.
        model: A torch.nn.Module, or a `TorchModel` with its own `Problem`; None: the built-in network.
        local_steps: Local steps of "fedavg" in each round (10 if None).
        participation: A `Participation`, the part of the clients that is asked in each round.
        privacy: `RowDP(epsilon, delta, row_norm)`: row_norm is the largest norm of the gradient of one row's loss;
            longer ones are shortened. `batch_size` rows are then drawn on average, by secret draws that are accounted
            for; the number of all rows is taken as public. For "ssca" and "fedsgd" without limits, with the built-in
            network.
        secure: True, or `Secure(threshold=…)`: the server sees sums over the clients only.
        engine: An engine, or a function from the clients' data to one; None: all clients in this process.
        callback: Called after each round with `info.round`, `info.estimate` (all parameters) and `info.metrics`.
        checkpoint: A folder. After every round the run is saved there; a `fit` that finds it goes on from it.
        random_state: Seed of all random streams; None: drawn, and kept as `seed_`.

    Attributes:
        classes_: In the order of the columns of `predict_proba`.
        coef_: All parameters as one vector.
        verified_: The left-hand side of every limit over all training rows, by its name.
        converged_: All limits hold, nothing broke.
        history_: Cost, ‖ω‖², constraints, slacks and multipliers of every round.
        n_features_in_, n_samples_, n_clients_, n_rounds_, ledger_, seed_: As in `FederatedPCA`.

    Examples:
        >>> import numpy as np
        >>> from fedspan import FederatedClassifier
        >>> X = np.random.default_rng(0).normal(size=(200, 4))
        >>> y = np.where(X[:, 0] > 0, "yes", "no")
        >>> model = FederatedClassifier(hidden=8, batch_size=20, rounds=60, random_state=0)
        >>> model = model.fit([X[:120], X[120:]], [y[:120], y[120:]])
        >>> model.predict([[3.0, 0, 0, 0], [-3.0, 0, 0, 0]]).tolist()
        ['yes', 'no']
    """

    def __init__(
        self,
        *,
        method: Any = "ssca",
        hidden: int = 128,
        batch_size: int | None = 100,
        rounds: int = 1000,
        l2: float = 1e-5,
        cost_limit: float | None = None,
        limits: Any = None,
        class_weight: Any = None,
        model: Any = None,
        local_steps: int | None = None,
        participation: Participation | None = None,
        privacy: Any = None,
        secure: Any = False,
        engine: Any = None,
        callback: Callable[[Info], None] | None = None,
        checkpoint: Any = None,
        random_state: Any = None,
    ) -> None:
        self.method = method
        self.hidden = hidden
        self.batch_size = batch_size
        self.rounds = rounds
        self.l2 = l2
        self.cost_limit = cost_limit
        self.limits = limits
        self.class_weight = class_weight
        self.model = model
        self.local_steps = local_steps
        self.participation = participation
        self.privacy = privacy
        self.secure = secure
        self.engine = engine
        self.callback = callback
        self.checkpoint = checkpoint
        self.random_state = random_state

    def fit(
        self,
        Xs: Mapping[str, Any] | Sequence[Any],
        ys: Mapping[str, Any] | Sequence[Any] | None = None,
        *,
        groups: Mapping[str, Any] | Sequence[Any] | None = None,
        min_clients: int | None = None,
        ledger: Ledger | None = None,
    ) -> Self:
        """Learn. `Xs`, `ys` and `groups` have one entry per client: rows, their labels, and the group of each row.

        A client need not have seen all classes. `min_clients`: go on if at least this many answer. In a federation the
        labels are at the sites, and `ys` is left out.
        """
        data, schema = open_clients(Xs)
        part, parts = ({}, []) if groups is None else encode(matched(groups, data, "groups"), least=1)[::-1]
        codes: dict[str, Array] = {}
        if is_remote(data.values()):
            labels, rows = told_labels(data, self.class_weight)
        else:
            if ys is None:
                raise InputError("need the labels of every client's rows, got none; write fit(Xs, ys)")
            labels, codes = encode(matched(ys, data, "labels"))
        net = self._net(labels)
        method, names = self._method(net, parts)
        method, plan = private(self, method, schema, len(data), min_clients)
        if codes:
            weight = row_weights(self.class_weight, labels, codes)
            rows = {
                name: _rows(source, net, codes[name], weight.get(name), part.get(name), len(parts) or 1)
                for name, source in data.items()
            }
        seed = seed_from(self.random_state)
        result = launch(
            method, rows, why="it was asked for", rounds=self.rounds, seed=seed, engine=self.engine,
            callback=self.callback, checkpoint=self.checkpoint, ledger=ledger, min_clients=min_clients,
            participation=self.participation, about={"features": schema.n_features, "classes": len(labels)},
            privacy=plan, secure=secure_from(self.secure),
        )  # fmt: skip
        self.n_features_in_ = schema.n_features
        self.preparation_ = schema.preparation
        if schema.names is not None:
            self.feature_names_in_ = np.array(schema.names, dtype=object)
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_
        self.n_samples_ = schema.rows
        take(self, method, names, result, labels, len(data), seed)
        return self

    def _net(self, labels: list[Any]) -> Swish | TorchModel:
        if self.model is None:
            if not whole(self.hidden) or self.hidden < 1:
                raise InputError(f"need hidden to be an integer of at least 1, got {self.hidden!r}")
            return Swish(int(self.hidden), len(labels))
        return self.model if isinstance(self.model, TorchModel) else TorchModel(self.model)

    def _method(self, net: Swish | TorchModel, parts: list[Any]) -> tuple[Server[Any], list[str]]:
        """The method with this model's numbers in it, and the names of its limits."""
        limits, names = [], []
        for coefficients, bound in self.limits or ():
            odd = [group for group in coefficients if group not in parts]
            if odd:
                known = ", ".join(map(repr, parts)) or "none: give groups to fit"
                raise InputError(f"need limits on known groups, got {odd[0]!r}; known: {known}")
            limits.append(Limit(float(bound), tuple(float(coefficients.get(group, 0.0)) for group in parts)))
            terms = " + ".join(f"{value:g}·loss({group})" for group, value in coefficients.items())
            names.append(f"{terms} ≤ {bound:g}")
        if isinstance(net, TorchModel) and limits:
            raise InputError("limits on groups are for the built-in network; write them into the model's Problem")
        method, more = configured(self, net, limits, names, _METHODS)
        return replace(method, **more), names

    @property
    def classes_(self) -> Array:
        """The classes, in the order of the columns of `predict_proba`."""
        check_is_fitted(self, "labels_")
        return np.array(self.labels_)

    def predict_proba(self, X: Any) -> Array:
        """The probability of each class, (n, L)."""
        check_is_fitted(self)
        X = as_fitted(self, X, accept_sparse="csr", dtype=[np.float64, np.float32])
        return self._net(self.labels_).proba(self.coef_, X)

    def predict(self, X: Any) -> Array:
        """The most probable class of each row."""
        return self.classes_[self.predict_proba(X).argmax(axis=1)]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model as one safetensors file. A torch module's code is not in it."""
        save_model(self, path, LEARNED)

    def to_onnx(self, path: str | os.PathLike[str]) -> None:
        """Write the network as an ONNX graph of float64: X (n, d) → label (n,), probabilities (n, L)."""
        network_to_onnx(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, model: Any = None) -> Self:
        """The model that `save` wrote; `model` is the torch module, if there was one."""
        return load_model(cls, path, **({} if model is None else {"model": model}))


def private(
    estimator: Any, method: Any, schema: Schema, clients: int, min_clients: int | None
) -> tuple[Any, Plan | None]:
    """The method with secret sampling and the plan of its noise, if privacy is asked for and can be kept."""
    dp = estimator.privacy
    if dp is None:
        return method, None
    if not isinstance(dp, RowDP):
        raise InputError(f"need privacy to be a fedspan.RowDP, got {dp!r}")
    if type(method) not in (Ssca, FedSgd) or (isinstance(method, Ssca) and method.limits):
        raise InputError("privacy is for method 'ssca' and 'fedsgd' without limits: losses have no known sensitivity")
    if not isinstance(method.model, Swish) or estimator.class_weight is not None:
        raise InputError("privacy is for the built-in network without class_weight: other gradients are not bounded")
    if method.batch == 0 or estimator.participation is not None:
        raise InputError("privacy needs a batch_size and all clients in every round; leave participation out")
    if dp.delta * schema.rows >= 1:
        raise InputError(f"need delta below 1 / {schema.rows} rows, got {dp.delta!r}; at that delta a row may be shown")
    rate = min(1.0, method.batch * clients / schema.rows)
    method = replace(method, private=Sampling(schema.rows, schema.n_features, rate, dp.simulate))
    spread = sharing(secure_from(estimator.secure), clients, min_clients)
    return method, plan_for(dp, method.client, [Release(*p) for p in method.planned()], spread=spread)


def configured(
    estimator: Any, net: Any, limits: list[Limit], names: list[str], known: Mapping[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """The method's object, and the fields in which it follows the estimator's parameters."""
    method: Any = (
        known.get(estimator.method, estimator.method) if isinstance(estimator.method, str) else estimator.method
    )
    if isinstance(method, str):
        raise InputError(f"need a known method, got {method!r}; {nearest(method, known)}")
    if not issubclass(getattr(method, "client", object), next(iter(known.values())).client):
        raise InputError(
            f"need a method for this kind of clients, got {type(method).__name__}; known: {', '.join(known)}"
        )
    if not whole(estimator.rounds) or estimator.rounds < 1:
        raise InputError(f"need rounds to be an integer of at least 1, got {estimator.rounds!r}")
    if estimator.batch_size is not None and (not whole(estimator.batch_size) or estimator.batch_size < 1):
        raise InputError(f"need batch_size to be None or an integer of at least 1, got {estimator.batch_size!r}")
    more: dict[str, Any] = {"model": net, "batch": estimator.batch_size or 0, "rounds": int(estimator.rounds)}
    more["l2"] = float(estimator.l2)
    if estimator.cost_limit is not None:
        limits.append(Limit(float(estimator.cost_limit)))
        names.append(f"cost ≤ {estimator.cost_limit:g}")
        more["objective"] = "norm"
    if isinstance(net, TorchModel) and (net.problem.constraints or net.problem.objective is None):
        if limits:
            raise InputError("need the limits in one place, got cost_limit and a Problem; write it into the Problem")
        more |= net.problem.options()
        limits.extend(more["limits"])
        names.extend(f"constraint {m + 1} ≤ 0" for m in range(len(limits)))
    if limits:
        more["limits"] = tuple(limits)
    if estimator.__dict__.get("local_steps") is not None:
        more["steps"] = estimator.local_steps
    if hasattr(estimator, "exchange"):
        more["exchange"] = estimator.exchange
    lost = [key for key in more if key not in {f.name for f in fields(method)}]
    if lost:
        words = {"limits": "limits", "objective": "cost_limit", "steps": "local_steps"}
        name = estimator.method if isinstance(estimator.method, str) else type(method).__name__
        raise InputError(
            f"method {name!r} cannot do {words.get(lost[0], lost[0])}; use 'ssca' for limits, 'fedavg' for local steps"
        )
    return method, more


def take(
    model: Any, method: Any, names: list[str], result: Result[Any], labels: list[Any], clients: int, seed: int
) -> None:
    """Keep what a run learned, and warn of what it did not reach."""
    state = result.state
    model.coef_, model.labels_ = method.estimate(state), labels
    model.n_clients_, model.n_rounds_, model.seed_ = clients, result.rounds, seed
    model.ledger_, model.history_ = result.ledger, result.ledger.history()
    model.verified_, held = {}, True
    if names and len(state.best):
        bounds = np.array([limit.bound for limit in method.limits])
        model.verified_ = {name: float(v) for name, v in zip(names, state.verified[1:] + bounds, strict=True)}
        broken = [name for name, value in zip(names, state.verified[1:], strict=True) if value > 0]
        held = not broken
        if broken:
            reached = "; ".join(f"{name}: reached {model.verified_[name]:.4g}" for name in broken)
            _warn(
                f"need all limits to hold, after {result.rounds} rounds these do not ({reached}); the model of least "
                "violation is kept; raise the bound, rounds, batch_size or hidden"
            )
    elif names and not state.failed:
        held = False
        _warn("the limits were not verified: that needs closing rounds; leave paper=False and ask for 2 rounds or more")
    if names and state.gap > CERTIFIED:
        _warn(
            f"The server's problem was solved to a relative duality gap of {state.gap:.1g} only in some round, above "
            f"{CERTIFIED:g}. The limits that were verified hold all the same; scale the features to about one."
        )
    if state.failed:
        _warn(
            f"need finite losses, got NaN or infinity in round {result.rounds}; the run was stopped and the parameters "
            "of the last good round are kept; scale the features, or lower the step sizes"
        )
    model.converged_ = bool(result.converged and not state.failed and held)


def _warn(text: str) -> None:
    warnings.warn(text, ConvergenceWarning, stacklevel=4)


def _rows(source: Any, net: Any, y: Array, weight: Any, part: Any, parts: int) -> Any:
    """What a client is made of: rows with all that belongs to them, opened when they are needed if they are a file."""
    if callable(source):
        return partial(_open_rows, source, net, y, weight, part, parts)
    if isinstance(net, TorchModel):
        if weight is not None:
            raise InputError("class_weight is for the built-in network; weigh the loss in the torch model's Problem")
        return TorchRows(net, source, y, part)
    return (source, y, weight, part, parts)


def _open_rows(source: Callable[[], Any], *more: Any) -> Any:
    return _rows(source(), *more)
