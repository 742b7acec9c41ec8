"""Random streams that are keyed, never saved.

A stream is named by where it is used: (seed, round, exchange, client, purpose). So a run, the same run on another
engine, and the same run resumed after a crash draw the same numbers, whatever the order in which clients answer.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import NamedTuple

import numpy as np

from fedspan.privacy import keyring
from fedspan.privacy.keyring import derive_key
from fedspan.privacy.noise import keyed_uniform

SERVER = "@server"  # the server's own name among the clients; client ids may not begin with "@"


def rng_for(seed: int, round: int, exchange: int, client: str, purpose: str) -> np.random.Generator:
    """The generator for one purpose at one place in a run."""
    key = blake2b(repr((round, exchange, client, purpose)).encode(), digest_size=16).digest()
    words = np.frombuffer(key, dtype="<u4").tolist()
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=words)))


def secret_uniform(size: int) -> np.ndarray:
    """Uniform numbers in [0, 1) from the operating system, for draws that must stay secret: nobody can repeat them."""
    return (np.frombuffer(keyring.draw_secret(8 * size), dtype=np.uint64) >> np.uint64(11)) * 2.0**-53


class Streams(NamedTuple):
    """All streams of one place: `streams("start")` makes a generator only when it is needed, because it costs 20 µs."""

    seed: int
    round: int
    exchange: int
    client: str
    secret: bytes = b""  # of a private run: what nobody else can repeat follows from it

    def __call__(self, purpose: str) -> np.random.Generator:
        return rng_for(self.seed, self.round, self.exchange, self.client, purpose)

    def draw_in_secret(self, purpose: str, size: int) -> np.ndarray:
        """Uniform numbers in [0, 1) that only this client can repeat, to answer the same question alike."""
        if not self.secret:
            return secret_uniform(size)
        return (keyed_uniform(derive_key(self.secret, purpose), size) >> np.uint64(11)) * 2.0**-53
