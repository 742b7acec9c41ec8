"""The stochastic max-norm quantiser, CuteMaxVar (18)–(19), packed into b bits per number.

Notation: Δ the array, S = 2^(b-1) - 1 the number of levels on each side of zero, h the stochastic level in {0..S}/S.
The decoded array is ‖Δ‖_max · sgn(Δ) · h: unbiased, and within ‖Δ‖_max / S of Δ in every entry.
"""

from __future__ import annotations

import math

import numpy as np

from fedspan._types import Array, Arrays, Draw
from fedspan.channel.pack import check_distinct, pack_bits, parse_shape, require_bytes, unpack_bits
from fedspan.channel.stage import Stage, State
from fedspan.errors import InputError, ProtocolError

_BITS_MARK = "~q"  # a packed array is named  name~q<bits>~<dtype>~<shape>: it describes itself
_WIDTHS = tuple(map(str, range(2, 17)))
_FLOATING = ("f2", "f4", "f8")


def quantize(bits: int) -> Stage:
    """A stage that sends floating-point arrays with `bits` bits per number."""
    if isinstance(bits, bool) or not isinstance(bits, int | np.integer) or not 2 <= bits <= 16:
        raise InputError(f"bits must be an integer from 2 to 16, but is {bits!r}.")
    S = 2 ** (bits - 1) - 1

    def encode(arrays: Arrays, state: State, rng: Draw) -> tuple[Arrays, State]:
        out = {}
        for name, array in arrays.items():
            if array.dtype.kind != "f":
                out[name] = array
                continue
            Δ = array.astype(np.float64, copy=False).ravel()
            top = np.abs(Δ).max(initial=0.0)
            if not np.isfinite(top):
                raise ProtocolError(f"{name!r} contains NaN or infinity and cannot be quantised, so nothing was sent.")
            t = np.abs(Δ) / top * S if top > 0 else np.zeros_like(Δ)  # S / top would overflow for a tiny top
            p = np.minimum(np.floor(t), S - 1)  # |Δ|/‖Δ‖_max lies in [p/S, (p+1)/S]
            h = p + (rng(f"quantize {name}").random(Δ.size) < t - p)  # (18)
            codes = (np.sign(Δ) * h + S).astype(np.uint16)
            shape = "x".join(map(str, array.shape))
            scale = np.frombuffer(np.float64(top).tobytes(), dtype=np.uint8)
            out[f"{name}{_BITS_MARK}{bits}~{array.dtype.str[1:]}~{shape}"] = np.concatenate(
                [scale, pack_bits(codes, bits)]
            )
        return out, state

    def decode(arrays: Arrays, state: State) -> tuple[Arrays, State]:
        plain = {k.split(_BITS_MARK)[0]: _dequantize(k, a) if _BITS_MARK in k else a for k, a in arrays.items()}
        check_distinct(arrays, plain)
        return plain, state

    return Stage(f"quantize({bits})", ("quantize",), lambda: ((), ()), encode, decode, recipe=("quantize", int(bits)))


def _dequantize(key: str, packed: Array) -> Array:
    try:
        bits_text, dtype, dims = key.split(_BITS_MARK)[1].split("~")
        require_bytes(packed)
        shape = parse_shape(dims)
        count = math.prod(shape)
        if bits_text not in _WIDTHS or dtype not in _FLOATING:
            raise ValueError("its name is not that of a quantised array")
        bits = int(bits_text)
        if len(packed) != 8 + (count * bits + 7) // 8:
            raise ValueError(f"its {len(packed)} bytes do not fit its name")
        S = 2 ** (bits - 1) - 1
        scale = np.frombuffer(packed[:8].tobytes(), dtype="<f8")[0]
        if not 0 <= scale < np.inf:
            raise ValueError(f"its scale is {scale}")
        codes = unpack_bits(np.ascontiguousarray(packed[8:]), bits, count)
        levels = codes.astype(np.float64) - S
        return (levels / S * scale).astype(np.dtype(dtype), copy=False).reshape(shape)  # (19)
    except (ValueError, TypeError, IndexError) as error:
        raise ProtocolError(f"The quantised array {key[:80]!r} does not decode: {error}.") from None
