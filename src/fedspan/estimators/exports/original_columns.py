"""Which columns of a table a model's features came from, what their words are, and what fills their gaps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fedspan.algorithms.agree_columns import Columns, feature_names
from fedspan.data.preparation import Preparation
from fedspan.errors import InputError


@dataclass(frozen=True)
class OriginalColumn:
    """A column of the table: of numbers (no words), or of words, each of which became a feature of its own.

    `fill` has a value for each feature; None: gaps are refused.
    """

    name: str
    words: tuple[str, ...] | None
    fill: tuple[float, ...] | None


def find_original_columns(preparation: Preparation | None, names: Iterable[str] | None) -> list[OriginalColumn]:
    """The columns in the order of the features; none if the features are the columns, as they are."""
    if preparation is None or names is None or not (preparation.categories or preparation.fill):
        return []
    found, at, names = [], 0, [str(name) for name in names]
    while at < len(names):
        column, words = _find_column(preparation, names, at)
        made = [names[at]] if words is None else [f"{column}={word}" for word in words]
        fill = tuple(preparation.fill[name] for name in made) if preparation.missing == "mean" else None
        found.append(OriginalColumn(column, words, fill))
        at += len(made)
    again = feature_names(Columns(len(found), tuple(each.name for each in found)), preparation.categories)
    if list(again) != names:
        raise InputError(
            "The model cannot be exported with its columns, because its features are not those of its columns: "
            f"{', '.join(names)[:200]}. Give it numbers in Python."
        )
    return found


def _find_column(preparation: Preparation, names: list[str], at: int) -> tuple[str, tuple[str, ...] | None]:
    """The column whose first feature is `names[at]`."""
    for column, words in preparation.categories.items():
        if names[at : at + len(words)] == [f"{column}={word}" for word in words]:
            return column, words
    return names[at], None
