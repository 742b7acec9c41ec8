"""One round. Gram is exact; UDA, WDA and DR-SVD are the baselines of FedPower (its appendix F, Algorithms 4 to 6).

    X. Guo, X. Li, X. Chang, S. Wang, Z. Zhang. Privacy-Preserving Distributed SVD via Federated Power.
    arXiv, 2021. https://arxiv.org/abs/2103.00704
UDA is from J. Fan, D. Wang, K. Wang, Z. Zhu, Distributed estimation of principal eigenspaces, Ann. Statist., 2019,
https://arxiv.org/abs/1702.06488; WDA from A. Bhaskara, P. M. Wijewardena, On distributed averaging for stochastic
k-PCA, NeurIPS, 2019, https://proceedings.neurips.cc/paper/2019/hash/148148d62be67e0916a833931bd32b26-Abstract.html.

Notation: A_i (s_i, d) the shifted rows of client i, M_i = A_iᵀA_i (d, d), M = Σ M_i, G the upper triangle of a
symmetric matrix row by row (d(d+1)/2,), V̂_i (d, k) the leading eigenvectors of M_i, Σ_i its eigenvalues / s_i.

What the server sees: the opening (_moments.py); of Gram Σ M_i, the pooled second moments, which secure aggregation does
not hide; of UDA every client's own leading subspace V̂_i, of WDA also its variances Σ_i (no secure sum: the average of
projectors is d×d); of DR-SVD the sums M Ω and M W for two d×r matrices that all clients see, never one client's part
under secure aggregation; of these three at the end Σ M_i Z.

What differs from the paper: the three baselines close with Σ M_i Z for their answer Z (d, k), so that variances and the
KKT violation are known, not guessed. See also `DrSvd`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import scipy.linalg
from scipy.linalg.lapack import dpotrf
from scipy.sparse.linalg import ArpackError, LinearOperator, eigsh

from fedspan._types import Array, Arrays
from fedspan.algorithms._moments import RowsClient, Shift, measure, measure_replay, measure_tasks, measure_turns
from fedspan.algorithms.spectral._eigenspace import Spectral, SpectralState, ritz_pairs
from fedspan.core.protocol import Ask, Client, Course, Replay, Round, Sensitivity, Sum, Turn, complete, task
from fedspan.core.rng import Streams
from fedspan.errors import InputError
from fedspan.numerics.operators import Matrix, Rows
from fedspan.numerics.orthonormal import orthonormalize
from fedspan.numerics.pca_model.control_limits import sum_powers

_LANCZOS = 400  # features from which Lanczos is quicker than all of the eigendecomposition
_MOST_CUBED = 2000  # features up to which tr M³ is computed
_RESTARTS = 12  # if it has not converged by then, it is not
_RESIDUAL = 1e-13
_TIE = 1e-10  # eigenvalues that are closer than this (relatively) are as good as one another


@dataclass(frozen=True)
class OneShot(Spectral[SpectralState]):
    """What they share: the opening, and that one round is all."""

    k: int = 2
    center: bool = True
    scale: bool = False

    State = SpectralState

    def init(self, rng: Streams) -> Round[SpectralState]:
        moments = yield from measure(self.center, self.scale)
        return SpectralState(moments, np.zeros((len(moments.mean), 0)), np.zeros(0), np.inf)

    def done(self, state: SpectralState) -> bool:
        return state.kkt < np.inf


def _close(state: SpectralState, Z: Array) -> Round[SpectralState]:
    """One more exchange, M Z: the Ritz values and the KKT violation of an answer that was found without them."""
    Y = (yield from complete(Ask("multiply", {"Z": Z}, Sum("Y")))).total["Y"]
    theta, S, kkt = ritz_pairs(state.moments, Z, Y, Z.shape[1])
    return SpectralState(state.moments, Z @ S, theta, kkt)


def pack_triangle(M: Array) -> Array:
    """The upper triangle, row by row."""
    return np.concatenate([M[i, i:] for i in range(len(M))])


def unpack_triangle(G: Array) -> Array:
    """The symmetric matrix whose upper triangle that is."""
    d = int((np.sqrt(8 * len(G) + 1) - 1) / 2)
    M, start = np.empty((d, d)), 0
    for i in range(d):
        M[i, i:] = M[i:, i] = G[start : start + d - i]
        start += d - i
    return M


class GramClient(RowsClient):
    """Sends the triangle of its Gram matrix. One pass over many rows answers all questions, the opening's too."""

    def __init__(self, data: Matrix, columns: int = 0) -> None:
        super().__init__(data, columns)
        self.rows = Rows(data, at_once=True)

    @task(releases={"G": Sensitivity(2)}, shows="its whole second-moment matrix")
    def gram(self, state: Shift, arrays: Arrays, rng: Streams) -> tuple[Shift, Arrays]:
        """The upper triangle of M_i."""
        G = pack_triangle(self.rows.gram(state.mean, state.scale))
        self.rows.drop_pass()  # the last question: other clients need the memory
        return state, {"G": G}


@dataclass(frozen=True)
class GramState(SpectralState):
    """Also what is known of the rest: Σ (θ_j / tr M)^i over all j > k, for i = 1, 2, 3; None above 2000 features."""

    rest: Array | None = None

    def known_rest(self) -> Array | None:
        return self.rest


@dataclass(frozen=True)
class Gram(OneShot):
    """One round, d(d+1)/2 numbers from each client, the exact answer."""

    State = GramState

    client: ClassVar[type[Client[object]]] = GramClient

    def asks(self) -> frozenset[str]:
        return measure_tasks(self.center, self.scale) | {"gram"}

    def course(self) -> Course:
        return Course(measure_turns(self.center, self.scale), (Turn("gram", rounds=1, after=["settle"]),))

    def replay(self) -> Replay | str:
        return {**measure_replay(self.center, self.scale), "gram": {}}

    def round(self, state: SpectralState, rng: Streams) -> Round[SpectralState]:
        G = (yield from complete(Ask("gram", want=Sum("G")))).total["G"]
        M = unpack_triangle(G)
        trace = float(np.trace(M))
        unit = 2.0 ** (np.frexp(trace)[1] - 1)  # numbers near 1, whose squares can be added up; exact
        M /= unit
        theta, Z = find_leading(M, self.k)
        kkt = float(np.linalg.norm(M @ Z - Z * theta)) / (trace / unit or 1.0)
        rest = None
        if len(M) <= _MOST_CUBED:
            rest = sum_powers((M - (Z * theta) @ Z.T) / (trace / unit or 1.0))
        return GramState(replace(state.moments, trace=trace), Z, theta * unit, kkt, rest)

    def init(self, rng: Streams) -> Round[SpectralState]:
        opened = yield from super().init(rng)
        return GramState(opened.moments, opened.Z, opened.theta, opened.kkt)


def find_leading(M: Array, k: int) -> tuple[Array, Array]:
    """The k leading eigenpairs of a symmetric matrix, the largest first: by Lanczos where that pays, and is checked."""
    d = len(M)
    if d >= _LANCZOS and 20 * k <= d:
        start = np.random.default_rng(0).normal(size=d)
        try:
            theta, Z = eigsh(M, k, which="LA", v0=start, ncv=max(4 * k, 40), maxiter=_RESTARTS)
        except ArpackError:  # it has not converged
            theta, Z = np.zeros(0), np.zeros((d, 0))
        if len(theta) == k and _are_leading(M, theta[::-1], Z[:, ::-1]):
            return theta[::-1], Z[:, ::-1]
    theta, Z = scipy.linalg.eigh(M, subset_by_index=[d - k, d - 1], check_finite=False)
    return theta[::-1], Z[:, ::-1]


def _are_leading(M: Array, theta: Array, Z: Array) -> bool:
    """Whether those are eigenpairs to rounding, and no eigenvalue is above them that was missed (of a pair, say).

    σI - (M - ZΘZᵀ), for σ a little above θ_k, has a Cholesky factor exactly if all other eigenvalues are below σ.
    """
    if np.linalg.norm(M @ Z - Z * theta) > _RESIDUAL * theta[0]:
        return False
    sigma = theta[-1] * (1 + _TIE) + len(M) * np.finfo(np.float64).eps * theta[0]
    C = (Z * theta) @ Z.T
    C -= M
    C[np.diag_indices_from(C)] += sigma
    return bool(dpotrf(C.T, lower=1, overwrite_a=1, clean=0)[1] == 0)


class AveragingClient(RowsClient):
    """Sends its own leading eigenspace, which has no known sensitivity."""

    def eigenpairs(self, state: Shift, k: int, rng: Streams) -> tuple[Array, Array]:
        """The k leading eigenpairs of M_i, those of eigenvalue 0 as zero columns."""
        n, d = self.rows.n, self.rows.d
        if self.by_gram or k >= d:
            values, V = scipy.linalg.eigh(self.rows.gram(state.mean, state.scale), subset_by_index=[d - k, d - 1])
        else:
            columns = min(n, d) if n <= 4 * k + 40 else 1  # few rows: M_i has rank n, where Lanczos would break down
            start = self.product(state, rng("start").normal(size=(d, columns)))
            if columns > 1 or not start.any():
                Q = orthonormalize(start)  # all of the range of M_i
                values, S = scipy.linalg.eigh(Q.T @ self.product(state, Q))
                V = Q @ S
            else:
                M_i = LinearOperator((d, d), matvec=lambda x: self.product(state, x.reshape(d, 1)), dtype=np.float64)
                values, V = eigsh(M_i, k, v0=start[:, 0])
        values, V = values[::-1][:k], V[:, ::-1][:, :k]
        real = values > max(n, d) * np.finfo(np.float64).eps * values.max(initial=0.0)
        missing = k - len(values)
        return np.pad(values * real, (0, missing)), np.pad(V * real, ((0, 0), (0, missing)))

    @task(releases={"V": None}, shows="the leading eigenvectors of its own second-moment matrix")
    def span(self, state: Shift, arrays: Arrays, rng: Streams) -> tuple[Shift, Arrays]:
        """V̂_i."""
        return state, {"V": self.eigenpairs(state, int(arrays["k"]), rng)[1]}  # Alg. 4, line 2

    @task(releases={"V": None}, shows="the leading eigenvectors and variances of its own second-moment matrix")
    def weigh(self, state: Shift, arrays: Arrays, rng: Streams) -> tuple[Shift, Arrays]:
        """V̂_i Σ_i^½."""
        values, V = self.eigenpairs(state, int(arrays["k"]), rng)
        return state, {"V": V * np.sqrt(values / self.rows.total)}  # Alg. 5, line 2


@dataclass(frozen=True)
class Uda(OneShot):
    """Unweighted distributed averaging (Fan et al. 2019): the leading eigenspace of (1/m) Σ V̂_i V̂_iᵀ (Alg. 4).

    One round, d·k numbers from each client. As good as the clients are large and alike, and no better.
    """

    client: ClassVar[type[Client[object]]] = AveragingClient
    basis_task: ClassVar[str] = "span"

    def client_options(self) -> dict[str, float | int | str | bool]:
        return {"columns": 20 * self.k}  # about what Lanczos takes

    def asks(self) -> frozenset[str]:
        return measure_tasks(self.center, self.scale) | {self.basis_task, "multiply"}

    def course(self) -> Course:
        turns = Turn(self.basis_task, rounds=1, after=["settle"]), Turn("multiply", rounds=1, after=["settle"])
        return Course(measure_turns(self.center, self.scale), turns)

    def replay(self) -> Replay | str:
        return "it asks for every client's own leading subspace, not for a sum"

    def round(self, state: SpectralState, rng: Streams) -> Round[SpectralState]:
        replies = yield from complete(Ask(self.basis_task, {"k": np.array(self.k)}))
        V = np.hstack([arrays["V"] for arrays in replies.each.values()])  # (d, m·k)
        M = np.linalg.svd(V, full_matrices=False)[0]  # eigenvectors of VVᵀ: the 1/m changes none
        return (yield from _close(state, M[:, : self.k]))


@dataclass(frozen=True)
class Wda(Uda):
    """Weighted distributed averaging (Bhaskara and Wijewardena 2019): of (1/m) Σ V̂_i Σ_i V̂_iᵀ (Alg. 5)."""

    basis_task: ClassVar[str] = "weigh"


@dataclass(frozen=True)
class DrSvd(OneShot):
    """Distributed randomized SVD (Alg. 6): A is compressed to r rows, B = QᵀA with Q = orth(A AᵀA Ω), Ω (d, r).

    What differs from the paper: Q (n, r) has a row for every sample, and is not sent to anyone. With W = AᵀA Ω,
    Q = A W C^-½ for C = WᵀAᵀA W, so that Bᵀ = AᵀA W C^-½ is known from two sums of d×r. Ω and W are made
    orthonormal: the same spans, a bounded sensitivity, and no loss of digits. `width` is r; None: k + ⌊(d - k)/4⌋, the
    paper's.
    """

    width: int | None = None

    client: ClassVar[type[Client[object]]] = RowsClient

    def client_options(self) -> dict[str, float | int | str | bool]:
        return {"columns": 2 * (self.width or 100 * self.k)}

    def asks(self) -> frozenset[str]:
        return measure_tasks(self.center, self.scale) | {"multiply"}

    def course(self) -> Course:
        return Course(measure_turns(self.center, self.scale), (Turn("multiply", most=3, rounds=1, after=["settle"]),))

    def replay(self) -> Replay | str:
        return "its sketch is wider than the rank of many tables, and then rounding decides what is asked"

    def round(self, state: SpectralState, rng: Streams) -> Round[SpectralState]:
        d = len(state.moments.mean)
        r = self.k + (d - self.k) // 4 if self.width is None else self.width
        if not self.k <= r <= d:
            raise InputError(f"width must be from the {self.k} components to the {d} features, but is {r}.")
        Omega = orthonormalize(rng("Omega").normal(size=(d, r)))  # line 2
        W = orthonormalize((yield from complete(Ask("multiply", {"Z": Omega}, Sum("Y")))).total["Y"])
        MW = (yield from complete(Ask("multiply", {"Z": W}, Sum("Y")))).total["Y"]
        c, U = scipy.linalg.eigh((W.T @ MW + MW.T @ W) / 2)
        keep = c > d * np.finfo(np.float64).eps * c[-1]
        B = (MW @ U[:, keep] / np.sqrt(c[keep])).T  # lines 3 to 6
        V = np.linalg.svd(B.T, full_matrices=False)[0]
        return (yield from _close(state, V[:, : self.k]))
