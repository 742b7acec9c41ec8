"""Views that a model of labels or targets is learned from: one table per client, with some columns of the same rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedspan.data.clients import name_clients, open_client
from fedspan.data.remote_tables import is_remote
from fedspan.errors import InputError
from fedspan.estimators._bases.federated_estimator import ClientData


def open_feature_views(views: ClientData) -> tuple[dict[str, Any], dict[str, int]]:
    """The views by client id, in the order of the ids, and how many features each has."""
    if isinstance(views, np.ndarray | str) or not isinstance(views, Mapping | Sequence):
        raise InputError(f"views must be a list or mapping with one view per client, but is a {type(views).__name__}.")
    sources: dict[str, Any] = dict(sorted(name_clients(views).items()))
    data = dict(sources) if is_remote(sources) else {name: open_client(name, X).X for name, X in sources.items()}
    return data, {name: int(X.shape[1]) for name, X in data.items()}
