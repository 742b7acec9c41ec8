"""CSV files in batches: by pyarrow if it is there, else line by line, which is slower and says what is wrong."""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO

import numpy as np

from fedspan.data.preparation import as_text
from fedspan.data.sources import Batch, batch_rows, no_numbers, reading
from fedspan.errors import InputError

GAPS = ("", "NA", "N/A", "NaN", "nan", "null", "NULL", "None")  # cells that mean: no number


class CsvFile:
    """A CSV file with a first line of column names; separated by commas, or by ; or tabs if that line has no comma."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: int | None = None
        self.units: Mapping[str, str] = {}
        with _opened(path) as file:
            first = file.readline()
            self.separator = next((mark for mark in ",;\t" if mark in first), ",")
            if "\0" in first:
                raise InputError(f"need UTF-8 text, {path} holds zero bytes as UTF-16 does: save it as UTF-8")
            file.seek(0)
            self.names = tuple(name.strip() for name in next(self._lines(file), []))
        if not any(self.names):
            raise InputError(f"need a line of column names, {path} is empty")
        if all(_number(name) is not None for name in self.names):
            raise InputError(f"need a first line of column names, {path} begins with numbers; add the names")

    def batches(self, names: Sequence[str], text: Collection[str]) -> Iterator[Batch]:
        try:
            import pyarrow as pa
            from pyarrow import csv as arrow
        except ImportError:
            yield from self.by_lines(names, text)
            return
        kinds = {name: pa.string() if name in text else pa.float64() for name in names}
        try:
            reader = arrow.open_csv(
                self.path,
                arrow.ReadOptions(column_names=list(self.names), skip_rows=1, block_size=1 << 22),
                arrow.ParseOptions(delimiter=self.separator, newlines_in_values=True),
                arrow.ConvertOptions(column_types=kinds, include_columns=list(names), null_values=list(GAPS)),
            )
            for batch in reader:
                yield {
                    name: as_text(batch.column(name).to_pylist())
                    if name in text
                    else batch.column(name).to_numpy(zero_copy_only=False)
                    for name in names
                }
        except (OSError, ValueError) as error:
            for _ in self.by_lines(names, text):  # which knows the line and the column
                pass
            with reading(self.path):
                raise error

    def by_lines(self, names: Sequence[str], text: Collection[str]) -> Iterator[Batch]:
        """The same without pyarrow."""
        at = {name: self.names.index(name) for name in names}
        with _opened(self.path) as file:
            lines = enumerate(self._lines(file), 1)
            next(lines, None)
            while True:
                chunk = list(islice(lines, batch_rows(len(names))))
                if not chunk:
                    return
                rows = [(number, row) for number, row in chunk if row]
                for number, row in rows:
                    if len(row) != len(self.names):
                        raise InputError(
                            f"need {len(self.names)} cells in every row as in the first line of {self.path}, row "
                            f"{number - 1} has {len(row)}; was the file cut off?"
                        )
                yield {
                    name: as_text([row[i] for _, row in rows])
                    if name in text
                    else np.array([self._cell(name, number, row[i]) for number, row in rows])
                    for name, i in at.items()
                }

    def _cell(self, name: str, number: int, cell: str) -> float:
        value = _number(cell)
        if value is None:
            raise no_numbers(name, f"text in row {number - 1} of {self.path}")
        return value

    def _lines(self, file: IO[str]) -> Iterator[list[str]]:
        return csv.reader(file, delimiter=self.separator)


def _number(cell: str) -> float | None:
    """The number in a cell, NaN for a gap; None for what is neither (Python would take 1_000 as well)."""
    if cell.strip() in GAPS:
        return np.nan
    try:
        return float(cell) if "_" not in cell else None
    except ValueError:
        return None


@contextmanager
def _opened(path: Path) -> Iterator[IO[str]]:
    """The file as UTF-8 text, or a sentence on what it is instead."""
    try:
        with reading(path), path.open(newline="", encoding="utf-8-sig") as file:
            try:
                yield file
            except UnicodeDecodeError:
                with path.open("rb") as raw:
                    wide = raw.read(2) in (b"\xff\xfe", b"\xfe\xff")
                found = "UTF-16" if wide else "Latin-1 or another old encoding"
                raise InputError(f"need UTF-8 text, {path} is not; it may be {found}: save it as UTF-8") from None
    except csv.Error as error:
        raise InputError(f"cannot read {path}: {error}; is it UTF-8 text, and whole?") from None
