"""Block Krylov at the server: what it has seen is kept, and Rayleigh-Ritz runs over the whole span.

Notation: M = Σ_i M_i, Q (d, m) orthonormal basis of all that was multiplied, AQ = M Q, V (d, k) the next block,
Z = Q S_k the k leading Ritz vectors with values θ, R = (I - QQᵀ) M Z their residual, ‖R‖_F / tr(M) the KKT violation.

A round costs what a round of SSI costs, and the server sees the same sum Σ M_i V; but each round's answer is the best
in the span of all rounds so far, not of the last one. The sum must be complete: Rayleigh-Ritz on a sum over a subset
of the clients answers another problem, so those that did not answer are asked again.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.linalg

from fedspan.algorithms.moments import Moments, RowsClient, measure
from fedspan.numerics.orthonormal import random_orthonormal
from fedspan.numerics.rayleigh_ritz import extend, rayleigh_ritz
from fedspan.protocol import Array, Ask, Client, Round, Server, Sum, complete
from fedspan.rng import Streams


@dataclass(frozen=True)
class KrylovState:
    """The span so far, and the best estimate in it."""

    moments: Moments
    Q: Array  # (d, m)
    AQ: Array  # (d, m)
    next: Array  # (d, k) the next block; no columns if the span holds all there is
    Z: Array  # (d, k)
    theta: Array  # (k,)
    kkt: float
    gap: float  # θ_k - θ_{k+1}: if it is small, the k-th component is hardly determined


@dataclass(frozen=True)
class Krylov(Server[KrylovState]):
    """Block Krylov until the scaled KKT violation is at most `tol`.

    The server keeps at most `keep`·k basis vectors; when there are more it restarts from the leading half of the Ritz
    vectors (12 costs no rounds, 8 seldom one, 4 up to half as many again, 3 can fail).
    """

    k: int = 2
    tol: float = 1e-6
    center: bool = True
    scale: bool = False
    keep: int = 12

    State = KrylovState
    client: type[Client] = RowsClient  # type: ignore[type-arg]

    def client_options(self) -> dict[str, float | int | str | bool]:
        return {"columns": 12 * self.k}

    def init(self, rng: Streams) -> Round[KrylovState]:
        moments = yield from measure(self.center, self.scale)
        d = len(moments.mean)
        V = random_orthonormal(rng("start"), d, self.k)
        empty = np.zeros((d, 0))
        return KrylovState(moments, empty, empty, V, V, np.zeros(self.k), np.inf, 0.0)

    def round(self, state: KrylovState, rng: Streams) -> Round[KrylovState]:
        V, k = state.next, self.k
        Y = (yield from complete(Ask("multiply", {"Z": V}, Sum("Y")))).total["Y"]
        Q, AQ = extend(state.Q, state.AQ, V, Y)
        theta, S, R = rayleigh_ritz(Q, AQ, k)
        trace = state.moments.trace or 1.0
        kkt = float(np.linalg.norm(R)) / trace
        gap = float(theta[k - 1] - theta[k]) if len(theta) > k else 0.0
        Z = Q @ S[:, :k]
        if Q.shape[1] + k > self.keep * k:  # thick restart
            half = S[:, : self.keep * k // 2]
            Q, AQ = Q @ half, AQ @ half
        return KrylovState(state.moments, Q, AQ, _directions(R, trace), Z, theta[:k], kkt, gap)

    def done(self, state: KrylovState) -> bool:
        return state.kkt <= self.tol or state.next.shape[1] == 0

    def estimate(self, state: KrylovState) -> Array:
        return state.Z.T

    def metrics(self, state: KrylovState) -> dict[str, float]:
        return {"objective": float(state.theta.sum()), "kkt": state.kkt, "gap": state.gap}


def _directions(R: Array, trace: float) -> Array:
    """An orthonormal basis of what the residuals hold above rounding error."""
    U, T, _ = scipy.linalg.qr(R, mode="economic", pivoting=True)
    return U[:, np.abs(np.diagonal(T)) > 1e-15 * trace]
