"""What protects a run: noise by a plan, secure sums, both or neither."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from fedspan.privacy.plan import Plan


class SecureSums(Protocol):
    """A wish for secure aggregation: how few clients may be in a sum."""

    def among(self, clients: int, min_clients: int | None = None) -> int:
        """The least number of clients in a sum, of that many."""
        ...


@dataclass(frozen=True)
class Protection:
    """`min_clients` must be in a sum; None: all that are asked. `retries`: how often a phase is asked again."""

    plan: Plan | None = None
    secure: SecureSums | None = None
    min_clients: int | None = None
    retries: int = 3
