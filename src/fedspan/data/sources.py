"""Tables with named columns, wherever they are, as sources that can be read in batches again and again."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any, Protocol
from zipfile import BadZipFile

import numpy as np

from fedspan._types import Array
from fedspan.data.preparation import as_text
from fedspan.errors import InputError, MissingExtraError

Batch = Mapping[str, Array]  # numbers as float64 (NaN: missing), text as objects (None: missing)
ENTRIES = 1 << 21  # of a batch: 16 MB
_TOGETHER = 100  # columns of a Parquet file that are read at once
_SLICE = 1 << 24  # entries of a slice of a wider one: 128 MB


class Source(Protocol):
    """Named columns, read in batches of rows: those in `text` as words, the others as numbers."""

    names: tuple[str, ...]
    units: Mapping[str, str]  # where they are known
    rows: int | None  # None: known when all is read

    def batches(self, names: Sequence[str], text: Collection[str]) -> Iterator[Batch]: ...


def batch_rows(columns: int) -> int:
    """How many rows a batch of so many columns has."""
    return max(1, ENTRIES // max(1, columns))


def no_numbers(name: str, what: str) -> InputError:
    return InputError(
        f"need numbers in column {name!r}, got {what}; name it in data.categories, data.id or data.label, or choose "
        "others with data.columns"
    )


def as_numbers(values: Any, name: str) -> Array:
    """float64 from a column of numbers, truth values or Python objects; NaN where there is nothing."""
    values = np.asarray(values)
    if values.dtype.kind in "fiub":
        return np.asarray(values, dtype=np.float64)
    if values.dtype.kind != "O":
        raise no_numbers(name, "text" if values.dtype.kind in "US" else f"values of type {values.dtype}")
    good = [value is None or value != value or isinstance(value, int | float | Decimal | np.number) for value in values]
    if not all(good):
        odd = len(good) - sum(good)
        kinds = "text" if all(isinstance(v, str) for v in values if v is not None) else "mixed types"
        raise no_numbers(name, f"{kinds} ({odd} of {len(good)} values are no numbers)")
    return np.array([np.nan if value is None else float(value) for value in values])


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """One sentence for whatever goes wrong with a file."""
    try:
        yield
    except InputError:
        raise
    except PermissionError:
        raise InputError(f"need a readable file, {path} may not be read by this user; ask for permission") from None
    except (OSError, ValueError, EOFError, BadZipFile) as error:  # pyarrow's errors are among these
        first = str(error).strip().split("\n")[0]
        raise InputError(f"cannot read {path}: {first}; is it whole, and what its name says?") from None


class Frame:
    """A pandas or polars frame."""

    def __init__(self, frame: Any) -> None:
        self.frame, self.labels = frame, list(frame.columns)
        self.names = tuple(map(str, self.labels))
        self.units: Mapping[str, str] = {}
        self.rows: int | None = len(frame)

    def batches(self, names: Sequence[str], text: Collection[str]) -> Iterator[Batch]:
        columns = {name: self._column(self.labels[self.names.index(name)]) for name in names}
        step = batch_rows(len(names))
        for start in range(0, max(1, len(self.frame)), step):
            part = {name: column[start : start + step] for name, column in columns.items()}
            yield {name: as_text(v) if name in text else as_numbers(v, name) for name, v in part.items()}

    def _column(self, label: Any) -> Array:
        column = self.frame[label]
        return np.asarray(column.to_numpy())


class Arrow:
    """A pyarrow table, or a function that gives its batches anew; `rows` may be known."""

    def __init__(self, schema: Any, batches: Callable[[Sequence[str], int], Iterator[Any]], rows: int | None) -> None:
        self.schema, self.read, self.rows = schema, batches, rows
        self.names = tuple(schema.names)
        self.units: Mapping[str, str] = {
            field.name: field.metadata[b"unit"].decode(errors="replace")
            for field in schema
            if field.metadata and b"unit" in field.metadata
        }

    def batches(self, names: Sequence[str], text: Collection[str]) -> Iterator[Batch]:
        for batch in self.read(names, batch_rows(len(names))):
            yield {
                name: as_text(batch.column(name).to_pylist()) if name in text else self._numbers(batch, name)
                for name in names
            }

    def _numbers(self, batch: Any, name: str) -> Array:
        import pyarrow as pa
        import pyarrow.types as kinds

        column = batch.column(name)
        if kinds.is_dictionary(column.type):
            column = column.dictionary_decode()
        kind, about = column.type, self.schema.field(name).metadata or {}
        if isinstance(column, pa.ExtensionArray):
            column, kind = column.storage, column.type.storage_type
        exact = kinds.is_string(kind) and about.get(b"ADBC:postgresql:typname") == b"numeric"
        plain = kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_boolean(kind) or kinds.is_decimal(kind)
        if not (exact or plain or kinds.is_null(kind)):
            raise no_numbers(name, "text" if kinds.is_string(kind) or kinds.is_large_string(kind) else str(kind))
        numbers = column.cast(pa.float64(), safe=False)
        return np.asarray(numbers.to_numpy(zero_copy_only=False), dtype=np.float64)


def arrow_table(table: Any) -> Arrow:
    """A pyarrow table in memory."""

    def batches(names: Sequence[str], step: int) -> Iterator[Any]:
        return iter(table.select(list(names)).to_batches(max_chunksize=step))

    return Arrow(table.schema, batches, table.num_rows)


def parquet(path: Path) -> Arrow:
    """A Parquet file. Its columns are streamed page by page: about 2 MB for each column, however large it is.

    Of many columns that would be much, so they are read some at a time, and only a slice of rows is kept; where a row
    group has several slices, its pages are decoded again for each of them.
    """
    pq = _pyarrow(path, "parquet")
    with reading(path), pq.ParquetFile(path) as file:
        schema, rows = file.schema_arrow, file.metadata.num_rows

    def batches(names: Sequence[str], step: int) -> Iterator[Any]:
        buffer = max(1 << 13, (1 << 25) // max(1, len(names)))
        with reading(path), pq.ParquetFile(path, buffer_size=buffer, pre_buffer=False) as file:
            if len(names) <= _TOGETHER:  # one thread: pages of all columns at once would be held otherwise
                yield from file.iter_batches(batch_size=step, columns=list(names), use_threads=False)
            else:
                yield from _wide(file, list(names), step)

    return Arrow(schema, batches, rows)


def _wide(file: Any, names: list[str], step: int) -> Iterator[Any]:
    import pyarrow as pa

    high = max(step, _SLICE // len(names))
    parts = [names[i : i + _TOGETHER] for i in range(0, len(names), _TOGETHER)]
    for group in range(file.num_row_groups):
        for k in range(-(-file.metadata.row_group(group).num_rows // high)):
            columns: list[Any] = []
            for part in parts:
                read = file.iter_batches(batch_size=high, row_groups=[group], columns=part, use_threads=False)
                batch = next(islice(read, k, None))
                columns += [batch.column(name) for name in part]
            whole = pa.RecordBatch.from_arrays(columns, names)
            yield from (whole.slice(at, step) for at in range(0, whole.num_rows, step))


def feather(path: Path) -> Arrow:
    """An Arrow or Feather file: one of its record batches is in memory at a time."""
    ipc = _pyarrow(path, "ipc")
    with reading(path), ipc.open_file(path) as file:
        schema = file.schema

    def batches(names: Sequence[str], step: int) -> Iterator[Any]:
        import pyarrow as pa

        with reading(path), pa.OSFile(os.fspath(path)) as opened:
            file = ipc.open_file(opened)
            for i in range(file.num_record_batches):
                batch = file.get_batch(i).select(list(names))
                yield from (batch.slice(at, step) for at in range(0, max(1, batch.num_rows), step))

    return Arrow(schema, batches, None)


def _pyarrow(path: Path, module: str) -> Any:
    from importlib import import_module

    try:
        return import_module(f"pyarrow.{module}")
    except ImportError:
        raise MissingExtraError(f"reading {path.suffix} files", "data") from None
