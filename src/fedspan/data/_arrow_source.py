"""Arrow tables, and the files that pyarrow reads: Parquet, Feather and Arrow."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np

from fedspan._types import Array
from fedspan.data._arrow_bounds import measure_batches
from fedspan.data.sources import Batch, Source, explain_file_errors, not_numeric_error, rows_per_batch, to_words
from fedspan.errors import InputError, MissingExtraError

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

_TOGETHER = 100  # columns of a Parquet file that are read at once
_SLICE = 1 << 24  # entries of a slice of a wider file: 128 MB
_SMALL_BATCH = 1 << 28  # bytes (256 MB) that a batch of a Feather file may unpack to, however small the file is
_MOST_UNPACKED = 100  # how many times its own size a larger one may unpack to


@runtime_checkable
class ArrowTable(Protocol):
    """What is used of a pyarrow table."""

    @property
    def schema(self) -> pa.Schema: ...
    @property
    def num_rows(self) -> int: ...
    def select(self, columns: list[str]) -> ArrowTable: ...
    def to_batches(self, max_chunksize: int | None = None) -> list[pa.RecordBatch]: ...


class ArrowSource(Source):
    """Whatever gives Arrow's record batches, again and again."""

    def __init__(self, schema: pa.Schema, rows: int | None) -> None:
        self.schema, self.rows = schema, rows
        self.names = tuple(schema.names)
        self.units = {
            field.name: field.metadata[b"unit"].decode(errors="replace")
            for field in schema
            if field.metadata and b"unit" in field.metadata
        }

    @abstractmethod
    def record_batches(self, names: Sequence[str], step: int) -> Iterator[pa.RecordBatch]:
        """Those columns of all rows, at most `step` rows at a time."""

    def batches(self, names: Sequence[str], text: Collection[str]) -> Iterator[Batch]:
        for batch in self.record_batches(names, rows_per_batch(len(names))):
            with self.explain_errors():
                columns = {
                    name: to_words(batch.column(name).to_pylist())
                    if name in text
                    else self._to_numbers(name, batch.column(name))
                    for name in names
                }
            yield columns

    def explain_errors(self) -> AbstractContextManager[None]:
        """Says in whose name values are refused that no number or word can be made of."""
        return nullcontext()

    def _to_numbers(self, name: str, column: pa.Array) -> Array:
        import pyarrow as pa
        import pyarrow.types as kinds

        if kinds.is_dictionary(column.type):
            column = column.dictionary_decode()
        if isinstance(column, pa.ExtensionArray):
            column = column.storage
        kind, about = column.type, self.schema.field(name).metadata or {}
        is_text = kinds.is_string(kind) or kinds.is_large_string(kind)
        is_exact = kinds.is_string(kind) and about.get(b"ADBC:postgresql:typname") == b"numeric"
        is_plain = kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_boolean(kind) or kinds.is_decimal(kind)
        if not (is_exact or is_plain or kinds.is_null(kind)):
            raise not_numeric_error(name, "it contains text" if is_text else f"its type is {kind}")
        numbers = column.cast(pa.float64(), safe=False)
        return np.asarray(numbers.to_numpy(zero_copy_only=False), dtype=np.float64)


class ArrowTableSource(ArrowSource):
    """A pyarrow table in memory."""

    def __init__(self, table: ArrowTable) -> None:
        super().__init__(table.schema, table.num_rows)
        self.table = table

    def record_batches(self, names: Sequence[str], step: int) -> Iterator[pa.RecordBatch]:
        return iter(self.table.select(list(names)).to_batches(max_chunksize=step))


def check_batch(batch: pa.RecordBatch) -> None:
    """Refuse rows whose offsets, indices or letters are none. Arrow believes what a file says, and reads anywhere."""
    batch.validate(full=True)


def _require_pyarrow(path: Path) -> None:
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        raise MissingExtraError(f"reading {path.suffix} files", "data") from None


class ParquetFile(ArrowSource):
    """A Parquet file. Its columns are streamed page by page: about 2 MB for each column, however large it is.

    Many columns would take too much memory at once, so they are read some at a time, and only a slice of rows is kept;
    where a row group has several slices, its pages are decoded again for each of them.
    """

    def __init__(self, path: Path) -> None:
        _require_pyarrow(path)
        import pyarrow.parquet as pq

        self.path = path
        with explain_file_errors(path), pq.ParquetFile(path) as file:
            super().__init__(file.schema_arrow, file.metadata.num_rows)

    def record_batches(self, names: Sequence[str], step: int) -> Iterator[pa.RecordBatch]:
        import pyarrow.parquet as pq

        buffer = max(1 << 13, (1 << 25) // max(1, len(names)))
        with explain_file_errors(self.path), pq.ParquetFile(self.path, buffer_size=buffer, pre_buffer=False) as file:
            if len(names) <= _TOGETHER:  # one thread: otherwise pages of all columns would be held at once
                read = file.iter_batches(batch_size=step, columns=list(names), use_threads=False)
            else:
                read = _read_slices(file, list(names), step)
            for batch in read:
                check_batch(batch)
                yield batch

    def explain_errors(self) -> AbstractContextManager[None]:
        return explain_file_errors(self.path)


class ParquetFolder(ArrowSource):
    """A folder of Parquet files with the same columns, read one after the other in the order of their names."""

    def __init__(self, path: Path) -> None:
        _require_pyarrow(Path("folder.parquet"))
        with explain_file_errors(path):
            nested = [
                entry for entry in sorted(path.iterdir()) if entry.is_dir() and not entry.name.startswith((".", "_"))
            ]
            paths = sorted(entry for entry in path.glob("*.parquet") if entry.is_file() and entry.name[0] not in "._")
        if nested:
            raise InputError(
                f"{path} must hold Parquet files, but it holds the folder {nested[0].name!r}. Values that are kept in "
                "the names of folders would be lost: write the table without partitions."
            )
        if not paths:
            raise InputError(f"{path} is a folder without Parquet files.")
        self.files = [ParquetFile(each) for each in paths]
        first = self.files[0]
        for file in self.files:
            if set(file.names) != set(first.names):
                odd = sorted(set(file.names) ^ set(first.names))[0]
                raise InputError(
                    f"All files of {path} must have the same columns, but {odd!r} is in only one of {first.path.name} "
                    f"and {file.path.name}."
                )
        super().__init__(first.schema, sum(file.rows or 0 for file in self.files))

    def record_batches(self, names: Sequence[str], step: int) -> Iterator[pa.RecordBatch]:
        for file in self.files:
            yield from file.record_batches(names, step)

    def batches(self, names: Sequence[str], text: Collection[str]) -> Iterator[Batch]:
        for file in self.files:
            yield from file.batches(names, text)


def _read_slices(file: pq.ParquetFile, names: list[str], step: int) -> Iterator[pa.RecordBatch]:
    """The batches of a wide file."""
    import pyarrow as pa

    height = max(step, _SLICE // len(names))
    parts = [names[i : i + _TOGETHER] for i in range(0, len(names), _TOGETHER)]
    for group in range(file.num_row_groups):
        for k in range(-(-file.metadata.row_group(group).num_rows // height)):
            columns: list[pa.Array] = []
            for part in parts:
                read = file.iter_batches(batch_size=height, row_groups=[group], columns=part, use_threads=False)
                batch = next(islice(read, k, None))
                columns += [batch.column(name) for name in part]
            whole = pa.RecordBatch.from_arrays(columns, names)
            yield from (whole.slice(start, step) for start in range(0, whole.num_rows, step))


def _check_unpacked(path: Path) -> None:
    """Refuse a file that says it unpacks to far more than it has bytes, before it does."""
    size, most = measure_batches(path), max(_SMALL_BATCH, _MOST_UNPACKED * path.stat().st_size)
    if size > most:
        raise InputError(
            f"A batch of {path} would take {size / 1e9:.3g} GB in memory, more than {_MOST_UNPACKED} times the bytes "
            "of the file. If that is right, write it without compression, or as Parquet."
        )


class FeatherFile(ArrowSource):
    """An Arrow or Feather file: one of its record batches is in memory at a time."""

    def __init__(self, path: Path) -> None:
        _require_pyarrow(path)
        from pyarrow import ipc

        self.path = path
        with explain_file_errors(path):
            _check_unpacked(path)
            with ipc.open_file(path) as file:
                super().__init__(file.schema, None)

    def record_batches(self, names: Sequence[str], step: int) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        from pyarrow import ipc

        with explain_file_errors(self.path), pa.OSFile(os.fspath(self.path)) as opened:
            file = ipc.open_file(opened)
            for i in range(file.num_record_batches):
                batch = file.get_batch(i).select(list(names))
                check_batch(batch)
                yield from (batch.slice(start, step) for start in range(0, max(1, batch.num_rows), step))

    def explain_errors(self) -> AbstractContextManager[None]:
        return explain_file_errors(self.path)
