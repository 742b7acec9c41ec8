"""CSV files in batches: by pyarrow where it is installed, else line by line, which is slower. Both read the same."""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import numpy as np

from fedspan._types import Array
from fedspan.data.sources import Batch, Source, explain_file_errors, not_numeric_error, rows_per_batch, to_words
from fedspan.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

GAPS = ("", "NA", "N/A", "NaN", "nan", "null", "NULL", "None")  # cells of a numeric column that mean: missing
_CSV_BLOCK = 1 << 22  # bytes that pyarrow parses at a time
_LONGEST_LINE = 1 << 26  # characters: room for more than a million columns


class CsvFile(Source):
    """A CSV file with a first line of column names; separated by commas, or by ; or tabs if that line has no comma.

    Spaces around a cell do not count, quoted or not. A column is read as numbers or as words, as it is asked for: in a
    column of words only an empty cell is missing.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows, self.units = None, {}
        with explain_file_errors(path), _open_text(path) as file:
            first = file.readline(_LONGEST_LINE)
            if len(first) == _LONGEST_LINE:
                raise InputError(
                    f"{path} must begin with a line of column names, but its first line has {_LONGEST_LINE:,} "
                    "characters or more. Is it a CSV file?"
                )
            if "\0" in first:
                raise InputError(
                    f"{path} must be UTF-8 text, but it contains zero bytes as UTF-16 does. Save it as UTF-8."
                )
            self.separator = next((mark for mark in ",;\t" if mark in first), ",")
            file.seek(0)
            names = next(csv.reader(_read_bounded_lines(file), delimiter=self.separator), [])
            _check_utf_8(names)
        self.names = tuple(name.strip() for name in names)
        if not any(self.names):
            raise InputError(f"{path} must begin with a line of column names, but it is empty.")
        if all(_to_number(name) is not None for name in self.names):
            raise InputError(
                f"{path} must begin with a line of column names, but its first line has only numbers. Add the names."
            )

    def batches(self, names: Sequence[str], text: Collection[str]) -> Iterator[Batch]:
        try:
            import pyarrow as pa
            from pyarrow import csv as pa_csv
        except ImportError:
            yield from self._read_lines(names, text)
            return
        done = 0
        try:
            reader = pa_csv.open_csv(
                self.path,
                pa_csv.ReadOptions(column_names=list(self.names), skip_rows_after_names=1, block_size=_CSV_BLOCK),
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
        except (OSError, ValueError):  # pyarrow's errors are among these
            yield from self._read_lines(names, text, done)  # which says where the file is wrong

    def _column_to_numbers(self, name: str, column: pa.StringArray, done: int) -> Array:
        """All cells at once. What pyarrow does not take for a number, or takes for NaN, is left to `_to_number`."""
        import pyarrow as pa
        import pyarrow.compute as pc

        cells = pc.utf8_trim_whitespace(column)
        missing = pc.is_in(cells, value_set=pa.array(GAPS))
        try:
            numbers = pc.if_else(missing, pa.scalar(None, pa.string()), cells).cast(pa.float64())
        except pa.ArrowInvalid:
            return self._cells_to_numbers(name, cells.to_pylist(), done)
        values = np.asarray(numbers.to_numpy(zero_copy_only=False))
        if np.isnan(values).sum() > numbers.null_count:
            return self._cells_to_numbers(name, cells.to_pylist(), done)
        return values

    def _read_lines(self, names: Sequence[str], text: Collection[str], done: int = 0) -> Iterator[Batch]:
        """The rows after the first `done`, without pyarrow."""
        at = {name: self.names.index(name) for name in names}
        with explain_file_errors(self.path), _open_text(self.path) as file:
            rows = (row for row in csv.reader(_read_bounded_lines(file), delimiter=self.separator) if row)
            for _ in islice(rows, 1 + done):  # the line of names, and what was read before
                pass
            while chunk := list(islice(rows, rows_per_batch(len(names)))):
                for number, row in enumerate(chunk, done + 1):
                    if len(row) != len(self.names):
                        raise InputError(
                            f"Every row of {self.path} must have {len(self.names)} cells, as its first line has, but "
                            f"row {number} has {len(row)}. Was the file cut off?"
                        )
                batch = {}
                for name, i in at.items():
                    cells = [row[i] for row in chunk]
                    _check_utf_8(cells)
                    batch[name] = to_words(cells) if name in text else self._cells_to_numbers(name, cells, done)
                yield batch
                done += len(chunk)

    def _cells_to_numbers(self, name: str, cells: Sequence[str], done: int) -> Array:
        """Cell by cell, which finds the first that is not a number; `done` rows stand above them."""
        numbers = []
        for number, cell in enumerate(cells, done + 1):
            value = _to_number(cell)
            if value is None:
                raise not_numeric_error(name, f"row {number} of {self.path} contains text")
            numbers.append(value)
        return np.array(numbers)


def _open_text(path: Path) -> TextIO:
    """The file as text. Bytes that are not UTF-8 are kept, so that they matter only in the columns that are read."""
    return path.open(newline="", encoding="utf-8-sig", errors="surrogateescape")


def _read_bounded_lines(file: TextIO) -> Iterator[str]:
    """The lines of a file, none of them longer than any table's: what has no line ends may be larger than memory."""
    while line := file.readline(_LONGEST_LINE):
        if len(line) == _LONGEST_LINE:
            raise ValueError(f"a line has {_LONGEST_LINE:,} characters or more")
        yield line


def _check_utf_8(cells: Sequence[str]) -> None:
    """Raise a UnicodeError if some cell was not UTF-8: the characters that were kept for it cannot be encoded."""
    "".join(cells).encode()


def _to_number(cell: str) -> float | None:
    """The number in a cell, NaN for a missing one; None for text (Python would take 1_000 for a number as well)."""
    if cell.strip() in GAPS:
        return np.nan
    try:
        return float(cell) if "_" not in cell else None
    except ValueError:
        return None
