"""Exact in one round: the sum of the clients' Gram matrices, d×d, and its eigendecomposition at the server.

Notation: M_i = B_iᵀB_i (d, d), G the upper triangle of a symmetric matrix row by row (d(d+1)/2,).
The server sees Σ M_i: the pooled second moments, which secure aggregation does not hide.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.linalg

from fedspan.algorithms.moments import Moments, RowsClient, Shift, measure
from fedspan.algorithms.power import SpectralState
from fedspan.protocol import Array, Arrays, Ask, Client, Round, Sensitivity, Server, Sum, complete, task
from fedspan.rng import Streams


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
class Gram(Server[SpectralState]):
    """One round, d(d+1)/2 numbers from each client, the exact answer."""

    k: int = 2
    center: bool = True
    scale: bool = False

    State = SpectralState
    client: type[Client] = GramClient  # type: ignore[type-arg]

    def init(self, rng: Streams) -> Round[SpectralState]:
        moments = yield from measure(self.center, self.scale)
        nothing = np.zeros((len(moments.mean), 0))
        return SpectralState(moments, nothing, nothing, np.zeros(0), np.inf)

    def round(self, state: SpectralState, rng: Streams) -> Round[SpectralState]:
        G = (yield from complete(Ask("gram", want=Sum("G")))).total["G"]
        M = unpack_triangle(G)
        d = len(M)
        theta, Z = scipy.linalg.eigh(M, subset_by_index=[d - self.k, d - 1], check_finite=False)
        theta, Z = theta[::-1], Z[:, ::-1]
        trace = float(np.trace(M))
        kkt = float(np.linalg.norm(M @ Z - Z * theta)) / (trace or 1.0)
        moments = Moments(state.moments.n, state.moments.mean, state.moments.scale, trace)
        return SpectralState(moments, state.next, Z, theta, kkt)

    def done(self, state: SpectralState) -> bool:
        return state.Z.shape[1] > 0

    def estimate(self, state: SpectralState) -> Array:
        return state.Z.T

    def metrics(self, state: SpectralState) -> dict[str, float]:
        return {"objective": float(state.theta.sum()), "kkt": state.kkt}
