"""Shamir's shares: any t give the secret, t - 1 say nothing of it, and wrong ones are noticed."""

from __future__ import annotations

import itertools
import os
from fractions import Fraction

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from fedspan.errors import ProtocolError
from fedspan.secure import shamir
from fedspan.secure.shamir import FIELD, combine_shares, split_secret


def interpolate_at_zero(points: dict[int, int]) -> int:
    """Lagrange's formula in exact fractions, reduced at the end: slow, and written apart from the module."""
    total = Fraction(0)
    for x, y in points.items():
        term = Fraction(y)
        for other in points:
            if other != x:
                term *= Fraction(other, other - x)
        total += term
    return total.numerator * pow(total.denominator, FIELD - 2, FIELD) % FIELD


def held(secret: bytes, t: int, points: list[int]) -> dict[int, bytes]:
    return dict(zip(points, split_secret(secret, t, points), strict=True))


@settings(max_examples=50)
@given(st.binary(min_size=16, max_size=16), st.integers(1, 9), st.data())
def test_any_t_of_them_give_the_secret(secret: bytes, t: int, data: st.DataObject) -> None:
    points = data.draw(st.lists(st.integers(1, 5000), min_size=t, max_size=t + 4, unique=True))
    shares = held(secret, t, points)
    some = data.draw(st.permutations(points))[:t]
    assert combine_shares({x: shares[x] for x in some}) == secret
    numbers = {x: int.from_bytes(shares[x], "little") for x in some}
    assert interpolate_at_zero(numbers).to_bytes(16, "little") == secret


def test_every_set_of_three_of_six_gives_what_pycryptodome_gives_of_its_own() -> None:
    """The same secret through PyCryptodome's scheme, over another field: both must give it back from every set."""
    oracle = pytest.importorskip("Crypto.Protocol.SecretSharing").Shamir
    for _ in range(3):
        secret = os.urandom(16)
        ours, theirs = held(secret, 3, [1, 2, 3, 4, 5, 6]), dict(oracle.split(3, 6, secret))
        for some in itertools.combinations(range(1, 7), 3):
            assert combine_shares({x: ours[x] for x in some}) == oracle.combine([(x, theirs[x]) for x in some])


@pytest.mark.parametrize("secret", [bytes(16), b"\xff" * 16])
def test_fewer_than_t_shares_are_uniform_whatever_the_secret(secret: bytes) -> None:
    """The joint distribution of t - 1 = 2 shares, by their low bytes and by their high ones."""
    drawn = [split_secret(secret, 3, [1, 2]) for _ in range(4000)]
    for byte, values in ((0, 256), (31, 128)):  # the number is below 2^255
        cells = 16
        one, two = (np.array([pair[k][byte] * cells // values for pair in drawn]) for k in (0, 1))
        counts = np.bincount(one * cells + two, minlength=cells**2)
        assert scipy.stats.chisquare(counts).pvalue > 1e-7


def test_that_test_fails_if_the_polynomial_has_too_low_a_degree() -> None:
    drawn = [split_secret(bytes(16), 2, [1, 2]) for _ in range(500)]
    assert all(
        (2 * int.from_bytes(one, "little") - int.from_bytes(two, "little")) % FIELD == 0 for one, two in drawn
    )  # on a line through the secret: two shares tell it


def test_t_minus_one_shares_fit_every_secret_equally_well() -> None:
    """For any other secret there is a last share that gives it."""
    shares = held(os.urandom(16), 4, [1, 2, 3, 4])
    weights = dict(zip(shares, shamir._lagrange_at_zero(tuple(shares)), strict=True))
    known = sum(weights[x] * int.from_bytes(shares[x], "little") for x in (1, 2, 3)) % FIELD
    for other in (bytes(16), os.urandom(16)):
        last = (int.from_bytes(other, "little") - known) * pow(weights[4], -1, FIELD) % FIELD
        assert combine_shares({**{x: shares[x] for x in (1, 2, 3)}, 4: last.to_bytes(32, "little")}) == other


@pytest.mark.parametrize("kind", ["wrong", "too few", "swapped"])
def test_shares_that_do_not_belong_together_are_refused(kind: str) -> None:
    shares = held(os.urandom(16), 4, [1, 2, 3, 4])
    if kind == "wrong":
        shares[2] = os.urandom(32)
    elif kind == "too few":
        del shares[2]
    else:
        shares[2], shares[3] = shares[3], shares[2]
    with pytest.raises(ProtocolError, match="The shares do not fit together"):
        combine_shares(shares)


def test_a_secret_of_another_length_is_refused() -> None:
    with pytest.raises(ProtocolError, match="must have 16 bytes to be shared, but this one has 32"):
        split_secret(bytes(32), 2, [1, 2])
