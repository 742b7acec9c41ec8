"""A client's table as it is looked at while the federation agrees on its columns: see `algorithms/agree_columns.py`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import scipy.sparse as sp

from fedspan._types import Array
from fedspan.algorithms.agree_columns import Agreement, Columns, feature_names
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

    def sums(self, vocabulary: Mapping[str, list[str]]) -> tuple[Array, Array]:
        """The sum of the present values of every feature, and how many there are, in one pass."""
        if self.source is None:
            is_dense = isinstance(self.X, np.ndarray)
            X = np.asarray(self.X, dtype=np.float64) if is_dense else sp.csr_array(self.X).toarray()
            return np.nansum(X, axis=0), np.sum(~np.isnan(X), axis=0).astype(np.float64)
        words = {name: tuple(vocabulary[name]) for name in self.draft.categories}
        layout = Layout(self.source.names, replace(self.draft, categories=words, missing="refuse", fill={}))
        total, count = np.zeros(len(layout.names)), np.zeros(len(layout.names))
        for batch in self.source.batches([*layout.features, *layout.apart], layout.text):
            X, _ = layout.to_matrix(batch)
            total += np.nansum(X, axis=0)
            count += np.sum(~np.isnan(X), axis=0)
        return total, count


def complete_preparation(draft: Preparation, answer: Agreement) -> Preparation:
    """The preparation with which every client opens its table, once the federation has agreed."""
    words = {name: tuple(answer.vocabulary[name]) for name in draft.categories}
    n_features = answer.features if draft.n_features is None else draft.n_features
    done = replace(draft, categories=words, n_features=n_features)
    if not draft.needs_means:
        return done
    names = feature_names(Columns(answer.features, answer.names), answer.vocabulary)
    return replace(done, fill={name: float(mean) for name, mean in zip(names, answer.means, strict=True)})
