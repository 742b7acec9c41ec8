"""What users give as `views`: tables and files with different features of the same entities, and the entities' ids."""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedspan.errors import InputError, MissingExtraError
from fedspan.federation.clients import named
from fedspan.federation.data import Table, open_table


class OpenView(NamedTuple):
    """A view's matrix, the names of its features if known, and the ids of its rows if given."""

    X: Any
    names: tuple[str, ...] | None
    ids: Any


def open_view(source: Any, ids: Any = None) -> OpenView:
    """The view in a source. `ids` are the ids of its rows, or the name of the column that holds them."""
    source = source() if callable(source) else source
    if not isinstance(ids, str):
        table = open_table(source)
        return OpenView(table.X, table.names, ids)
    column, rest = _apart(source, ids)
    table = open_table(rest)
    return OpenView(table.X, table.names, column)


def view_sources(
    views: Mapping[str, Any] | Sequence[Any], ids: Any = None, held_out: Any = None
) -> dict[str, tuple[Any, Any, Any]]:
    """(source, ids, rows held out) of every view by name, in the order given; refuses what cannot be views."""
    if isinstance(views, np.ndarray | str) or not isinstance(views, Mapping | Sequence):
        raise InputError(
            f"need a list or mapping with one entry per view, got one {type(views).__name__}; write fit([X1, X2])"
        )
    sources = named(views)
    if len(sources) < 2:
        raise InputError(f"need at least two views of the same entities, got {len(sources)}")
    own_ids = _alongside("ids", ids, sources, isinstance(ids, str) or _flat(ids))
    held = _alongside("held_out", held_out, sources, False)
    return {name: (source, own_ids[name], held[name]) for name, source in sources.items()}


def _flat(ids: Any) -> bool:
    """Whether those are the ids of one list of entities, the same for all views."""
    if ids is None or isinstance(ids, Mapping):
        return False
    return (isinstance(ids, np.ndarray) and ids.ndim == 1) or (len(ids) > 0 and np.isscalar(ids[0]))


def _alongside(what: str, given: Any, sources: Mapping[str, Any], common: bool) -> dict[str, Any]:
    """One entry for each view: of a list in its order, of a mapping by name, or the same for all."""
    if given is None or common:
        return dict.fromkeys(sources, given)
    if len(given) != len(sources) or (isinstance(given, Mapping) and {str(k) for k in given} != set(sources)):
        raise InputError(f"need {what} for each of the {len(sources)} views, got {len(given)}; give one per view")
    if isinstance(given, Mapping):
        return {str(name): value for name, value in given.items()}
    return dict(zip(sources, given, strict=True))


def _apart(source: Any, column: str) -> tuple[Any, Any]:
    """The column of ids (of any kind), and the table without it."""
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        if path.suffix.lower() == ".csv" and path.is_file():
            return _apart_csv(path, column)
        if path.suffix.lower() in (".parquet", ".feather", ".arrow") and path.is_file():
            try:
                from pyarrow import dataset
            except ImportError:
                raise MissingExtraError(f"reading {path.suffix} files", "data") from None
            kind = "parquet" if path.suffix.lower() == ".parquet" else "feather"
            return _apart(dataset.dataset(path, format=kind).to_table(), column)
        open_table(source)  # says what is wrong with the file, if anything is
    if hasattr(source, "column_names") and hasattr(source, "drop_columns"):  # pyarrow
        _check(column, source.column_names)
        return source.column(column).to_pylist(), source.drop_columns([column])
    if hasattr(source, "columns") and hasattr(source, "drop"):  # pandas, polars
        _check(column, list(source.columns))
        rest = source[[name for name in source.columns if name != column]]
        return source[column].to_numpy(), rest
    raise InputError(f"need a table with named columns to take ids from column {column!r}; or give the ids as lists")


def _apart_csv(path: Path, column: str) -> tuple[list[str], Table]:
    with path.open(newline="", encoding="utf-8") as file:
        rows = csv.reader(file)
        header = [name.strip() for name in next(rows, [])]
        _check(column, header)
        at = header.index(column)
        lines = [row for row in rows if row]
    try:
        numbers = np.array([[float(cell) for i, cell in enumerate(row) if i != at] for row in lines], dtype=np.float64)
    except ValueError as error:
        raise InputError(f"cannot read {path}: {error}") from None
    names = tuple(name for name in header if name != column)
    if numbers.size and numbers.shape[1:] != (len(names),):
        raise InputError(f"need {len(header)} columns as in the first line of {path}, got other ones")
    return [row[at] for row in lines], Table(numbers.reshape(-1, len(names)), names)


def _check(column: str, names: Sequence[Any]) -> None:
    if column not in names:
        raise InputError(f"need the id column {column!r}, the table has {', '.join(map(str, names[:10]))}")


def is_lazy(source: Any) -> bool:
    """Whether a source is opened when it is needed, and not held meanwhile."""
    return callable(source) or isinstance(source, str | os.PathLike)
