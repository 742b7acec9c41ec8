"""What a source of rows is: named columns, wherever they are, that can be read in batches again and again."""

from __future__ import annotations

import csv
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Protocol, runtime_checkable
from zipfile import BadZipFile

import numpy as np
from numpy.typing import ArrayLike

from fedspan._foreign import printable
from fedspan._types import Array
from fedspan.errors import FedspanError, InputError

Batch = Mapping[str, Array]  # some rows, by column: numbers as float64 (NaN: missing), words as objects (None: missing)
ENTRIES = 1 << 21  # of a batch: 16 MB
_LONGEST_REASON = 300  # characters of what a library says is wrong with a file: some repeat all of it


class Source(ABC):
    """A table with named columns."""

    names: tuple[str, ...]
    units: Mapping[str, str]  # by column, where they are known
    rows: int | None  # None: not known before all rows are read

    @abstractmethod
    def batches(self, names: Sequence[str], text: Collection[str]) -> Iterator[Batch]:
        """The columns `names` of all rows, in order; those in `text` as words, the others as numbers."""


def rows_per_batch(columns: int) -> int:
    """How many rows a batch has if it has this many columns."""
    return max(1, ENTRIES // max(1, columns))


def not_numeric_error(name: str, found: str, hint: str = "") -> InputError:
    """The error for a column that must be numeric. `found` says what is there, `hint` what it may be.

    It may quote a cell. What a site of a federation finds in its table is said in its own log, and never sent.
    """
    advice = hint or "List it in categories, make it the id or the label, or leave it out of columns."
    return InputError(f"Column {name!r} must be numeric, but {found}. {advice}")


class UnchangedFile:
    """Notices that a file was written to while it was read: half of it would be old and half of it new."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._before = self._look()

    def check(self) -> None:
        """Refuse what was read of a file that has changed meanwhile."""
        if self._look() != self._before:
            raise InputError(
                f"{self.path} changed while it was read. It must not change during a run: wait until it is written."
            )

    def _look(self) -> tuple[int, int, int]:
        found = self.path.stat()
        return found.st_size, found.st_mtime_ns, found.st_ino


def to_numbers(values: ArrayLike, name: str) -> Array:
    """float64 from a column of numbers, truth values or Python objects; NaN where nothing is given."""
    values = np.asarray(values)
    if values.dtype.kind in "fiub":
        return np.asarray(values, dtype=np.float64)
    if values.dtype.kind != "O":
        raise not_numeric_error(
            name, "it contains text" if values.dtype.kind in "US" else f"its type is {values.dtype}"
        )
    good = [value is None or value != value or isinstance(value, int | float | Decimal | np.number) for value in values]
    if not all(good):
        only_text = all(isinstance(value, str) for value in values if value is not None)
        kinds = "text" if only_text else "values of mixed types"
        raise not_numeric_error(
            name, f"it contains {kinds} ({len(good) - sum(good)} of {len(good)} values are not numbers)"
        )
    return np.array([np.nan if value is None else float(value) for value in values])


def to_words(values: Iterable[object]) -> Array:
    """The words of a column of any type, None where nothing is given: 1 and 1.0 are the same word, and so is ' 1'."""
    return np.array([to_word(value) for value in values], dtype=object)


def to_word(value: object) -> str | None:
    """The word in a cell, None if it is empty."""
    if value is None or value != value:  # NaN
        return None
    if isinstance(value, float | np.floating) and value.is_integer():
        value = int(value)
    return str(value).strip() or None


@contextmanager
def explain_file_errors(path: Path, encoding: str | None = None) -> Iterator[None]:
    """Turn whatever goes wrong with a file into one sentence. `encoding`: the one that was asked for.

    Readers meet bytes that somebody may have made to break them, and the libraries raise all kinds of errors then.
    """
    try:
        yield
    except FedspanError:
        raise
    except MemoryError as error:
        raise InputError(f"{path} says that it holds more than this machine has memory for. Is it damaged?") from error
    except PermissionError:
        raise InputError(f"{path} may not be read by this user. Ask for permission to read it.") from None
    except UnicodeError:
        with path.open("rb") as file:
            is_utf_16 = file.read(2) in (b"\xff\xfe", b"\xfe\xff")
        likely = "UTF-16" if is_utf_16 else "Latin-1 or another old encoding"
        if encoding is not None:
            raise InputError(f"{path} is not {encoding} text, as encoding says. It may be {likely}.") from None
        name = "utf-16" if is_utf_16 else "cp1252"
        raise InputError(
            f'{path} must be UTF-8 text, but it seems to be {likely}. Set encoding = "{name}", or save it as UTF-8.'
        ) from None
    except Exception as error:
        expected = isinstance(error, OSError | ValueError | EOFError | BadZipFile | csv.Error)  # pyarrow's among these
        first_line = printable(str(error).strip().split("\n")[0][:_LONGEST_REASON].rstrip("."))
        reason = first_line if expected and first_line else f"{type(error).__name__} {first_line}".rstrip()
        raise InputError(
            f"Cannot read {path}: {reason}. Is the file complete, and of the kind that its name says?"
        ) from (None if expected else error)


@runtime_checkable
class DataFrame(Protocol):
    """What is used of a pandas or polars frame."""

    @property
    def columns(self) -> Iterable[object]: ...
    def __len__(self) -> int: ...
    def __getitem__(self, label: object, /) -> DataColumn: ...
    def to_numpy(self) -> Array: ...


@runtime_checkable
class IndexedFrame(DataFrame, Protocol):
    """A frame whose rows have labels, as in pandas."""

    @property
    def index(self) -> Iterable[object]: ...


class DataColumn(Protocol):
    """What is used of a column of such a frame."""

    def to_numpy(self) -> Array: ...


class FrameSource(Source):
    """A pandas or polars frame."""

    def __init__(self, frame: DataFrame) -> None:
        self.frame, self.labels = frame, list(frame.columns)
        self.names = tuple(map(str, self.labels))
        self.units = {}
        self.rows = len(frame)

    def batches(self, names: Sequence[str], text: Collection[str]) -> Iterator[Batch]:
        labels = {name: self.labels[self.names.index(name)] for name in names}
        columns = {name: np.asarray(self.frame[label].to_numpy()) for name, label in labels.items()}
        step = rows_per_batch(len(names))
        for start in range(0, max(1, len(self.frame)), step):
            part = {name: column[start : start + step] for name, column in columns.items()}
            yield {name: to_words(v) if name in text else to_numbers(v, name) for name, v in part.items()}
