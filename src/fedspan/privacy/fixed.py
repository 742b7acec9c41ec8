"""Numbers as integers modulo 2^64, so that masks can be added and taken off without a trace.

An integer array takes one lane and is exact. A floating-point array takes two lanes that do not touch each other: the
floor, and the fraction in steps of 2^-52; a float64 of magnitude 1 or more loses nothing, a smaller one at most half a
step. Sums are taken lane by lane, and the sum's fractions are carried over once, when it is decoded. Nothing wraps: a
number that m clients could add up to too much is refused. `FINE` goes along: how many clients have, in each
floating-point array, an entry that the step resolves to six digits; if none has, the sum is refused too.
"""

from __future__ import annotations

import numpy as np

from fedspan.errors import InputError
from fedspan.protocol import Array, Arrays

BITS = 52  # the step is 2**-BITS; with 4096 clients or more the sum of fractions would not fit
MOST = 2 ** (64 - BITS) - 1
COARSE = 2.0**-30  # below it a number has less than six digits
FINE = "@fine"
_CURE = "rescale the columns"


def encode(arrays: Arrays, clients: int) -> dict[str, Array]:
    """Each array as uint64 of shape (lanes, *shape), ready to be summed over that many clients."""
    if clients > MOST:
        raise InputError(f"need at most {MOST} clients in one secure sum, got {clients}; sum them in groups")
    out = {name: _lanes(name, arrays[name], 2.0**62 / clients) for name in sorted(arrays)}
    floats = [arrays[name] for name in sorted(arrays) if arrays[name].dtype.kind == "f"]
    fine = [np.abs(x).max(initial=0.0) >= COARSE for x in floats]
    return out | {FINE: np.array(fine, dtype=np.uint64).reshape(1, -1)}


def _lanes(name: str, x: Array, limit: float) -> Array:
    low, high = (x.min(), x.max()) if x.size else (0, 0)
    if not (-limit < float(low) and float(high) < limit):  # not: NaN is refused as well
        raise InputError(
            f"need numbers below {limit:.3g} in {name!r} for a secure sum, got {max(-float(low), float(high)):.3g}; "
            f"{_CURE}"
        )
    if x.dtype.kind != "f":
        return x.astype(np.int64).view(np.uint64)[None]
    whole = np.floor(x, dtype=np.float64)
    fraction = np.rint((x - whole) * 2.0**BITS)
    return np.stack([whole.astype(np.int64).view(np.uint64), fraction.astype(np.uint64)])


def decode(total: Arrays) -> dict[str, Array]:
    """The sums as int64 or float64, from the sums of what `encode` made."""
    floats = sorted(name for name, lanes in total.items() if len(lanes) == 2)
    out = {name: _number(lanes) for name, lanes in total.items() if name != FINE}
    for name, count in zip(floats, total[FINE][0], strict=True):
        if count == 0 and total[name].any():
            raise InputError(
                f"need numbers that a fixed-point step of 2^-{BITS} resolves, all of {name!r} is below {COARSE:.1g} "
                f"at every client; {_CURE}"
            )
    return out


def _number(lanes: Array) -> Array:
    whole = np.array(lanes[0]).view(np.int64)
    if len(lanes) == 1:
        return whole
    carried = whole + (lanes[1] >> np.uint64(BITS)).astype(np.int64)
    fraction = lanes[1] & np.uint64(2**BITS - 1)
    return np.asarray(carried.astype(np.float64) + fraction.astype(np.float64) * 2.0**-BITS)
