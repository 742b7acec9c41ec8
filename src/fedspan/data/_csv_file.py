"""Delimited text in batches: by pyarrow where it is installed, else by lines, which is slower. Both read the same."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Collection, Iterator, Sequence
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, TextIO

import numpy as np

from fedspan._types import Array
from fedspan.data.cells.cell_guesses import guess_cause, quote_cell
from fedspan.data.cells.cell_numbers import CellReader
from fedspan.data.cells.dialect import PLAIN_DIALECT, Dialect
from fedspan.data.sources import (
    Batch,
    Source,
    UnchangedFile,
    explain_file_errors,
    not_numeric_error,
    rows_per_batch,
    to_words,
)
from fedspan.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

_CSV_BLOCK = 1 << 22  # bytes that pyarrow parses at a time
_LONGEST_LINE = 1 << 26  # characters: room for more than a million columns
_SMALL_TEXT = 1 << 28  # bytes (256 MB) that a .gz file may unpack to, however small it is
_MOST_TEXT = 100  # how many times its own size a larger one may unpack to


class CsvFile(Source):
    """A delimited text file with a first line of column names; the dialect says how it is written.

    Spaces around a cell do not count, quoted or not. A column is read as numbers or as words, as it is asked for: in a
    column of words only an empty cell is missing.
    """

    def __init__(self, path: Path, dialect: Dialect = PLAIN_DIALECT) -> None:
        self.path, self.dialect, self.cells = path, dialect, CellReader(dialect)
        self.rows, self.units = None, {}
        with explain_file_errors(path, dialect.encoding):
            self.unchanged = UnchangedFile(path)
            self.separator = dialect.separator or self._find_separator()
            with open_text(path, dialect) as file:
                names = next(csv.reader(read_bounded_lines(file), delimiter=self.separator), [])
            _check_utf_8(names)
        header = tuple(name.strip() for name in names)
        if not any(header):
            raise InputError(f"{path} must begin with a line of column names, but it is empty.")
        if all(self.cells.to_number(name) is not None for name in header):
            raise InputError(
                f"{path} must begin with a line of column names, but its first line has only numbers. Add the names."
            )
        if dialect.names is not None and len(dialect.names) != len(header):
            raise InputError(
                f"names must have one name for each column of {path}, but the file has {len(header)} columns and names "
                f"has {len(dialect.names)}."
            )
        self.names = header if dialect.names is None else dialect.names

    def _find_separator(self) -> str:
        with open_text(self.path, self.dialect) as file:
            first = file.readline(_LONGEST_LINE)
        if len(first) == _LONGEST_LINE:
            raise InputError(
                f"{self.path} must begin with a line of column names, but its first line has {_LONGEST_LINE:,} "
                "characters or more. Is it a CSV file?"
            )
        if "\0" in first:
            raise InputError(
                f"{self.path} must be UTF-8 text, but it contains zero bytes as UTF-16 does. Set encoding = "
                '"utf-16", or save it as UTF-8.'
            )
        if self.path.name.lower().endswith((".tsv", ".tsv.gz")):
            return "\t"
        return next((mark for mark in ",;\t" if mark in first), ",")

    def batches(self, names: Sequence[str], text: Collection[str]) -> Iterator[Batch]:
        yield from self._read(names, text)
        self.unchanged.check()

    def _read(self, names: Sequence[str], text: Collection[str]) -> Iterator[Batch]:
        try:
            import pyarrow as pa
            from pyarrow import csv as pa_csv
        except ImportError:
            yield from self._read_lines(names, text)
            return
        done = 0
        encoding = "utf8" if self.dialect.is_utf_8 else str(self.dialect.encoding)
        try:
            packed = self.path.suffix.lower() == ".gz"
            with _open_packed(self.path) if packed else nullcontext(self.path) as file:
                reader = pa_csv.open_csv(
                    file,
                    pa_csv.ReadOptions(
                        column_names=list(self.names),
                        skip_rows_after_names=1,
                        block_size=_CSV_BLOCK,
                        encoding=encoding,
                    ),
                    pa_csv.ParseOptions(delimiter=self.separator, newlines_in_values=True),
                    pa_csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()), include_columns=list(names)),
                )
                for batch in reader:
                    yield {
                        name: to_words(batch.column(name).to_pylist())
                        if name in text
                        else self._column_to_numbers(name, batch.column(name), done)
                        for name in names
                    }
                    done += batch.num_rows
        except InputError:
            raise
        except (OSError, ValueError, EOFError):  # pyarrow's errors are among these
            self.unchanged.check()
            yield from self._read_lines(names, text, done)  # which says where the file is wrong

    def _column_to_numbers(self, name: str, column: pa.StringArray, done: int) -> Array:
        """All cells at once. What pyarrow does not take for a number, or takes for NaN, is left to `CellReader`."""
        import pyarrow as pa
        import pyarrow.compute as pc

        cells = pc.utf8_trim_whitespace(column)
        missing = pc.is_in(cells, value_set=pa.array(sorted(self.cells.gaps)))
        present = pc.if_else(missing, pa.scalar(None, pa.string()), cells)
        for word, number in self.cells.words.items():
            present = pc.if_else(pc.equal(present, word), pa.scalar(str(number), pa.string()), present)
        if self.dialect.decimal == ",":
            if self.cells.words or pc.any(pc.match_substring(present, ".")).as_py():
                return self._cells_to_numbers(name, cells.to_pylist(), done)
            present = pc.replace_substring(present, ",", ".")
        try:
            numbers = present.cast(pa.float64())
        except pa.ArrowInvalid:
            return self._cells_to_numbers(name, cells.to_pylist(), done)
        values = np.asarray(numbers.to_numpy(zero_copy_only=False))
        if np.isnan(values).sum() > numbers.null_count:
            return self._cells_to_numbers(name, cells.to_pylist(), done)
        return values

    def _read_lines(self, names: Sequence[str], text: Collection[str], done: int = 0) -> Iterator[Batch]:
        """The rows after the first `done`, without pyarrow."""
        at = {name: self.names.index(name) for name in names}
        with explain_file_errors(self.path, self.dialect.encoding), open_text(self.path, self.dialect) as file:
            rows = self._split_rows(file)
            for _ in islice(rows, 1 + done):  # the line of names, and what was read before
                pass
            while chunk := list(islice(rows, rows_per_batch(len(names)))):
                for number, (line, row) in enumerate(chunk, done + 1):
                    if len(row) != len(self.names):
                        raise InputError(
                            f"Every row of {self.path} must have {len(self.names)} cells, as its first line has, but "
                            f"row {number} (line {line}) has {len(row)}. Was the file cut off?"
                        )
                batch = {}
                for name, i in at.items():
                    cells = [row[i] for _, row in chunk]
                    _check_utf_8(cells)
                    batch[name] = to_words(cells) if name in text else self._cells_to_numbers(name, cells, done)
                yield batch
                done += len(chunk)

    def _split_rows(self, file: TextIO) -> Iterator[tuple[int, list[str]]]:
        """Every row that is not empty, with the number of its last line."""
        reader = csv.reader(read_bounded_lines(file), delimiter=self.separator)
        return ((reader.line_num, row) for row in reader if row)

    def _cells_to_numbers(self, name: str, cells: Sequence[str], done: int) -> Array:
        """Cell by cell, which finds the first that is not a number; `done` rows stand above them."""
        numbers, bad = self.cells.to_numbers(cells)
        if bad is not None:
            row = done + bad + 1
            raise not_numeric_error(
                name,
                f"row {row} (line {self._find_line(row)}) of {self.path} contains {quote_cell(cells[bad].strip())}",
                guess_cause(name, cells[bad], self.dialect.decimal),
            )
        return numbers

    def _find_line(self, row: int) -> int:
        """The line on which a row ends: rows may have several lines, and empty lines are no rows."""
        with explain_file_errors(self.path, self.dialect.encoding), open_text(self.path, self.dialect) as file:
            return next(islice(self._split_rows(file), row, None))[0]


class _BoundedGzip(gzip.GzipFile):
    """A .gz file that unpacks to no more than a table could: what is small may unpack to more than memory or time."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "rb")
        self.path, self.most = path, max(_SMALL_TEXT, _MOST_TEXT * path.stat().st_size)
        self.count = 0

    def read(self, size: int | None = -1) -> bytes:
        part = super().read(min(1 << 24, size) if size is not None and size >= 0 else 1 << 24)
        self._add(len(part))
        return part

    def read1(self, size: int = -1) -> bytes:
        part = super().read1(size)
        self._add(len(part))
        return part

    def _add(self, size: int) -> None:
        self.count += size
        if self.count > self.most:
            raise InputError(
                f"{self.path} unpacks to more than {self.most / 1e6:.0f} MB, {_MOST_TEXT} times the bytes of the file. "
                "If that is right, unpack it first."
            )


def _open_packed(path: Path) -> IO[bytes]:
    """The bytes of a file, unpacked if it is packed."""
    return _BoundedGzip(path) if path.suffix.lower() == ".gz" else path.open("rb")  # type: ignore[return-value]


def open_text(path: Path, dialect: Dialect = PLAIN_DIALECT) -> TextIO:
    """The file as text. Bytes that are not UTF-8 are kept, so that they matter only in the columns that are read."""
    errors = "surrogateescape" if dialect.is_utf_8 else "strict"
    return io.TextIOWrapper(_open_packed(path), newline="", encoding=dialect.codec, errors=errors)


def read_bounded_lines(file: TextIO) -> Iterator[str]:
    """The lines of a file, none of them longer than any table's: what has no line ends may be larger than memory."""
    while line := file.readline(_LONGEST_LINE):
        if len(line) == _LONGEST_LINE:
            raise ValueError(f"a line has {_LONGEST_LINE:,} characters or more")
        yield line


def _check_utf_8(cells: Sequence[str]) -> None:
    """Raise a UnicodeError if some cell was not UTF-8: the characters that were kept for it cannot be encoded."""
    "".join(cells).encode()
