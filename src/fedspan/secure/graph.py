"""Who shares masks with whom: all with all, or, among very many clients, each with k others (Bell et al., CCS 2020).

    J. Bell, K. A. Bonawitz, A. Gascón, T. Lepoint, M. Raykova. Secure Single-Server Aggregation with
    (Poly)Logarithmic Overhead. CCS 2020. https://eprint.iacr.org/2020/704

Notation: n clients, k neighbours of each, t the threshold within a neighbourhood: that many shares give a root, and
that many clients, itself included, must hold the same set of clients for present before a client takes off its mask.

The clients stand in a ring, in an order that follows from the digest of all names and keys, and each has the k/2 on
either side as neighbours (a Harary graph with a random permutation). Every client derives it by itself. Nobody can
choose the order, the server included: among so many clients each shows a digest of its key first, and the key itself
only when it has seen the digests of all (masking.py); so who takes part, and with which keys, is fixed before its own
key is known. If a client is lost in between, all begin again with new keys, so that nobody is left out by choice.

k and t hold for a tenth of colluding clients and three tenths that are lost. With a chance of less than 2^-40 some
client has more than t - 8 colluding neighbours (so that fewer than eight honest clients, with itself, hold the set that
it unmasks for), or k/2 clients in a row are colluding or lost (the ring falls apart). With a chance of less than 2^-30
some client has fewer than t neighbours left, so that its root could not be found and there would be no sum.
"""

from __future__ import annotations

from functools import cache
from hashlib import shake_256
from itertools import accumulate
from math import comb
from typing import NamedTuple

import numpy as np

from fedspan._types import Array

COMPLETE_UP_TO = 400  # so far a client's keys take less than 50 ms, and a sum without 30 % of them less than 2 s
COLLUDING, LOST = 10, 30  # per cent of the clients
SECURITY, CORRECTNESS = 40, 30  # bits
HONEST = 8  # no sum that a lying server opens is over fewer honest clients
_STEP = 10  # k is a multiple of it


class Degree(NamedTuple):
    """How many neighbours each client has, and the threshold among a client and its neighbours."""

    neighbours: int
    threshold: int


@cache
def choose_degree(clients: int) -> Degree | None:
    """k and t for that many clients; None if all share masks with all. In whole numbers: all must find the same."""
    if clients <= COMPLETE_UP_TO:
        return None
    colluding, there = -(-clients * COLLUDING // 100), clients * (100 - LOST) // 100
    for k in range(_STEP, clients - 1, _STEP):
        ways = comb(clients - 1, k)
        left = _count_at_most(clients - 1, there - 1, k)
        t = max(t for t in range(k + 1) if clients * left[t - 1] << CORRECTNESS < ways)  # fewer than t are left
        if t <= HONEST:
            continue
        captured = clients * (ways - _count_at_most(clients - 1, colluding, k)[t - HONEST])
        parted = clients * (COLLUDING + LOST) ** (k // 2)
        if captured << SECURITY < ways and parted << SECURITY < 100 ** (k // 2):
            return Degree(k, t)
    return None


def _count_at_most(total: int, marked: int, drawn: int) -> list[int]:
    """Of all draws without replacement, how many have at most 0, 1, …, `drawn` marked ones; the entry -1 is 0."""
    each = [comb(marked, i) * comb(total - marked, drawn - i) for i in range(drawn + 1)]
    return [*accumulate(each), 0]


def find_circles(seed: bytes, clients: int, degree: Degree | None) -> Array:
    """(n, k + 1) each client with its neighbours, in the order of the roster."""
    if degree is None:
        return np.broadcast_to(np.arange(clients), (clients, clients))
    ring, half = _order_ring(seed, clients), degree.neighbours // 2
    circles = np.empty((clients, 2 * half + 1), dtype=np.int64)
    for column, offset in enumerate(range(-half, half + 1)):
        circles[ring, column] = np.roll(ring, -offset)
    return np.sort(circles, axis=1)


def find_circle(seed: bytes, clients: int, degree: Degree | None, me: int) -> list[int]:
    """One row of `find_circles`."""
    if degree is None:
        return list(range(clients))
    ring, half = _order_ring(seed, clients), degree.neighbours // 2
    at = int(np.flatnonzero(ring == me)[0])
    return sorted(ring[np.arange(at - half, at + half + 1) % clients].tolist())


def _order_ring(seed: bytes, clients: int) -> Array:
    draws = np.frombuffer(shake_256(seed).digest(8 * clients), dtype="<u8")
    return np.argsort(draws, kind="stable")


def mirror_circles(circles: Array) -> Array:
    """(n, k + 1) for each client and neighbour, where the client itself stands in that neighbour's row: j·(k+1) + a."""
    clients = np.arange(len(circles))[:, None]
    edges = (clients * len(circles) + circles).ravel()  # ascending, because the rows are
    return np.searchsorted(edges, circles * len(circles) + clients)
