"""Coefficients with what is known about them: standard errors, p-values, confidence intervals, as typed records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr, ndtri, stdtr, stdtrit

from fedspan._types import Array
from fedspan.errors import InputError

INTERCEPT = "(intercept)"


@dataclass(frozen=True)
class Coefficient:
    """One coefficient. What is not known is NaN.

    Parameters:
        name: The column, or "(intercept)".
        estimate: The coefficient, in the units of the column.
        standard_error: Its standard deviation over repeated samples.
        statistic: Estimate over standard error: t for least squares, else z.
        p_value: How likely a statistic at least as large is if the coefficient is 0.
        low, high: The ends of the confidence interval.
        equation: With more than two classes: the class whose odds against the first class it describes.
    """

    name: str
    estimate: float
    standard_error: float
    statistic: float
    p_value: float
    low: float
    high: float
    equation: str = ""


@dataclass(frozen=True)
class CoefficientTable:
    """All coefficients of a linear model; `print` shows a table.

    Parameters:
        rows: One record for each coefficient, the intercept last.
        level: Of the confidence intervals.
        statistic: "t" or "z".
    """

    rows: tuple[Coefficient, ...]
    level: float
    statistic: str

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, name: str) -> Coefficient:
        """The coefficient of a column (of the first equation, if there are several)."""
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(name)

    @property
    def header(self) -> list[str]:
        """The names of the columns of `cells`."""
        several = ["class"] if any(row.equation for row in self.rows) else []
        share = f"{100 * self.level:g} %"
        test = f"P>|{self.statistic}|"
        return [*several, "name", "estimate", "std. error", self.statistic, test, f"{share} from", "to"]

    @property
    def cells(self) -> list[list[str]]:
        """Every row as text."""
        several = any(row.equation for row in self.rows)
        return [
            [
                *([row.equation] if several else []),
                row.name,
                _write_number(row.estimate, ".6g"),
                _write_number(row.standard_error, ".4g"),
                _write_number(row.statistic, ".3f"),
                _write_number(row.p_value, ".3g"),
                _write_number(row.low, ".6g"),
                _write_number(row.high, ".6g"),
            ]
            for row in self.rows
        ]

    def __str__(self) -> str:
        lines = [self.header, *self.cells]
        words = len(self.header) - 6
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.header))]
        padded = [
            [
                cell.ljust(w) if i < words else cell.rjust(w)
                for i, (cell, w) in enumerate(zip(line, widths, strict=True))
            ]
            for line in lines
        ]
        return "\n".join("  ".join(line).rstrip() for line in padded)


def _write_number(value: float, how: str) -> str:
    return format(value, how) if np.isfinite(value) else "–"


def tabulate_coefficients(
    names: Sequence[str],
    estimate: Array,
    errors: Array,
    degrees: float,
    level: float,
    equations: Sequence[str] = ("",),
) -> CoefficientTable:
    """The table of coefficients (R, len(names)). `degrees` of freedom for Student's t; infinite: a normal z."""
    if not 0 < level < 1:
        raise InputError(f"level must be between 0 and 1, such as 0.95, but is {level!r}.")
    with np.errstate(divide="ignore", invalid="ignore"):
        statistic = estimate / errors
        if np.isfinite(degrees):
            known = degrees if degrees > 0 else np.nan
            p, quantile = 2 * stdtr(known, -np.abs(statistic)), stdtrit(known, (1 + level) / 2)
        else:
            p, quantile = 2 * ndtr(-np.abs(statistic)), ndtri((1 + level) / 2)
        reach = quantile * errors
    rows = [
        Coefficient(
            name,
            estimate=float(estimate[r, j]),
            standard_error=float(errors[r, j]),
            statistic=float(statistic[r, j]),
            p_value=float(p[r, j]),
            low=float(estimate[r, j] - reach[r, j]),
            high=float(estimate[r, j] + reach[r, j]),
            equation=equation,
        )
        for r, equation in enumerate(equations)
        for j, name in enumerate(names)
    ]
    return CoefficientTable(tuple(rows), level, "t" if np.isfinite(degrees) else "z")
