"""Lossless packing of integer arrays, so that small numbers take few bits; and the bit strings underneath.

An integer array is Rice-coded column by column: of each number (zigzag: small magnitudes of either sign become small
codes) the low b bits are stored as they are and the rest in unary, with the b that is shortest for the column. For
rounded products, which are nearly Gaussian, that is within a quarter of a bit of their entropy. Nothing is lost, so
this stage fits any algorithm that rounds its numbers itself.
"""

from __future__ import annotations

import math

import numpy as np

from fedspan._types import Array, Arrays, Draw
from fedspan.channel.stage import Stage, State
from fedspan.errors import ProtocolError

_PACK_MARK = "~p"  # a packed array is named  name~p~<dtype>~<shape>: it describes itself
_PACKED_TYPES = ("i1", "i2", "i4", "i8")
_MOST_AXES = 16
_DIGITS = 15  # of an axis: a product of axes that fits its bytes is checked as a Python integer, which cannot wrap


def pack_bits(codes: Array, bits: int) -> Array:
    """Unsigned codes below 2**bits as a byte string, `bits` bits each."""
    if bits in (8, 16):
        return codes.astype(f"<u{bits // 8}").view(np.uint8)
    planes = (codes[:, None] >> np.arange(bits, dtype=codes.dtype)) & codes.dtype.type(1)
    return np.packbits(planes.astype(np.uint8).ravel(), bitorder="little")


def unpack_bits(packed: Array, bits: int, count: int) -> Array:
    """The inverse of `pack_bits` for `count` codes, as uint64."""
    if bits in (8, 16):
        return packed.view(f"<u{bits // 8}").astype(np.uint64)
    planes = np.unpackbits(packed, count=count * bits, bitorder="little").reshape(count, bits)
    return planes.astype(np.uint64) @ (np.uint64(1) << np.arange(bits, dtype=np.uint64))


def rice_encode(codes: Array) -> Array:
    """Unsigned codes as bytes: b, the unary parts (that many zeros, then a one), the low b bits."""
    guess = max(int(np.log2(float(codes.mean(dtype=np.float64)) * np.log(2) + 1.0)), 0)
    b = min(range(max(guess - 1, 0), guess + 2), key=lambda b: b * codes.size + int((codes >> np.uint64(b)).sum()))
    ends = np.cumsum((codes >> np.uint64(b)) + np.uint64(1)) - np.uint64(1)
    unary = np.zeros(int(ends[-1]) + 1, dtype=np.uint8)
    unary[ends] = 1
    low = pack_bits(codes & np.uint64((1 << b) - 1), b) if b else np.zeros(0, dtype=np.uint8)
    return np.concatenate([np.array([b], dtype=np.uint8), low, np.packbits(unary, bitorder="little")])


def rice_decode(packed: Array, count: int) -> tuple[Array, int]:
    """The codes, and how many bytes they took. `count` must not be larger than the bits that are there."""
    b = int(packed[0])
    start = 1 + (b * count + 7) // 8
    if b >= 64 or start > packed.size:
        raise ValueError(f"it says that its numbers have {b} low bits")
    low = unpack_bits(np.ascontiguousarray(packed[1:start]), b, count) if b else np.uint64(0)
    ends = _find_ones(packed[start:], count)
    high = np.diff(ends, prepend=-1) - 1
    return (high.astype(np.uint64) << np.uint64(b)) + low, start + (int(ends[-1]) + 8) // 8


def _find_ones(packed: Array, count: int) -> Array:
    """Where the first `count` ones are; the unary parts are rarely longer than 4 bits a number, so look there first."""
    size = count // 2 + 8
    while True:
        ones = np.flatnonzero(np.unpackbits(packed[:size], bitorder="little"))
        if len(ones) >= count:
            return ones[:count]
        if size >= packed.size:
            raise ValueError(f"it holds {len(ones)} numbers instead of {count}")
        size *= 2  # not all at once: each of many columns would look through all that follow


def _matrix_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    """(rows, columns) of an array seen as a matrix; a vector is one column."""
    columns = shape[-1] if len(shape) > 1 else 1
    return int(np.prod(shape, dtype=np.int64)) // max(columns, 1), columns


def parse_shape(dims: str) -> tuple[int, ...]:
    """The shape in the name of an array that describes itself: "784x10"; nothing for a single number."""
    words = dims.split("x") if dims else []
    if len(words) > _MOST_AXES or not all(word.isascii() and word.isdigit() and len(word) <= _DIGITS for word in words):
        raise ValueError(f"{dims[:40]!r} is not a shape")
    return tuple(map(int, words))


def require_bytes(packed: Array) -> None:
    """Refuse an array that cannot hold bits."""
    if packed.dtype != np.uint8 or packed.ndim != 1:
        raise ValueError(f"its bytes are an array of {packed.dtype} with {packed.ndim} axes")


def check_distinct(before: Arrays, after: Arrays) -> None:
    """Refuse arrays of which two decode to the same name: one would take the other's place."""
    if len(after) != len(before):
        raise ProtocolError(f"Two of the arrays {', '.join(sorted(before))[:200]!r} have the same name when decoded.")


def pack() -> Stage:
    """A stage that packs signed integer arrays; others pass as they are."""

    def encode(arrays: Arrays, state: State, rng: Draw) -> tuple[Arrays, State]:
        return dict(_pack(name, array) for name, array in arrays.items()), state

    def decode(arrays: Arrays, state: State) -> tuple[Arrays, State]:
        plain = {k.split(_PACK_MARK)[0]: _unpack(k, a) if _PACK_MARK in k else a for k, a in arrays.items()}
        check_distinct(arrays, plain)
        return plain, state

    return Stage("pack", ("pack",), lambda: ((), ()), encode, decode, recipe=("pack",))


def _pack(name: str, array: Array) -> tuple[str, Array]:
    if array.dtype.kind != "i" or array.size < 2:
        return name, array
    rows, columns = _matrix_shape(array.shape)
    signed = array.astype(np.int64).reshape(rows, columns)
    zigzag = ((signed << 1) ^ (signed >> 63)).view(np.uint64)
    parts = [rice_encode(zigzag[:, j]) for j in range(columns)]
    return f"{name}{_PACK_MARK}~{array.dtype.str[1:]}~{'x'.join(map(str, array.shape))}", np.concatenate(parts)


def _unpack(key: str, packed: Array) -> Array:
    try:
        _, dtype, dims = key.split(_PACK_MARK)[1].split("~")
        if dtype not in _PACKED_TYPES:
            raise ValueError(f"{dtype[:20]!r} is not a type of signed integers")
        require_bytes(packed)
        shape = parse_shape(dims)
        if not 2 <= math.prod(shape) <= 8 * packed.size:  # a number takes a bit at least, and one alone is not packed
            raise ValueError(f"its {packed.size} bytes do not hold that many numbers")
        rows, columns = _matrix_shape(shape)
        out, start = np.zeros((rows, columns), dtype=np.uint64), 0
        for j in range(columns):
            out[:, j], used = rice_decode(packed[start:], rows)
            start += used
        signed = (out >> np.uint64(1)).view(np.int64) ^ -(out & np.uint64(1)).view(np.int64)
        if start != packed.size:
            raise ValueError(f"{packed.size - start} bytes are left over")
    except (ValueError, TypeError, IndexError, OverflowError) as error:
        raise ProtocolError(f"The packed array {key[:80]!r} does not decode: {error}.") from None
    return signed.astype(np.dtype(dtype)).reshape(shape)
