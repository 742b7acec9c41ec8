"""What protects a run: noise according to a plan, secure sums, both or neither."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from fedspan.privacy.plan import Plan

RETRIES = 3  # how often a client that did not answer is asked again


class SecureSums(Protocol):
    """The request for secure aggregation: how few clients may be in a sum."""

    def threshold_for(self, clients: int, min_clients: int | None = None) -> int:
        """The least number of clients in a sum, if there are so many clients."""
        ...


@dataclass(frozen=True)
class Protection:
    """At least `min_clients` must be in a sum (None: all that are asked); a phase is repeated up to `retries` times."""

    plan: Plan | None = None
    secure: SecureSums | None = None
    min_clients: int | None = None
    retries: int = RETRIES
