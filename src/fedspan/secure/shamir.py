"""Shamir's secret sharing modulo 2^255 - 19: any t shares give a secret of 16 bytes, fewer say nothing of it.

A share is the value at x = 1, 2, … of a random polynomial of degree t - 1 whose value at 0 is the secret. All secrets
that the same holders give back are found with one set of Lagrange coefficients, whose inverses are taken in one batch.
The field is much larger than a secret: shares that do not belong together give a number that is none (but with a
chance of 2^-127), so a wrong share is noticed.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import prod

from fedspan.errors import ProtocolError

FIELD = 2**255 - 19
SECRET = 16  # bytes
SHARE = 32  # bytes


def split_secret(secret: bytes, threshold: int, points: Sequence[int]) -> list[bytes]:
    """A share of 32 bytes for each point x ≥ 1."""
    if len(secret) != SECRET:
        raise ProtocolError(f"A secret must have {SECRET} bytes to be shared, but this one has {len(secret)}.")
    powers_down = [secrets.randbelow(FIELD) for _ in range(threshold - 1)]
    return [_evaluate_at(powers_down, int.from_bytes(secret, "little"), x).to_bytes(SHARE, "little") for x in points]


def _evaluate_at(powers_down: list[int], constant: int, x: int) -> int:
    """The polynomial at x by Horner's rule. The points are small, so it is cheaper to reduce once, at the end."""
    value = 0
    for coefficient in powers_down:
        value = (value + coefficient) * x
    return (value + constant) % FIELD


def combine_shares(shares: Mapping[int, bytes]) -> bytes:
    """The secret from exactly `threshold` shares, by their points; shares that do not fit together are refused."""
    weights = _lagrange_at_zero(tuple(shares))
    value = sum(w * int.from_bytes(share, "little") for w, share in zip(weights, shares.values(), strict=True)) % FIELD
    if value >> (8 * SECRET):
        raise ProtocolError("The shares do not fit together: at least one of them is wrong.")
    return value.to_bytes(SECRET, "little")


@lru_cache(maxsize=64)
def _lagrange_at_zero(points: tuple[int, ...]) -> tuple[int, ...]:
    """The weights of the values at these points in the value at 0: Π_{j≠i} x_j / (x_j - x_i)."""
    down = [x * prod(other - x for other in points if other != x) % FIELD for x in points]
    product = prod(points) % FIELD
    return tuple(product * inverse % FIELD for inverse in _invert_all(down))


def _invert_all(numbers: list[int]) -> list[int]:
    """The inverses of all numbers with a single inversion (Montgomery's trick)."""
    before = [1]
    for number in numbers:
        before.append(before[-1] * number % FIELD)
    rest, inverses = pow(before.pop(), -1, FIELD), []
    for number, product in zip(reversed(numbers), reversed(before), strict=True):
        inverses.append(rest * product % FIELD)
        rest = rest * number % FIELD
    return inverses[::-1]
