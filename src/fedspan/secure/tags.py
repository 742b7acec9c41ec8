"""A tag on a sum that only those who share a key can make or check. The tags of the parts add up to that of the sum.

Notation: M clients of a run, m of them in a sum; x (n,) integers of 64 bits, the lanes of a part or of the sum;
b = ⌊2^63/M⌋, so that x + b is not negative and the sum of m of them does not wrap around; u_j the q blocks of 128 bits
of x + b; r and, for each group g, s_g: secrets that serve for one sum; p = 2^130 - 5. A client of group g sends

    t = P(x + b) + s_g mod p,    P(u) = Σ_j (u_j + 2^128) r^(q+1-j) mod p

P is the polynomial of Poly1305 (RFC 8439), which the library evaluates as fast as it encrypts. It gives P without the
two bits above 2^128, so the tag of a sum is known up to a few multiples of 2^128: at most 3m + 3 of them are accepted.

The server sees one tag for each group, each hidden by a pad of its own, and so learns nothing of r. It can add up tags
as it adds up sums. To show another sum with the marks of the same groups it must guess the value of a polynomial of
degree q at r, of which 106 bits are free: that succeeds with a chance of q(3m + 4)/2^106, which is below 2^-70 for ten
million numbers of a thousand clients. Without the pads it could solve the tag for r.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedspan._types import Array
from fedspan.secure.keys import evaluate_poly1305, purpose_key

TAGS, PRESENT = "@tag", "@present"  # travel with a sum: its tag, and how many of each group are in it
PRIME = 2**130 - 5
_HIGH = 2**128  # what Poly1305 puts before each block, and what is missing of a result above it
_CLAMP = 0x0FFFFFFC0FFFFFFC0FFFFFFC0FFFFFFF  # the bits of r that are free
_LIMB, _LIMBS = 44, 3  # a tag travels as three numbers, so that those of all clients add up without wrapping


def make_tag(key: bytes, group: int, x: Array, clients: int) -> int:
    """The tag of one client's part (integers as uint64 or int64, taken as signed), in a run of that many clients.

    The key serves for one sum only, the one over all groups or some of them.
    """
    return (evaluate_poly1305(_key_of_r(key), _shift(x, clients, 1)) + _find_pad(key, group)) % PRIME


def is_tag_of(tag: int, key: bytes, x: Array, sizes: Mapping[int, int], clients: int) -> bool:
    """Whether this is the tag of the sum x over groups of those sizes."""
    m, blocks = sum(sizes.values()), (x.size + 1) // 2
    r = int.from_bytes(_key_of_r(key), "little") & _CLAMP
    heads = _HIGH * (pow(r, blocks + 1, PRIME) - r) * pow(r - 1, -1, PRIME)  # of the 2^128 before each block
    pads = sum(size * _find_pad(key, group) for group, size in sizes.items())
    own = evaluate_poly1305(_key_of_r(key), _shift(x, clients, m)) + (m - 1) * heads + pads
    missing = (tag - own) * pow(_HIGH, -1, PRIME)  # as a multiple of 2^128: from -3m to 3
    return (missing + 3 * m) % PRIME <= 3 * m + 3


def _key_of_r(key: bytes) -> bytes:
    return purpose_key(key, "r")[:16]


def _find_pad(key: bytes, group: int) -> int:
    """s_g."""
    return int.from_bytes(purpose_key(key, "pad", group), "little")


def _shift(x: Array, clients: int, m: int) -> Array:
    """x + m·b, filled up to whole blocks."""
    out = np.zeros(x.size + x.size % 2, dtype="<u8")
    np.add(x.reshape(-1).view(np.uint64), np.uint64(m * (2**63 // clients)), out=out[: x.size])
    return out


def to_limbs(tag: int) -> Array:
    """A tag as numbers that can be masked and summed: (1, 3) of uint64."""
    return np.array([[tag >> (_LIMB * i) & (2**_LIMB - 1) for i in range(_LIMBS)]], dtype=np.uint64)


def from_limbs(limbs: Array) -> int | None:
    """The sum of tags, from the sums of their limbs; None if these are none."""
    numbers = limbs.reshape(-1).tolist()
    return sum(limb << (_LIMB * i) for i, limb in enumerate(numbers)) % PRIME if len(numbers) == _LIMBS else None
