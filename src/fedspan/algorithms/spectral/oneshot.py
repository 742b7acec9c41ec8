"""One round. Gram is exact; UDA, WDA and DR-SVD are the baselines of FedPower (Guo et al., appendix F).

Notation: A_i (s_i, d) the shifted rows of client i, M_i = A_iᵀA_i (d, d), M = Σ M_i, G the upper triangle of a
symmetric matrix row by row (d(d+1)/2,), V̂_i (d, k) the leading eigenvectors of M_i, Σ_i its eigenvalues / s_i.

What the server sees: of Gram Σ M_i, the pooled second moments, which secure aggregation does not hide; of UDA every
client's own leading subspace V̂_i, of WDA also its variances Σ_i (no secure sum: the average of projectors is d×d); of
DR-SVD the sums M Ω and M W for two public d×r matrices, never one client's part under secure aggregation.
The three baselines close with the sum Σ M_i Z for their answer Z (d, k): so variances and KKT are known, not guessed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import scipy.linalg
from scipy.sparse.linalg import LinearOperator, eigsh

from fedspan._types import Array, Arrays
from fedspan.algorithms._moments import MEASURE, RowsClient, Shift, measure
from fedspan.algorithms.spectral.power import SpectralState
from fedspan.core.protocol import Ask, Client, Round, Sensitivity, Server, Sum, complete, task
from fedspan.core.rng import Streams
from fedspan.errors import InputError
from fedspan.numerics.orthonormal import orthonormal
from fedspan.numerics.rayleigh_ritz import rayleigh_ritz


@dataclass(frozen=True)
class OneShot(Server[SpectralState]):
    """What they share: the opening, and that one round is all."""

    k: int = 2
    center: bool = True
    scale: bool = False

    State = SpectralState

    def init(self, rng: Streams) -> Round[SpectralState]:
        moments = yield from measure(self.center, self.scale)
        nothing = np.zeros((len(moments.mean), 0))
        return SpectralState(moments, nothing, nothing, np.zeros(0), np.inf)

    def done(self, state: SpectralState) -> bool:
        return state.kkt < np.inf

    def estimate(self, state: SpectralState) -> Array:
        return state.Z.T

    def metrics(self, state: SpectralState) -> dict[str, float]:
        return {"objective": float(state.theta.sum()), "kkt": state.kkt}


def _close(state: SpectralState, Z: Array) -> Round[SpectralState]:
    """One more exchange, M Z: the Ritz values and the KKT violation of an answer that was found without them."""
    Y = (yield from complete(Ask("multiply", {"Z": Z}, Sum("Y")))).total["Y"]
    theta, S, R = rayleigh_ritz(Z, Y, Z.shape[1])
    kkt = float(np.linalg.norm(R)) / (state.moments.trace or 1.0)
    return SpectralState(state.moments, state.next, Z @ S, theta, kkt)


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
    """Sends the triangle of its Gram matrix."""

    @task(releases={"G": Sensitivity(2)})
    def gram(self, state: Shift, arrays: Arrays, rng: Streams) -> tuple[Shift, Arrays]:
        return state, {"G": pack_triangle(self.rows.gram(state.mean, state.scale))}


@dataclass(frozen=True)
class Gram(OneShot):
    """One round, d(d+1)/2 numbers from each client, the exact answer."""

    client: type[Client] = GramClient  # type: ignore[type-arg]

    def asks(self) -> frozenset[str]:
        return MEASURE | {"gram"}

    def round(self, state: SpectralState, rng: Streams) -> Round[SpectralState]:
        G = (yield from complete(Ask("gram", want=Sum("G")))).total["G"]
        M = unpack_triangle(G)
        d = len(M)
        theta, Z = scipy.linalg.eigh(M, subset_by_index=[d - self.k, d - 1], check_finite=False)
        theta, Z = theta[::-1], Z[:, ::-1]
        trace = float(np.trace(M))
        kkt = float(np.linalg.norm(M @ Z - Z * theta)) / (trace or 1.0)
        return SpectralState(replace(state.moments, trace=trace), state.next, Z, theta, kkt)


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
                Q = orthonormal(start)  # all of the range of M_i
                values, S = scipy.linalg.eigh(Q.T @ self.product(state, Q))
                V = Q @ S
            else:
                M_i = LinearOperator((d, d), matvec=lambda x: self.product(state, x.reshape(d, 1)), dtype=np.float64)
                values, V = eigsh(M_i, k, v0=start[:, 0])
        values, V = values[::-1][:k], V[:, ::-1][:, :k]
        real = values > max(n, d) * np.finfo(np.float64).eps * values.max(initial=0.0)
        missing = k - len(values)
        return np.pad(values * real, (0, missing)), np.pad(V * real, ((0, 0), (0, missing)))

    @task(releases={"V": None})
    def span(self, state: Shift, arrays: Arrays, rng: Streams) -> tuple[Shift, Arrays]:
        return state, {"V": self.eigenpairs(state, int(arrays["k"]), rng)[1]}  # Alg. 4, line 2

    @task(releases={"V": None})
    def weigh(self, state: Shift, arrays: Arrays, rng: Streams) -> tuple[Shift, Arrays]:
        values, V = self.eigenpairs(state, int(arrays["k"]), rng)
        return state, {"V": V * np.sqrt(values / self.rows.n)}  # Alg. 5, line 2: V̂_i Σ_i^½


@dataclass(frozen=True)
class Uda(OneShot):
    """Unweighted distributed averaging (Fan et al. 2019): the leading eigenspace of (1/m) Σ V̂_i V̂_iᵀ (Alg. 4).

    One round, d·k numbers from each client. As good as the clients are large and alike, and no better.
    """

    client: type[Client] = AveragingClient  # type: ignore[type-arg]
    ask = "span"

    def client_options(self) -> dict[str, float | int | str | bool]:
        return {"columns": 20 * self.k}  # about what Lanczos takes

    def asks(self) -> frozenset[str]:
        return MEASURE | {self.ask, "multiply"}

    def round(self, state: SpectralState, rng: Streams) -> Round[SpectralState]:
        replies = yield from complete(Ask(self.ask, {"k": np.array(self.k)}))
        V = np.hstack([arrays["V"] for arrays in replies.each.values()])  # (d, m·k)
        M = np.linalg.svd(V, full_matrices=False)[0]  # eigenvectors of VVᵀ: the 1/m changes none
        return (yield from _close(state, M[:, : self.k]))


@dataclass(frozen=True)
class Wda(Uda):
    """Weighted distributed averaging (Bhaskara and Wijewardena 2019): of (1/m) Σ V̂_i Σ_i V̂_iᵀ (Alg. 5)."""

    ask = "weigh"


@dataclass(frozen=True)
class DrSvd(OneShot):
    """Distributed randomized SVD (Alg. 6): A is compressed to r rows, B = QᵀA with Q = orth(A AᵀA Ω), Ω (d, r).

    Differs from the paper: Q (n, r) has a row for every sample, and is not sent to anyone. With W = AᵀA Ω, Q = A W C^-½
    for C = WᵀAᵀA W, so that Bᵀ = AᵀA W C^-½ is known from two sums of d×r. Ω and W are made orthonormal: the same
    spans, a bounded sensitivity, and no loss of digits. `width` is r; None: the paper's k + ⌊(d - k)/4⌋.
    """

    width: int | None = None

    client: type[Client] = RowsClient  # type: ignore[type-arg]

    def client_options(self) -> dict[str, float | int | str | bool]:
        return {"columns": 2 * (self.width or 100 * self.k)}

    def asks(self) -> frozenset[str]:
        return MEASURE | {"multiply"}

    def round(self, state: SpectralState, rng: Streams) -> Round[SpectralState]:
        d = len(state.moments.mean)
        r = self.k + (d - self.k) // 4 if self.width is None else self.width
        if not self.k <= r <= d:
            raise InputError(f"need a width from the {self.k} components to the {d} features, got {r}")
        Omega = orthonormal(rng("Omega").normal(size=(d, r)))  # line 2
        W = orthonormal((yield from complete(Ask("multiply", {"Z": Omega}, Sum("Y")))).total["Y"])
        MW = (yield from complete(Ask("multiply", {"Z": W}, Sum("Y")))).total["Y"]
        c, U = scipy.linalg.eigh((W.T @ MW + MW.T @ W) / 2)
        keep = c > d * np.finfo(np.float64).eps * c[-1]
        B = (MW @ U[:, keep] / np.sqrt(c[keep])).T  # lines 3 to 6
        V = np.linalg.svd(B.T, full_matrices=False)[0]
        return (yield from _close(state, V[:, : self.k]))
