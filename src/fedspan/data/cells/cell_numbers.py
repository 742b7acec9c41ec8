"""Which number a cell of text is."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import numpy as np

from fedspan._types import Array
from fedspan.data.cells.dialect import Dialect

GAPS = ("", "NA", "N/A", "NaN", "nan", "null", "NULL", "None")  # cells of a numeric column that mean: missing
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class CellReader:
    """The meaning of cells in one dialect. Spaces around a cell do not count."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self.gaps = frozenset({*GAPS, *dialect.na_values})
        self.words = {**dict.fromkeys(dialect.true_values, 1.0), **dict.fromkeys(dialect.false_values, 0.0)}

    def to_number(self, cell: str) -> float | None:
        """The number in a cell, NaN for a missing one; None for text (Python would take 1_000 for a number)."""
        cell = cell.strip()
        if cell in self.gaps:
            return np.nan
        if cell in self.words:
            return self.words[cell]
        if self.dialect.decimal == ",":
            if "." in cell:  # a thousands separator, or a decimal point after all: it is not for us to guess
                return None
            cell = cell.replace(",", ".")
        try:
            return float(cell) if "_" not in cell else None
        except ValueError:
            return None

    def to_number_of(self, column: str, cell: str) -> float | None:
        """The number in a cell of a column: of a date the days, and with the column's factor."""
        number = self.to_number(cell)
        form = self.dialect.dates.get(column)
        if form is not None and (number is None or not np.isnan(number)):
            return to_days(cell, form)
        return None if number is None else number * self.dialect.multiply.get(column, 1.0)

    def to_numbers(self, cells: Sequence[str]) -> tuple[Array, int | None]:
        """The numbers in cells, and where the first is that is not a number."""
        numbers = np.empty(len(cells))
        for i, cell in enumerate(cells):
            value = self.to_number(cell)
            if value is None:
                return numbers, i
            numbers[i] = value
        return numbers, None


def to_days(cell: str, form: str) -> float | None:
    """Days since 1970-01-01, with a fraction for the time of day; None for what is not a date of that form.

    A date without a time zone is taken as it is written. Typed dates are written as in ISO 8601, whatever the form.
    """
    moment = None
    try:
        moment = datetime.strptime(cell, form)
    except ValueError:
        try:
            moment = datetime.fromisoformat(cell[:26] if "T" in cell and len(cell) == 29 else cell)
        except ValueError:
            return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - _EPOCH).total_seconds() / 86400
