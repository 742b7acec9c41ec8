"""Are row j of one client and row j of another the same entity? Asked before anything is computed.

Every client hashes its ids with a key: the run's own random one, and a secret that the clients share and the server
does not have, if they were given one. First one digest of the whole list is compared, 16 bytes from each client. Only
if they differ are the rows' own digests asked for, 4 bytes each, to say how many rows differ.

What the server sees: the digests. Without a secret, a server that guesses an id can check its guess against the rows'
digests (which it has only after a mismatch), or guess the whole list; with one it learns only which rows agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import ClassVar, TypeVar

import numpy as np

from fedspan._types import Array, Arrays, Matrix
from fedspan.core.protocol import PUBLIC, Ask, Client, Needs, Round, complete, task
from fedspan.core.rng import Streams
from fedspan.errors import InputError

Remembered = TypeVar("Remembered")


@dataclass(frozen=True)
class Entities:
    """A client's view with the ids of its rows, a secret shared by the clients, and rows held out of the fit."""

    X: Matrix
    ids: Sequence[object] | Array | None = None
    secret: str = ""
    held_out: Matrix | None = None


class EntitiesClient(Client[Remembered]):
    """A client whose rows are entities that others have too. Subclasses set `entities` in their constructor."""

    needs: ClassVar[Needs] = "entities"
    entities: Entities

    @task(
        releases={"n": PUBLIC, "digest": PUBLIC},
        shows="its number of rows, and one digest of their ids if a column of ids is named",
    )
    def identify(self, state: Remembered, arrays: Arrays, rng: Streams) -> tuple[Remembered, Arrays]:
        """How many rows there are, and one digest of all their ids (no bytes if they have none)."""
        n, ids = np.array(self.entities.X.shape[0]), self.entities.ids
        if ids is None:
            return state, {"n": n, "digest": np.zeros(0, dtype=np.uint8)}
        if len(ids) != int(n):
            raise InputError(f"There must be one id for each of the {int(n)} rows, but there are {len(ids)}.")
        return state, {"n": n, "digest": np.frombuffer(self._digest(arrays, 16, ids), dtype=np.uint8)}

    @task(
        releases={"digests": PUBLIC},
        shows="a digest of each row's id (anyone who guesses an id can check the guess)",
    )
    def identify_rows(self, state: Remembered, arrays: Arrays, rng: Streams) -> tuple[Remembered, Arrays]:
        """A digest of every row's id, cut to 4 bytes."""
        ids = [] if self.entities.ids is None else self.entities.ids
        rows = b"".join(self._digest(arrays, 4, [one]) for one in ids)
        return state, {"digests": np.frombuffer(rows, dtype="<u4").astype(np.uint32)}

    def _digest(self, arrays: Arrays, size: int, ids: Sequence[object] | Array) -> bytes:
        key = blake2b(arrays["key"].tobytes() + self.entities.secret.encode(), digest_size=32).digest()
        digest = blake2b(digest_size=size, key=key)
        for one in ids:
            text = str(one).encode()
            digest.update(len(text).to_bytes(8, "little") + text)  # "1","23" is not "12","3"
        return digest.digest()


MATCH_TASKS = frozenset({"identify", "identify_rows"})  # the tasks of `match_entities`; the second after a mismatch


def match_entities(rng: Streams) -> Round[dict[str, int]]:
    """The number of entities at every client, if all have the same ones in the same order; else a refusal."""
    key = {"key": rng("ids").integers(0, 256, 32, dtype=np.uint8)}
    each = (yield from complete(Ask("identify", key))).each
    rows = {client: int(arrays["n"]) for client, arrays in each.items()}
    first = next(iter(rows))
    for client, n in rows.items():
        if n != rows[first]:
            raise InputError(
                f"Every view must have the same entities, but client {first!r} has {rows[first]} rows and client "
                f"{client!r} has {n}. Keep the rows that all clients have, in the same order."
            )
    digests = {client: arrays["digest"].tobytes() for client, arrays in each.items()}
    if any(digests.values()) and not all(digests.values()):
        bare = next(client for client, digest in digests.items() if not digest)
        raise InputError(f"Either every client gives ids or none does, but client {bare!r} has none. Give its ids too.")
    if len(set(digests.values())) > 1:
        replies = yield from complete(Ask("identify_rows", key))
        raise InputError(_describe_mismatch({client: arrays["digests"] for client, arrays in replies.each.items()}))
    return rows


def _describe_mismatch(digests: dict[str, Array]) -> str:
    first = next(iter(digests))
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
