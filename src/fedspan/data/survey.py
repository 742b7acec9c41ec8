"""A client's table as it is looked at while the federation agrees on its columns: see `algorithms/agree_columns.py`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import scipy.sparse as sp

from fedspan._types import Array, Matrix
from fedspan.algorithms.agree_columns import AgreeOnColumns, Columns, Found, feature_names
from fedspan.data.preparation import Layout, Preparation, add_words
from fedspan.data.tables import find_source, is_libsvm, open_table
from fedspan.errors import InputError


class TableSurvey:
    """A source that is not opened as a table yet."""

    def __init__(self, source: object, draft: Preparation) -> None:
        source = source() if callable(source) else source
        self.draft, self.source = draft, find_source(source)
        if self.source is None:  # arrays, whose columns have no names
            self.X = open_table(source, replace(draft, missing="refuse", fill={})).X
            self.at_least = is_libsvm(source) and draft.n_features is None
        else:
            self.layout = Layout(self.source.names, draft)

    def columns(self) -> Columns:
        """The names of the features, or their number, and their units."""
        if self.source is None:
            return Columns(self.X.shape[1], at_least=self.at_least)
        names = tuple(self.layout.features)
        return Columns(len(names), names, {n: u for n, u in self.source.units.items() if n in names})

    def words(self, columns: list[str]) -> dict[str, list[str]]:
        """The categories in those columns, in one pass over them."""
        others = [name for name in columns if name not in self.draft.categories]
        if others or self.source is None:
            raise InputError("The server asked for categories of columns that have none here. Nothing was sent.")
        seen: dict[str, set[str]] = {name: set() for name in columns}
        for batch in self.source.batches(columns, columns):
            seen = {name: add_words(name, seen[name], batch[name]) for name in columns}
        return {name: sorted(words) for name, words in seen.items()}

    def sums(self) -> tuple[Array, Array]:
        """The sum of the present values of every feature, and how many there are, in one pass."""
        if self.source is None:
            if not isinstance(self.X, np.ndarray):
                return _sum_sparse(sp.csr_array(self.X))
            X = np.asarray(self.X, dtype=np.float64)
            return np.nansum(X, axis=0), np.sum(~np.isnan(X), axis=0).astype(np.float64)
        layout = Layout(self.source.names, replace(self.draft, missing="refuse", fill={}))
        total, count = np.zeros(len(layout.names)), np.zeros(len(layout.names))
        for batch in self.source.batches([*layout.features, *layout.apart], layout.text):
            X, _ = layout.to_matrix(batch)
            total += np.nansum(X, axis=0)
            count += np.sum(~np.isnan(X), axis=0)
        return total, count


def _sum_sparse(X: Matrix) -> tuple[Array, Array]:
    """The same of a sparse matrix, which stays sparse; what is not stored is zero, and present."""
    n, d = X.shape
    missing = np.isnan(X.data)
    total = np.bincount(X.indices, weights=np.where(missing, 0.0, X.data), minlength=d)
    return total, n - np.bincount(X.indices[missing], minlength=d).astype(np.float64)


def settle_words(draft: Preparation, found: Found) -> Preparation:
    """The preparation with the categories and the number of features that the clients were found to have.

    Where clients have their columns in different orders, it names them in the order of the first.
    """
    words = {name: tuple(found.vocabulary.get(name, given)) for name, given in draft.categories.items()}
    n_features = found.features if draft.n_features is None else draft.n_features
    columns = found.names if found.reordered and draft.columns is None else draft.columns
    return replace(draft, columns=columns, categories=words, n_features=n_features)


def fill_gaps(draft: Preparation, agreed_on: AgreeOnColumns, means: Array) -> Preparation:
    """The preparation with the means that fill the gaps of every feature."""
    names = feature_names(Columns(agreed_on.features, agreed_on.columns), dict(agreed_on.vocabulary))
    return replace(draft, fill={name: float(mean) for name, mean in zip(names, means, strict=True)})
