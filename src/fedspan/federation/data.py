"""A client's data, from whatever it comes in, as a matrix with column names: arrays, sparse matrices, tables, files."""

from __future__ import annotations

import csv
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from fedspan.errors import InputError, MissingExtraError


@dataclass(frozen=True)
class Table:
    """A matrix of numbers (dense, memory-mapped or sparse), and the names of its columns if they are known."""

    X: Any
    names: tuple[str, ...] | None = None


def open_table(source: Any, columns: Sequence[str] | None = None, drop: Sequence[str] = ()) -> Table:
    """The table in a source, with the chosen columns (all, if none are named) less the dropped ones."""
    table = _read(source)
    if columns is not None or drop:
        table = _choose(table, columns, drop)
    X = table.X
    if X.ndim != 2:
        raise InputError(f"need a table with rows and columns, got {X.ndim} dimension(s); reshape it")
    if X.dtype.kind not in "fiub":
        raise InputError(f"need columns of numbers, got dtype {X.dtype}; choose numeric columns or encode the others")
    if 0 in X.shape:
        raise InputError(f"need at least one row and one column, got {X.shape[0]} rows and {X.shape[1]} columns")
    return table


def _read(source: Any) -> Table:
    if isinstance(source, Table):
        return source
    if isinstance(source, str | os.PathLike):
        return _read_file(str(source))
    if sp.issparse(source) or isinstance(source, np.ndarray):
        return Table(source)
    if hasattr(source, "column_names") and hasattr(source, "column"):  # pyarrow
        columns = [source.column(name).to_numpy() for name in source.column_names]
        return Table(_stack(columns, source.column_names), tuple(source.column_names))
    if hasattr(source, "columns") and hasattr(source, "to_numpy"):  # pandas, polars
        names = tuple(map(str, source.columns))
        return Table(_stack([source[name].to_numpy() for name in source.columns], names), names)
    if isinstance(source, list | tuple):
        return Table(np.asarray(source))
    raise InputError(f"need an array, a sparse matrix, a table or a path, got {type(source).__name__}")


def _stack(columns: list[Any], names: Sequence[str]) -> Any:
    for name, column in zip(names, columns, strict=True):
        if column.dtype.kind not in "fiub":
            raise InputError(
                f"need columns of numbers, column {name!r} has dtype {column.dtype}; leave it out or encode it"
            )
    return np.column_stack(columns) if columns else np.empty((0, 0))


def _read_file(address: str) -> Table:
    if "://" in address:
        raise InputError(f"need a file, got the address {address.split('://')[0]}://…; databases are not read yet")
    path = Path(address)
    if not path.is_file():
        raise InputError(f"need a readable file, {path} is {'a folder' if path.is_dir() else 'not there'}")
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise InputError(f"need a file of a known kind ({', '.join(_READERS)}), got {path.name}")
    try:
        return reader(path)
    except (OSError, ValueError, EOFError, UnicodeDecodeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"cannot read {path}: {error}") from None


def _read_npy(path: Path) -> Table:
    return Table(np.load(path, mmap_mode="r", allow_pickle=False))


def _read_npz(path: Path) -> Table:
    with np.load(path, allow_pickle=False) as z:
        if "X_indptr" in z:
            parts = (z["X_data"], z["X_indices"], z["X_indptr"])
            return Table(sp.csr_array(parts, shape=tuple(z["X_shape"])))
        if "X" not in z:
            raise InputError(f"need an array named 'X' in {path.name}, it holds {', '.join(z.files)}")
        return Table(z["X"])


def _read_csv(path: Path) -> Table:
    with path.open(newline="", encoding="utf-8") as file:
        header = next(csv.reader(file), [])
        if not header:
            raise InputError(f"need a line of column names, {path} is empty")
        try:
            [float(cell) for cell in header]
        except ValueError:
            pass
        else:
            raise InputError(f"need a first line of column names, {path} begins with numbers; add the names")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="loadtxt: input contained no data")  # said in our own words later
            rows = np.loadtxt(file, delimiter=",", ndmin=2, quotechar='"', comments=None)
    if rows.size and rows.shape[1] != len(header):
        raise InputError(f"need {len(header)} columns as in the first line of {path}, got {rows.shape[1]}")
    return Table(rows.reshape(-1, len(header)), tuple(name.strip() for name in header))


def _read_arrow(path: Path) -> Table:
    try:
        from pyarrow import dataset
    except ImportError:
        raise MissingExtraError(f"reading {path.suffix} files", "data") from None
    kind = {".parquet": "parquet"}.get(path.suffix.lower(), "feather")
    return _read(dataset.dataset(path, format=kind).to_table())


_READERS = {
    ".npy": _read_npy, ".npz": _read_npz, ".csv": _read_csv,
    ".parquet": _read_arrow, ".feather": _read_arrow, ".arrow": _read_arrow,
}  # fmt: skip


def _choose(table: Table, columns: Sequence[str] | None, drop: Sequence[str]) -> Table:
    if table.names is None:
        raise InputError(
            "need column names to choose columns by, this table has none; use CSV, Parquet or a data frame"
        )
    wanted = list(table.names if columns is None else columns)
    lost = [name for name in [*wanted, *drop] if name not in table.names]
    if lost:
        raise InputError(f"need the column {lost[0]!r}, the table has {', '.join(table.names[:10])}")
    at = [table.names.index(name) for name in wanted if name not in drop]
    return Table(table.X[:, at], tuple(table.names[i] for i in at))
