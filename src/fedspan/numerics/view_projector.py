"""One view of the entities as an operator: the projector on the span of its features, without forming it.

Notation: X (J, N) the view, μ and s the mean and the deviation of its features, B = (X - 1μᵀ) diag(1/s) (J, N), ε the
ridge, Q (N, K) weights, G (J, K) what they should give: Q = argmin ½‖BQ - G‖² + (ε/2)‖Q‖² = (BᵀB + εI)†BᵀG, and
P G = B Q; for ε = 0, P = BB† is the projector on the column space of B.

Dense views (in memory or memory-mapped) of moderate width are factored once: R of a QR factorisation, block by block,
then its SVD R = U S Vᵀ, so that P = (B W)(B W)ᵀ with W = V (S² + ε)^-½. Small singular values keep their digits (a Gram
matrix would square them), a rank-deficient view has its pseudo-inverse, and W is N×N at most. Wide and sparse views
are solved by conjugate gradients on least squares (CGLS), preconditioned by the Cholesky factor of BᵀB where that is
small, else by its diagonal. Neither makes a sparse view dense, nor copies a dense one.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from functools import cached_property
from typing import NamedTuple

import numpy as np
import scipy.linalg
from scipy.sparse.linalg import LinearOperator, eigsh

from fedspan._types import Array
from fedspan.errors import InputError
from fedspan.numerics.operators import HeldMatrix, Rows

_VIEW_BLOCK = 1 << 18  # entries of a block of rows for products, 2 MB
_FACTOR = 2000  # widest dense view that is factored: the factor costs 2JN² once, a solve by CGLS about 100·JNK
_CHOLESKY = 3000  # widest view whose Gram matrix preconditions CGLS: N² numbers and N³/3 operations


class Factor(NamedTuple):
    """The singular values of B above rounding error and its right singular vectors."""

    S: Array  # (r,)
    V: Array  # (N, r)


class View(Rows):
    """A view, centred and scaled by its own mean and deviation, and its ridge."""

    def __init__(
        self,
        X: HeldMatrix,
        center: bool = True,
        scale: bool = False,
        ridge: float = 0.0,
        accuracy: float = 1e-10,
        relative: bool = False,
    ) -> None:
        super().__init__(X)
        self.center, self.scale, self.given_ridge, self.relative = center, scale, float(ridge), relative
        self.accuracy = accuracy  # of an iterative solve: its last gradient, relative to that at zero

    @property
    def J(self) -> int:
        return self.n

    @property
    def N(self) -> int:
        return self.d

    @cached_property
    def mu(self) -> Array | None:
        return self.sums() / self.n if self.center else None

    @cached_property
    def s(self) -> Array | None:
        """Deviations; a constant feature stays as it is, as in scikit-learn's StandardScaler."""
        if not self.scale:
            return None
        mean = self.sums() / self.n
        s = np.sqrt(self.squares(mean) / self.n)
        return np.where(s > self.n * np.finfo(np.float64).eps * np.abs(mean), s, 1.0)

    @cached_property
    def ridge(self) -> float:
        """ε; given relative to the mean eigenvalue of BᵀB, or as it is."""
        return self.given_ridge * float(self.column_squares.sum()) / self.N if self.relative else self.given_ridge

    def vary_ridge(self, ridge: float) -> View:
        """The same view with another ridge, given in the same way; what was factored is shared."""
        if self.factored:
            _ = self.factor
        other = copy(self)
        other.given_ridge = float(ridge)
        for name in ("ridge", "_whitening", "_preconditioner"):
            other.__dict__.pop(name, None)
        return other

    @cached_property
    def column_squares(self) -> Array:
        """Σ b² of every feature, (N,)."""
        squares = self.squares(self.mu)
        return squares if self.s is None else squares / self.s**2

    @property
    def factored(self) -> bool:
        """Whether P is known by a factor; else every solve iterates."""
        return not self.sparse and min(self.J, self.N) <= _FACTOR and self.N <= 5 * _FACTOR

    def times(self, W: Array) -> Array:
        """B W, (J, K)."""
        W = W if self.s is None else W / self.s[:, None]
        if self.sparse:
            out = self.A @ W
            if self.mu is not None:
                out -= self.mu @ W
            return out
        out, start = np.empty((self.J, W.shape[1])), 0
        for block in self._blocks(self.mu, _VIEW_BLOCK):
            np.matmul(block, W, out=out[start : start + len(block)])
            start += len(block)
        return out

    def cross(self, G: Array) -> Array:
        """BᵀG, (N, K)."""
        if self.sparse:
            out = self.A.T @ G
            if self.mu is not None:
                out -= np.outer(self.mu, G.sum(axis=0))
        else:
            out, start = np.zeros((self.N, G.shape[1])), 0
            for block in self._blocks(self.mu, _VIEW_BLOCK):
                out += block.T @ G[start : start + len(block)]
                start += len(block)
        return out if self.s is None else out / self.s[:, None]

    def some_rows(self, at: Array) -> Array:
        """Some rows of B, as they are needed for a stochastic gradient."""
        block = self.A[at]
        block = np.asarray(block.toarray() if self.sparse else block, dtype=np.float64)
        block = block if self.mu is None else block - self.mu
        return block if self.s is None else block / self.s

    @cached_property
    def factor(self) -> Factor:
        """S and V of B = U S Vᵀ, through the R of a QR factorisation taken block by block."""
        R: Array = np.empty((0, self.N))
        for block in self._blocks(self.mu, max(1 << 19, 2 * self.N * self.N)):
            stacked = np.vstack([R, block if self.s is None else block / self.s])
            R = np.asarray(np.linalg.qr(stacked, mode="r"))
        _, S, Vt = np.linalg.svd(R, full_matrices=False)
        least = max(self.J, self.N) * np.finfo(np.float64).eps * S.max(initial=0.0)
        kept = least < S
        return Factor(S[kept], np.ascontiguousarray(Vt[kept].T))

    @cached_property
    def _whitening(self) -> Array:
        """W (N, r) with P = (B W)(B W)ᵀ."""
        return self.factor.V / np.sqrt(self.factor.S**2 + self.ridge)

    @property
    def rank(self) -> int:
        """The rank of B where it is factored, else the most that it can be."""
        return len(self.factor.S) if self.factored else min(self.N, self.J - self.center)

    def solve(self, G: Array, start: Array | None = None) -> Array:
        """Q; `start` is a guess from which an iteration may begin."""
        if self.factored:
            return self._whitening @ (self._whitening.T @ self.cross(G))
        return self._cgls(G, start)

    def project(self, G: Array) -> Array:
        """P G = B Q."""
        return self.times(self.solve(G))

    @cached_property
    def _preconditioner(self) -> Callable[[Array], Array]:
        if self.N <= _CHOLESKY:
            C = self.gram(self.mu, self.s)
            # Positive definite whatever the rank; less would blow up rounding errors in the null space.
            C[np.diag_indices(self.N)] += self.ridge + 1e-7 * np.trace(C) / self.N
            L = scipy.linalg.cholesky(C, lower=True, overwrite_a=True, check_finite=False)
            return lambda S: np.asarray(scipy.linalg.cho_solve((L, True), S, check_finite=False))
        D = self.column_squares + self.ridge
        D = np.where(D > 0, D, 1.0)[:, None]
        return lambda S: S / D

    def _cgls(self, G: Array, start: Array | None, most: int = 2000) -> Array:
        """All columns at once, each with its own step, until the gradients are small against those at zero."""
        goal = self.cross(G)
        zero = np.sqrt(_inner(goal, self._preconditioner(goal)))  # in the preconditioner's norm
        if start is None:
            Q, R, S = np.zeros_like(goal), np.array(G, dtype=np.float64), goal
        else:
            Q = np.array(start)
            R = G - self.times(Q)
            S = self.cross(R) - self.ridge * Q
        P = self._preconditioner(S)
        gamma = _inner(S, P)
        for _ in range(most):
            if np.all(np.sqrt(np.maximum(gamma, 0.0)) <= self.accuracy * zero):
                return Q
            T = self.times(P)
            curvature = _inner(T, T) + self.ridge * _inner(P, P)
            step = np.divide(gamma, curvature, out=np.zeros_like(gamma), where=curvature > 0)
            Q += step * P
            T *= step
            R -= T
            S = self.cross(R) - self.ridge * Q
            Z = self._preconditioner(S)
            before, gamma = gamma, _inner(S, Z)
            P = Z + np.divide(gamma, before, out=np.zeros_like(gamma), where=before > 0) * P
        if np.all(np.sqrt(np.maximum(gamma, 0.0)) <= 1e-6 * zero):
            return Q
        raise InputError(
            f"This view is so ill-conditioned that {most} steps of conjugate gradients did not solve it. Set a ridge."
        )

    @cached_property
    def largest(self) -> float:
        """σ_max(B)², from above by a hair: a gradient step of 1/σ_max² must not be too long."""
        if self.factored:
            return float(self.factor.S[0]) ** 2 if len(self.factor.S) else 0.0
        if min(self.J, self.N) < 3:
            return float(self.column_squares.sum())
        M = LinearOperator((self.N, self.N), matvec=self._square, dtype=np.float64)
        start = np.sqrt(self.column_squares) + 1e-300
        return 1.01 * float(eigsh(M, 1, v0=start, tol=1e-3, return_eigenvectors=False)[0])

    def _square(self, v: Array) -> Array:
        return self.cross(self.times(v.reshape(self.N, 1)))

    def leading_factor(self, m: int, start: Array) -> Factor:
        """The m leading singular values and right singular vectors of B; fewer if its rank is less."""
        if self.factored:
            return Factor(self.factor.S[:m], self.factor.V[:, :m])
        if m >= min(self.J, self.N) - 1:
            values, vectors = scipy.linalg.eigh(self.gram(self.mu, self.s))
            whole = _to_factor(values, vectors)
            return Factor(whole.S[:m], whole.V[:, :m])
        M = LinearOperator((self.N, self.N), matvec=self._square, dtype=np.float64)
        values, vectors = eigsh(M, m, v0=start, tol=1e-8)
        return _to_factor(values, vectors)


def _inner(A: Array, B: Array) -> Array:
    """The inner product of every column of A with that of B."""
    return np.asarray(np.einsum("ij,ij->j", A, B))


def _to_factor(values: Array, V: Array) -> Factor:
    """S and V from the eigenpairs of BᵀB, ascending."""
    kept = values > len(V) * np.finfo(np.float64).eps * values.max(initial=0.0)
    return Factor(np.sqrt(values[kept][::-1]), np.ascontiguousarray(V[:, kept][:, ::-1]))
