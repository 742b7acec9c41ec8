"""Numbers as integers modulo 2^64, so that masks can be added and taken off without a trace.

An integer array takes one lane and is exact. A floating-point array takes two lanes that do not touch each other: the
whole part, and the rest (of the same sign) in steps of 2^-52. A float64 of magnitude 1 or more loses nothing, a
smaller one at most half a step. Sums are taken lane by lane, and carried over at the end. Nothing wraps: the limit is
so low that m numbers of that size can be added, and above 2047 clients the step is coarser, so that m rests can.

Whether a client answers does not depend on its numbers: NaN counts as 0, and what is beyond the limit as the limit.
`COUNTS` goes along and says in the sum what is needed to judge it: a 1 from each client, so that a sum whose masks did
not cancel is recognised by its number of clients; a mark from each client that had such numbers: then there is no sum,
and nobody learns whose they were, nor how many; and for each floating-point array a mark if the step resolves some
entry to six digits: if no client has such an entry, the sum is refused too. A mark is a random number modulo 2^64, so
the sum of some is one, too, and shows only that there are some. (Counts would show more: where one client alone has
anything in a column, the sum would be known to be that client's.)
"""

from __future__ import annotations

import secrets

import numpy as np

from fedspan._types import Array, Arrays
from fedspan.errors import InputError, ProtocolError

BITS = 52  # the step is 2**-BITS for up to 2047 clients
DIGITS = 22  # bits of an entry that the step must resolve in some client's array: six digits
MOST_CLIENTS = 2**20 - 1
COUNTS = "@counts"
_AT_ONCE = 1 << 14  # numbers that stay in a cache


def count_step_bits(clients: int) -> int:
    """How fine the rests are: with that many clients their sum fits into 63 bits."""
    return min(BITS, 63 - clients.bit_length())


def largest_number(clients: int) -> float:
    """What an array's numbers must stay below to be summed over that many clients."""
    return 2.0**62 / clients


def to_lanes(arrays: Arrays, clients: int) -> dict[str, Array]:
    """Each array as uint64 of shape (lanes, *shape), ready to be summed over that many clients."""
    if clients > MOST_CLIENTS:
        raise InputError(
            f"A secure sum can have at most {MOST_CLIENTS} clients, but this one has {clients}. Sum them in groups."
        )
    limit, bits = largest_number(clients), count_step_bits(clients)
    fitted = {name: _saturate(arrays[name], limit) for name in sorted(arrays)}
    floats = [x for x, _ in fitted.values() if x.dtype.kind == "f"]
    fine = [np.abs(x).max(initial=0.0) >= 2.0 ** (DIGITS - bits) for x in floats]
    beyond = any(changed for _, changed in fitted.values())
    lanes = {name: _to_lane_pair(x, bits) for name, (x, _) in fitted.items()}
    marks = [secrets.randbits(64) or 1 if there else 0 for there in (beyond, *fine)]
    return lanes | {COUNTS: np.array([[1, *marks]], dtype=np.uint64)}


def has_saturated(lanes: Arrays) -> bool:
    """Whether some of the numbers that these lanes were made of were too large or not finite."""
    return bool(lanes[COUNTS][0, 1])


def _saturate(x: Array, limit: float) -> tuple[Array, bool]:
    """The array within the limit, as float64 or int64, and whether anything had to be changed for that."""
    low, high = (x.min(), x.max()) if x.size else (0, 0)
    wide = np.float64 if x.dtype.kind == "f" else np.int64
    if -limit < float(low) and float(high) < limit:  # not so if there is a NaN
        return x.astype(wide), False
    if x.dtype.kind == "f":
        finite = np.nan_to_num(x.astype(np.float64), posinf=limit, neginf=-limit)
        return np.asarray(np.clip(finite, -limit, limit)), True
    bound = int(limit)
    smallest = 0 if x.dtype.kind == "u" else -bound
    return np.asarray(np.clip(x, smallest, bound)).astype(np.int64), True


def _to_lane_pair(x: Array, bits: int) -> Array:
    if x.dtype.kind != "f":
        return x.view(np.uint64)[None]
    whole = np.trunc(x)
    rest = np.rint((x - whole) * 2.0**bits)  # the difference is exact, so this is the only rounding
    return np.stack([whole, rest]).astype(np.int64).view(np.uint64)


def from_lanes(total: Arrays, clients: int, roster: int | None = None) -> dict[str, Array]:
    """The sums as int64 or float64 over that many clients, from the sums of what `to_lanes` made for `roster` clients.

    None: all of those for whom the lanes were made are in the sum.
    """
    bits = count_step_bits(clients if roster is None else roster)
    floats = sorted(name for name, lanes in total.items() if len(lanes) == 2 and name != COUNTS)
    counts = total[COUNTS][0].tolist()
    if counts[0] != clients or len(counts) != 2 + len(floats):
        raise ProtocolError(
            f"The masks of {clients} clients did not cancel, so there is no sum. Check that all were asked the same."
        )
    if counts[1]:
        raise InputError(
            f"Some numbers of one or more of the {clients} clients were too large or not finite, so there is no sum. "
            f"In a secure sum they must be below {largest_number(roster or clients):.3g}. Rescale the columns at "
            "every client, and check them for missing values."
        )
    out = {name: _from_lane_pair(lanes, bits) for name, lanes in total.items() if name != COUNTS}
    for name, mark in zip(floats, counts[2:], strict=True):
        if mark == 0 and total[name].any() and out[name].size > 1:  # a single number may well be close to zero
            raise InputError(
                f"{name!r} is below {2.0 ** (DIGITS - bits):.1g} at every client, too small for the fixed-point step "
                f"of 2^-{bits} in a secure sum. Rescale the columns."
            )
    return out


def _from_lane_pair(lanes: Array, bits: int) -> Array:
    if len(lanes) == 1:
        return np.asarray(np.array(lanes).view(np.int64)[0])
    whole, rest = np.ascontiguousarray(lanes).view(np.int64).reshape(2, -1)
    out = np.empty(whole.size)
    for start in range(0, whole.size, _AT_ONCE):
        at = slice(start, start + _AT_ONCE)
        carried, fraction = whole[at] + (rest[at] >> bits), rest[at] & (2**bits - 1)
        np.multiply(fraction, 2.0**-bits, out=out[at])
        out[at] += carried
    return out.reshape(lanes.shape[1:])
