"""What a user asks of differential privacy."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Literal, TypeGuard

from fedspan.errors import InputError
from fedspan.privacy.accountant import LEAST, MOST

Neighbours = Literal["add-remove", "replace-one"]
MOST_DELTA = 0.1  # which no table of ten rows would be under
_TINY, _HUGE = 1e-100, 1e100  # row norms whose squares can be computed with


@dataclass(frozen=True)
class RowDP:
    """(ε, δ)-differential privacy of single rows: what leaves would look nearly the same with any one row left out.

    Parameters:
        epsilon: ε, how much more likely any outcome may become by one row, as an exponent; 1 is common, 10 is weak.
        delta: δ, the chance that this fails; less than 1 / number of rows.
        row_norm: C, the public bound on a row's Euclidean norm. Longer rows are shortened to it: as they are for the
            mean, and after centering, if that is asked for, for all else. It must be known without looking at the data:
            the largest norm in the data is private. "auto" finds one that most rows keep, by a noised histogram of
            their lengths; that costs 3 % of the budget (with centering twice). "unit" gives every row (after centering)
            the norm 1, so that no bound has to be known: only directions count, and the components are those of the
            directions; rows of zeros stay. With centering it finds a bound for the mean, as center="robust" does.
        center: The bound on rows before centering, for their mean: None (row_norm), a number of its own, or "robust",
            which finds one by a noised histogram (3 % of the budget). For rows that lie far from the origin, where
            row_norm is meant for their distances from the mean.
        neighbours: "add-remove" (a row more or less; the number of rows is private too), or "replace-one".
        expect: A public guess of λ_k, the mean square along the last component, for the forecast of the error before
            anything is sent; None: a typical part of C²/k, the most that it can be.
        simulate: Draw the noise from the run's keyed streams, so that runs repeat. Whoever knows the seed can take such
            noise off again: for simulations only, and the report says so. Otherwise it comes from the system.
        budgets: A folder with one file per client, `<client>.json`, in which each client keeps what it may spend and
            what it has spent over all runs (see `fedspan.privacy.budget`).
    """

    epsilon: float
    delta: float
    row_norm: float | Literal["auto", "unit"] | None = None
    neighbours: Neighbours = "add-remove"
    expect: float | None = None
    simulate: bool = False
    budgets: str | os.PathLike[str] | None = None
    center: float | Literal["robust"] | None = None

    def __post_init__(self) -> None:
        _check_positive("epsilon", self.epsilon)
        if not LEAST <= self.epsilon <= MOST:
            raise InputError(
                f"epsilon must be from {LEAST:g} to {MOST:g}, but is {self.epsilon!r}: below, no number of rows would "
                "help against the noise; above, nobody is protected."
            )
        if not _is_number(self.delta) or not 0 < self.delta < 1:
            raise InputError(
                f"delta must be above 0 and below 1 (and below 1 / number of rows), but is {self.delta!r}."
            )
        if self.delta >= MOST_DELTA:
            raise InputError(
                f"delta must be below 1 / number of rows, but is {self.delta!r}: at that delta one of ten rows may be "
                "shown."
            )
        if self.row_norm is None:
            raise InputError(
                "RowDP needs row_norm, a public bound on the norm of a row. Reading it from the data would leak: "
                "take it from what the columns mean, such as sqrt(number of features) for features in [-1, 1]; or give "
                "row_norm='auto', which spends a part of the budget on finding one, or row_norm='unit', which keeps "
                "only the directions of rows."
            )
        if self.row_norm != "auto" and self.row_norm != "unit":
            _check_norm("row_norm", self.row_norm)
        if self.center is not None and self.center != "robust":
            _check_norm("center", self.center)
        if self.expect is not None:
            _check_positive("expect", self.expect)
        if self.neighbours not in ("add-remove", "replace-one"):
            raise InputError(f"neighbours must be 'add-remove' or 'replace-one', but is {self.neighbours!r}.")


@dataclass(frozen=True)
class PaperDP:
    """FedPower's own calibration (Guo et al., Algorithm 2), to reproduce its tables. **Not sound**, and labelled so.

    ε and δ are for one communication and one entry of AᵀA. The proof has two gaps: it holds the local iterates fixed,
    which depend on the private rows as soon as there is more than one local step; and it bounds one column of the
    release where all r are released, which is up to √r more. The noise is also scaled by ‖Z‖_max of private iterates.

    Parameters:
        epsilon: ε₁, for what leaves a client.
        delta: δ of both; the paper's tables fit 0.01.
        server_epsilon: ε₂, for what leaves the server; None: the same.
    """

    epsilon: float
    delta: float = 0.01
    server_epsilon: float | None = None

    def __post_init__(self) -> None:
        _check_positive("epsilon", self.epsilon)
        if not _is_number(self.delta) or not 0 < self.delta < 1:
            raise InputError(f"delta must be above 0 and below 1, but is {self.delta!r}.")
        if self.server_epsilon is not None:
            _check_positive("server_epsilon", self.server_epsilon)


def _check_norm(name: str, value: float) -> None:
    _check_positive(name, value)
    if not _TINY <= value <= _HUGE:
        raise InputError(
            f"{name} must be from {_TINY:g} to {_HUGE:g}, but is {value!r}: its square cannot be computed with. "
            "Rescale the columns."
        )


def _is_number(value: object) -> TypeGuard[float]:
    """Whether the value is a finite number, which a caller without a type checker may have got wrong."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _check_positive(name: str, value: object) -> None:
    if not _is_number(value) or value <= 0:
        raise InputError(f"{name} must be above 0, but is {value!r}.")
