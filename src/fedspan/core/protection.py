"""What protects a run: noise according to a plan, secure sums, both or neither."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from fedspan.core.protocol import AnyServer
from fedspan.privacy.keyring import RunKey
from fedspan.privacy.plan import Plan

RETRIES = 3  # how often a client that did not answer is asked again


class SecureSums(Protocol):
    """The request for secure aggregation: how few clients may be in a sum."""

    def threshold_for(self, clients: int, min_clients: int | None = None) -> int:
        """The least number of clients in a sum, if there are so many clients."""
        ...

    def is_verified(self, server: AnyServer, clients: int, min_clients: int | None = None) -> bool:
        """Whether the sums of that run are verified by the clients."""
        ...

    def allow_participation(self) -> SecureSums:
        """The request for a run in which only some clients are asked in a round, or a refusal."""
        ...

    def partition(self, clients: Sequence[str]) -> tuple[tuple[str, ...], ...]:
        """The groups over which verified sums are taken."""
        ...


@dataclass(frozen=True)
class Protection:
    """At least `min_clients` must be in a sum (None: all that are asked); a phase is repeated up to `retries` times.

    `rounds` is the most that the run may take. `key` names a private run, and is the key of the noise of clients that
    are all in one process.
    """

    plan: Plan | None = None
    secure: SecureSums | None = None
    min_clients: int | None = None
    retries: int = RETRIES
    rounds: int = 0
    key: RunKey | None = None
