"""A client's data, from whatever it comes in, as a matrix with column names: arrays, frames, files, databases."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TextIO

import numpy as np

from fedspan._types import Array
from fedspan.data._array_files import LIBSVM, read_arrays
from fedspan.data._array_files import is_libsvm as is_libsvm
from fedspan.data._arrow_source import ArrowTable, ArrowTableSource, FeatherFile, ParquetFile, ParquetFolder
from fedspan.data._csv_file import CsvFile, open_text, read_bounded_lines
from fedspan.data._excel_file import ExcelFile
from fedspan.data.cells.dialect import DELIMITED, EXCEL, Dialect, split_place
from fedspan.data.cells.dialect_source import DialectSource
from fedspan.data.database import is_address, open_query
from fedspan.data.ids_and_labels import check_ids, check_weights, to_groups, to_labels
from fedspan.data.preparation import PLAIN, Layout, Preparation, unknown_column_error
from fedspan.data.sources import DataFrame, FrameSource, Source, explain_file_errors
from fedspan.errors import InputError
from fedspan.numerics.operators import Matrix, RowBatches

LARGE = 1 << 28  # bytes of float64 (256 MB): what is larger is read in batches, if the algorithm can do that

_FILES_WITH_NAMES: dict[str, Callable[[Path], Source]] = {
    ".parquet": ParquetFile,
    ".feather": FeatherFile,
    ".arrow": FeatherFile,
}
KINDS = (".npy", ".npz", *DELIMITED, *EXCEL, *_FILES_WITH_NAMES, *LIBSVM)


@dataclass(frozen=True)
class Table:
    """A matrix (dense, memory-mapped, sparse or in batches), and what else is known of its columns and rows."""

    X: Matrix
    names: tuple[str, ...] | None = None
    ids: Array | None = None
    labels: Array | None = None
    units: tuple[tuple[str, str], ...] = ()
    groups: Array | None = None
    weights: Array | None = None


@dataclass(frozen=True)
class Prepared:
    """A source and how it is to be prepared: call it to open the table."""

    source: object
    preparation: Preparation = PLAIN

    def __call__(self) -> Table:
        return open_table(self)


def open_table(source: object, preparation: Preparation = PLAIN, in_batches: bool = False) -> Table:
    """Open anything that can be a client, or what a function without arguments returns, as a prepared table.

    A `Prepared` source brings its own preparation. With `in_batches`, a large table is not held in memory: its matrix
    is then a `RowBatches`.
    """
    if isinstance(source, Prepared):
        preparation = source.preparation
        source = source.source
    if callable(source):
        source = source()
    if isinstance(source, Table):
        table = source
    elif (columns := find_source(source)) is not None:
        table = _read_columns(columns, preparation, in_batches)
    else:
        arrays = read_arrays(split_place(source)[0], preparation)
        table = Table(arrays.X, None, arrays.ids, arrays.labels)
    X = table.X
    if X.ndim != 2:
        raise InputError(f"A table must have rows and columns, but the shape of this one is {X.shape}. Reshape it.")
    if X.dtype.kind not in "fiub":
        raise InputError(f"A table must be numeric, but the dtype of this one is {X.dtype}. Encode it as numbers.")
    if 0 in X.shape:
        raise InputError(f"A table must have at least one row and one column, but the shape of this one is {X.shape}.")
    return table


def find_source(source: object) -> Source | None:
    """The named columns in a source, which can be read in batches; None for arrays and files of arrays."""
    if isinstance(source, Source):
        return source
    place, dialect = split_place(source)
    found = _find_columns(place, dialect)
    if found is None or not (dialect.dates or dialect.ignore_case or dialect.multiply or dialect.na_values):
        return found
    for column in (*dialect.dates, *dialect.ignore_case, *dialect.multiply):
        if column not in found.names:
            raise unknown_column_error(column, found.names)
    return DialectSource(found, dialect, str(place) if isinstance(place, str | os.PathLike) else "the table")


def _find_columns(source: object, dialect: Dialect) -> Source | None:
    if is_address(source):
        return open_query(source)
    if isinstance(source, ArrowTable):
        return ArrowTableSource(source)
    if isinstance(source, DataFrame):
        return FrameSource(source)
    if not isinstance(source, str | os.PathLike):
        return None
    path = Path(source)
    name = path.name.lower()
    with explain_file_errors(path):  # the user may not be allowed to look into a folder on the way
        if path.is_dir():
            return ParquetFolder(path)
        if not path.is_file():
            raise InputError(f"{path} does not exist.")
    if not name.endswith(KINDS):
        raise InputError(f"{path.name} is not of a known kind. Known kinds of files: {', '.join(KINDS)}")
    if name.endswith(DELIMITED):
        return CsvFile(path, dialect)
    if path.stat().st_size == 0:
        raise InputError(f"{path} is empty.")
    if name.endswith(EXCEL):
        return ExcelFile(path, dialect)
    kind = path.suffix.lower()
    return _FILES_WITH_NAMES[kind](path) if kind in _FILES_WITH_NAMES else None


@contextmanager
def open_raw_text(path: Path, dialect: Dialect) -> Iterator[tuple[TextIO, Iterator[str]]]:
    """A text file and its lines as they are, unpacked and bounded, for those who look at how it is written."""
    with explain_file_errors(path, dialect.encoding), open_text(path, dialect) as file:
        yield file, read_bounded_lines(file)


def is_lazy(source: object) -> bool:
    """Whether a source is opened when it is needed, and not held meanwhile."""
    return callable(source) or isinstance(source, str | os.PathLike | Mapping)


class BatchedRows(RowBatches):
    """Rows that stay where they are, and are read and prepared batch by batch at every pass over them."""

    def __init__(self, source: Source, preparation: Preparation, shape: tuple[int, int]) -> None:
        self.source, self.preparation, self.shape = source, preparation, shape

    def batches(self) -> Iterator[Array]:
        layout, n = Layout(self.source.names, self.preparation), 0
        for batch in self.source.batches([*layout.features, *layout.apart], layout.text):
            X, _ = layout.to_matrix(batch)
            n += len(X)
            yield X
        if n != self.shape[0]:
            raise InputError(
                f"The table had {self.shape[0]} rows when it was first read, but it has {n} now. It must not change "
                "during a run."
            )


def arrange_columns(table: Table, names: tuple[str, ...]) -> Table:
    """The same table with its features in another order."""
    if table.names is None or table.names == names:
        return table
    X = table.X
    if isinstance(X, BatchedRows):
        layout = Layout(X.source.names, X.preparation)
        first = {name: names.index(made[0]) for name in layout.features if (made := layout.names_from(name))}
        columns = tuple(sorted(layout.features, key=lambda name: first.get(name, 0)))
        X = BatchedRows(X.source, replace(X.preparation, columns=columns), X.shape)
    elif isinstance(X, np.ndarray):
        X = X[:, [table.names.index(name) for name in names]]
    return replace(table, X=X, names=names)


def _read_columns(source: Source, preparation: Preparation, in_batches: bool) -> Table:
    """Features, ids and labels in one pass, and whether anything is wrong with them."""
    layout = Layout(source.names, preparation)
    row_bytes = 8 * len(layout.names)
    blocks: list[Array] = []
    apart: dict[str, list[Array]] = {name: [] for name in layout.apart}
    n, known_rows = 0, source.rows or 0
    hold = not (in_batches and known_rows * row_bytes > LARGE)
    wanted = list(dict.fromkeys([*layout.features, *layout.apart]))
    for batch in source.batches(wanted, layout.text):
        block, others = layout.to_matrix(batch)
        n += len(block)
        if in_batches and n * row_bytes > LARGE:
            hold, blocks = False, []
        if hold:
            blocks.append(block)
            _check_memory(max(n, known_rows) * row_bytes)
        for name, column in others.items():
            apart[name].append(column)
    layout.check()
    shape = (n, len(layout.names))
    if hold:
        X: Matrix = blocks[0] if len(blocks) == 1 else _join_blocks(blocks, shape)
    else:
        X = BatchedRows(source, preparation, shape)
    columns = {name: np.concatenate(parts) if parts else np.zeros(0, object) for name, parts in apart.items()}
    roles = (preparation.id, preparation.label, preparation.group, preparation.weight)
    ids, labels, groups, weights = (None if role is None else columns.get(role) for role in roles)
    return Table(
        X,
        layout.names,
        None if ids is None else check_ids(ids, str(preparation.id)),
        None if labels is None else to_labels(labels),
        tuple((name, unit) for name, unit in source.units.items() if name in layout.features),
        None if groups is None else to_groups(groups, str(preparation.group)),
        None if weights is None else check_weights(weights, f"column {preparation.weight!r}"),
    )


def _join_blocks(blocks: list[Array], shape: tuple[int, int]) -> Array:
    """One array; each block is let go when it has been copied, so that memory holds all rows once."""
    X, start = np.empty(shape), 0
    blocks.reverse()
    while blocks:
        block = blocks.pop()
        X[start : start + len(block)] = block
        start += len(block)
    return X


def _check_memory(needed: int) -> None:
    available = _measure_memory()
    if available is not None and needed > available:
        raise InputError(
            f"This task holds all rows in memory, which takes {needed / 1e9:.3g} GB, but this machine has "
            f"{available / 1e9:.3g} GB. Choose fewer columns or rows; pca and svd can read larger tables in batches."
        )


def _measure_memory() -> int | None:
    """Bytes of this machine; None if the system does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None
