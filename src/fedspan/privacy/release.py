"""What leaves a client: how much one row can change it, and how often a run will ask for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Sensitivity:
    """One row of norm at most C changes the released array by at most C**power in Frobenius norm.

    `replaced` is the factor for a row that is put in the place of another; None: the usual one of that power.
    """

    power: int
    replaced: float | None = None

    def bound(self, C: float, replace_one: bool = False) -> float:
        """By how much one row more or less changes the array; or one row in the place of another.

        Replacing is removing and adding: at most twice as much. A count still changes by at most 1, and for
        releases of second order, positive semidefinite as aaᵀ is, ‖aaᵀ - bbᵀ‖_F ≤ √2 C², because their inner product is
        not negative.
        """
        usual = {0: 1.0, 2: 2**0.5}.get(self.power, 2.0)
        factor = usual if self.replaced is None else self.replaced
        return C**self.power * (factor if replace_one else 1.0)


HISTOGRAM = Sensitivity(0, replaced=2**0.5)
"""Numbers of rows in bins: a row that is replaced may leave one bin and come into another."""


@dataclass(frozen=True)
class Public:
    """The released array says nothing of the values in the rows: shapes, or digests of ids that all clients hold."""


PUBLIC = Public()
Declared = Sensitivity | Public | None
Declarations = Mapping[str, Mapping[str, Declared]]
"""What a client's tasks release: task → array → what is known of it."""


@dataclass(frozen=True)
class Release:
    """One array of one task, how often a run will ask for it, and its share of the privacy budget.

    `sampled` is the probability with which a row is in a release, by a draw that only the client sees.
    """

    task: str
    array: str
    times: int
    share: float = 1.0
    sampled: float = 1.0
