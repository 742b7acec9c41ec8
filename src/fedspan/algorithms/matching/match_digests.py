"""Matching of ids by keyed digests: quick, for clients that share a secret and trust each other not to give it away.

Every client digests its ids by HMAC-SHA256 under the clients' common secret and a key of the run, and shuffles them.
Equal digests are equal ids. The server, which lacks the secret, sees sizes and which pseudonyms clients share, as in
the ring (match_ring.py). But one client that helps the server is enough for it to test guesses of every id of all
others, at any later time. In one process without a secret, a random one is shared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import ClassVar

import numpy as np

from fedspan._types import Array, Arrays
from fedspan.algorithms.matching.match_by_tags import ENDING, IdClient, MatchByTags, MatchedRows, check_set, own_secret
from fedspan.algorithms.matching.match_ring import TAG_BYTES
from fedspan.algorithms.matching.points import digest_ids, draw_digests
from fedspan.core.protocol import Ask, Client, Course, Round, Turn, complete, task
from fedspan.core.rng import Streams


class DigestClient(IdClient):
    """A client whose ids are digested under a secret that all clients share, and the server does not have."""

    @task(
        releases={"tags": None},
        shows="a digest of every id in a secret order (whoever knows the clients' secret can check a guess)",
    )
    def digest_rows(self, state: MatchedRows, arrays: Arrays, rng: Streams) -> tuple[MatchedRows, Arrays]:
        """HMAC-SHA256 of the ids under the secret and the run's key, shuffled and padded."""
        run_key = sha256(own_secret(self.data).encode() + arrays["key"].tobytes()).hexdigest()
        digests = digest_ids(self.spelled, run_key)
        return state, {"tags": self.shuffle_and_pad(digests, draw_digests(self.size - len(digests)))[:, :TAG_BYTES]}


@dataclass(frozen=True)
class MatchDigests(MatchByTags):
    """Matching by digests under the clients' secret: quick, and no secret from a server that one client helps."""

    client: ClassVar[type[Client[object]]] = DigestClient

    def asks(self) -> frozenset[str]:
        return frozenset({"declare_ids", "digest_rows", "confirm_common", "keep_rows"})

    def course(self) -> Course:
        return Course((Turn("declare_ids"), Turn("digest_rows", after=["declare_ids"]), *ENDING))

    def tag(self, sizes: Mapping[str, int], rng: Streams) -> Round[dict[str, Array]]:
        key = rng("digests").integers(0, 256, 32, dtype=np.uint8)
        each = (yield from complete(Ask("digest_rows", {"key": key}))).each
        return {name: check_set(name, each[name]["tags"], (n, TAG_BYTES)) for name, n in sizes.items()}
