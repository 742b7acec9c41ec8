"""A tag on a sum that only those who share a key can make or check: ⟨r, x⟩ modulo a prime, and linear in x.

Notation: x (n,) integers of 64 bits, the lanes of a sum; r (n,) secret and uniform below 2^60, used once; p = 2^61 - 1.
As it is linear, the tags of the clients' parts add up to the tag of their sum. Whoever changes a sum without knowing r
guesses its new tag with probability 2^-60.

It is computed exactly in floating point, where BLAS is quick: r in 3 limbs of 20 bits, x in 3 limbs of 16 bits and a
signed one, so that a product is below 2^36, and a sum of 2^16 of them below 2^52.
"""

from __future__ import annotations

import numpy as np

from fedspan._types import Array
from fedspan.secure.keys import stream

TAGS, PRESENT = "@tag", "@present"  # travel with a sum: its tag, and how many of each group are in it
PRIME = 2**61 - 1
_HALF = 31  # a tag travels as two numbers, so that those of 2047 clients add up without wrapping
_CHUNK = 1 << 16


def linear_tag(key: bytes, x: Array) -> int:
    """The tag of integers (as uint64 or int64; taken as signed) under a key that serves for this place only."""
    r = stream(key, x.size) >> np.uint64(4)
    signed = x.reshape(-1).view(np.int64)
    total = 0
    for start in range(0, x.size, _CHUNK):
        a, b = r[start : start + _CHUNK], signed[start : start + _CHUNK]
        R = np.empty((3, a.size))
        X = np.empty((4, a.size))
        for i in range(3):
            R[i] = (a >> np.uint64(20 * i)) & np.uint64(0xFFFFF)
            X[i] = (b >> np.int64(16 * i)) & np.int64(0xFFFF)
        X[3] = b >> np.int64(48)
        D = R @ X.T
        total += sum(int(D[i, j]) << (20 * i + 16 * j) for i in range(3) for j in range(4))
    return total % PRIME


def to_halves(tag: int) -> Array:
    """A tag as two numbers that can be masked and summed: (1, 2) of uint64."""
    return np.array([[tag & (2**_HALF - 1), tag >> _HALF]], dtype=np.uint64)


def from_halves(halves: Array) -> int:
    """The sum of tags, from the sums of their halves."""
    low, high = (int(half) for half in halves.reshape(-1))
    return (low + (high << _HALF)) % PRIME
