"""A tag on a sum that only those who share a key can make or check: ⟨r, x⟩ modulo a prime, and linear in x.

Notation: x (n,) integers of 64 bits, the lanes of a sum; r (n,) secret and uniform below 2^64, used once;
p = 2^64 + 13.
As it is linear, the tags of the clients' parts add up to the tag of their sum. The server sees x and its tag, one
linear equation of r. It can make the tags of multiples of x, in which the numbers of clients are wrong. The tag of any
other x' it guesses with probability 2^-64: p is so large that an entry that differs does so modulo p, too. (Each value
of r has probability 2^-64, two of them solve two equations, and the first has p values: p·2^-128.)

It is computed exactly in floating point, where BLAS is quick: r and x in 4 limbs of 16 bits, as they are in memory, the
last one of x signed. Then a product is below 2^32, and the sum of a chunk of them below 2^45.
"""

from __future__ import annotations

import numpy as np

from fedspan._types import Array
from fedspan.secure.keys import stream

TAGS, PRESENT = "@tag", "@present"  # travel with a sum: its tag, and how many of each group are in it
PRIME = 2**64 + 13
_HALF = 33  # a tag travels as two numbers, so that those of all clients add up without wrapping
_CHUNK = 1 << 13  # entries at a time: their limbs fit into the processor's cache
_LIMBS = 4


def linear_tag(key: bytes, x: Array) -> int:
    """The tag of integers (as uint64 or int64; taken as signed) under a key that serves for this place only."""
    r, little = _to_limbs(stream(key, x.size)), np.ascontiguousarray(x.reshape(-1), dtype="<i8")
    limbs, top = _to_limbs(little), (little >> 48)
    D = np.zeros((_LIMBS, _LIMBS), dtype=np.int64)
    R, X = np.empty((2, min(_CHUNK, x.size), _LIMBS))
    for start in range(0, x.size, _CHUNK):
        chunk = slice(start, min(start + _CHUNK, x.size))
        n = chunk.stop - start
        R[:n], X[:n], X[:n, -1] = r[chunk], limbs[chunk], top[chunk]
        D += (R[:n].T @ X[:n]).astype(np.int64)
    return sum(int(D[i, j]) << (16 * (i + j)) for i in range(_LIMBS) for j in range(_LIMBS)) % PRIME


def _to_limbs(numbers: Array) -> Array:
    """(n, 4) the limbs of integers of 64 bits, the lowest first."""
    return numbers.view("<u2").reshape(-1, _LIMBS)


def to_halves(tag: int) -> Array:
    """A tag as two numbers that can be masked and summed: (1, 2) of uint64."""
    return np.array([[tag & (2**_HALF - 1), tag >> _HALF]], dtype=np.uint64)


def from_halves(halves: Array) -> int:
    """The sum of tags, from the sums of their halves."""
    low, high = (int(half) for half in halves.reshape(-1))
    return (low + (high << _HALF)) % PRIME
