"""A server that works on the tag of a sum: what it sees of it must not let it make another one.

The tag is a polynomial at a secret point r. Whoever knows the sum and the bare value of the polynomial finds r as one
of its roots; so each group's value is hidden by a pad.
"""

from __future__ import annotations

import numpy as np
import pytest

from fedspan.secure import tags
from fedspan.secure.tags import PRIME, from_limbs, is_tag_of, make_tag, to_limbs

KEY, CLIENTS, WORDS = b"k" * 32, 3, 12
HIGH = 2**128
Poly = list[int]  # coefficients modulo p, of the lowest power first


def trim(f: Poly) -> Poly:
    while f and f[-1] == 0:
        f.pop()
    return f


def divide(f: Poly, g: Poly) -> tuple[Poly, Poly]:
    """Quotient and rest."""
    rest, quotient, inverse = list(f), [0] * max(len(f) - len(g) + 1, 0), pow(g[-1], -1, PRIME)
    for i in reversed(range(len(quotient))):
        quotient[i] = factor = rest[i + len(g) - 1] * inverse % PRIME
        for j, c in enumerate(g):
            rest[i + j] = (rest[i + j] - factor * c) % PRIME
    return quotient, trim(rest)


def power(base: Poly, exponent: int, f: Poly) -> Poly:
    """base^exponent modulo f."""
    out: Poly = [1]
    for bit in bin(exponent)[2:]:
        factors = [out, base] if bit == "1" else [out]
        for factor in factors:
            product = [0] * (len(out) + len(factor))
            for i, a in enumerate(out):
                for j, b in enumerate(factor):
                    product[i + j] = (product[i + j] + a * b) % PRIME
            out = divide(trim(product), f)[1]
    return out


def gcd(f: Poly, g: Poly) -> Poly:
    while g:
        f, g = g, divide(f, g)[1]
    return f


def minus(f: Poly, at: int) -> Poly:
    """f - x^at."""
    out = f + [0] * (at + 1 - len(f))
    out[at] = (out[at] - 1) % PRIME
    return trim(out)


def find_roots(f: Poly) -> list[int]:
    """All roots modulo p, after Cantor and Zassenhaus."""
    draw = np.random.default_rng(0)
    found, parts = [], [gcd(f, minus(power([0, 1], PRIME, f), 1))]
    while parts:
        g = parts.pop()
        if len(g) == 2:
            found.append(-g[0] * pow(g[1], -1, PRIME) % PRIME)
        elif len(g) > 2:
            part = gcd(g, minus(power([int(draw.integers(2**62)), 1], PRIME // 2, g), 0))
            parts += [part, divide(g, part)[0]] if 1 < len(part) < len(g) else [g]
    return found


def blocks_of(x: np.ndarray, m: int) -> list[int]:
    """The blocks of a sum of m parts."""
    words = [int(value) + m * (2**63 // CLIENTS) for value in x.tolist()]
    return [low + (high << 64) for low, high in zip(words[::2], words[1::2], strict=True)]


@pytest.mark.parametrize("defended", [True, False], ids=["defended", "defence off"])
def test_a_tag_does_not_show_the_point_of_its_polynomial(defended: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not defended:
        monkeypatch.setattr(tags, "_find_pad", lambda key, group: 0)
    parts = np.random.default_rng(0).integers(-(2**40), 2**40, (CLIENTS, WORDS))
    total, sizes = parts.sum(axis=0), {0: CLIENTS}
    seen = from_limbs(np.sum([to_limbs(make_tag(KEY, 0, part, CLIENTS)) for part in parts], axis=0))
    assert seen is not None
    other = total.copy()
    other[3] += 10**9

    forged = []
    for missing in range(3 * CLIENTS + 1):
        middle = [(block + CLIENTS * HIGH) % PRIME for block in reversed(blocks_of(total, CLIENTS))]
        f = [-(seen + missing * HIGH) % PRIME, *middle]
        for r in find_roots(f):
            if r & tags._CLAMP != r:
                continue  # Poly1305 has no such r
            shift = [b - a for a, b in zip(blocks_of(total, CLIENTS), blocks_of(other, CLIENTS), strict=True)]
            forged.append(seen + sum(d * pow(r, len(shift) - j, PRIME) for j, d in enumerate(shift)))
    accepted = [tag for tag in forged if is_tag_of(tag % PRIME, KEY, other, sizes, CLIENTS)]
    assert bool(accepted) is not defended


@pytest.mark.parametrize("defended", [True, False], ids=["defended", "defence off"])
def test_one_pad_for_all_groups_would_show_it_too(defended: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same pad, the tags of two groups of one site each differ by what has no pad."""
    if not defended:
        pad = tags._find_pad
        monkeypatch.setattr(tags, "_find_pad", lambda key, group: pad(key, 0))
    parts = np.random.default_rng(1).integers(-(2**40), 2**40, (2, WORDS))
    one, two = (make_tag(KEY, group, part, CLIENTS) for group, part in enumerate(parts))
    found = set()
    for missing in range(-3, 4):
        pairs = zip(blocks_of(parts[0], 1), blocks_of(parts[1], 1), strict=True)
        middle = [(a - b) % PRIME for a, b in pairs][::-1]
        found |= set(find_roots([-(one - two + missing * HIGH) % PRIME, *middle]))
    true = int.from_bytes(tags._key_of_r(KEY), "little") & tags._CLAMP
    assert (true in found) is not defended
