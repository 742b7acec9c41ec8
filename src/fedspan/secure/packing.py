"""Narrow lanes: integers of a secure sum in as few bits as the *sum* needs, around what the server expects of it.

Notation: x_i (d, k) the integers of client i, S = Σ x_i, C (d, k) the server's prediction of S, b (d, k) the widths.

Masks are added modulo 2^64 as everywhere (masking.py), and of y_i only the low b bits leave, packed: sums and masks
work alike modulo 2^b, however large the single x_i are. The server finds S from its b low bits and C if |S - C| is
below 2^(b-1).
It does not tell the clients C, only b: an exponent for each row and one for each column. They are in the request, so
that the masks of clients which were told other widths do not cancel.

If S is further from C, the entry wraps around. A check sum for each column, at full width, tells: R S for two rows R of
pseudorandom numbers modulo 2^64. A wrapped entry is off by a multiple of 2^b, so it is missed with a chance of at most
2^-2(64-b) in a column: b is at most 40, or 64, at which nothing wraps. One entry that is off by a single turn is put
right, because only one row of R explains the difference. Other columns are marked (`Replies.wrapped`), and the
algorithm asks for them again.

The sites of a verified run are shown S itself, in as few bits as its rows and columns need (`shrink`). They use no
prediction, which their own rounding might make another one; what they check is the tag of S (witness.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import sha256

import numpy as np

from fedspan._types import Array, Arrays
from fedspan.core.protocol import NOT_ASKED, Narrow, Parts, Sum
from fedspan.errors import ProtocolError
from fedspan.secure.keys import stream

ROWS, COLUMNS = "@rows ", "@columns "  # travel with a task: the exponents for the array of that name
CHECK = "@check "  # travels with the sum: the check sums of the array of that name
Exponents = Mapping[str, tuple[Array, Array]]  # of rows and of columns, by array
WIDEST = 40  # bits; what needs more takes 64
_PIECE = 1 << 15  # entries that are packed at a time, a multiple of 8
_ROWS_OF_CHECK = 2
_MENDABLE = 32  # up to that width an entry is put right: with more, another one might explain the difference


def find_widths(rows: Array, columns: Array) -> Array:
    """b (d, k) from its exponents; 0 in a column that is not asked for."""
    bits = np.clip(rows[:, None].astype(np.int64) + columns.astype(np.int64), 1, 64)
    bits[bits > WIDEST] = 64
    bits[:, columns == NOT_ASKED] = 0
    return bits.astype(np.uint8)


def fit_widths(lane: Array, exponents: tuple[Array, Array], name: str) -> Array:
    """The widths for an array's lane (1, d, k), refused if they are for an array of another shape."""
    rows, columns = exponents
    if lane.shape != (1, len(rows), len(columns)):
        raise ProtocolError(f"Secure aggregation refused: the widths do not fit {name!r}.")
    return find_widths(rows, columns)


def tell_widths(narrow: Mapping[str, Narrow]) -> dict[str, Array]:
    """What clients are told of narrow arrays."""
    told = {ROWS + name: one.rows.astype(np.int8) for name, one in narrow.items()}
    return told | {COLUMNS + name: one.columns.astype(np.int8) for name, one in narrow.items()}


def read_exponents(arrays: Arrays) -> dict[str, tuple[Array, Array]]:
    """The exponents of rows and columns for narrow arrays in a request.

    They become widths only beside the array that they are for (`fit_widths`): a few thousand exponents, which anybody
    can send, would make a matrix of gigabytes.
    """
    out = {}
    for name in arrays:
        if name.startswith(ROWS):
            rows, columns = arrays[name], arrays.get(COLUMNS + name.removeprefix(ROWS))
            if columns is None or any(x.dtype != np.int8 or x.ndim != 1 for x in (rows, columns)):
                raise ProtocolError("Secure aggregation refused: widths must be small integers by row and by column.")
            out[name.removeprefix(ROWS)] = (rows, columns)
    return out


def is_width(name: str) -> bool:
    """Whether an array of a request says how wide others are."""
    return name.startswith((ROWS, COLUMNS))


def pack_lane(lane: Array, widths: Array) -> Array:
    """The low bits of (1, d, k) numbers modulo 2^64 as bytes, those of one width together."""
    numbers = np.ascontiguousarray(lane, dtype="<u8").reshape(-1)
    parts = [
        np.packbits(np.unpackbits(_as_bytes(numbers[chunk]), axis=1, bitorder="little")[:, :b], bitorder="little")
        for b, chunk in _split_by_width(widths)
    ]
    return np.concatenate([np.zeros(0, dtype=np.uint8), *parts])


def unpack_lane(packed: Array, widths: Array) -> Array:
    """The inverse of `pack_lane`: (1, d, k) numbers of which the low bits are right, and the others 0."""
    size = sum((b * len(chunk) + 7) // 8 for b, chunk in _split_by_width(widths))
    if packed.dtype != np.uint8 or packed.shape != (size,):
        raise ProtocolError(f"A narrow array must be {size} bytes, but is {packed.shape} of {packed.dtype}.")
    numbers, start = np.zeros(widths.size, dtype="<u8"), 0
    for b, chunk in _split_by_width(widths):
        end = start + (b * len(chunk) + 7) // 8
        bits = np.zeros((len(chunk), 64), dtype=np.uint8)
        bits[:, :b] = np.unpackbits(packed[start:end], count=b * len(chunk), bitorder="little").reshape(-1, b)
        numbers[chunk] = np.packbits(bits, axis=1, bitorder="little").view("<u8")[:, 0]
        start = end
    return numbers.astype(np.uint64).reshape(1, *widths.shape)


def _as_bytes(numbers: Array) -> Array:
    return numbers.view(np.uint8).reshape(-1, 8)


def _split_by_width(widths: Array) -> Iterator[tuple[int, Array]]:
    """Each width and where its entries are, in pieces; not those of width 0."""
    order = np.argsort(widths, axis=None, kind="stable")
    counts = np.bincount(widths.ravel(), minlength=1)
    ends = np.cumsum(counts)
    for b in np.flatnonzero(counts).tolist():
        for start in range(ends[b] - counts[b], ends[b], _PIECE):
            if b:
                yield b, order[start : min(start + _PIECE, ends[b])]


def check_sums(lane: Array, place: tuple[int, int], name: str) -> Array:
    """(1, 2, k) the check sums of the columns of (1, d, k) numbers modulo 2^64."""
    return np.asarray(_draw_weights(lane.shape[1], place, name) @ lane[0])[None]


def _draw_weights(d: int, place: tuple[int, int], name: str) -> Array:
    key = sha256(repr(("check", *place, name)).encode()).digest()
    return stream(key, _ROWS_OF_CHECK * d).reshape(_ROWS_OF_CHECK, d).astype(np.uint64)


def check_columns_of(
    found: Array, checks: Array, narrow: Narrow, place: tuple[int, int], name: str
) -> tuple[Array, Array]:
    """S as found, with what can be put right, and the columns (k,) that do not have their check sums."""
    total, widths = np.array(found), find_widths(narrow.rows, narrow.columns)
    weights = _draw_weights(len(total), place, name)
    off = checks[0] - weights @ total.view(np.uint64)  # R times what is missing
    wrapped = off.any(axis=0) & widths.any(axis=0)
    for column in np.flatnonzero(wrapped):
        bits = widths[:, column].astype(np.uint64)
        few = bits <= _MENDABLE
        turns = weights << np.where(few, bits, 0).astype(np.uint64)
        for sign in (1, -1):
            here = off[:, column, None] == (turns if sign == 1 else np.uint64(0) - turns)
            rows = np.flatnonzero(here.all(axis=0) & few)
            if len(rows) == 1:
                total[rows[0], column] += sign * (1 << int(bits[rows[0]]))
                wrapped[column] = False
    return total, wrapped


def resolve(lane: Array, narrow: Narrow) -> Array:
    """S (d, k), from the low bits of its lane (1, d, k) and the prediction; C itself in a column not asked for."""
    widths = find_widths(narrow.rows, narrow.columns)
    center = np.asarray(narrow.center, dtype=np.int64)
    unused = np.where(widths == 0, 0, 64 - widths.astype(np.int64)).astype(np.uint64)
    off = ((lane[0] - center.view(np.uint64)) << unused).view(np.int64) >> unused.astype(np.int64)
    return center + np.where(widths == 0, 0, off)


def shrink(lane: Array) -> tuple[Array, Array, Array]:
    """(1, d, k) integers as bytes, with the exponents of rows and columns that are just enough for them."""
    size = lane[0].view(np.int64)
    bits = 1 + np.frexp(np.maximum(size, -1 - size).astype(np.float64))[1]  # with the sign
    choices = []
    for part in (0.5, 0.75, 0.9, 1.0):
        columns = np.ceil(np.quantile(bits, part, axis=0)) if len(bits) else np.ones(lane.shape[2])
        rows = (bits - columns).max(axis=1, initial=-64)
        choices.append((rows.astype(np.int8), columns.astype(np.int8)))
    rows, columns = min(choices, key=lambda choice: int(find_widths(*choice).sum(dtype=np.int64)))
    return pack_lane(lane, find_widths(rows, columns)), rows, columns


def unshrink(packed: Array, rows: Array, columns: Array) -> Array:
    """The inverse of `shrink`. Every entry has a bit at least, so few bytes cannot ask for much memory."""
    good = all(x.ndim == 1 for x in (packed, rows, columns)) and rows.dtype == columns.dtype == np.int8
    if not good or rows.size * columns.size > 8 * packed.size or (columns == NOT_ASKED).any():
        raise ProtocolError("A sum does not have the bytes that its rows and columns need.")
    nothing = np.zeros((rows.size, columns.size), dtype=np.int64)
    lane = unpack_lane(packed, find_widths(rows, columns))
    return resolve(lane, Narrow(nothing, rows, columns)).view(np.uint64)[None]


class PackedSum(Sum):
    """A sum of masked arrays, some of which come packed."""

    widths: Mapping[str, Array]

    def __init__(self, *names: str, widths: Mapping[str, Array]) -> None:
        super().__init__(*names)
        object.__setattr__(self, "widths", widths)

    def unpack(self, arrays: Arrays) -> dict[str, Array]:
        """The arrays of a reply, all as numbers modulo 2^64."""
        return _unpack_reply(arrays, self.widths)


class PackedParts(Parts):
    """Every reply by itself, of masked arrays of which some come packed."""

    widths: Mapping[str, Array]

    def __init__(self, *names: str, widths: Mapping[str, Array]) -> None:
        super().__init__(*names)
        object.__setattr__(self, "widths", widths)

    def unpack(self, arrays: Arrays) -> dict[str, Array]:
        """The arrays of a reply, all as numbers modulo 2^64."""
        return _unpack_reply(arrays, self.widths)


def _unpack_reply(arrays: Arrays, widths: Mapping[str, Array]) -> dict[str, Array]:
    packed = {name for name, x in arrays.items() if name in widths and x.dtype == np.uint8}
    return {name: unpack_lane(x, widths[name]) if name in packed else x for name, x in arrays.items()}
