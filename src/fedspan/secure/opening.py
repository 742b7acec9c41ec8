"""How a verified run begins: what all its sites must have been told alike.

A partition of the sites into groups says which sums there can be: each is over whole groups, so two of them differ by
whole groups, too. Default: one group of all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256

from fedspan.core.protocol import AnyServer
from fedspan.errors import InputError, ProtocolError
from fedspan.privacy.plan import Plan

Groups = tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class RunOpening:
    """What a verified run is. `digest` is that of everything that its sites were told."""

    server: AnyServer
    seed: int
    rounds: int
    groups: Groups
    digest: bytes = b""
    plan: Plan | None = None

    def __post_init__(self) -> None:
        names = [name for group in self.groups for name in group]
        if len(names) != len(set(names)) or not all(self.groups):
            raise ProtocolError("The groups of a verified run must not be empty or share a site.")

    @property
    def clients(self) -> tuple[str, ...]:
        """All sites, in the order of their names."""
        return tuple(sorted(name for group in self.groups for name in group))


def digest_opening(told: Mapping[str, object]) -> bytes:
    """One digest of all that a site was told, as plain data, however it was written."""
    return sha256(json.dumps(told, sort_keys=True).encode()).digest()


def make_groups(wanted: Sequence[Sequence[str]] | int | None, clients: Sequence[str]) -> Groups:
    """The partition that is asked for: given by name, or groups of at least that size, or (None) one group of all."""
    clients = sorted(clients)
    if wanted is None:
        return (tuple(clients),)
    if isinstance(wanted, int):
        if isinstance(wanted, bool) or not 2 <= wanted <= len(clients):
            raise InputError(f"groups must be of 2 to the {len(clients)} clients, but is {wanted!r}.")
        count = len(clients) // wanted
        return tuple(
            tuple(clients[i * wanted : (i + 1) * wanted if i + 1 < count else len(clients)]) for i in range(count)
        )
    groups = tuple(sorted(tuple(sorted(group)) for group in wanted))
    if sorted(name for group in groups for name in group) != clients:
        raise InputError(f"groups must name each of the clients {', '.join(clients)} once, but are {list(wanted)!r}.")
    small = [group for group in groups if len(group) < 2]
    if small:
        raise InputError(f"A group needs at least two clients, but {small[0][0]!r} is alone: its sum would show it.")
    return groups
