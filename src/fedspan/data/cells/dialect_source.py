"""What a dialect says of whole columns, whatever table they are in: dates, spellings, factors, words for missing."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import numpy as np

from fedspan._types import Array
from fedspan.data.cells.cell_guesses import find_date_forms, quote_cell
from fedspan.data.cells.cell_numbers import GAPS, CellReader, to_days
from fedspan.data.cells.dialect import Dialect
from fedspan.data.sources import Batch, Source
from fedspan.errors import InputError


class DialectSource(Source):
    """A source whose columns are read as a dialect says. `where` names the table in errors."""

    def __init__(self, source: Source, dialect: Dialect, where: str) -> None:
        self.source, self.dialect, self.where = source, dialect, where
        self.names, self.units, self.rows = source.names, source.units, source.rows
        self._gaps = set(dialect.na_values)
        reader = CellReader(Dialect(decimal=dialect.decimal))
        numbers = {reader.to_number(word) for word in dialect.na_values}
        self._gap_numbers = [number for number in numbers if number is not None and not np.isnan(number)]

    def batches(self, names: Sequence[str], text: Collection[str]) -> Iterator[Batch]:
        dates = [name for name in names if name in self.dialect.dates and name not in text]
        done = 0
        for batch in self.source.batches(names, {*text, *dates}):
            yield {name: self._convert(name, column, name in text, done) for name, column in batch.items()}
            done += len(next(iter(batch.values()))) if batch else 0

    def _convert(self, name: str, column: Array, is_text: bool, done: int) -> Array:
        if is_text:
            return self._convert_words(column, name in self.dialect.ignore_case)
        if name in self.dialect.dates:
            return self._convert_dates(name, column, done)
        for number in self._gap_numbers:
            column = np.where(column == number, np.nan, column)
        factor = self.dialect.multiply.get(name)
        return column if factor is None else column * factor

    def _convert_words(self, column: Array, ignore_case: bool) -> Array:
        if not ignore_case and not self._gaps:
            return column
        words = [None if word is None or word in self._gaps else word for word in column]
        if ignore_case:
            words = [None if word is None else " ".join(word.casefold().split()) for word in words]
        return np.array(words, dtype=object)

    def _convert_dates(self, name: str, column: Array, done: int) -> Array:
        form = self.dialect.dates[name]
        days = np.empty(len(column))
        known: dict[str | None, float] = {None: np.nan}
        known |= dict.fromkeys((*GAPS, *self._gaps), np.nan)
        for i, word in enumerate(column):
            if word not in known:
                found = to_days(word, form)
                if found is None:
                    forms = find_date_forms(word)
                    hint = f" It fits {forms[0]!r}." if forms else ""
                    raise InputError(
                        f"Column {name!r} must contain dates of the form {form!r}, but row {done + i + 1} of "
                        f"{self.where} contains {quote_cell(word)}.{hint} Change dates, or fix the table."
                    )
                known[word] = found
            days[i] = known[word]
        return days
