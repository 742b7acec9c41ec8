"""What protects a run: noise by a plan, secure sums, both or neither."""

from __future__ import annotations

from dataclasses import dataclass

from fedspan.privacy.plan import Plan
from fedspan.secure.masking import Secure


@dataclass(frozen=True)
class Protection:
    """`min_clients` must be in a sum; None: all that are asked."""

    plan: Plan | None = None
    secure: Secure | None = None
    min_clients: int | None = None
