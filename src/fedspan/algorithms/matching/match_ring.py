"""Private matching of ids by a ring of blindings: which row of one party is which row of another, and no more.

The idea is of:
    C. Meadows. A more efficient cryptographic matchmaking protocol for use in the absence of a continuously available
    third party. IEEE Symposium on Security and Privacy, 1986.
    B. A. Huberman, M. Franklin, T. Hogg. Enhancing privacy and trust in electronic communities. EC 1999.

Notation: n parties, party i with ids a_i and a secret key k_i; H hashes an id to a point of the curve P-256 (under the
parties' common secret, if they have one); a point is its x-coordinate.

    blind_ids      party i shuffles its ids and gives k_i·H(a_i)
    blind_again    n-1 hops: the server hands every set to the next party, which multiplies it by its own key, in order;
                   at the last hop the party gives a digest of k_1·…·k_n·H(a) in place of it: the tag
    server         equal tags are equal ids

Keys come from the operating system, never from the run's seed. They are made for one opening of one client, are in no
checkpoint, and no two runs share one: points of different runs cannot be linked. So a ring that was cut off begins
again with new keys. Every party checks every point that it is given: it must be on the curve, which has prime order,
so that there are no weak points.

What the server sees: how large the sets are (padded, for an intersection), and which pseudonyms parties share; in what
order a party has its ids it does not see. A party sees how large the sets are; of an intersection, which of its rows
all others have, of a union only where its own rows stand. Parties and server are held to be curious but to keep to the
protocol: a party can put other ids into its set than it has, and so test guesses. So can a server, with points of its
own making, unless the parties have a secret that it lacks. See docs/alignment.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import ClassVar

import numpy as np

from fedspan._types import Array, Arrays
from fedspan.algorithms.matching.match_by_tags import (
    ENDING,
    How,
    IdClient,
    IdList,
    MatchByTags,
    MatchedRows,
    check_set,
    count_different,
)
from fedspan.algorithms.matching.point_worker import SIZE, InvalidPointError
from fedspan.algorithms.matching.points import Pool, digest_ids, draw_digests, draw_key, require_curve
from fedspan.core.protocol import Ask, Client, Course, Round, Turn, complete, task
from fedspan.core.rng import Streams
from fedspan.errors import PolicyRefusal, ProtocolError

TAG_BYTES = 16  # bytes


class RingClient(IdClient):
    """A party of the ring. Its key is made when it is first asked for points, and lives as long as this object."""

    def __init__(self, data: IdList, how: How, parties: int) -> None:
        require_curve()
        super().__init__(data, how, parties)
        self.pool: Pool | None = None
        self.points: Array | None = None
        self.answered: dict[bytes, Array] = {}  # the last question and its answer, which may have been lost

    @task(releases={"points": None}, shows="as many points as it declared ids: its own, blinded by its secret key")
    def blind_ids(self, state: MatchedRows, arrays: Arrays, rng: Streams) -> tuple[MatchedRows, Arrays]:
        """k·H(id), shuffled and padded."""
        if self.pool is None or self.points is None:
            self.pool = Pool(draw_key(), self.data.workers, self.data.progress)
            digests = digest_ids(self.spelled, self.data.secret)
            padded = self.shuffle_and_pad(digests, draw_digests(self.size - len(digests)))
            self.points = self.pool.hash_and_multiply(padded)
        return state, {"points": self.points}

    @task(releases={"points": None}, shows="the points of another party, blinded by its secret key as well")
    def blind_again(self, state: MatchedRows, arrays: Arrays, rng: Streams) -> tuple[MatchedRows, Arrays]:
        """k·P of another party's points, in their order; at the last hop their tags."""
        if self.pool is None:
            raise ProtocolError("This client has no key for this ring, which must begin again.")
        question = digest_question(arrays)
        if question not in self.answered:
            points = self._check_points(arrays["points"])
            try:
                blinded = self.pool.multiply(points)
            except InvalidPointError:
                raise PolicyRefusal("The server sent points that are not on the curve.") from None
            self.answered = {question: make_tags(blinded) if arrays["last"] else blinded}
        return state, {"points": self.answered[question]}

    def _check_points(self, points: Array) -> Array:
        if points.ndim != 2 or points.dtype != np.uint8 or points.shape[1] != SIZE or not len(points):
            raise PolicyRefusal("The server sent something else than points.")
        if len(points) > self.data.most:
            raise PolicyRefusal(f"Sets of at most {self.data.most} ids are matched here (max_ids).")
        if count_different(points) < len(points):
            raise PolicyRefusal("The server sent some points more than once.")
        return points


@dataclass(frozen=True)
class MatchRing(MatchByTags):
    """Matching that the server cannot undo, whoever of the parties helps it."""

    client: ClassVar[type[Client[object]]] = RingClient

    def asks(self) -> frozenset[str]:
        return frozenset({"declare_ids", "blind_ids", "blind_again", "confirm_common", "keep_rows"})

    def course(self) -> Course:
        hops = Turn("blind_again", most=self.parties - 1, after=["blind_ids"])
        return Course((Turn("declare_ids"), Turn("blind_ids", after=["declare_ids"]), hops, *ENDING))

    def tag(self, sizes: Mapping[str, int], rng: Streams) -> Round[dict[str, Array]]:
        names, n = list(sizes), len(sizes)
        first = (yield from complete(Ask("blind_ids"))).each
        held = {name: check_set(name, first[name]["points"], (sizes[name], SIZE)) for name in names}
        for hop in range(1, n):
            last = np.array(int(hop == n - 1))
            next_party = {owner: names[(i + hop) % n] for i, owner in enumerate(names)}
            mail = {next_party[owner]: {"points": points, "last": last} for owner, points in held.items()}
            got = (yield from complete(Ask("blind_again", privately=mail))).each
            width = TAG_BYTES if last else SIZE
            held = {
                owner: check_set(party, got[party]["points"], (sizes[owner], width))
                for owner, party in next_party.items()
            }
        return held


def make_tags(points: Array) -> Array:
    """Digests of points, (n, 16)."""
    blob = points.tobytes()
    digests = (sha256(blob[start : start + SIZE]).digest()[:TAG_BYTES] for start in range(0, len(blob), SIZE))
    return np.frombuffer(b"".join(digests), dtype=np.uint8).reshape(-1, TAG_BYTES)


def digest_question(arrays: Arrays) -> bytes:
    """What tells one question from another, so that the same one is answered alike."""
    digest = sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.shape} {array.dtype}".encode() + array.tobytes())
    return digest.digest()
