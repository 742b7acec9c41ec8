"""Simultaneous subspace iteration (SSI), the federated form of FAPS section 1.1: Z⁺ = orth(Σ_i M_i Z).

Notation: M_i = B_iᵀB_i of client i's shifted rows (d, d), Z (d, k) orthonormal, Y = Σ M_i Z (d, k).
The server sees Y. Without secure aggregation it sees every M_i Z, and can work out M_i from enough of them
(FAPS, Proposition 2).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedspan.algorithms.moments import Moments, RowsClient, measure
from fedspan.numerics.orthonormal import orthonormal, random_orthonormal
from fedspan.numerics.rayleigh_ritz import rayleigh_ritz
from fedspan.protocol import Array, Ask, Client, Round, Server, Sum, complete
from fedspan.rng import Streams


@dataclass(frozen=True)
class SpectralState:
    """The current estimate of an eigenspace, and how good it is."""

    moments: Moments
    next: Array  # (d, k) what will be multiplied in the next round
    Z: Array  # (d, k) Ritz vectors, the best first
    theta: Array  # (k,) Ritz values
    kkt: float  # ‖(I - ZZᵀ) M Z‖_F / tr(M)


@dataclass(frozen=True)
class Ssi(Server[SpectralState]):
    """Subspace iteration until the scaled KKT violation is at most `tol`."""

    k: int = 2
    tol: float = 1e-6
    center: bool = True
    scale: bool = False

    State = SpectralState
    client: type[Client] = RowsClient  # type: ignore[type-arg]

    def client_options(self) -> dict[str, float | int | str | bool]:
        return {"columns": 100 * self.k}  # it takes hundreds of rounds: a Gram matrix soon pays

    def init(self, rng: Streams) -> Round[SpectralState]:
        moments = yield from measure(self.center, self.scale)
        Z = random_orthonormal(rng("start"), len(moments.mean), self.k)
        return SpectralState(moments, Z, Z, np.zeros(self.k), np.inf)

    def round(self, state: SpectralState, rng: Streams) -> Round[SpectralState]:
        Q = state.next
        Y = (yield from complete(Ask("multiply", {"Z": Q}, Sum("Y")))).total["Y"]
        theta, S, R = rayleigh_ritz(Q, Y, self.k)
        kkt = float(np.linalg.norm(R)) / (state.moments.trace or 1.0)
        return SpectralState(state.moments, orthonormal(Y), Q @ S, theta, kkt)

    def done(self, state: SpectralState) -> bool:
        return state.kkt <= self.tol

    def estimate(self, state: SpectralState) -> Array:
        return state.Z.T

    def metrics(self, state: SpectralState) -> dict[str, float]:
        return {"objective": float(state.theta.sum()), "kkt": state.kkt}
