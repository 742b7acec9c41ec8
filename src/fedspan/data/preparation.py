"""How a table's columns become a matrix of numbers: which are features, which are categories, what fills the gaps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property

import numpy as np

from fedspan._types import Array
from fedspan.algorithms.agree_columns import Columns, feature_names
from fedspan.errors import InputError, suggest

MISSING = ("refuse", "drop", "mean", "mask")
_MOST_CATEGORIES = 1000  # of one column; more look like ids


@dataclass(frozen=True)
class Preparation:
    """Plain data that all clients share, with which each of them opens its own table.

    `categories` maps a column to its words: each becomes a feature of its own that is 1 or 0 (`sex=f`). If there are no
    words, the clients must still agree on them. `missing` is "refuse", "drop" (the row), "mean" (`fill`, by feature) or
    "mask" (they stay missing: of views whose owners lack some entities).
    """

    columns: tuple[str, ...] | None = None
    id: str | None = None
    label: str | None = None
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    missing: str = "refuse"
    fill: Mapping[str, float] = field(default_factory=dict)
    n_features: int | None = None  # of LIBSVM files, which do not say how wide they are
    label_everywhere: bool = True  # False: some tables may lack the columns of labels, groups and weights
    group: str | None = None  # a column of groups of rows, a feature only if columns or categories name it
    weight: str | None = None  # a column of weights of rows, never a feature

    def __post_init__(self) -> None:
        if self.missing not in MISSING:
            hint = suggest(str(self.missing), MISSING)
            raise InputError(f"missing must be one of {', '.join(MISSING)}, but it is {self.missing!r}. {hint}")
        if self.fill and self.missing != "mean":
            raise InputError(
                f'fill is used only with missing = "mean", but missing is {self.missing!r}. Change it, or omit fill.'
            )
        roles = {"id": self.id, "label": self.label, "weight": self.weight}
        if self.group is not None:
            roles["group"] = self.group
        taken: dict[str, str] = {}
        for role, name in roles.items():
            if name is not None and name in taken:
                raise InputError(f"Column {name!r} cannot be both the {taken[name]} and the {role}; name another one.")
            if name is not None:
                taken[name] = role
        for name, words in self.categories.items():
            if name in (self.id, self.label, self.weight):
                raise InputError(
                    f"Column {name!r} is the id, the label or the weight, so it cannot be a category. Leave it out."
                )
            if len(set(words)) < len(words):
                raise InputError(f"The categories of column {name!r} must differ, but one is given twice.")

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
    """Where each column of one table goes. It counts problems on the way; `check` reports them when all was read."""

    def __init__(self, available: Sequence[str], preparation: Preparation) -> None:
        self.preparation = preparation
        twice = [name for name, count in Counter(available).items() if count > 1]
        if twice:
            raise InputError(f"Column names must differ, but {twice[0]!r} occurs twice. Rename one of them.")
        roles = (preparation.id, preparation.label, preparation.group, preparation.weight)
        apart = [name for name in roles if name is not None]
        required = [name for name in apart if name == preparation.id or preparation.label_everywhere]
        for name in [*required, *(preparation.columns or ()), *preparation.categories]:
            if name not in available:
                raise unknown_column_error(name, available)
        chosen = available if preparation.columns is None else preparation.columns
        self.apart = [name for name in apart if name in available]  # ids and labels
        named = {*(preparation.columns or ()), *preparation.categories}
        kept = preparation.group if preparation.group in named else None  # a group's column that is a feature, too
        self.features = [name for name in chosen if name not in apart or name == kept]
        lost = [name for name in preparation.categories if name not in self.features]
        if lost:
            raise InputError(f"Column {lost[0]!r} is a category, but it is not among the chosen columns. Add it.")
        self.text = {name for name in self.apart if name != preparation.weight} | {*preparation.categories}
        if kept is not None and kept not in preparation.categories:
            self.text.discard(kept)  # numbers
        self.rows = 0
        self._missing: Counter[str] = Counter()
        self._unknown: Counter[str] = Counter()

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the features that come out."""
        columns = Columns(len(self.features), tuple(self.features))
        return tuple(feature_names(columns, self.preparation.categories))

    def names_from(self, column: str) -> list[str]:
        """The names of the features that come out of one column."""
        return feature_names(Columns(1, (column,)), self.preparation.categories)

    def to_matrix(self, batch: Mapping[str, Array]) -> tuple[Array, dict[str, Array]]:
        """The features of some rows, and their ids and labels; gaps are filled, or their rows left out, if so asked."""
        n = len(batch[self.features[0]]) if self.features else 0
        X, at = np.empty((n, len(self.names))), 0
        complete = np.ones(n, dtype=bool)
        for name in self.features:
            width = len(self.preparation.categories.get(name, (name,)))
            into = X[:, at : at + width]
            is_category = name in self.preparation.categories
            into[:] = self._to_indicators(name, batch[name]) if is_category else batch[name][:, None]
            missing = np.isnan(into[:, 0]) if width else np.zeros(n, dtype=bool)
            if missing.any():
                self._missing[name] += int(missing.sum())
                complete &= ~missing
                if self.preparation.missing == "mean":
                    into[missing] = self._fill[at : at + width]
            at += width
        self.rows += n
        apart = {name: batch[name] for name in self.apart}
        if self.preparation.missing != "drop":
            return X, apart
        for column in apart.values():
            complete &= np.array([value is not None and value == value for value in column], dtype=bool)
        if complete.all():
            return X, apart
        return X[complete], {name: column[complete] for name, column in apart.items()}

    def _to_indicators(self, name: str, words: Array) -> Array:
        """A column of 0 and 1 for each category; NaN where there is no word."""
        known = {word: i for i, word in enumerate(self.preparation.categories[name])}
        codes = np.array([-1 if word is None else known.get(word, -2) for word in words], dtype=np.int64)
        self._unknown[name] += int(np.sum(codes == -2))
        indicators = np.zeros((len(codes), len(known)))
        is_known = codes >= 0
        indicators[np.flatnonzero(is_known), codes[is_known]] = 1.0
        indicators[codes == -1] = np.nan
        return indicators

    @cached_property
    def _fill(self) -> Array:
        return np.array([self.preparation.fill.get(name, np.nan) for name in self.names])

    def check(self) -> None:
        """Refuse what was found to be wrong in all that was read."""
        for name, count in self._unknown.items():
            if count:
                known = ", ".join(self.preparation.categories[name][:10])
                raise InputError(
                    f"Column {name!r} must contain only the categories {known}, but {count} of {self.rows} values are "
                    "others. Add them to categories, or fix the table."
                )
        unfilled = {name for name, value in zip(self.names, self._fill, strict=True) if np.isnan(value)}
        for name, count in self._missing.items():
            words = self.preparation.categories.get(name)
            parts = {name} if words is None else {f"{name}={word}" for word in words}
            if self.preparation.missing == "refuse":
                raise InputError(
                    f"Column {name!r} must have a value in every row, but {count} of {self.rows} are missing. Set "
                    'missing = "drop" or missing = "mean", or fix the table.'
                )
            if self.preparation.missing == "mean" and parts & unfilled:
                raise InputError(
                    f"Column {name!r} has missing values ({count} of {self.rows}), but fill has no value for it. Add "
                    "one to fill."
                )


def unknown_column_error(name: str, available: Sequence[str]) -> InputError:
    """The error for a column that is not there."""
    close = get_close_matches(name, available, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    shown = ", ".join(available[:10]) + (f" and {len(available) - 10} more" if len(available) > 10 else "")
    return InputError(f"There is no column {name!r}.{hint} The table has {shown}.")


def add_words(name: str, seen: set[str], column: Array) -> set[str]:
    """The words of a column, added to those seen before."""
    seen = seen | {word for word in column if word is not None}
    if len(seen) > _MOST_CATEGORIES:
        raise InputError(
            f"Column {name!r} has more than {_MOST_CATEGORIES} categories. If it is an id, leave it out of categories."
        )
    return seen
