"""The columns that are no features: ids and labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedspan._types import Array
from fedspan.errors import InputError


def checked_ids(column: Array, name: str) -> Array:
    """Ids of rows, if every row has one and no two have the same. No id is shown: messages travel."""
    without = int(sum(one is None for one in column))
    if without:
        raise InputError(f"need an id for every row, column {name!r} has {without} empty of {len(column)}")
    distinct, first = np.unique(column.astype(str), return_index=True)
    if len(distinct) < len(column):
        again = int(np.setdiff1d(np.arange(len(column)), first)[0])
        raise InputError(
            f"need ids that differ, {len(column) - len(distinct)} of {len(column)} rows in column {name!r} repeat the "
            f"id of another row (the first is row {again + 1}); keep one row for each id"
        )
    return column.astype(str)


def as_labels(column: Array) -> Array:
    """Classes from a column: whole numbers as integers, whatever the file had them as; text as it is."""
    values: Any = np.asarray(column)
    if values.dtype.kind == "O":
        values = np.array(["" if value is None else str(value) for value in values], dtype=np.str_)
    if values.dtype.kind in "US":
        values = np.char.strip(values)
        empty = int((values == "").sum())
        if empty:
            raise InputError(
                f"need a label for every row, got {empty} empty of {len(values)}; drop those rows "
                '(missing = "drop" in [data])'
            )
        try:
            values = values.astype(np.float64)
        except ValueError:
            return np.asarray(values)
    if values.dtype.kind == "f" and np.isfinite(values).all() and (values == np.rint(values)).all():
        values = values.astype(np.int64)
    return np.asarray(values)


def first_difference(columns: Mapping[str, Array]) -> str | None:
    """Where one list of ids is not the same at all clients, in words."""
    (first, ids), *others = ((name, list(map(str, column))) for name, column in columns.items())
    for name, other in others:
        if len(other) != len(ids):
            return f"{len(ids)} rows at {first!r} and {len(other)} at {name!r}"
        at = next((i for i, (a, b) in enumerate(zip(ids, other, strict=True)) if a != b), None)
        if at is not None:
            return f"row {at + 1} is {ids[at]!r} at {first!r} and {other[at]!r} at {name!r}"
    return None
