"""Rows whose entries have random signs: as large as before, and with nothing in common.

Notation: B (n, d) the rows of one client around their own mean, times √(n/(n-1)); E_t (n, d) random signs,
N_t = (E_t∘B)ᵀ(E_t∘B) the second moments of the t-th flipped table, t = 1 … T. Off the diagonal, N_t is a sum of random
signs. Around the mean of all clients, what a client's mean differs from it would look like noise, in every row.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np

from fedspan._types import Array
from fedspan.numerics.operators import Rows, prefers_gram

_KEPT_TABLES = 1 << 24  # entries of all N_t that spare drawing the signs again: 128 MB
_PRODUCTS = 60  # columns that are multiplied in all, about


class FlippedRows:
    """Products with T flipped tables. The signs follow from the key, and are drawn again for each product."""

    def __init__(self, rows: Rows, tables: int, key: bytes) -> None:
        self.rows, self.tables, self.key = rows, tables, key
        n, d = rows.n, rows.d
        self._kept: Array | None = None
        self._mean = rows.sums() / rows.total if n > 1 and rows.total > 0 else None
        self._factor = n / (n - 1) if self._mean is not None else 1.0
        self._keeps = tables * d * d <= _KEPT_TABLES and prefers_gram(n, d, _PRODUCTS, rows.batched)

    def multiply(self, V: Array, mu: Array | None, s: Array | None) -> Array:
        """N_t V_t for every t; V and the result are (T, d, w). μ is for a single row, which has no other mean."""
        if self._mean is not None:
            mu = self._mean
        if self._keeps:
            if self._kept is None:
                self._kept = self._add_up(None, mu, s)
            return np.matmul(self._kept, V)
        return self._add_up(V, mu, s)

    def _add_up(self, V: Array | None, mu: Array | None, s: Array | None) -> Array:
        """Σ over blocks; without V, all N_t themselves."""
        d = self.rows.d
        out = np.zeros((self.tables, d, d if V is None else V.shape[2]))
        for number, block in enumerate(self.rows.shifted_blocks(mu, s)):
            for t in range(self.tables):
                flipped = block * self._draw_signs(t, number, block.shape)
                out[t] += flipped.T @ (flipped if V is None else flipped @ V[t])
        return out * self._factor

    def _draw_signs(self, table: int, number: int, shape: tuple[int, ...]) -> Array:
        """±1 for the entries of one block in one table."""
        place = blake2b(f"{table} {number}".encode(), key=self.key, digest_size=16).digest()
        size = int(np.prod(shape))
        drawn = np.random.Generator(np.random.Philox(key=int.from_bytes(place, "little"))).bytes(-(-size // 8))
        bits = np.unpackbits(np.frombuffer(drawn, dtype=np.uint8), count=size)
        return bits.reshape(shape).astype(np.int8) * np.int8(2) - np.int8(1)
