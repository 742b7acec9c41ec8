"""Excel files (.xlsx): one sheet with a first row of column names, read by python-calamine.

A workbook is a zip archive of XML. What it unpacks to, and how far apart its cells are, is measured before it is
opened: a few bytes can ask for terabytes in either way.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Collection, Iterator, Sequence
from copy import copy
from datetime import date, datetime, time, timedelta
from pathlib import Path
from xml.parsers import expat

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
from fedspan.errors import InputError, MissingExtraError

_ENCRYPTED = b"\xd0\xcf\x11\xe0"  # a container of Microsoft's: an encrypted workbook, or an .xls file
_SMALL_WORKBOOK = 1 << 28  # bytes (256 MB) that a workbook may unpack to, however small it is
_MOST_UNPACKED_XML = 100  # how many times its own size a larger one may unpack to
_SMALL_SHEET = 1 << 24  # cells of the rectangle around a sheet's cells, however few they are
_MOST_EMPTY = 100  # how many times its number of cells a larger rectangle may have
_CELL_ADDRESS = re.compile(r"\$?([A-Za-z]{1,3})\$?(\d{1,7})")
_XML_CHUNK = 1 << 20


class ExcelFile(Source):
    """One sheet of a workbook. Numbers and dates are typed; cells of text are read as those of a text file are."""

    def __init__(self, path: Path, dialect: Dialect = PLAIN_DIALECT) -> None:
        try:
            import python_calamine
        except ImportError:
            raise MissingExtraError("reading .xlsx files", "excel") from None
        self.path, self.dialect, self.cells = path, dialect, CellReader(dialect)
        self.units = {}
        with explain_file_errors(path):
            self.unchanged = UnchangedFile(path)
            _check_workbook(path)
            with python_calamine.load_workbook(path) as book:
                sheets = list(book.sheet_names)
                self.sheet = self._choose_sheet(sheets)
                self._rows = book.get_sheet_by_name(self.sheet).to_python(skip_empty_area=False)
            self.unchanged.check()
        while self._rows and not any(cell != "" for cell in self._rows[-1]):
            self._rows.pop()
        if not self._rows or not any(cell != "" for cell in self._rows[0]):
            raise InputError(
                f"The sheet {self.sheet!r} of {path} must begin with a row of column names, but that row is empty."
            )
        header = ["" if isinstance(cell, float) else str(cell).strip() for cell in self._rows.pop(0)]
        while header and not header[-1] and not any(row[len(header) - 1] != "" for row in self._rows):
            header.pop()
        if "" in header and dialect.names is None:
            raise InputError(
                f"Every column of the sheet {self.sheet!r} of {path} must have a name in the first row, but column "
                f"{header.index('') + 1} has none. Add it, or set names."
            )
        if dialect.names is not None and len(dialect.names) != len(header):
            raise InputError(
                f"names must have one name for each column of {path}, but the sheet has {len(header)} columns and "
                f"names has {len(dialect.names)}."
            )
        self.names = tuple(header) if dialect.names is None else dialect.names
        self.rows = len(self._rows)

    def _choose_sheet(self, sheets: list[str]) -> str:
        wanted, shown = self.dialect.sheet, ", ".join(map(repr, sheets[:10]))
        if wanted is None and len(sheets) != 1:
            raise InputError(
                f"{self.path} has {len(sheets)} sheets ({shown}), so say which one holds the table: sheet = "
                f'"{sheets[0] if sheets else ""}".'
            )
        if wanted is not None and wanted not in sheets:
            raise InputError(f"{self.path} has no sheet {wanted!r}. It has {shown}.")
        return sheets[0] if wanted is None else wanted

    def batches(self, names: Sequence[str], text: Collection[str]) -> Iterator[Batch]:
        at = {name: self.names.index(name) for name in names}
        step = rows_per_batch(len(names))
        for start in range(0, max(1, len(self._rows)), step):
            rows = self._rows[start : start + step]
            batch = {}
            for name, i in at.items():
                cells = [row[i] for row in rows]
                as_words = name in text or name in self.dialect.dates
                batch[name] = to_words(map(_to_plain, cells)) if as_words else self._to_numbers(name, cells, start)
            yield batch

    def _to_numbers(self, name: str, cells: Sequence[object], done: int) -> Array:
        numbers = np.empty(len(cells))
        for i, cell in enumerate(cells):
            is_number = isinstance(cell, int | float)  # truth values among them
            value = float(cell) if is_number else self.cells.to_number(cell) if isinstance(cell, str) else None  # type: ignore[arg-type]
            if value is None:
                plain = str(_to_plain(cell))
                hint = f'If that is a date, set dates = ["{name}"].' if not isinstance(cell, str) else ""
                raise not_numeric_error(
                    name,
                    f"row {done + i + 1} (line {done + i + 2}) of {self.path} contains {quote_cell(plain)}",
                    hint or guess_cause(name, plain, self.dialect.decimal),
                )
            numbers[i] = value
        return numbers


def _to_plain(cell: object) -> object:
    """A cell as a number or as text; dates as in ISO 8601."""
    if isinstance(cell, datetime):
        return cell.date().isoformat() if cell.time() == time() else cell.isoformat()
    if isinstance(cell, date | time):
        return cell.isoformat()
    return str(cell) if isinstance(cell, timedelta) else cell


def _check_workbook(path: Path) -> None:
    """Refuse a workbook that is encrypted, or that would take far more memory than it has bytes."""
    with path.open("rb") as file:
        if file.read(4) == _ENCRYPTED:
            raise InputError(
                f"{path} is protected by a password, or is an old .xls file. Save it as .xlsx without a password."
            )
    most = max(_SMALL_WORKBOOK, _MOST_UNPACKED_XML * path.stat().st_size)
    size = 0
    with zipfile.ZipFile(path) as archive:
        for part in archive.infolist():
            scan = _SheetScan(path) if part.filename.startswith("xl/worksheets/") else None
            unlimited = copy(part)
            unlimited.file_size = most + 1  # what the archive says of itself is not believed: it is counted
            with archive.open(unlimited) as file:
                while chunk := file.read(_XML_CHUNK):
                    size += len(chunk)
                    if size > most:
                        raise InputError(
                            f"{path} unpacks to more than {most / 1e6:.0f} MB, {_MOST_UNPACKED_XML} times the bytes of "
                            "the file. If that is right, save it as CSV."
                        )
                    if scan is not None:
                        scan.feed(chunk)
            if scan is not None:
                scan.check()


class _SheetScan:
    """How many cells a sheet has, and how far they reach: the reader takes memory for the rectangle around them."""

    def __init__(self, path: Path) -> None:
        self.path, self.count, self.right, self.down = path, 0, 0, 0
        self.parser = expat.ParserCreate()
        self.parser.StartElementHandler = self._start
        self.parser.EntityDeclHandler = self._refuse_entity

    def feed(self, chunk: bytes) -> None:
        try:
            self.parser.Parse(chunk, False)
        except expat.ExpatError as error:
            raise ValueError(f"a sheet is not valid XML ({error})") from None

    def check(self) -> None:
        """Refuse a sheet of few cells that are far apart."""
        cells = self.right * self.down
        if cells > max(_SMALL_SHEET, _MOST_EMPTY * self.count):
            raise InputError(
                f"A sheet of {self.path} reaches over {self.down:,} rows and {self.right:,} columns, but has only "
                f"{self.count:,} cells. Delete the stray cells far below or beside the table."
            )

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        kind, address = name.rpartition(":")[2], attributes.get("r", "").strip()
        if kind == "c":
            self.count += 1
            self._reach(address)
        elif kind == "row" and address.isdigit():
            self.down = max(self.down, int(address))
        elif kind == "dimension":
            self._reach(attributes.get("ref", "").rpartition(":")[2])

    def _reach(self, address: str) -> None:
        found = _CELL_ADDRESS.fullmatch(address)
        if found is None:
            self.right, self.down = max(self.right, self.count), max(self.down, 1)
            return
        column = 0
        for letter in found.group(1).upper():
            column = 26 * column + ord(letter) - 64
        self.right, self.down = max(self.right, column), max(self.down, int(found.group(2)))

    def _refuse_entity(self, *_: object) -> None:
        raise ValueError("a sheet declares XML entities, which no spreadsheet does")
