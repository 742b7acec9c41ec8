"""What a client can do with its rows without copying them: sums, squares, and products with their Gram matrix.

Notation: A (n, d) the rows, μ (d,) the mean to subtract, s (d,) the scale to divide by (None: it is left out),
B = (A - 1μᵀ) diag(1/s), M = BᵀB. B is never formed: dense rows (in memory or memory-mapped, of any numeric dtype)
are shifted in blocks that stay in the cache, sparse ones by rank-one corrections. Rows that are not in memory at all
(`RowBatches`) are read once for every sum or product, batch by batch. With a bound C on the norm of a row, each row of
B is shortened to it: row i is multiplied by w_i = min(1, C/‖b_i‖) (w is computed once per μ), and a row that is not
finite counts as a row of zeros: an error would tell of it. With `unit`, every row gets that norm: w_i = C/‖b_i‖, but a
row that is so small, or in a sparse table so near to μ, that its direction is rounding error counts as zeros.

With weights v (`WeightedRows`), row i counts v_i times: B = diag(√v)(A - 1μᵀ) diag(1/s), and a bound holds for the rows
of that B, so for what a row contributes after weighting. The sum of the rows is then Σ v a; with a bound, Σ √v b.

With `at_once`, dense rows are passed over once for sums, squares and Gram matrix, around a point c near their mean
(`RowPass`), in their own dtype if that is float32; what is added up over blocks is float64 all the same.
"""

from __future__ import annotations

import mmap
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np
import scipy.linalg.blas
import scipy.sparse as sp

from fedspan._types import Array

_ROW_BLOCK = 1 << 18  # entries of a block for products with a thin V: 2 MB, fits a cache
_LEAST_ROWS, _WIDEST_BLOCK = 32, 1 << 23  # of very wide rows a block has that many, up to 64 MB
_GRAM_BLOCK = 1 << 19, 1 << 22  # for Gram matrices: as large as the matrix, but from 4 to 32 MB, where BLAS is fastest
_PASS_BLOCK = 1 << 17, 1 << 22  # the same for one pass in all: once or four times the matrix, from 1 to 32 MB
_CENTER_ROWS = 64  # rows whose mean is taken for c
_NO_LENGTH = 1e-150  # of a row: its square is near the smallest numbers
_NO_DIRECTION = 1e-4  # of a sparse row's distance from the mean, as a part of both lengths
_FAR_CENTER = 100.0  # how much larger than the variance (c - mean)² may be: two digits
_SINGLE_RANGE = 1e-30, 1e30  # of mean squares that float32 can hold with room for sums
FILLED = 0.08  # the share of stored entries from which a Gram matrix of sparse rows is quicker made of dense blocks
_KEPT_GRAM = 1 << 24  # entries of a Gram matrix that spares reading the rows again: 128 MB


class RowBatches(ABC):
    """Rows that are not in memory: a matrix that can be read from its first row to its last, again and again."""

    shape: tuple[int, int]
    ndim: ClassVar[int] = 2
    dtype: ClassVar[np.dtype[Any]] = np.dtype(np.float64)

    @abstractmethod
    def batches(self) -> Iterator[Array]:
        """All rows in order, some at a time."""


class RowKernel(RowBatches):
    """Rows that know themselves how they are best added up and multiplied, because of how they are stored.

    `Rows` asks them, unless rows are weighted or shortened: then it takes their batches, as of any others.
    """

    @abstractmethod
    def add_rows(self) -> Array:
        """The sum of the rows, (d,)."""

    @abstractmethod
    def add_squares(self, mu: Array) -> Array:
        """Σ (a - μ)², (d,)."""

    @abstractmethod
    def multiply_shifted(self, W: Array, c: Array) -> tuple[Array, Array]:
        """AᵀY (d, k) and Yᵀ1 (k,) for Y = AW - 1cᵀ."""

    @abstractmethod
    def project(self, W: Array) -> Array:
        """A W, (n, k)."""


@dataclass(frozen=True)
class WeightedRows:
    """Rows of which each counts as often as its weight says."""

    rows: Matrix
    weights: Array  # (n,), finite and not negative


HeldMatrix: TypeAlias = Array | sp.sparray | sp.spmatrix  # rows in memory (or mapped into it), dense or sparse
Matrix: TypeAlias = HeldMatrix | RowBatches  # the rows of a client


def prefers_gram(n: int, d: int, columns: int, batched: bool = False) -> bool:
    """Whether forming M once (n·d² at full speed) is cheaper than `columns` products with the rows.

    Measured: a product with the rows costs about 11·n·d per column in the same unit (it waits for memory), one with
    the Gram matrix about 5·d². Rows that are not in memory would be read again for every product.
    """
    if batched and d * d <= _KEPT_GRAM:
        return True
    return n > d and n * d * d + 5 * d * d * columns < 11 * n * d * columns


def _to_canonical(A: sp.sparray) -> sp.csr_array:
    """Sparse rows in float64 (products of small integers would wrap around), each entry stored once."""
    B = A.tocsr().astype(np.float64, copy=False)
    if not B.has_canonical_format:
        B = B.copy()
        B.sum_duplicates()
    return B


def _find_map(A: np.memmap[tuple[int, ...], np.dtype[np.generic]]) -> mmap.mmap | None:
    """The memory map under C-ordered rows, if the system can be told to forget its pages."""
    forgets = A.flags.c_contiguous and A.mode == "r" and hasattr(mmap, "MADV_DONTNEED")
    under = getattr(A, "_mmap", None) if forgets else None
    return under if isinstance(under, mmap.mmap) else None


def _drop_not_finite(A: sp.csr_array) -> sp.csr_array:
    """The rows with zeros in place of those that are not finite, or whose squares are not."""
    with np.errstate(over="ignore", invalid="ignore"):
        bad = ~np.isfinite(np.asarray(A.multiply(A).sum(axis=1)).ravel())
    if not bad.any():
        return A
    data = np.where(np.repeat(bad, np.diff(A.indptr)), 0.0, A.data)
    return sp.csr_array((data, A.indices, A.indptr), shape=A.shape)


def _mirror(G: Array) -> None:
    """The lower half of a symmetric (d, d) into the upper one, without another (d, d)."""
    step = max(1, _ROW_BLOCK // max(len(G), 1))
    for i in range(0, len(G), step):
        j = min(i + step, len(G))
        G[i:j, j:] = G[j:, i:j].T
        block = np.tril(G[i:j, i:j])
        G[i:j, i:j] = block + np.tril(block, -1).T


class RowPass(NamedTuple):
    """What one pass over rows of total weight n found: s = Σ v(a - c) and G = Σ v(a - c)(a - c)ᵀ."""

    n: float
    c: Array  # (d,)
    s: Array  # (d,)
    G: Array  # (d, d)

    def squares(self, mu: Array) -> Array:
        """Σ (a - μ)², (d,)."""
        off = mu - self.c
        with np.errstate(over="ignore", invalid="ignore"):
            return np.maximum(np.diagonal(self.G) - off * (2 * self.s - self.n * off), 0.0)

    def gram(self, mu: Array) -> Array:
        """Σ (a - μ)(a - μ)ᵀ; G itself if μ is c."""
        off = mu - self.c
        if not off.any():
            return self.G
        M, rest = self.G.copy(), self.s - self.n * off
        step = max(1, _ROW_BLOCK // len(M))
        for i in range(0, len(M), step):  # so that no other (d, d) is made
            M[i : i + step] -= np.outer(self.s[i : i + step], off) + np.outer(off[i : i + step], rest)
        return M

    def is_near(self) -> bool:
        """Whether c is near enough to the mean of the rows for nothing to cancel."""
        with np.errstate(over="ignore", invalid="ignore"):
            shifted = self.s**2 / (self.n or 1.0)
            return bool(np.all(shifted <= _FAR_CENTER * (np.diagonal(self.G) - shifted)))

    def fits_single(self) -> bool:
        """Whether the squares are well inside the range of float32; those of 0 may have been lost."""
        squares = np.diagonal(self.G) / (self.n or 1.0)
        low, high = _SINGLE_RANGE
        return bool(np.all((squares > low) & (squares < high)))


class Rows:
    """The rows of one client: sums, squares, products with M and M itself, for a given shift and scale."""

    def __init__(
        self, A: Matrix | WeightedRows, row_norm: float = np.inf, at_once: bool = False, *, unit: bool = False
    ) -> None:
        weights: Array | None = None
        if isinstance(A, WeightedRows):
            weights, A = A.weights, A.rows
        self.n, self.d = A.shape
        self._roots = None if weights is None else np.sqrt(weights)  # √v; None: every row counts once
        self.total: float = self.n if weights is None else float(weights.sum())  # how many rows they count as
        self.sparse, self.batched = sp.issparse(A), isinstance(A, RowBatches)
        self.A: Any = _to_canonical(A) if self.sparse else A  # dense, sparse or batched: the two flags tell
        self.row_norm, self.unit = row_norm, unit
        if self.sparse and row_norm < np.inf:
            self.A = _drop_not_finite(self.A)
        self._map = _find_map(A) if isinstance(A, np.memmap) else None
        self._origin = np.frombuffer(self._map, dtype=np.uint8).ctypes.data if self._map else 0
        self._gram: tuple[Array | None, Array | None, Array] | None = None
        self._at_once = at_once and not self.sparse and row_norm == np.inf
        self._keeps = self._at_once and self.n >= 4 * self.d  # what is kept must be small beside the rows
        self._kernel = A if isinstance(A, RowKernel) and self._plain else None
        self._kept: RowPass | None = None

    def _blocks(self, mu: Array | None, entries: int) -> Iterator[Array]:
        """The dense rows in blocks of float64, shifted by μ and weighted; without a copy where none is needed."""
        step = self._rows_at_once(entries)
        if mu is None and self.A.dtype == np.float64 and self.row_norm == np.inf and self._roots is None:
            yield from self._raw(step)
            return
        buffer, start = np.empty((min(step, self.n), self.d)), 0
        shift = np.zeros(self.d) if mu is None else mu
        for rows in self._raw(step):
            block = np.subtract(rows, shift, out=buffer[: len(rows)], dtype=np.float64)
            roots: Array | float = 1.0
            if self._roots is not None:
                roots = self._roots[start : start + len(block)]
                block *= roots[:, None]
                start += len(block)
            if self.row_norm < np.inf:
                with np.errstate(over="ignore", invalid="ignore"):
                    norms = np.sqrt(np.einsum("ij,ij->i", block, block))
                    block *= self._shrink(norms, roots)[:, None]
                block[~np.isfinite(norms)] = 0.0
            yield block

    def _rows_at_once(self, entries: int) -> int:
        """Rows of a block of about that many entries: by bytes, but so that a product is one of matrices."""
        return max(1, entries // self.d, min(_LEAST_ROWS, _WIDEST_BLOCK // self.d))

    def _raw(self, step: int) -> Iterator[Array]:
        """The dense rows as they are, at most `step` at a time."""
        if self.batched:
            for batch in self.A.batches():
                yield from (batch[start : start + step] for start in range(0, len(batch), step))
            return
        for start in range(0, self.n, step):
            yield self.A[start : start + step]
            if self._map is not None:
                self._forget(self._map, start, start + step)

    def _forget(self, pages: mmap.mmap, start: int, stop: int) -> None:
        """Hand the pages of memory-mapped rows back, so that a file larger than memory does not fill it."""
        stride, first = self.A.strides[0], self.A.ctypes.data - self._origin
        page = mmap.ALLOCATIONGRANULARITY
        low, high = (first + start * stride) // page * page, first + min(stop, self.n) * stride
        pages.madvise(mmap.MADV_DONTNEED, low, high - low)

    def _shrink(self, norms: Array, roots: Array | float = 1.0) -> Array:
        """What shortens rows of those norms, which are √v times as long as they were."""
        if self.row_norm == np.inf:
            return np.ones_like(norms)
        if self.unit:  # the norm does not count, but the weight still does
            return np.where(norms > _NO_LENGTH, roots * self.row_norm / np.maximum(norms, _NO_LENGTH), 0.0)
        return self.row_norm / np.maximum(norms, self.row_norm)

    @property
    def _plain(self) -> bool:
        """Whether rows are neither weighted nor shortened."""
        return self.row_norm == np.inf and self._roots is None

    def _weights(self, mu: Array | None) -> Array:
        """What sparse rows are multiplied by, √v and what shortens them, without making them dense."""
        roots: Array | float = 1.0 if self._roots is None else self._roots
        if self.row_norm == np.inf and self._roots is not None:
            return self._roots
        norms = self.norms(mu)
        if self.unit and mu is not None:  # ‖a - μ‖² = ‖a‖² - 2aμ + ‖μ‖² must have digits left
            norms = np.where(norms > _NO_DIRECTION * (self.norms(None) + roots * np.linalg.norm(mu)), norms, 0.0)
        return self._shrink(norms, roots) * roots

    def count_longer(self) -> int:
        """How many rows are longer than the bound; those that are not finite are."""
        if self.sparse:
            return int(np.sum(self._shrink(self.norms(None)) < 1))
        return int(np.count_nonzero(~(self.norms(None) ** 2 <= self.row_norm**2)))

    def norms(self, mu: Array | None) -> Array:
        """‖b‖ of every row before it is shortened, (n,); infinite if it is not finite."""
        lengths = self._lengths(mu)
        if self._roots is None:
            return lengths
        return np.where(np.isfinite(lengths), lengths, 0.0) * self._roots + np.where(np.isfinite(lengths), 0.0, np.inf)

    def _lengths(self, mu: Array | None) -> Array:
        """‖a - μ‖ of every row, (n,); infinite if it is not finite."""
        if self.sparse:
            squares = np.asarray(self.A.multiply(self.A).sum(axis=1)).ravel()
            if mu is not None:
                squares = np.maximum(squares - 2 * (self.A @ mu) + mu @ mu, 0.0)
            return np.sqrt(squares)
        shift, parts = np.zeros(self.d) if mu is None else mu, []
        with np.errstate(over="ignore", invalid="ignore"):
            for rows in self._raw(self._rows_at_once(_ROW_BLOCK)):
                block = np.subtract(rows, shift, dtype=np.float64)
                parts.append(np.sqrt(np.einsum("ij,ij->i", block, block)))
        found = np.concatenate(parts) if parts else np.zeros(0)
        return np.where(np.isfinite(found), found, np.inf)

    def reaches(self, Z: Array, mu: Array | None) -> Array:
        """‖b‖·‖Zᵀb‖ = ‖bbᵀZ‖ of every shortened row, (n,)."""
        if self.sparse:
            w = self._weights(mu)
            BZ = self.A @ Z
            if mu is not None:
                BZ = BZ - mu @ Z
            return self._lengths(mu) * w**2 * np.linalg.norm(BZ, axis=1)
        parts = [
            np.linalg.norm(block, axis=1) * np.linalg.norm(block @ Z, axis=1) for block in self._blocks(mu, _ROW_BLOCK)
        ]
        return np.concatenate(parts) if parts else np.zeros(0)

    def multiply_clipped(self, Z: Array, mu: Array | None, most: float) -> Array:
        """Σ s·bbᵀZ over the shortened rows, each with s ≤ 1 so that ‖s·bbᵀZ‖ ≤ most; (d, k)."""
        if self.sparse:
            w = self._weights(mu)
            BZ = self.A @ Z
            if mu is not None:
                BZ = BZ - mu @ Z
            reach = self._lengths(mu) * w**2 * np.linalg.norm(BZ, axis=1)
            BZ = BZ * (w**2 * most / np.maximum(reach, most))[:, None]
            out = self.A.T @ BZ
            return out if mu is None else out - np.outer(mu, BZ.sum(axis=0))
        out = np.zeros((self.d, Z.shape[1]))
        for block in self._blocks(mu, _ROW_BLOCK):
            BZ = block @ Z
            reach = np.linalg.norm(block, axis=1) * np.linalg.norm(BZ, axis=1)
            out += block.T @ (BZ * (most / np.maximum(reach, most))[:, None])
        return out

    def sums(self) -> Array:
        """Σ v a over the rows, (d,); with a bound on their norm Σ √v b, which one row of v ≤ 1 changes by that."""
        if self._keeps:
            found = self._keep_pass()
            return found.n * found.c + found.s
        if self._kernel is not None:
            return self._kernel.add_rows()
        if self.sparse and not self._plain:
            return self.A.T @ (self._weights(None) * (1.0 if self._roots is None else self._roots))
        if self.sparse:
            return np.asarray(self.A.sum(axis=0, dtype=np.float64)).ravel()
        total, start = np.zeros(self.d), 0
        for block in self._blocks(None, _ROW_BLOCK):
            total += block.sum(axis=0) if self._roots is None else self._roots[start : start + len(block)] @ block
            start += len(block)
        return total

    def count_not_finite(self) -> tuple[int, int, int]:
        """How many entries are NaN or infinite, in how many rows, and the first such column."""
        if self.sparse:
            bad = sp.coo_array(self.A)
            at = ~np.isfinite(bad.data)
            rows, columns = bad.row[at], bad.col[at]
            return len(rows), len(np.unique(rows)), int(columns.min()) if len(columns) else -1
        values, count, by_column = 0, 0, np.zeros(self.d, dtype=bool)
        for block in self._raw(self._rows_at_once(_ROW_BLOCK)):
            odd = ~np.isfinite(block)
            values += int(odd.sum())
            count += int(odd.any(axis=1).sum())
            by_column |= odd.any(axis=0)
        return values, count, int(by_column.argmax()) if values else -1

    def squares(self, mu: Array | None) -> Array:
        """Σ v(a - μ)² over the rows, (d,): around μ from the start, so that nothing cancels."""
        if self._keeps:
            return self._keep_pass().squares(np.zeros(self.d) if mu is None else mu)
        if self._kernel is not None:
            return self._kernel.add_squares(np.zeros(self.d) if mu is None else mu)
        if self.sparse:
            at, shift = self.A.indices, np.zeros(self.d) if mu is None else mu
            w2 = np.ones(self.n) if self._plain else self._weights(mu) ** 2
            of_entry = np.repeat(w2, np.diff(self.A.indptr))
            filled = np.bincount(at, weights=of_entry, minlength=self.d)
            off = np.bincount(at, weights=of_entry * (self.A.data - shift[at]) ** 2, minlength=self.d)
            return off + (w2.sum() - filled) * shift**2
        total = np.zeros(self.d)
        for block in self._blocks(mu, _ROW_BLOCK):
            total += np.einsum("ij,ij->j", block, block)
        return total

    def multiply(self, V: Array, mu: Array | None, s: Array | None) -> Array:
        """M V, (d, k)."""
        W = V if s is None else V / s[:, None]
        if self._kernel is not None:
            out, rest = self._kernel.multiply_shifted(W, np.zeros(W.shape[1]) if mu is None else mu @ W)
            if mu is not None:
                out -= np.outer(mu, rest)
        elif self.sparse:
            BW = self.A @ W
            if mu is not None:
                BW -= mu @ W
            if not self._plain:
                BW *= self._weights(mu)[:, None] ** 2
            out = self.A.T @ BW
            if mu is not None:
                out -= np.outer(mu, BW.sum(axis=0))
        else:
            out = np.zeros((self.d, V.shape[1]))
            for block in self._blocks(mu, _ROW_BLOCK):
                out += block.T @ (block @ W)
        return out if s is None else out / s[:, None]

    def gram(self, mu: Array | None, s: Array | None) -> Array:
        """M itself, (d, d)."""
        if self._at_once:
            center = np.zeros(self.d) if mu is None else mu
            G = (self._keep_pass() if self._keeps else self._pass(center)).gram(center)
        elif self.sparse and self.A.nnz > FILLED * self.n * self.d:
            G = self._add_filled(mu)
        elif self.sparse:
            w = np.ones(self.n) if self._plain else self._weights(mu)
            B = self.A if self._plain else sp.diags_array(w).tocsr() @ self.A
            G = (B.T @ B).toarray().astype(np.float64)
            if mu is not None:
                sums = self.A.T @ w**2
                G -= np.outer(mu, sums) + np.outer(sums - np.sum(w**2) * mu, mu)
        else:
            G = np.zeros((self.d, self.d))
            least, most = _GRAM_BLOCK
            for block in self._blocks(mu, min(max(self.d**2, least), most)):
                G += block.T @ block
        if s is None:
            return G
        G = G / s[:, None]  # one after the other: their product may be too large
        G /= s
        return G

    def _add_filled(self, mu: Array | None) -> Array:
        """M of sparse rows by dense blocks."""
        least, most = _GRAM_BLOCK
        step = max(1, min(max(self.d**2, least), most) // self.d)
        w = None if self._plain else self._weights(mu)
        G, product = np.zeros((self.d, self.d)), np.empty((self.d, self.d))
        for start in range(0, self.n, step):
            block = self.A[start : start + step].toarray()
            if mu is not None:
                block -= mu
            if w is not None:
                block *= w[start : start + step, None]
            G += np.matmul(block.T, block, out=product)
        return G

    def shifted_blocks(self, mu: Array | None, s: Array | None) -> Iterator[Array]:
        """B itself, dense, some rows at a time: what is yielded is overwritten by what comes next."""
        if not self.sparse:
            for block in self._blocks(mu, _ROW_BLOCK):
                yield block if s is None else block / s
            return
        step = self._rows_at_once(_ROW_BLOCK)
        w = np.ones(self.n) if self._plain else self._weights(mu)
        for start in range(0, self.n, step):
            block = self.A[start : start + step].toarray()
            block = (block if mu is None else block - mu) * w[start : start + step, None]
            yield block if s is None else block / s

    def digest(self) -> bytes:
        """A digest of all rows: whoever has them can repeat it, and nobody else."""
        found = blake2b(digest_size=16)
        parts = (self.A.data, self.A.indices, self.A.indptr) if self.sparse else self._raw(_CENTER_ROWS)
        for part in parts:
            found.update(part.tobytes())
        return found.digest()

    def drop_pass(self) -> None:
        """Forget what the pass over the rows found; what is asked next is computed anew."""
        self._kept = None

    def _keep_pass(self) -> RowPass:
        """The pass around the mean of the first rows; around the mean of all, if that is far from it."""
        if self._kept is None:
            start = np.asarray(next(self._raw(_CENTER_ROWS)), dtype=np.float64)
            found = self._pass(start[0] + (start - start[0]).mean(axis=0))  # exact for constant columns
            if np.isfinite(found.s).all() and not found.is_near():
                found = self._pass(found.c + found.s / found.n)
            self._kept = found
        return self._kept

    def _pass(self, c: Array) -> RowPass:
        """s and G around c, in float32 if the rows are and it can hold them."""
        if self.A.dtype == np.float32:
            found = self._add_up(c, np.dtype(np.float32))
            if found.fits_single() or not self._vary(np.diagonal(found.G) / (found.n or 1.0)):
                return found
        return self._add_up(c, np.dtype(np.float64))

    def _vary(self, squares: Array) -> bool:
        """Whether columns whose squares float32 cannot hold are more than constants."""
        odd = np.flatnonzero(~((squares > _SINGLE_RANGE[0]) & (squares < _SINGLE_RANGE[1])))
        first = np.array(next(self._raw(1))[0, odd])
        return any(bool((rows[:, odd] != first).any()) for rows in self._raw(self._rows_at_once(_ROW_BLOCK)))

    def _add_up(self, c: Array, dtype: np.dtype[np.floating]) -> RowPass:
        """One pass: products of blocks in that dtype, their sums in float64."""
        (least, most), double = _PASS_BLOCK, dtype == np.float64
        times = 1 if double else 4  # a product that is made apart and added costs more
        step = min(max(1, min(max(times * self.d**2, least), most) // self.d), self.n)
        center, buffer = c.astype(dtype), np.empty((step, self.d), dtype)
        in_place = double and step < self.n  # of one block it would only cost more calls
        product = np.empty((0, 0) if in_place else (self.d, self.d), dtype)
        roots = np.ones(step, dtype) if self._roots is None else self._roots.astype(dtype)
        s, G, start = np.zeros(self.d), np.zeros((self.d, self.d)), 0
        with np.errstate(over="ignore", invalid="ignore"):
            for rows in self._raw(step):
                B = np.subtract(rows, center, out=buffer[: len(rows)], dtype=dtype)
                v = roots[start : start + len(B)]
                if self._roots is not None:
                    B *= v[:, None]
                    start += len(B)
                if in_place:  # half of G is enough, and is added to where it is; BLAS wants its transpose
                    G = scipy.linalg.blas.dsyrk(1.0, B.T, beta=1.0, c=G.T, overwrite_c=1).T
                else:
                    G += np.matmul(B.T, B, out=product)
                s += v[: len(B)] @ B
        if in_place:
            _mirror(G)
        return RowPass(self.total, center.astype(np.float64), s, G)

    def multiply_by_gram(self, V: Array, mu: Array | None, s: Array | None) -> Array:
        """M V through M, which is formed at the first call."""
        if self._gram is None or self._gram[0] is not mu or self._gram[1] is not s:
            self._gram = (mu, s, self.gram(mu, s))
        return self._gram[2] @ V
