"""A client's rows cut into folds: the second moments of those that are kept, and of those that are held out.

Notation: X (n, d) the rows after clipping, shifting and scaling; a part of them has B (n, d), M = BᵀB, trace = tr M.
Where n < d a part keeps its rows, and no d×d matrix is formed; else it keeps M. Computations with a part are done in
an orthonormal basis P of what matters, so their cost depends on the smaller of n and d.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.linalg
import scipy.sparse as sp

from fedspan._types import Array
from fedspan.errors import InputError
from fedspan.numerics.operators import HeldMatrix

_FOLD_BLOCK = 1 << 20  # entries of a block of rows


@dataclass(frozen=True)
class Prep:
    """How a client's rows are prepared. `own`: each part of them is centered by its own mean."""

    own: bool
    mean: Array | None = None  # (d,), common to all clients
    scale: Array | None = None  # (d,)
    clip: float = 0.0  # every column is clipped to its median ± clip·MAD over these rows; 0: no clipping


@dataclass(frozen=True)
class RowPart:
    """Some of the rows: their number, their trace, and B or M."""

    n: int
    trace: float
    B: Array | None
    M: Array | None

    def leading_factor(self, k: int) -> Array:
        """V√w (d, k) of the k leading eigenpairs of M, zero columns where there are no more."""
        if self.B is not None:
            w, E = scipy.linalg.eigh(self.B @ self.B.T) if self.n else (np.zeros(0), np.zeros((0, 0)))
            S = self.B.T @ E[:, ::-1][:, :k]  # its columns have length √w
            return np.pad(S, ((0, 0), (0, k - S.shape[1])))
        assert self.M is not None  # noqa: S101 - for the type checker
        d = len(self.M)
        w, V = scipy.linalg.eigh(self.M, subset_by_index=[d - min(k, d), d - 1])
        S = V[:, ::-1] * np.sqrt(np.maximum(w[::-1], 0.0))
        return np.pad(S, ((0, 0), (0, k - S.shape[1])))

    def basis(self, Q: Array) -> Array | None:
        """P (d, p), an orthonormal basis of the rows and the columns of Q; None for the identity, if p would be d."""
        if self.B is None or self.n + Q.shape[1] >= self.B.shape[1]:
            return None
        return np.linalg.qr(np.hstack([self.B.T, Q]))[0]

    def within(self, P: Array | None) -> Array:
        """PᵀMP."""
        if self.B is None:
            assert self.M is not None  # noqa: S101
            return self.M if P is None else P.T @ self.M @ P
        C = self.B if P is None else self.B @ P
        return C.T @ C

    def multiply(self, U: Array) -> Array:
        """M U: O(n·d·r) if n < d."""
        if self.B is not None:
            return self.B.T @ (self.B @ U)
        assert self.M is not None  # noqa: S101
        return self.M @ U


class Folded:
    """The rows of one client, prepared; `split` gives one fold to be held out, and the rest."""

    def __init__(self, A: HeldMatrix, prep: Prep, fold: Array | None = None) -> None:
        self.A, self.prep = A, prep
        self.n, self.d = A.shape
        self.fold = np.zeros(self.n, dtype=np.int64) if fold is None else fold
        self.bounds = self._bounds()  # (2, d), or None
        self.mean = self._mean()  # what was subtracted from all rows, before they were scaled
        F = int(self.fold.max()) + 1
        self.sizes = np.bincount(self.fold, minlength=F)
        self.X = np.vstack(list(self._blocks())) if self.n < self.d else None
        if self.X is None:
            self.grams, self.sums = np.zeros((F, self.d, self.d)), np.zeros((F, self.d))
            start = 0
            for block in self._blocks():
                labels = self.fold[start : start + len(block)]
                start += len(block)
                for f in np.unique(labels):
                    part = block[labels == f]
                    self.grams[f] += part.T @ part
                    self.sums[f] += part.sum(axis=0)

    @cached_property
    def whole(self) -> RowPart:
        """All rows."""
        return self.split(-1)[0]

    def split(self, f: int) -> tuple[RowPart, RowPart]:
        """The rows outside fold f and those in it, both shifted by the mean of the former if `own` is set."""
        if self.X is not None:
            B, C = self.X[self.fold != f], self.X[self.fold == f]
            if self.prep.own and len(B):
                mu = B.mean(axis=0)
                B, C = B - mu, C - mu
            return _part_of_rows(B), _part_of_rows(C)
        inside = np.arange(len(self.sizes)) == f
        M, s, n = self.grams[~inside].sum(axis=0), self.sums[~inside].sum(axis=0), int(self.sizes[~inside].sum())
        N, t, k = self.grams[inside].sum(axis=0), self.sums[inside].sum(axis=0), int(self.sizes[inside].sum())
        if self.prep.own and n:
            mu = s / n  # the rows were shifted by the mean of all of them: this is small, nothing cancels
            M = M - np.outer(s, mu)
            N = N - np.outer(t, mu) - np.outer(mu, t) + k * np.outer(mu, mu)
        return RowPart(n, float(np.trace(M)), None, M), RowPart(k, float(np.trace(N)), None, N)

    def squares(self) -> Array:
        """Σ x² of every column, (d,)."""
        if self.X is not None:
            return np.einsum("ij,ij->j", self.X, self.X)
        return np.einsum("fii->i", self.grams)

    def _bounds(self) -> Array | None:
        c = self.prep.clip
        if not c:
            return None
        if sp.issparse(self.A):
            raise InputError("clip needs dense rows, but these are sparse, with medians of 0. Use clip=None.")
        A = np.asarray(self.A, dtype=np.float64)
        middle = np.median(A, axis=0)
        mad = np.median(np.abs(A - middle), axis=0)
        reach = np.where(mad > 0, c * mad, np.inf)  # a column that is mostly one value has no such scale
        return np.stack([middle - reach, middle + reach])

    def _mean(self) -> Array:
        if not self.prep.own:
            return np.zeros(self.d) if self.prep.mean is None else self.prep.mean
        total = np.zeros(self.d)
        for rows in self._raw():
            total += rows.sum(axis=0)
        return total / self.n

    def _raw(self) -> Iterator[Array]:
        """The rows in dense blocks of float64, clipped."""
        step = max(1, _FOLD_BLOCK // self.d)
        for start in range(0, self.n, step):
            rows = self.A[start : start + step]
            rows = np.asarray(rows if isinstance(rows, np.ndarray) else rows.toarray(), dtype=np.float64)
            yield rows if self.bounds is None else np.clip(rows, *self.bounds)

    def _blocks(self) -> Iterator[Array]:
        for rows in self._raw():
            yield rows - self.mean if self.prep.scale is None else (rows - self.mean) / self.prep.scale


def _part_of_rows(B: Array) -> RowPart:
    return RowPart(len(B), float(np.einsum("ij,ij->", B, B)), B, None)


def top_eigenvectors(M: Array, r: int) -> Array:
    """The r leading eigenvectors of a symmetric matrix, (p, r), the best first."""
    p = len(M)
    return scipy.linalg.eigh(M, subset_by_index=[p - r, p - 1], check_finite=False)[1][:, ::-1]


def leading_eigenpairs_of_sum(S: Array, q: int) -> tuple[Array, Array]:
    """(Q, w): the q leading eigenpairs of SSᵀ for S (d, s), through the smaller of its two Gram matrices."""
    d, s = S.shape
    if s >= d:
        return leading_eigenpairs(S @ S.T, q)
    q = min(q, s)
    w, E = scipy.linalg.eigh(S.T @ S, subset_by_index=[s - q, s - 1])
    w, E = np.maximum(w[::-1], 0.0), E[:, ::-1]
    Q = np.linalg.qr(S @ (E / np.sqrt(np.maximum(w, 1e-300))))[0]  # orthonormal even where w is rounding error
    return Q, w


def leading_eigenpairs(M: Array, q: int) -> tuple[Array, Array]:
    """(Q, w): the q leading eigenpairs of a positive semi-definite M."""
    d = len(M)
    w, Q = scipy.linalg.eigh(M, subset_by_index=[d - min(q, d), d - 1])
    return Q[:, ::-1], np.maximum(w[::-1], 0.0)
