"""One client's table as it is found: how it is written, what is in every column, and what cannot be read of it."""

from __future__ import annotations

import codecs
import csv
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypedDict

import numpy as np
import scipy.sparse as sp

from fedspan.data.cells.column_profile import ColumnProfile
from fedspan.data.cells.dialect import PLAIN_DIALECT, Dialect, kind_of_place, split_place
from fedspan.data.tables import find_source, open_raw_text, open_table
from fedspan.errors import FedspanError

_PEEK = 30  # lines from which the separator is found
_SEPARATORS = ",;\t|"


class ReadingKeys(TypedDict, total=False):
    """What should be written beside a client's path."""

    separator: str
    encoding: str
    decimal: str
    names: list[str]
    dates: dict[str, str]
    multiply: dict[str, float]


@dataclass
class TableProfile:
    """What was found. `problems` are what no line of a job file can mend; `notes` need no action."""

    name: str
    place: str
    rows: int = 0
    columns: dict[str, ColumnProfile] = field(default_factory=dict)
    keys: ReadingKeys = field(default_factory=ReadingKeys)
    remarks: list[str] = field(default_factory=list)  # what `keys` are for
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    features: int | None = None  # of a table whose columns have no names


def profile_table(name: str, source: object) -> TableProfile:
    """Read every cell of a table once."""
    found = TableProfile(name, "")
    try:
        place, dialect = split_place(source)
        found.place = str(place) if isinstance(place, str | Path) else "the table"
        if isinstance(place, str | Path) and kind_of_place(place) == "text" and Path(place).is_file():
            _read_text(found, Path(place), dialect)
        else:
            _read_source(found, source, dialect)
    except FedspanError as error:
        found.problems.append(str(error))
    except UnicodeError:
        found.problems.append(f"{found.place} is not text in the encoding that is set. Change encoding.")
    if found.rows == 0 and not found.problems:
        found.problems.append("The table has no rows.")
    return found


def _read_source(found: TableProfile, source: object, dialect: Dialect) -> None:
    columns = find_source(source)
    if columns is None:
        _read_array(found, source)
        return
    names = list(columns.names)
    plain = {name: ColumnProfile(dialect, name) for name in names}
    for batch in columns.batches(names, names):
        for name, cells in batch.items():
            plain[name].add(cells)
        found.rows += len(next(iter(batch.values()))) if batch else 0
    found.columns = plain


def _read_array(found: TableProfile, source: object) -> None:
    X = open_table(source).X
    found.rows, found.features = int(X.shape[0]), int(X.shape[1])
    values = sp.csr_array(X).data if sp.issparse(X) else np.asarray(X)
    gaps = int(np.isnan(values).sum()) if values.dtype.kind == "f" else 0
    if gaps:
        found.notes.append(f"{gaps} values are missing.")


def _read_text(found: TableProfile, path: Path, dialect: Dialect) -> None:
    if dialect.encoding is None and (encoding := _find_encoding(path)) is not None:
        found.keys["encoding"] = encoding
        found.remarks.append(f"The text is not UTF-8; {encoding} can be read.")
        dialect = replace(dialect, encoding=encoding)
    usual, best = _find_separators(path, dialect)
    if dialect.separator is None and best != usual:
        found.keys["separator"] = best
        found.remarks.append(f"Cells are separated by {best!r}, but the first line also has {usual!r}.")
    separator = dialect.separator or best
    with open_raw_text(path, dialect) as (_, lines):
        reader = csv.reader(lines, delimiter=separator)
        header = next(reader, [])
        names = _name_columns(found, header, dialect)
        if not names:
            found.problems.append("The first line must hold the names of the columns, but it is empty.")
            return
        profiles = [ColumnProfile(dialect, name) for name in names]
        ragged: list[int] = []
        chunk: list[list[str]] = []
        for row in reader:
            if not row:
                continue
            if len(row) != len(names):
                ragged.append(reader.line_num)
                continue
            chunk.append(row)
            if len(chunk) == 4096:
                _add_rows(found, profiles, chunk)
                chunk = []
        _add_rows(found, profiles, chunk)
    if ragged:
        shown = ", ".join(map(str, ragged[:5])) + (", …" if len(ragged) > 5 else "")
        found.problems.append(f"{len(ragged)} lines do not have {len(names)} cells as the first line has: {shown}.")
    found.columns = dict(zip(names, profiles, strict=True))


def _add_rows(found: TableProfile, profiles: Sequence[ColumnProfile], rows: Sequence[Sequence[str]]) -> None:
    found.rows += len(rows)
    for i, profile in enumerate(profiles):
        profile.add(row[i].strip() or None for row in rows)


def _name_columns(found: TableProfile, header: Sequence[str], dialect: Dialect) -> list[str]:
    """The names, all different: a name that occurs again is numbered."""
    if dialect.names is not None:
        return list(dialect.names)
    stripped = [name.strip() for name in header]
    padded = [name for name, bare in zip(header, stripped, strict=True) if name != bare]
    if padded:
        found.notes.append(f"Blanks around the names of columns do not count: {', '.join(map(repr, padded[:5]))}.")
    twice = [name for name, count in Counter(stripped).items() if count > 1 or not name]
    if not twice:
        return stripped
    names: list[str] = []
    for name in stripped:
        new, number = name or "column", 1
        while new in names or (number == 1 and not name):
            number += 1
            new = f"{name or 'column'}_{number}"
        names.append(new)
    found.keys["names"] = names
    what = ", ".join(map(repr, twice[:5]))
    found.remarks.append(f"Names of columns must differ, but these occur more than once or are empty: {what}.")
    return names


def _find_encoding(path: Path) -> str | None:
    """An encoding that the file can be read in; None if that is UTF-8."""
    raw = replace(PLAIN_DIALECT, encoding="latin-1")  # every byte is a character
    decoder = codecs.getincrementaldecoder("utf-8")()
    with open_raw_text(path, raw) as (file, _):
        start = True
        while part := file.read(1 << 20):
            if start and part.startswith(("\xff\xfe", "\xfe\xff")):
                return "utf-16"
            start = False
            try:
                decoder.decode(part.encode("latin-1"))
            except UnicodeDecodeError:
                return "cp1252"
    return None


def _find_separators(path: Path, dialect: Dialect) -> tuple[str, str]:
    """The separator that would be taken from the first line, and the one that fits the first lines best."""
    with open_raw_text(path, dialect) as (_, lines):
        head = [line for _, line in zip(range(_PEEK), lines, strict=False)]
    first = head[0] if head else ""
    if path.name.lower().endswith((".tsv", ".tsv.gz")):
        return "\t", "\t"
    usual = next((mark for mark in ",;\t" if mark in first), ",")
    if dialect.separator is not None:
        return dialect.separator, dialect.separator

    def judge(mark: str) -> tuple[float, int, bool]:
        widths = [len(row) for row in csv.reader(head, delimiter=mark) if row]
        if not widths or widths[0] < 2:
            return 0.0, 0, mark == usual
        return sum(width == widths[0] for width in widths) / len(widths), widths[0], mark == usual

    best = max(_SEPARATORS, key=judge)
    return usual, best if judge(best)[0] > 0 else usual
