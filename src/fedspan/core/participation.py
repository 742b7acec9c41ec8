"""Who takes part in a round."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fedspan.core.rng import Streams
from fedspan.errors import InputError


def cohort_size(fraction: float, clients: int) -> int:
    """At least that fraction of the clients, and at least one; 0.07 of 100 is 7, whatever floating point says."""
    return max(1, math.ceil(fraction * clients - 1e-9))


@dataclass(frozen=True)
class Participation:
    """A cohort per round: a fraction of the clients, or a number of them.

    Parameters:
        fraction: The part of all clients, above 0 and at most 1 (rounded up); give this or `count`.
        count: How many clients.
        scheme: FedPower's: 1 draws with replacement, larger clients more often; 2 uniformly without replacement.
    """

    fraction: float | None = None
    count: int | None = None
    scheme: int = 2

    def __post_init__(self) -> None:
        if (self.fraction is None) == (self.count is None):
            raise InputError("Give either fraction or count: which part of the clients is asked, or how many.")
        if self.fraction is not None and not 0 < self.fraction <= 1:
            raise InputError(f"fraction must be above 0 and at most 1, but is {self.fraction!r}.")
        if self.count is not None and self.count < 1:
            raise InputError(f"count must be at least 1, but is {self.count!r}.")
        if self.scheme not in (1, 2):
            raise InputError(f"scheme must be 1 (with replacement) or 2 (without), but is {self.scheme!r}.")

    def cohort(self, clients: Sequence[str], rng: Streams) -> tuple[str, ...]:
        """The cohort of a round, for algorithms that do not draw it themselves: uniform, in the order of ids."""
        size = self.count if self.count is not None else cohort_size(self.fraction or 1.0, len(clients))
        if size > len(clients):
            raise InputError(f"count must be at most the {len(clients)} clients, but is {size}.")
        chosen = rng("cohort").choice(len(clients), size=size, replace=False)
        return tuple(clients[i] for i in sorted(chosen.tolist()))
