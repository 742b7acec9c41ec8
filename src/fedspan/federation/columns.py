"""A file's columns of numbers, and apart from them the columns that are something else: ids, labels (text or numbers).

In an .npz file they are arrays of their own beside X.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedspan.errors import InputError, MissingExtraError
from fedspan.federation.data import Table, open_table
from fedspan.protocol import Array

_ARROW = {".parquet": "parquet", ".feather": "feather", ".arrow": "feather"}


def open_apart(
    address: str, columns: Sequence[str] | None = None, apart: Sequence[str] = (), maybe: Sequence[str] = ()
) -> tuple[Table, dict[str, Array]]:
    """The table without the columns `apart` (which must be there) and `maybe` (which need not), and these by name."""
    kind = Path(address).suffix.lower()
    if not (apart or maybe) or "://" in address or not Path(address).is_file():
        return open_table(address, columns), {}
    if kind == ".csv":
        return _from_csv(Path(address), columns, apart, maybe)
    if kind == ".npz":
        with np.load(address, allow_pickle=False) as z:
            names = _found(z.files, apart, maybe, "array")
            return open_table(address, columns), {name: z[name] for name in names}
    if kind in _ARROW:
        try:
            from pyarrow import dataset
        except ImportError:
            raise MissingExtraError(f"reading {kind} files", "data") from None
        whole = dataset.dataset(address, format=_ARROW[kind]).to_table()
        names = _found(whole.column_names, apart, maybe, "column")
        values = {name: np.array(whole.column(name).to_pylist()) for name in names}
        return open_table(whole.drop_columns(names), columns), values
    return open_table(address, columns, drop=apart), {}


def _from_csv(
    path: Path, columns: Sequence[str] | None, apart: Sequence[str], maybe: Sequence[str]
) -> tuple[Table, dict[str, Array]]:
    with path.open(newline="", encoding="utf-8") as file:
        header = [name.strip() for name in next(csv.reader(file), [])]
    if not header or all(map(_number, header)):
        open_table(str(path))  # says what is wrong with the first line
    names = _found(header, apart, maybe, "column")
    wanted = [name for name in (header if columns is None else columns) if name not in names]
    _found(header, wanted, (), "column")
    try:
        numbers = _read(path, [header.index(name) for name in wanted], np.float64)
        texts = _read(path, [header.index(name) for name in names], np.str_)
    except ValueError as error:
        raise InputError(f"cannot read {path}: {error}") from None
    table = open_table(Table(numbers, tuple(wanted)))
    return table, {name: texts[:, i] for i, name in enumerate(names)}


def _read(path: Path, at: Sequence[int], dtype: type[np.generic]) -> Array:
    if not at:
        return np.empty((0, 0), dtype=dtype)
    with path.open(newline="", encoding="utf-8") as file:
        next(csv.reader(file))
        rows = np.loadtxt(file, dtype=dtype, delimiter=",", ndmin=2, quotechar='"', comments=None, usecols=at)
    return rows.reshape(-1, len(at))


def _found(there: Sequence[str], needed: Sequence[str], maybe: Sequence[str], what: str) -> list[str]:
    lost = [name for name in needed if name not in there]
    if lost:
        raise InputError(f"need the {what} {lost[0]!r}, the table has {', '.join(there[:10])}")
    return [*dict.fromkeys([*needed, *(name for name in maybe if name in there)])]


def _number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def as_labels(column: Array) -> Array:
    """Classes from a column: whole numbers as integers, whatever the file had them as; text as it is."""
    values: Any = np.asarray(column)
    if values.dtype.kind in "US":
        values = np.char.strip(values)
        if (values == "").any():
            raise InputError("need a label for every row, got an empty one; drop those rows")
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
