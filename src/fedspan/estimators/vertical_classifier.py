"""Classification when the features of the same rows are spread over clients; scikit-learn's conventions."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np
import scipy.sparse as sp
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from fedspan._types import Array
from fedspan.algorithms import VerticalSgd, VerticalSsca
from fedspan.core.ledger import Ledger
from fedspan.core.run import Info
from fedspan.data.clients import named, opened
from fedspan.data.remote_table import is_remote
from fedspan.errors import InputError
from fedspan.estimators.base import load_model, save_model
from fedspan.estimators.classifier import LEARNED, configured, take
from fedspan.estimators.export import network_to_onnx
from fedspan.estimators.labels import encode, row_weights, told_labels
from fedspan.estimators.launch import launch, secure_from, seed_from, whole
from fedspan.numerics.swish import Swish

_METHODS = {"ssca": VerticalSsca(), "sgd": VerticalSgd(), "sgdm": VerticalSgd(momentum=0.1)}


class VerticalFederatedClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier of rows whose features are spread over clients. All clients know the labels, as in the paper.

    Parameters:
        method: "ssca", "sgd", "sgdm" (with momentum), or an object of `fedspan.algorithms` with its own options.
        hidden: Cells of the hidden layer of the network.
        batch_size: Rows of a batch, which the server draws by their numbers; None: all rows.
        rounds: Communication rounds. With a cost_limit, the last few are exact ones that verify it.
        l2: Weight λ of ‖ω‖² in the objective, where the loss is the objective.
        cost_limit: Minimise ‖ω‖² subject to a mean training loss of at most this.
        class_weight: None, "balanced", or a mapping from class to weight of its loss.
        exchange: "sum": only the sum over the clients of what their features contribute is seen; "each": every client's
            contribution goes to all others through the server, as in the paper. Both learn the same model.
        privacy: Not for features that are apart: what leaves has no known sensitivity. Anything but None is refused.
        secure: True, or `Secure(threshold=…)`: the server sees sums over the clients only; needs exchange="sum".
        engine: An engine, or a function from the clients' data to one; None: all clients in this process.
        callback: Called after each round with `info.round`, `info.estimate` (all parameters) and `info.metrics`.
        checkpoint: A folder. After every round the run is saved there; a `fit` that finds it goes on from it.
        random_state: Seed of all random streams; None: drawn, and kept as `seed_`.

    Attributes:
        views_: The number of features of each client, by its name.
        classes_, coef_, verified_, converged_, history_: As in `FederatedClassifier`.
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

    def __init__(
        self,
        *,
        method: Any = "ssca",
        hidden: int = 128,
        batch_size: int | None = 100,
        rounds: int = 1000,
        l2: float = 1e-5,
        cost_limit: float | None = None,
        class_weight: Any = None,
        exchange: str = "sum",
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
        self.class_weight = class_weight
        self.exchange = exchange
        self.privacy = privacy
        self.secure = secure
        self.engine = engine
        self.callback = callback
        self.checkpoint = checkpoint
        self.random_state = random_state

    def fit(self, views: Mapping[str, Any] | Sequence[Any], y: Any = None, *, ledger: Ledger | None = None) -> Self:
        """Learn. `views`: one entry per client, some columns of the same rows in the same order; `y`: their labels.

        In a federation every site has the labels, as in the paper, and `y` is left out.
        """
        if self.privacy is not None:
            raise InputError("privacy is not for features that are apart: what leaves has no known sensitivity")
        if not whole(self.hidden) or self.hidden < 1:
            raise InputError(f"need hidden to be an integer of at least 1, got {self.hidden!r}")
        data, widths = _open(views)
        labels, given, rows = self._labelled(data, y)
        names: list[str] = []
        method, more = configured(self, Swish(int(self.hidden), len(labels)), [], names, _METHODS)
        method = replace(method, **more)
        seed = seed_from(self.random_state)
        result = launch(
            method, given, why="it was asked for", rounds=self.rounds,
            seed=seed, engine=self.engine, callback=self.callback, checkpoint=self.checkpoint, ledger=ledger,
            about={"features": sum(widths.values()), "classes": len(labels)}, secure=secure_from(self.secure),
        )  # fmt: skip
        self.views_, self.n_features_in_, self.n_samples_ = widths, sum(widths.values()), rows
        take(self, method, names, result, labels, len(data), seed)
        return self

    def _labelled(self, data: Mapping[str, Any], y: Any) -> tuple[list[Any], dict[str, Any], int]:
        """The classes, what each client is made of, and how many rows there are."""
        if is_remote(data.values()):
            labels, tables = told_labels(data, self.class_weight)
            counts = {name: table.rows for name, table in tables.items()}
            if len(set(counts.values())) > 1:
                raise InputError(f"need the same rows in all views, got {counts}; match the rows by their ids first")
            return labels, dict(tables), next(iter(counts.values()))
        if y is None:
            raise InputError("need the labels of the rows, got none; write fit(views, y)")
        labels, codes = encode({"all": np.asarray(y).reshape(-1)})
        code = codes["all"]
        for name, source in data.items():
            if source.shape[0] != len(code):
                raise InputError(
                    f"need the same rows in all views, one for each of the {len(code)} labels, got {source.shape[0]} "
                    f"rows (client {name!r}); match the rows by their ids first"
                )
        weight = row_weights(self.class_weight, labels, codes).get("all")
        return labels, {name: (X, code, weight) for name, X in data.items()}, len(code)

    @property
    def classes_(self) -> Array:
        """The classes, in the order of the columns of `predict_proba`."""
        check_is_fitted(self, "labels_")
        return np.array(self.labels_)

    def predict_proba(self, views: Mapping[str, Any] | Sequence[Any]) -> Array:
        """The probability of each class, (n, L), from the same views as were learned from."""
        check_is_fitted(self)
        data, widths = _open(views)
        if widths != self.views_:
            raise InputError(f"need the views that were learned from, {self.views_}, got {widths}")
        parts = list(data.values())
        if len({part.shape[0] for part in parts}) > 1:
            raise InputError(f"need the same rows in all views, got {[part.shape[0] for part in parts]}")
        X = sp.hstack(parts, format="csr") if any(map(sp.issparse, parts)) else np.hstack(parts)
        return Swish(int(self.hidden), len(self.labels_)).proba(self.coef_, X)

    def predict(self, views: Mapping[str, Any] | Sequence[Any]) -> Array:
        """The most probable class of each row."""
        return self.classes_[self.predict_proba(views).argmax(axis=1)]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model as one safetensors file."""
        save_model(self, path, (*LEARNED, "views_"))

    def to_onnx(self, path: str | os.PathLike[str]) -> None:
        """Write the network as an ONNX graph of float64: an input per view → label (n,), probabilities (n, L)."""
        network_to_onnx(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """The model that `save` wrote."""
        return load_model(cls, path)


def _open(views: Mapping[str, Any] | Sequence[Any]) -> tuple[dict[str, Any], dict[str, int]]:
    """The views by client id, in the order of the ids, and how many features each has."""
    if isinstance(views, np.ndarray | str) or not isinstance(views, Mapping | Sequence):
        raise InputError(f"need a list or mapping with one view per client, got one {type(views).__name__}")
    data = {name: opened(name, source).X for name, source in sorted(named(views).items())}
    return data, {name: int(X.shape[1]) for name, X in data.items()}
