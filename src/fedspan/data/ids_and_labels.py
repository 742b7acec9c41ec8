"""The columns that are not features: ids and labels."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedspan._types import Array
from fedspan.data.sources import to_word
from fedspan.errors import InputError


def check_ids(column: Array, name: str) -> Array:
    """The ids of the rows as text, if every row has one and no two are the same. Messages show no id: they travel."""
    without = sum(value is None for value in column)
    if without:
        raise InputError(f"Every row must have an id, but {without} of {len(column)} are missing in column {name!r}.")
    ids = column.astype(str)
    distinct, first = np.unique(ids, return_index=True)
    if len(distinct) < len(ids):
        repeated = np.setdiff1d(np.arange(len(ids)), first)
        raise InputError(
            f"Ids must be unique, but {len(repeated)} of {len(ids)} rows in column {name!r} repeat the id of another "
            f"row (the first is row {repeated[0] + 1}). Keep one row for each id."
        )
    return ids


def to_labels(column: Array) -> Array:
    """The classes in a column: whole numbers as integers, whatever type the file gives them; text as it is."""
    values = np.asarray(column)
    if values.dtype.kind == "O":
        values = np.array(["" if value is None else str(value) for value in values], dtype=np.str_)
    if values.dtype.kind in "US":
        values = np.char.strip(values)
        empty = int((values == "").sum())
        if empty:
            raise InputError(
                f"Every row must have a label, but {empty} of {len(values)} are missing. Remove those rows, or set "
                'missing = "drop".'
            )
        try:
            values = values.astype(np.float64)
        except ValueError:
            return values
    if values.dtype.kind == "f" and np.isfinite(values).all() and (values == np.rint(values)).all():
        values = values.astype(np.int64)
    return values


def to_groups(column: Array, name: str) -> Array:
    """The group of each row as a word: 1, 1.0 and "1" are one group."""
    words = np.array([to_class(None if value != value else value) for value in column.tolist()], dtype=np.str_)
    empty = int((words == "").sum())
    if empty:
        raise InputError(
            f"Every row must have a group, but {empty} of {len(words)} are missing in column {name!r}. Remove those "
            'rows, or set missing = "drop".'
        )
    return words


def check_weights(weights: Array, where: str) -> Array:
    """The weights of rows: numbers of at least 0, not all of them 0."""
    try:
        numbers = np.asarray(weights, dtype=np.float64)
    except (ValueError, TypeError):
        raise InputError(f"Weights must be numbers, but some in {where} are not.") from None
    if numbers.ndim != 1 or not np.isfinite(numbers).all() or (numbers < 0).any():
        raise InputError(f"Weights must be finite numbers of at least 0, one for each row; those in {where} are not.")
    if not numbers.any():
        raise InputError(f"At least one row must have a weight above 0, but in {where} all are 0.")
    return numbers


def to_class(label: object) -> str:
    """The word of a class, the same for 1, 1.0 and the text "1.0"; no word for a missing label."""
    word = to_word(label) or ""
    try:
        number = float(word) if "_" not in word else np.nan
    except ValueError:
        return word
    return str(int(number)) if number.is_integer() else word


def find_first_difference(columns: Mapping[str, Array]) -> str | None:
    """Where a column, such as that of the ids, is not the same at all clients, in words; None if it is."""
    (first, values), *others = ((name, list(map(str, column))) for name, column in columns.items())
    for name, other in others:
        if len(other) != len(values):
            return f"{len(values)} rows at {first!r} and {len(other)} at {name!r}"
        at = next((i for i, (a, b) in enumerate(zip(values, other, strict=True)) if a != b), None)
        if at is not None:
            return f"row {at + 1} is {values[at]!r} at {first!r} and {other[at]!r} at {name!r}"
    return None
