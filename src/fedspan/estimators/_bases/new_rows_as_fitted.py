"""New rows for a fitted model: they go through the same preparation as the rows of the fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.utils.validation import validate_data

from fedspan.data.preparation import Preparation
from fedspan.data.tables import find_source, open_table
from fedspan.errors import InputError
from fedspan.estimators._bases.federated_estimator import FederatedEstimator, get_feature_names
from fedspan.estimators.exports.original_columns import find_original_columns


def prepare_rows(model: FederatedEstimator, X: object, dtype: object) -> Any:
    """Prepare new rows as the rows of the fit were: a table with the original columns goes through the same steps."""
    how: Preparation | None = model.preparation_
    if isinstance(X, Mapping) and not X.keys() & {"path", "url"}:
        raise InputError(
            "Rows must be one table, but they are a mapping, as the clients of fit are. Call this for each of them: "
            "{name: model.transform(rows) for name, rows in clients.items()}."
        )
    if how is not None and not isinstance(X, np.ndarray | list | str) and (source := find_source(X)) is not None:
        names = get_feature_names(model)
        chosen = list(how.columns or ()) or [each.name for each in find_original_columns(how, names)] or None
        if set(how.categories) <= set(source.names) and set(chosen or ()) <= set(source.names):
            apart = (how.id, how.label, None if how.group in how.categories else how.group, how.weight)
            kept = [name for name in source.names if name not in apart]
            gaps = "mean" if how.missing == "mean" else "refuse"  # no row may go: the answer has one for each
            features = replace(how, id=None, label=None, group=None, weight=None)
            table = open_table(source, replace(features, columns=tuple(chosen or kept), missing=gaps))
            if names is not None and table.names != tuple(names):
                found = ", ".join(table.names or ())[:200]
                raise InputError(f"The table must have the columns of the fit, but has {found}.")
            return table.X
    return validate_data(model, X, reset=False, accept_sparse="csr", dtype=dtype)
