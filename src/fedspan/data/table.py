"""A client's data, from whatever it comes in, as a matrix with column names: arrays, tables, files, databases."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from fedspan._types import Array
from fedspan.data.batches import Table as Table
from fedspan.data.batches import read
from fedspan.data.columns import as_labels, checked_ids
from fedspan.data.csvfile import CsvFile
from fedspan.data.database import is_address, open_query
from fedspan.data.preparation import PLAIN, Preparation
from fedspan.data.sources import Frame, Source, arrow_table, feather, parquet, reading
from fedspan.data.unnamed import libsvm, npz, take_rows
from fedspan.errors import InputError

_NAMED: dict[str, Callable[[Path], Source]] = {
    ".csv": CsvFile, ".parquet": parquet, ".feather": feather, ".arrow": feather,
}  # fmt: skip
LIBSVM = (".svm", ".libsvm", ".svmlight")
KINDS = (".npy", ".npz", *_NAMED, *LIBSVM)


@dataclass(frozen=True)
class Prepared:
    """A source and how it is to be prepared: call it to open the table."""

    source: Any
    preparation: Preparation = PLAIN

    def __call__(self) -> Table:
        return open_source(self.source, self.preparation)


def open_table(source: Any, in_batches: bool = False) -> Table:
    """The table of numbers in a source: anything that can be a client, or a function that gives it."""
    if isinstance(source, Prepared):
        return open_source(source.source, source.preparation, in_batches)
    return open_source(source() if callable(source) else source, PLAIN, in_batches)


def open_source(source: Any, preparation: Preparation = PLAIN, in_batches: bool = False) -> Table:
    """The table in a source, prepared. `in_batches`: what is large need not be held, see `Batched`."""
    if isinstance(source, Table):
        table = source
    elif (named := named_source(source)) is not None:
        table = read(named, preparation, in_batches)
    else:
        table = _unnamed(source, preparation)
    X = table.X
    if X.ndim != 2:
        raise InputError(f"need a table with rows and columns, got {X.ndim} dimension(s); reshape it")
    if X.dtype.kind not in "fiub":
        raise InputError(f"need columns of numbers, got dtype {X.dtype}; choose numeric columns or encode the others")
    if 0 in X.shape:
        raise InputError(f"need at least one row and one column, got {X.shape[0]} rows and {X.shape[1]} columns")
    return table


def named_source(source: Any) -> Source | None:
    """Where the columns have names, and rows can be read in batches; None for arrays and files of arrays."""
    if is_address(source):
        return open_query(source)
    if isinstance(source, str | os.PathLike):
        path = _file(source)
        return _NAMED[path.suffix.lower()](path) if path.suffix.lower() in _NAMED else None
    if hasattr(source, "column_names") and hasattr(source, "to_batches"):
        return arrow_table(source)
    if hasattr(source, "columns") and hasattr(source, "to_numpy"):
        return Frame(source)
    return source if hasattr(source, "batches") and hasattr(source, "units") else None


def is_libsvm(source: Any) -> bool:
    """Whether that is a file that does not say how many features there are."""
    return isinstance(source, str | os.PathLike) and Path(source).suffix.lower() in LIBSVM


def _file(source: str | os.PathLike[str]) -> Path:
    path = Path(source)
    with reading(path):  # a folder on the way may not be looked into
        if not path.is_file():
            raise InputError(f"need a readable file, {path} is {'a folder' if path.is_dir() else 'not there'}")
    if path.suffix.lower() not in KINDS:
        raise InputError(f"need a file of a known kind ({', '.join(KINDS)}), got {path.name}")
    if path.stat().st_size == 0 and path.suffix.lower() != ".csv":
        raise InputError(f"need a file with rows, {path} is empty")
    return path


def _unnamed(source: Any, given: Preparation) -> Table:
    """Arrays, sparse matrices, and files of them. Their columns have no names to choose by."""
    if given.columns is not None or given.categories:
        raise InputError(
            "need column names to choose columns by, this table has none; use CSV, Parquet or a data frame"
        )
    ids: Array | None = None
    labels: Array | None = None
    X: Any = source
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        kind = path.suffix.lower()
        with reading(path):
            if kind == ".npz":
                X, ids, labels = npz(path, given)
            elif kind in LIBSVM:
                X, labels = libsvm(path, given)
            else:
                X = np.load(path, mmap_mode="r", allow_pickle=False)
    elif isinstance(source, list | tuple):
        X = np.asarray(source)
    elif not (sp.issparse(source) or isinstance(source, np.ndarray)):
        what = "a mapping without url" if isinstance(source, Mapping) else type(source).__name__
        raise InputError(f"need an array, a sparse matrix, a table, a path or a database, got {what}")
    if (given.id is not None and ids is None) or (
        given.label is not None and labels is None and given.label_everywhere
    ):
        raise InputError(
            f"need a column {given.id if ids is None and given.id else given.label!r}, this table's columns have no "
            "names; use CSV, Parquet, a data frame or an .npz file, or give ids and labels as lists"
        )
    if given.missing != "refuse":
        X, keep = take_rows(X, given)
        ids, labels = (None if part is None else part[keep] for part in (ids, labels))
    if ids is not None:
        ids = checked_ids(ids, str(given.id))
    return Table(X, None, ids, None if labels is None else as_labels(labels))
