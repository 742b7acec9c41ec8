"""Cross-validation over clients: whole clients are left out, so that a grid search asks how a model does elsewhere."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import scipy.sparse as sp
from sklearn.model_selection import GroupKFold

from fedspan._types import Array
from fedspan.errors import InputError
from fedspan.estimators.parameters import is_whole


class ClientKFold:
    """Splits a list of clients into folds of about equally many rows, each client in one of them.

    It is to a list of clients what scikit-learn's `GroupKFold` is to rows: give it as `cv` to `GridSearchCV`, and
    `scoring=fedspan.score_clients` to judge a model by all rows of the clients that were left out.

    Parameters:
        n_splits: The number of folds, at least 2 and at most the number of clients.

    Examples:
        >>> import numpy as np
        >>> from sklearn.model_selection import GridSearchCV
        >>> from fedspan import ClientKFold, FederatedPCA, score_clients
        >>> rng = np.random.default_rng(0)
        >>> clients = [rng.normal(size=(40, 5)) * [4, 3, 1, 1, 1] for _ in range(6)]
        >>> search = GridSearchCV(
        ...     FederatedPCA(random_state=0), {"n_components": [1, 2, 3]}, cv=ClientKFold(3), scoring=score_clients
        ... )
        >>> search.fit(clients).best_params_
        {'n_components': 2}
    """

    def __init__(self, n_splits: int = 5) -> None:
        if not is_whole(n_splits) or n_splits < 2:
            raise InputError(f"n_splits must be an integer of at least 2, but is {n_splits!r}.")
        self.n_splits = n_splits

    def __repr__(self) -> str:
        return f"ClientKFold(n_splits={self.n_splits})"

    def get_n_splits(self, X: object = None, y: object = None, groups: object = None) -> int:
        """The number of folds, as scikit-learn asks for it."""
        return self.n_splits

    def split(self, X: Sequence[object], y: object = None, groups: object = None) -> Iterator[tuple[Array, Array]]:
        """(clients to fit, clients left out) for each fold, as positions in the list."""
        if isinstance(X, np.ndarray) or not isinstance(X, Sequence) or isinstance(X, str):
            raise InputError(
                f"ClientKFold splits a list with one entry for each client, but X is of type {type(X).__name__}. For "
                "rows in one table use sklearn.model_selection.GroupKFold."
            )
        if self.n_splits > len(X):
            raise InputError(f"n_splits must be at most the {len(X)} clients, but is {self.n_splits}.")
        rows = np.repeat(np.arange(len(X)), [_count_client_rows(client) for client in X])
        for _, left_out in GroupKFold(self.n_splits).split(rows, groups=rows):
            clients = np.unique(rows[left_out])
            yield np.setdiff1d(np.arange(len(X)), clients), clients


class Scoring(Protocol):
    """A fitted model that can be judged by rows, and what is known of them."""

    def score(self, *rows: object) -> float: ...


def score_clients(estimator: Scoring, X: Sequence[object], y: Sequence[object] | None = None) -> float:
    """A scorer for lists of clients: what `estimator.score` says of each, averaged over all their rows."""
    counts = np.array([_count_client_rows(client) for client in X])
    given = [(client,) for client in X] if y is None else list(zip(X, y, strict=True))
    return float(np.average([estimator.score(*each) for each in given], weights=counts))


def _count_client_rows(client: Any) -> int:
    """How many rows a client has, if it is in memory."""
    if isinstance(client, str | os.PathLike):
        shape: tuple[int, ...] = ()
    else:
        shape = client.shape if sp.issparse(client) else np.shape(client)
    if len(shape) != 2:
        raise InputError("Every client must be a table in memory (an array, a sparse matrix or a data frame).")
    rows, _ = shape
    return int(rows)
