"""Numbers as integers modulo 2^64, so that masks can be added and taken off without a trace.

An integer array takes one lane and is exact. A floating-point array takes two lanes that do not touch each other: the
whole part, and the rest (of the same sign) in steps of 2^-52. A float64 of magnitude 1 or more loses nothing, a
smaller one at most half a step. Sums are taken lane by lane, and carried over at the end. Nothing wraps: a number is
refused if m of its size would add up to too much. `COUNTS` goes along: a 1 from each client, so that a sum whose masks
did not cancel is recognised by its number of clients; and for each floating-point array a 1 if the step resolves some
entry to six digits: if no client has such an entry, the sum is refused too.
"""

from __future__ import annotations

import numpy as np

from fedspan._types import Array, Arrays
from fedspan.errors import InputError, ProtocolError

BITS = 52  # the step is 2**-BITS; with 2048 clients or more the sum of the rests would not fit
MOST_CLIENTS = 2 ** (63 - BITS) - 1
COARSE = 2.0**-30  # below it a number has less than six digits
COUNTS = "@counts"
_CURE = "Rescale the columns."


def to_lanes(arrays: Arrays, clients: int) -> dict[str, Array]:
    """Each array as uint64 of shape (lanes, *shape), ready to be summed over that many clients."""
    if clients > MOST_CLIENTS:
        raise InputError(
            f"A secure sum can have at most {MOST_CLIENTS} clients, but this one has {clients}. Sum them in groups."
        )
    out = {name: _to_lane_pair(name, arrays[name], 2.0**62 / clients) for name in sorted(arrays)}
    floats = [arrays[name] for name in sorted(arrays) if arrays[name].dtype.kind == "f"]
    fine = [np.abs(x).max(initial=0.0) >= COARSE for x in floats]
    return out | {COUNTS: np.array([[1, *fine]], dtype=np.uint64)}


def _to_lane_pair(name: str, x: Array, limit: float) -> Array:
    low, high = (x.min(), x.max()) if x.size else (0, 0)
    if not (-limit < float(low) and float(high) < limit):  # not: NaN is refused as well
        raise InputError(
            f"Numbers in {name!r} must be below {limit:.3g} for a secure sum, but one is "
            f"{max(-float(low), float(high)):.3g}. {_CURE}"
        )
    if x.dtype.kind != "f":
        return x.astype(np.int64).view(np.uint64)[None]
    whole = np.trunc(x, dtype=np.float64)
    rest = np.rint((x - whole) * 2.0**BITS)  # the difference is exact, so this is the only rounding
    return np.stack([whole, rest]).astype(np.int64).view(np.uint64)


def from_lanes(total: Arrays, clients: int) -> dict[str, Array]:
    """The sums as int64 or float64, from the sums of what `to_lanes` made at that many clients."""
    floats = sorted(name for name, lanes in total.items() if len(lanes) == 2)
    counts = total[COUNTS][0].tolist()
    if counts[0] != clients or max(counts) > clients:
        raise ProtocolError(
            f"The masks of {clients} clients did not cancel, so there is no sum. Check that all were asked the same."
        )
    out = {name: _from_lane_pair(lanes) for name, lanes in total.items() if name != COUNTS}
    for name, count in zip(floats, counts[1:], strict=True):
        if count == 0 and total[name].any() and out[name].size > 1:  # a single number may well be close to zero
            raise InputError(
                f"{name!r} is below {COARSE:.1g} at every client, too small for the fixed-point step of 2^-{BITS} in a "
                f"secure sum. {_CURE}"
            )
    return out


def _from_lane_pair(lanes: Array) -> Array:
    whole, *rest = np.array(lanes).view(np.int64)
    if not rest:
        return np.asarray(whole)
    steps = np.asarray(rest[0])
    carried, fraction = whole + (steps >> BITS), steps & (2**BITS - 1)
    return np.asarray(carried.astype(np.float64) + fraction.astype(np.float64) * 2.0**-BITS)
