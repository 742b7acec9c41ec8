"""How a table's columns become a matrix of numbers: which are features, which are categories, what fills the gaps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from fedspan._types import Array
from fedspan.algorithms.agree_columns import Columns, feature_names
from fedspan.errors import InputError, nearest

MISSING = ("refuse", "drop", "mean")
_MOST = 1000  # categories of one column; more look like ids


@dataclass(frozen=True)
class Preparation:
    """Plain data that all clients share, with which each of them opens its own table.

    `categories` maps a column to its words: each becomes a feature of its own that is 1 or 0 (`sex=f`). No words: they
    are still to be agreed on. `missing` is "refuse", "drop" (the row) or "mean" (`fill`, by feature).
    """

    columns: tuple[str, ...] | None = None
    id: str | None = None
    label: str | None = None
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    missing: str = "refuse"
    fill: Mapping[str, float] = field(default_factory=dict)
    n_features: int | None = None  # of LIBSVM files, which do not say how wide they are
    label_everywhere: bool = True  # False: a table without the column of labels will do

    def __post_init__(self) -> None:
        if self.missing not in MISSING:
            hint = nearest(str(self.missing), MISSING)
            raise InputError(f"need missing to be one of {', '.join(MISSING)}, got {self.missing!r}; {hint}")
        if self.fill and self.missing != "mean":
            raise InputError(f'fill needs missing = "mean", got {self.missing!r}; write it, or leave fill out')
        for name, words in self.categories.items():
            if name in (self.id, self.label):
                raise InputError(f"need features as categories, column {name!r} is the id or the label; leave it out")
            if len(set(words)) < len(words):
                raise InputError(f"need categories that differ, column {name!r} has one twice")

    @property
    def trivial(self) -> bool:
        """Whether a table of numbers may be taken as it is."""
        return self == PLAIN

    @property
    def unsettled(self) -> tuple[str, ...]:
        """The columns whose words are still to be agreed on."""
        return tuple(name for name, words in self.categories.items() if not words)

    @property
    def needs_means(self) -> bool:
        """Whether the means that fill gaps are still to be agreed on."""
        return self.missing == "mean" and not self.fill


PLAIN = Preparation()


class Layout:
    """Where each column of one table goes. It counts what is wrong on the way, and says it when all was read."""

    def __init__(self, there: Sequence[str], given: Preparation) -> None:
        self.given = given
        twice = [name for name, count in Counter(there).items() if count > 1]
        if twice:
            raise InputError(f"need columns with different names, got {twice[0]!r} twice; rename one")
        apart = [name for name in (given.id, given.label) if name is not None]
        needed = [name for name in apart if name == given.id or given.label_everywhere]
        for name in [*needed, *(given.columns or ()), *given.categories]:
            if name not in there:
                hint = f"; {nearest(name, there)}" if len(there) > 10 else ""
                raise InputError(f"need the column {name!r}, the table has {', '.join(there[:10])}{hint}")
        self.apart = [name for name in apart if name in there]
        self.features = [name for name in (there if given.columns is None else given.columns) if name not in apart]
        lost = [name for name in given.categories if name not in self.features]
        if lost:
            raise InputError(f"need the category {lost[0]!r} among the chosen columns; add it to columns")
        self.text = {*self.apart, *given.categories}
        self.rows = 0
        self._gaps: Counter[str] = Counter()
        self._strange: Counter[str] = Counter()

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the features that come out."""
        return tuple(feature_names(Columns(len(self.features), tuple(self.features)), self.given.categories))

    def block(self, batch: Mapping[str, Array]) -> tuple[Array, dict[str, Array]]:
        """The features of some rows, and their ids and labels; gaps filled, or their rows left out, if so asked."""
        n = len(batch[self.features[0]]) if self.features else 0
        X, at = np.empty((n, len(self.names))), 0
        full = np.ones(n, dtype=bool)
        for name in self.features:
            width = len(self.given.categories.get(name, (name,)))
            into = X[:, at : at + width]
            into[:] = self._coded(name, batch[name]) if name in self.given.categories else batch[name][:, None]
            gap = np.isnan(into[:, 0]) if width else np.zeros(n, dtype=bool)
            if gap.any():
                self._gaps[name] += int(gap.sum())
                full &= ~gap
                if self.given.missing == "mean":
                    into[gap] = self._fill[at : at + width]
            at += width
        self.rows += n
        apart = {name: batch[name] for name in self.apart}
        if self.given.missing != "drop":
            return X, apart
        for column in apart.values():
            full &= np.array([value is not None for value in column], dtype=bool)
        return (X, apart) if full.all() else (X[full], {name: column[full] for name, column in apart.items()})

    def _coded(self, name: str, words: Array) -> Array:
        """One-hot rows; NaN where there is no word."""
        known = {word: i for i, word in enumerate(self.given.categories[name])}
        codes = np.array([-1 if word is None else known.get(word, -2) for word in words], dtype=np.int64)
        self._strange[name] += int(np.sum(codes == -2))
        hot = np.zeros((len(codes), len(known)))
        there = codes >= 0
        hot[np.flatnonzero(there), codes[there]] = 1.0
        hot[codes == -1] = np.nan
        return hot

    @cached_property
    def _fill(self) -> Array:
        return np.array([self.given.fill.get(name, np.nan) for name in self.names])

    def check(self) -> None:
        """Refuse what was found to be wrong in all that was read."""
        for name, count in self._strange.items():
            if count:
                raise InputError(
                    f"need the categories {', '.join(self.given.categories[name][:10])} in column {name!r}, {count} of "
                    f"{self.rows} values are none of them; add them to data.categories, or mend the table"
                )
        unfilled = {name for name, value in zip(self.names, self._fill, strict=True) if np.isnan(value)}
        for name, count in self._gaps.items():
            words = self.given.categories.get(name)
            parts = {name} if words is None else {f"{name}={word}" for word in words}
            if self.given.missing == "refuse":
                raise InputError(
                    f"need a value in every cell, column {name!r} has {count} missing of {self.rows}; "
                    'write missing = "drop" or missing = "mean" in [data], or mend the table'
                )
            if self.given.missing == "mean" and parts & unfilled:
                raise InputError(
                    f"need a value to fill the {count} gaps in column {name!r} with, fill has none; add it to data.fill"
                )


def words_seen(name: str, seen: set[str], column: Array) -> set[str]:
    """The words of a column, added to those seen before."""
    seen = seen | {word for word in column if word is not None}
    if len(seen) > _MOST:
        raise InputError(f"need at most {_MOST} categories in column {name!r}, got more; is it an id? leave it out")
    return seen


def as_text(values: Any) -> Array:
    """Words of a column of any kind, None where there is nothing: 1 and 1.0 are the same word, and so is ' 1'."""
    return np.array([_word(value) for value in values], dtype=object)


def _word(value: Any) -> str | None:
    if value is None or value != value:  # NaN
        return None
    if isinstance(value, float | np.floating) and value.is_integer():
        value = int(value)
    return str(value).strip() or None
