"""Are row j of one client and row j of another the same entity? Asked before anything is computed.

Every client digests its ids, in their one spelling (matching/canonical_ids.py), by HMAC-SHA256, with a secret that the
clients share and the server does not have, and a random key of the run. First only sums are asked for: of d and of d·d,
for the digest d of the whole list and for the number of rows. All clients have the same d exactly if m·Σd² = (Σd)².
Only if they differ are the rows' own digests asked for, 4 bytes each, to say how many rows differ; under secure sums
that is refused.

What the server sees: with secure sums, whether all lists agree; without, each client's digest too, and after a mismatch
which rows agree. Who knows the secret can check a guess of an id against them, so a site of a federation gives digests
only under a secret of its own making (`fedspan federation secret`). In one process a random one is shared.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import numpy as np

from fedspan._types import Array, Arrays, Matrix
from fedspan.algorithms.matching.canonical_ids import canonical_ids
from fedspan.core.protocol import Ask, Client, Needs, Round, Sum, Turn, complete, task
from fedspan.core.rng import Streams
from fedspan.errors import InputError

Remembered = TypeVar("Remembered")
_DIGEST = 16  # bytes
_OF_THIS_PROCESS = secrets.token_hex(32)  # for clients in one process that were given no secret


@dataclass(frozen=True)
class Entities:
    """A client's view with the ids of its rows, a secret shared by the clients, and rows held out of the fit.

    Without a secret, a random one is shared by all clients of this process.
    """

    X: Matrix
    ids: Sequence[object] | Array | None = None
    secret: str = ""
    held_out: Matrix | None = None


class EntitiesClient(Client[Remembered]):
    """A client whose rows are entities that others have too. Subclasses set `entities` in their constructor."""

    needs: ClassVar[Needs] = "entities"
    entities: Entities

    @task(
        releases={"n": None, "nn": None, "named": None, "d": None, "dd": None},
        shows="its number of rows, and one digest of their ids if a column of ids is named",
    )
    def identify(self, state: Remembered, arrays: Arrays, rng: Streams) -> tuple[Remembered, Arrays]:
        """How many rows there are, whether they have ids, and one digest of these; each with its square."""
        n, ids = self.entities.X.shape[0], self.entities.ids
        if ids is not None and len(ids) != n:
            raise InputError(f"There must be one id for each of the {n} rows, but there are {len(ids)}.")
        whole = bytes(_DIGEST) if ids is None else self._digest(arrays, _DIGEST, canonical_ids(ids))
        d = np.frombuffer(whole, dtype=np.uint8).astype(np.int64)
        named = np.array(int(ids is not None))
        return state, {"n": np.array(n), "nn": np.array(n * n), "named": named, "d": d, "dd": d * d}

    @task(
        releases={"n": None, "digests": None},
        shows="its number of rows, and a digest of each row's id (whoever knows the sites' secret can check a guess)",
    )
    def identify_rows(self, state: Remembered, arrays: Arrays, rng: Streams) -> tuple[Remembered, Arrays]:
        """A digest of every row's id, cut to 4 bytes."""
        ids = [] if self.entities.ids is None else canonical_ids(self.entities.ids)
        rows = b"".join(self._digest(arrays, 4, [one]) for one in ids)
        digests = np.frombuffer(rows, dtype="<u4").astype(np.uint32)
        return state, {"n": np.array(self.entities.X.shape[0]), "digests": digests}

    def _digest(self, arrays: Arrays, size: int, ids: Sequence[bytes]) -> bytes:
        secret = self.entities.secret or _OF_THIS_PROCESS
        digest = hmac.new(secret.encode(), arrays["key"].tobytes(), "sha256")
        for one in ids:
            digest.update(len(one).to_bytes(8, "little") + one)  # "1","23" is not "12","3"
        return digest.digest()[:size]


MATCH_TURNS = (Turn("identify"), Turn("identify_rows", after=["identify"]))
MATCH_TASKS = frozenset({"identify", "identify_rows"})  # the tasks of `match_entities`; the second after a mismatch
_SUMS = Sum("n", "nn", "named", "d", "dd")


def match_entities(rng: Streams) -> Round[tuple[int, int]]:
    """The number of entities and of clients, if all have the same ones in the same order; else a refusal."""
    key = {"key": rng("ids").integers(0, 256, 32, dtype=np.uint8)}
    replies = yield from complete(Ask("identify", key, _SUMS))
    total, m = {name: np.asarray(array, dtype=np.int64) for name, array in replies.total.items()}, len(replies.asked)
    same_rows = m * total["nn"] == total["n"] ** 2
    same_ids = (m * total["dd"] == total["d"] ** 2).all() and int(total["named"]) in (0, m)
    if same_rows and same_ids:
        return int(total["n"]) // m, m
    why = _describe_hidden_mismatch(m, bool(same_rows), int(total["n"]), int(total["named"]))
    each = (yield from complete(Ask("identify_rows", key, hidden=why))).each
    raise InputError(_describe_mismatch(each))


def _describe_hidden_mismatch(clients: int, same_rows: bool, rows: int, named: int) -> str:
    """What is different, as far as secure sums show it: not at whom."""
    if not same_rows:
        return (
            f"Every view must have the same entities, but the {clients} clients have different numbers of rows, {rows} "
            "in all. Secure sums do not show whose differ: compare the numbers, and keep the rows that all clients "
            "have, in the same order."
        )
    if named not in (0, clients):
        return (
            f"Either every client gives ids or none does, but {named} of {clients} clients give them. Give the ids of "
            "all."
        )
    return (
        f"Each row must be the same entity in every view, but the ids of the {clients} clients differ, or their order "
        "does. Secure sums do not show at whom: sort the rows by id at every client, and keep the ids that all have. "
        "If they do already, the clients do not have the same secret."
    )


def _describe_mismatch(each: Mapping[str, Arrays]) -> str:
    """What is different at whom, from every client's own reply."""
    rows = {client: int(arrays["n"]) for client, arrays in each.items()}
    first = next(iter(rows))
    for client, n in rows.items():
        if n != rows[first]:
            return (
                f"Every view must have the same entities, but client {first!r} has {rows[first]} rows and client "
                f"{client!r} has {n}. Keep the rows that all clients have, in the same order."
            )
    digests = {client: arrays["digests"] for client, arrays in each.items()}
    bare = [client for client, own in digests.items() if not len(own)]
    if bare and len(bare) < len(digests):
        return f"Either every client gives ids or none does, but client {bare[0]!r} has none. Give its ids too."
    ours = digests[first]
    for client, theirs in digests.items():
        differ = int(np.sum(ours != theirs))
        if not differ:
            continue
        if np.array_equal(np.sort(ours), np.sort(theirs)):
            remedy = "They are the same ids in another order: sort the rows by id at every client."
        else:
            shared = len(np.intersect1d(ours, theirs))
            remedy = f"They share {shared} ids: keep those at every client, sorted by id."
        return (
            f"Each row must be the same entity in every view, but {differ} of {len(ours)} rows differ between clients "
            f"{first!r} and {client!r}. {remedy}"
        )
    return "The ids must be the same at every client, but their digests differ."
