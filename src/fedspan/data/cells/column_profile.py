"""What is in one column of a table, from all of its cells: numbers, dates, yes and no, words, and what spoils them."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from fedspan.data.cells.cell_guesses import (
    FALSE_WORDS,
    MISSING_WORDS,
    TRUE_WORDS,
    find_date_forms,
    find_unit,
    is_decimal_comma,
    is_grouped,
)
from fedspan.data.cells.cell_numbers import CellReader
from fedspan.data.cells.dialect import PLAIN_DIALECT, Dialect

ColumnKind = Literal["empty", "number", "decimal comma", "date", "yes/no", "words", "mixed"]
_MOST_KEPT = 10_000  # different words of a column; more look like ids or free text
_MARKS = re.compile(r"\W+|#?n/?a", re.IGNORECASE)  # what means missing even among words
_NOT_PLAIN = re.compile(r"[^0-9.eE+\-\0]")
_LEADING_ZERO = re.compile(r"0\d+")


@dataclass
class ColumnProfile:
    """Counts over the cells that were seen. Words that are not numbers are kept, numbers are not."""

    dialect: Dialect = PLAIN_DIALECT
    name: str = ""
    rows: int = 0
    missing: int = 0
    numbers: int = 0
    counted: int = 0  # finite numbers in `total`, with those that have a decimal comma
    whole: int = 0  # numbers without a fraction
    zeros_first: int = 0  # whole numbers with leading zeros
    least: float = math.inf
    most: float = -math.inf
    total: float = 0.0
    squares: float = 0.0
    words: Counter[str] = field(default_factory=Counter)
    seen: set[int] = field(default_factory=set)  # hashes of different cells, to find out whether all differ
    repeats: bool = False  # or some number has a fraction: they are no ids
    more: int = 0  # cells with words that were not kept

    def __post_init__(self) -> None:
        self._reader = CellReader(self.dialect)
        self._folds = self.name in self.dialect.ignore_case
        dialect = self.dialect
        self._meant = {*self._reader.gaps, *self._reader.words}  # numbers that mean something else, as -99 for missing
        self._is_plain = dialect.decimal != "," and self.name not in {*dialect.dates, *dialect.multiply}

    def add(self, cells: Iterable[str | None]) -> None:
        """Take in some cells."""
        given = list(cells)
        if not self._add_plain_numbers(given):
            self._add_cells(given)

    def _add_plain_numbers(self, given: list[str | None]) -> bool:
        """Take in all cells at once, if none is anything but a plain number or missing: most columns are of these."""
        plain = [cell for cell in given if cell is not None]
        text = "\0".join(plain)
        if not self._is_plain or not plain or _NOT_PLAIN.search(text) or not self._meant.isdisjoint(plain):
            return False
        try:
            numbers = np.fromiter(map(float, plain), dtype=np.float64, count=len(plain))
        except ValueError:
            return False
        if not np.isfinite(numbers).all():  # 1e999
            return False
        self.rows, self.missing = self.rows + len(given), self.missing + len(given) - len(plain)
        whole = [plain[i] for i in np.flatnonzero(numbers == np.floor(numbers))]
        count = sum(word.lstrip("+-").isdigit() for word in whole)
        if count < len(plain):
            self._stop_looking_for_ids()
        elif not self.repeats:
            marks = set(map(hash, plain))
            if len(marks) < len(plain) or not self.seen.isdisjoint(marks):
                self._stop_looking_for_ids()
            else:
                self.seen.update(marks)
        self.whole += count
        self.zeros_first += sum(_LEADING_ZERO.fullmatch(word) is not None for word in whole if word[0] == "0")
        self.numbers, self.counted = self.numbers + len(plain), self.counted + len(plain)
        self.least, self.most = min(self.least, float(numbers.min())), max(self.most, float(numbers.max()))
        with np.errstate(over="ignore"):  # of huge values: the spread is then infinite
            self.total, self.squares = self.total + float(numbers.sum()), self.squares + float(numbers @ numbers)
        return True

    def _add_cells(self, given: list[str | None]) -> None:
        """Take in cells of any kind, each different one once."""
        for cell, count in Counter(given).items():
            word = " ".join(cell.casefold().split()) if cell is not None and self._folds else cell
            self.rows += count
            if word is None:
                self.missing += count
                continue
            number = self._reader.to_number_of(self.name, word)
            if number is not None and math.isnan(number):
                self.missing += count
                continue
            self._note_repeats(word, count)
            if number is None:
                if is_decimal_comma(word):
                    self._add_to_range(float(word.replace(",", ".")), count)
                if word in self.words or len(self.words) < _MOST_KEPT:
                    self.words[word] += count
                else:
                    self.more += count
            else:
                self._add_number(word, number, count)

    def _note_repeats(self, word: str, count: int) -> None:
        if self.repeats:
            return
        mark = hash(word)
        if count > 1 or mark in self.seen:
            self._stop_looking_for_ids()
        else:
            self.seen.add(mark)

    def _stop_looking_for_ids(self) -> None:
        """A value occurs twice, or has a fraction: then nothing needs to be kept of the others."""
        self.repeats = True
        self.seen.clear()

    def _add_number(self, word: str, number: float, count: int) -> None:
        self.numbers += count
        if number.is_integer() and word.lstrip("+-").isdigit():
            self.whole += count
        else:
            self._stop_looking_for_ids()
        self.zeros_first += count if _LEADING_ZERO.fullmatch(word) else 0
        self._add_to_range(number, count)

    def _add_to_range(self, number: float, count: int) -> None:
        if math.isfinite(number):
            self.counted += count
            self.least, self.most = min(self.least, number), max(self.most, number)
            self.total, self.squares = self.total + count * number, self.squares + count * number * number

    @property
    def gap_words(self) -> list[str]:
        """Words that seem to mean a missing value: of many kinds among numbers, only marks among words."""
        found = [word for word in self.words if word.lower() in MISSING_WORDS]
        others = [word for word in self.words if word not in found]
        is_text = bool(others) and not self.numbers and not all(map(_is_structured, others))
        return sorted(word for word in found if not is_text or _MARKS.fullmatch(word))

    @property
    def texts(self) -> list[str]:
        """The words that are neither numbers nor missing."""
        gaps = set(self.gap_words)
        return [word for word in self.words if word not in gaps]

    @property
    def kind(self) -> ColumnKind:
        """What the column is, if words that seem to mean missing are taken for that."""
        texts = self.texts
        if not texts:
            return "number" if self.numbers else "empty"
        if all(map(is_decimal_comma, texts)) and self.numbers == self.whole:
            return "decimal comma"
        if self.date_forms:
            return "date"
        spoken = {word.lower() for word in texts}
        is_bit = not self.numbers or (self.least >= 0 and self.most <= 1 and self.numbers == self.whole)
        if spoken <= TRUE_WORDS | FALSE_WORDS and is_bit and len(spoken) <= 4 and _has_both(spoken):
            return "yes/no"
        if not self.numbers:
            return "words"
        return "mixed"

    @property
    def date_forms(self) -> list[str]:
        """The forms that all dates have, the first of them the usual one; none if some cell is not a date."""
        texts = self.texts
        if not texts or self.numbers:
            return []
        forms: list[str] | None = None
        for word in texts:
            fits = find_date_forms(word)
            forms = fits if forms is None else [form for form in forms if form in fits]
            if not forms:
                return []
        return forms or []

    @property
    def unit(self) -> str | None:
        """A unit that is written behind numbers."""
        return next((unit for word in self.texts if (unit := find_unit(word))), None)

    @property
    def grouped(self) -> str | None:
        """A number with thousands separators."""
        return next((word for word in self.texts if is_grouped(word) and not is_decimal_comma(word)), None)

    @property
    def gaps(self) -> int:
        """How many cells are missing, with those that only seem to be."""
        return self.missing + sum(self.words[word] for word in self.gap_words)

    @property
    def mean(self) -> float:
        return self.total / self.counted if self.counted else math.nan

    @property
    def spread(self) -> float:
        """The standard deviation."""
        if not self.counted:
            return math.nan
        variance = self.squares / self.counted - self.mean * self.mean
        return math.sqrt(max(0.0, variance)) if math.isfinite(variance) else math.inf

    @property
    def constant(self) -> str | None:
        """The only value, if there is only one and no gap."""
        if self.rows < 2 or self.gaps:
            return None
        if self.numbers == self.rows and self.least == self.most:
            return f"{self.least:.6g}"
        return next(iter(self.words)) if len(self.words) == 1 and not self.numbers and not self.more else None

    @property
    def may_be_ids(self) -> bool:
        """Whether all cells differ and none is missing: words, or whole numbers."""
        is_whole = self.kind == "number" and self.whole == self.numbers
        return not self.repeats and not self.gaps and (self.kind == "words" or is_whole)

    def describe(self) -> str:
        """The range, or some of the words."""
        if self.kind in ("number", "decimal comma") and math.isfinite(self.least):
            return f"{self.least:.4g} to {self.most:.4g}"
        shown = [word for word, _ in self.words.most_common(4)]
        return ", ".join(shown) + (" …" if len(self.words) > len(shown) else "")


def _is_structured(word: str) -> bool:
    """Whether that is a number in another notation, or a date: no plain word."""
    return is_decimal_comma(word) or bool(find_date_forms(word))


def _has_both(spoken: set[str]) -> bool:
    return bool(spoken & TRUE_WORDS) or bool(spoken & FALSE_WORDS)


def find_power(ratio: float) -> float | None:
    """The power of ten of units that a ratio is near to: 100, 1000 or a million, or one by one of these."""
    if not (math.isfinite(ratio) and ratio > 0):
        return None
    for power in (1e2, 1e3, 1e6, 1e-2, 1e-3, 1e-6):
        if abs(np.log10(ratio / power)) < 0.18:
            return power
    return None
