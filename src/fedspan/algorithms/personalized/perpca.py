"""PerPCA: components that all clients share, and others that are each client's own.

    N. Shi, R. Al Kontar. Personalized PCA: Decoupling Shared and Unique Features. JMLR, 2024.
    https://arxiv.org/abs/2207.08041

Notation: M_i (d, d) as in personal_server.py, U (d, s) shared, V_i (d, r - s) of client i, V_iᵀU = 0. It maximises
what is captured, h(U) = Σ_i [tr(UᵀM_iU) + max_{V_i ⟂ U} tr(V_iᵀM_iV_i)]. Given U the client's best V_i are the leading
eigenvectors of (I - UUᵀ)M_i(I - UUᵀ), and ∇h/2 = Σ (I - V_iV_iᵀ)M_iU: one sum per round.

What differs from the paper: V_i is exact for its U, where the paper takes a gradient step and a generalized retraction
for both; U moves along the tangent gradient by 1/λ_max(M) and polar retraction. What the server sees: the opening
(personal_server.py), then sums over the clients of (I - V_iV_iᵀ)M_iU and of what is captured.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from fedspan._types import Array, Arrays
from fedspan.algorithms.personalized._client import Personal, PersonalClient
from fedspan.algorithms.personalized.personal_server import Personalized, PersonalState, require_shared
from fedspan.core.protocol import Ask, Client, Course, Round, Sum, complete, task
from fedspan.core.replay import CLOSE, Basis, Comparison
from fedspan.core.rng import Streams
from fedspan.errors import InputError
from fedspan.numerics.folds import Folded, RowPart, top_eigenvectors
from fedspan.numerics.stiefel import retract, tangent


def complete_basis(own: RowPart, U: Array, count: int) -> Array:
    """V_i (d, count): the leading eigenvectors of M_i deflated by U, perpendicular to U."""
    if count == 0:
        return np.zeros((len(U), 0))
    if own.B is not None and own.n >= count:
        D = own.B - (own.B @ U) @ U.T
        S = RowPart(own.n, own.trace, D, None).leading_factor(count)
        size = np.linalg.norm(S, axis=0)
        if size[-1] > 1e-3 * size[0]:  # else its rows do not determine so many
            return S / size
    extra = np.linalg.qr(np.hstack([U, np.eye(len(U), count)]))[0]  # so that there are enough, whatever the rows
    P = own.basis(extra)
    C = U if P is None else P.T @ U
    M = own.within(P)
    D = M - C @ (C.T @ M)
    D = D - (D @ C) @ C.T - 2 * max(own.trace, 1.0) * C @ C.T  # U itself comes last
    V = top_eigenvectors((D + D.T) / 2, count)
    return V if P is None else P @ V


class PerPcaClient(PersonalClient):
    """A client that completes the shared components by its own."""

    @task(
        releases={"Y": None, "captured": None},
        shows="products of its second-moment matrix with the shared components, less its own directions, and the "
        "variance that they capture",
    )
    def deflate(self, state: Personal, arrays: Arrays, rng: Streams) -> tuple[Personal, Arrays]:
        """(I - V_iV_iᵀ)M_iU, and what U and V_i capture."""
        own, U = self.prepare_rows(state, arrays).whole, arrays["U"]
        V = complete_basis(own, U, int(arrays["r"]) - U.shape[1])
        MU = own.multiply(U)
        captured = np.einsum("ij,ij->", U, MU) + np.einsum("ij,ij->", V, own.multiply(V))
        return state, {"Y": MU - V @ (V.T @ MU), "captured": np.array(captured)}

    def find_components(self, state: Personal, arrays: Arrays) -> tuple[Array, Folded]:
        rows, U = self.prepare_rows(state, arrays), arrays["Q"]
        return np.hstack([U, complete_basis(rows.whole, U, int(arrays["r"]) - U.shape[1])]), rows


@dataclass(frozen=True)
class PerPca(Personalized):
    """`shared` of the k components are common to all clients (None: half of them, rounded up)."""

    shrinkage: float | str = 0.0  # it has none
    shared: int | None = None
    tol: float = 1e-7
    rounds: int = 200

    client: ClassVar[type[Client[object]]] = PerPcaClient

    def asks(self) -> frozenset[str]:
        return super().asks() | self.round_asks("deflate")

    def course(self) -> Course:
        return self.round_course("deflate")

    def own_replay(self, name: str) -> dict[str, Comparison]:
        return {"U": Basis(), "r": CLOSE} if name == "V" else {"Q": Basis()}

    def init(self, rng: Streams) -> Round[PersonalState]:
        s = (self.k + 1) // 2 if self.shared is None else self.shared
        if not 1 <= s <= self.k:
            raise InputError(f"shared must be from 1 to the {self.k} components, but is {self.shared!r}.")
        state = yield from self.begin(rng)
        return replace(state, V=state.V[:, :s])

    def round(self, state: PersonalState, rng: Streams) -> Round[PersonalState]:
        known = require_shared(state)
        if state.t >= self.rounds or state.change <= self.tol:
            return (yield from self.close(state))
        ask = {**state.shift, "U": state.V, "r": np.array(self.k)}
        total = (yield from complete(Ask("deflate", ask, Sum("Y", "captured")))).total
        step = 1.0 / float(known.w[0, 0] * known.trace)
        U = retract(state.V, step * tangent(state.V, total["Y"]))
        return self.advance(state, U, known.trace - float(total["captured"]))

    def describe_shared(self, state: PersonalState) -> dict[str, Array]:
        return {"Q": state.V, "r": np.array(self.k)}
