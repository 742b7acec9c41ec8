"""A client's table as it is looked at while the federation agrees on its columns: see `algorithms/columns.py`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from fedspan._types import Array
from fedspan.algorithms.agree_columns import Agreement, Columns, feature_names
from fedspan.data.preparation import Layout, Preparation, words_seen
from fedspan.data.table import is_libsvm, named_source, open_source
from fedspan.errors import InputError


class TableSurvey:
    """A source that is not opened as a table yet."""

    def __init__(self, source: Any, draft: Preparation) -> None:
        source = source() if callable(source) else source
        self.draft, self.source = draft, named_source(source)
        self.width = draft.n_features
        if self.source is None:  # arrays: their columns have numbers only
            self.X = open_source(source, replace(draft, missing="refuse", fill={})).X
            self.at_least = is_libsvm(source)
        else:
            self.layout = Layout(self.source.names, draft)

    def columns(self) -> Columns:
        if self.source is None:
            return Columns(self.X.shape[1], at_least=self.at_least and self.width is None)
        names = tuple(self.layout.features)
        return Columns(len(names), names, {n: u for n, u in self.source.units.items() if n in names})

    def words(self, columns: list[str]) -> dict[str, list[str]]:
        """The categories in those columns, in one pass over them."""
        odd = [name for name in columns if name not in self.draft.categories]
        if odd or self.source is None:
            raise InputError("need a question for columns that are categories here, got others; nothing was told")
        seen: dict[str, set[str]] = {name: set() for name in columns}
        for batch in self.source.batches(columns, columns):
            seen = {name: words_seen(name, seen[name], batch[name]) for name in columns}
        return {name: sorted(words) for name, words in seen.items()}

    def sums(self, vocabulary: Mapping[str, list[str]]) -> tuple[Array, Array]:
        """Sums and numbers of the present values of every feature, in one pass."""
        if self.source is None:
            X = self.X.toarray() if hasattr(self.X, "toarray") else np.asarray(self.X, dtype=np.float64)
            return np.nansum(X, axis=0), np.sum(~np.isnan(X), axis=0).astype(np.float64)
        settled = {name: tuple(vocabulary[name]) for name in self.draft.categories}
        layout = Layout(self.source.names, replace(self.draft, categories=settled, missing="refuse", fill={}))
        total, count = np.zeros(len(layout.names)), np.zeros(len(layout.names))
        for batch in self.source.batches([*layout.features, *layout.apart], layout.text):
            X, _ = layout.block(batch)
            total += np.nansum(X, axis=0)
            count += np.sum(~np.isnan(X), axis=0)
        return total, count


def settled(draft: Preparation, answer: Agreement) -> Preparation:
    """The preparation with which every client opens its table, once the federation has agreed."""
    words = {name: tuple(answer.vocabulary[name]) for name in draft.categories}
    d = answer.features if draft.n_features is None else draft.n_features
    done = replace(draft, categories=words, n_features=d)
    if not draft.needs_means:
        return done
    names = feature_names(Columns(answer.features, answer.names), answer.vocabulary)
    return replace(done, fill={name: float(mean) for name, mean in zip(names, answer.means, strict=True)})
