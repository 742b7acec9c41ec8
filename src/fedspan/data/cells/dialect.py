"""How a table is written: separator, encoding, decimal sign, words for missing, yes and no, dates, spellings.

A job file says it for all clients in [data], or for one of them beside its path; a site's own file says it for the
site's tables. It is no part of `Preparation`: that travels to the sites of a federation, and a job must not be able to
change how a site's file is read.
"""

from __future__ import annotations

import codecs
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, Literal

from fedspan.errors import InputError, suggest

DELIMITED = (".csv", ".tsv", ".csv.gz", ".tsv.gz")
EXCEL = (".xlsx",)
ISO_DATE = "%Y-%m-%d"
_COLUMNAR = (".parquet", ".feather", ".arrow")
Kind = Literal["text", "sheet", "typed", "array"]

KEYS_OF_DIALECT: dict[str, tuple[type, ...]] = {
    "separator": (str,),
    "encoding": (str,),
    "decimal": (str,),
    "na_values": (list,),
    "true_values": (list,),
    "false_values": (list,),
    "dates": (list, dict),
    "ignore_case": (list,),
    "multiply": (dict,),
    "names": (list,),
    "sheet": (str,),
}
"""The keys that say how a table is read, in a job file, in a site's file and beside a path in Python."""

_ANYWHERE = {"na_values", "dates", "ignore_case", "multiply"}
_IN_CELLS = _ANYWHERE | {"decimal", "true_values", "false_values", "names"}
_APPLY_TO: dict[Kind, set[str]] = {
    "text": _IN_CELLS | {"separator", "encoding"},
    "sheet": _IN_CELLS | {"sheet"},
    "typed": _ANYWHERE,
    "array": set(),
}


@dataclass(frozen=True)
class Dialect:
    """How one table is written. The default is UTF-8 text with decimal points and the names in the first line.

    Parameters:
        separator: Between cells; None: a comma, or if the first line has none a semicolon or a tab; of .tsv a tab.
        encoding: Of the text; None: UTF-8.
        decimal: "." or ",".
        na_values: Further words that mean a missing value, in all columns.
        true_values: Words that are 1 in columns of numbers.
        false_values: Words that are 0 in columns of numbers.
        dates: Columns of dates, with their format; they become days since 1970-01-01.
        ignore_case: Columns of words that are read in small letters, with single spaces.
        multiply: Columns of numbers that are multiplied, to have the units of the other clients.
        names: The names of all columns, in place of the first line.
        sheet: Of an Excel file that has several.
    """

    separator: str | None = None
    encoding: str | None = None
    decimal: str = "."
    na_values: tuple[str, ...] = ()
    true_values: tuple[str, ...] = ()
    false_values: tuple[str, ...] = ()
    dates: Mapping[str, str] = field(default_factory=dict)
    ignore_case: tuple[str, ...] = ()
    multiply: Mapping[str, float] = field(default_factory=dict)
    names: tuple[str, ...] | None = None
    sheet: str | None = None

    @property
    def codec(self) -> str:
        """The encoding as Python opens it; a mark at the beginning of UTF-8 text does not count."""
        return "utf-8-sig" if self.is_utf_8 else str(self.encoding)

    @property
    def is_utf_8(self) -> bool:
        return self.encoding is None or codecs.lookup(self.encoding).name in ("utf-8", "utf-8-sig")


PLAIN_DIALECT = Dialect()


def read_dialect(keys: Mapping[str, object], where: str) -> Dialect:
    """The dialect that those keys describe, checked; `where` they are written is said in errors."""
    for key, value in keys.items():
        if key not in KEYS_OF_DIALECT:
            raise InputError(f"{where} has an unknown key {key!r}. {suggest(key, KEYS_OF_DIALECT)}")
        if not dialect_value_fits(key, value):
            raise InputError(f"{key} in {where} must be {EXPECTED_OF_DIALECT[key]}, but is {value!r}.")
    given: dict[str, Any] = dict(keys)  # of the right types, as was just checked
    if "dates" in given and not isinstance(given["dates"], Mapping):
        given["dates"] = dict.fromkeys(given["dates"], ISO_DATE)
    for key, value in given.items():
        if isinstance(value, list):
            given[key] = tuple(word.strip() for word in value)
    dialect = Dialect(**given)
    _check_together(dialect, where)
    return dialect


EXPECTED_OF_DIALECT = {
    "separator": 'one character, such as ";"',
    "encoding": 'the name of a text encoding, such as "cp1252" or "utf-16"',
    "decimal": '"." or ","',
    "na_values": 'a list of words, such as ["?", "-"]',
    "true_values": 'a list of words, such as ["yes"]',
    "false_values": 'a list of words, such as ["no"]',
    "dates": 'a list of columns, or a table such as { born = "%d.%m.%Y" }',
    "ignore_case": "a list of columns",
    "multiply": "a table of numbers that are not 0, such as { weight = 0.001 }",
    "names": "a list of different names, one for each column of the file",
    "sheet": "the name of a sheet",
}


def dialect_value_fits(key: str, value: object) -> bool:
    """Whether a value is what the key needs."""
    if key in ("multiply", "dates") and isinstance(value, Mapping):
        return all(_is_factor(item) if key == "multiply" else isinstance(item, str) for item in value.values())
    if key == "decimal":
        return value in (".", ",")
    if key == "separator":
        return isinstance(value, str) and len(value) == 1 and value.isprintable() | (value == "\t") and value != '"'
    if key == "encoding":
        return isinstance(value, str) and _is_text_encoding(value)
    if key == "sheet":
        return isinstance(value, str)
    if key == "multiply" or not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
        return False
    return key != "names" or (len(set(value)) == len(value) > 0 and all(name.strip() == name != "" for name in value))


def _is_factor(value: object) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and math.isfinite(value) and value != 0  # type: ignore[arg-type]


def _is_text_encoding(name: str) -> bool:
    try:
        return isinstance("a".encode(name).decode(name), str)
    except (LookupError, ValueError, TypeError):
        return False


def _check_together(dialect: Dialect, where: str) -> None:
    meanings = {
        "na_values": dialect.na_values,
        "true_values": dialect.true_values,
        "false_values": dialect.false_values,
    }
    seen: dict[str, str] = {}
    for key, words in meanings.items():
        for word in set(words):
            if word in seen:
                raise InputError(f"{word!r} is both in {seen[word]} and in {key} of {where}. It can mean only one.")
            seen[word] = key
    for column in dialect.multiply:
        if column in dialect.dates:
            raise InputError(f"Column {column!r} of {where} cannot be both in dates and in multiply.")


def kind_of_place(place: object) -> Kind:
    """Which keys apply to a table: those of a text file, of a spreadsheet, of typed columns, or none."""
    if not isinstance(place, str | PathLike) or "://" in str(place):
        return "typed"
    name = Path(place).name.lower()
    if name.endswith(DELIMITED):
        return "text"
    if name.endswith(EXCEL):
        return "sheet"
    return "typed" if name.endswith(_COLUMNAR) or Path(place).is_dir() else "array"


def split_place(source: object) -> tuple[object, Dialect]:
    """What to open, and how it is written, of `{ path = …, decimal = "," }` or `{ url = …, na_values = […] }`."""
    if not isinstance(source, Mapping) or not ("path" in source or "url" in source):
        return source, PLAIN_DIALECT
    keys = {key: value for key, value in source.items() if key in KEYS_OF_DIALECT}
    rest = {key: value for key, value in source.items() if key not in KEYS_OF_DIALECT}
    place: object = rest
    if "path" in rest:
        unknown = [str(key) for key in rest if key != "path"]
        if unknown:
            hint = suggest(unknown[0], ["path", *KEYS_OF_DIALECT])
            raise InputError(f"A file is described by path and by how it is read, not by {unknown[0]!r}. {hint}")
        place = rest["path"]
        if not isinstance(place, str | PathLike) or "://" in str(place):
            raise InputError(f"path must be the path of a file, but is {place!r}. For a database, write url.")
    where = str(place) if "path" in rest else "the description of a database"
    kind = kind_of_place(place)
    odd = [key for key in keys if key not in _APPLY_TO[kind]]
    if odd:
        fits = ", ".join(sorted(_APPLY_TO[kind])) or "none of these keys"
        raise InputError(f"{odd[0]} does not apply to {where}; to a table of its kind applies: {fits}.")
    return place, read_dialect(keys, where)


def add_reading(place: object, reading: Mapping[str, object]) -> object:
    """A place with keys that hold for all clients, as far as they apply to it; its own keys come first."""
    bare = place.get("path", place) if isinstance(place, Mapping) else place
    apply = {key: value for key, value in reading.items() if key in _APPLY_TO[kind_of_place(bare)]}
    if not apply:
        return place
    if isinstance(place, Mapping):
        return {**apply, **place}
    return {("url" if "://" in str(place) else "path"): place, **apply}
