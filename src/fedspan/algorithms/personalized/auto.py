"""Personalized PCA without iterating over the data: "auto" in three exchanges, and the exact alternation "eigen".

Notation and what the server sees: personalized.py. "eigen" minimises over all U_i and V, orthonormal,

    φ = Σ_i [ t_i - tr(U_iᵀM_iU_i) + λ (r - ‖VᵀU_i‖²) ]

which is the paper's problem (4): 2σ_ε²(1+σ_ε²) m f = φ + constant, for λ = σ_ε²(1+σ_ε²)/σ_U², once the rotation of each
U_i, which the likelihood does not see, is the best one. Each half of a round is exact:
U_i = top_r(M_i + λVVᵀ), V = top_r(Σ U_iU_iᵀ). A client of many rows has a large M_i and keeps to itself; each client is
one draw from the prior, so all U_iU_iᵀ weigh the same in V (one with hardly any rows has U_i ≈ V, and draws V nowhere).

With share="sums" "eigen" shows Σ U_iU_iᵀV only, and V⁺ is its polar factor: tr(VᵀPV) is convex in V, so its
linearisation is a lower bound and φ cannot grow; it takes some rounds more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from fedspan._types import Array, Arrays
from fedspan.algorithms.personalized.eigen import Personalized, PersonalState, blank
from fedspan.algorithms.personalized.personal_client import Personal, PersonalClient
from fedspan.core.protocol import Ask, Client, Round, Sum, complete, task
from fedspan.core.rng import Streams
from fedspan.numerics.folds import leading_of_sum, top
from fedspan.numerics.orthonormal import polar
from fedspan.numerics.stiefel import align


@dataclass(frozen=True)
class PersonalAuto(Personalized):
    """Three exchanges: sketches, held-out losses, λ. U_i = top_r(M_i + λ K_i), K_i from the pooled second moments.

    (Two exchanges if `shrinkage` is a number: λ of kind 0. One more before them for each of global centering, scaling
    and partial participation.) Round 1, 2 and 3 are these exchanges.
    """

    def init(self, rng: Streams) -> Round[PersonalState]:
        shift = yield from self.measure()
        clients = yield from self.everyone(shift)
        return blank(shift, clients)

    def round(self, state: PersonalState, rng: Streams) -> Round[PersonalState]:
        t = state.t + 1
        if state.shared is None:
            shared, came = yield from self.survey(state.shift, self.draw(state.clients, rng))
            V = shared.Q[0, :, : self.k]
            state = replace(state, t=t, shared=shared, cohort=came, V=V)
            return state if self.shrinkage == "auto" else replace(state, shrinkage=float(self.shrinkage))
        if math.isnan(state.shrinkage):
            return replace((yield from self.choose(state, (0, 1))), t=t)
        return replace((yield from self.close(state)), t=t)


class EigenClient(PersonalClient):
    """A client that takes the exact half-step for the shared V that it is told."""

    def half_step(self, state: Personal, arrays: Arrays) -> tuple[Array, Array]:
        """U_i = top_r(M_i + λVVᵀ), and its part of φ."""
        own, V, lam = self.folded(state, arrays).whole, arrays["V"], float(arrays["lam"])
        r = V.shape[1]
        P = own.basis(V)
        M, C = own.within(P), V if P is None else P.T @ V
        U = top(M + max(lam, 1e-10 * own.trace / r) * (C @ C.T), r)  # V decides what these rows leave open
        phi = own.trace - np.einsum("ir,ir->", U, M @ U) + lam * (r - np.linalg.norm(C.T @ U) ** 2)
        return U if P is None else P @ U, np.array(phi)

    @task(releases={"U": None, "phi": None})
    def show(self, state: Personal, arrays: Arrays, rng: Streams) -> tuple[Personal, Arrays]:
        U, phi = self.half_step(state, arrays)
        return state, {"U": U, "phi": phi}

    @task(releases={"Y": None, "phi": None})
    def project(self, state: Personal, arrays: Arrays, rng: Streams) -> tuple[Personal, Arrays]:
        """U_iU_iᵀV, to be summed."""
        U, phi = self.half_step(state, arrays)
        return state, {"Y": U @ (U.T @ arrays["V"]), "phi": phi}


@dataclass(frozen=True)
class PersonalEigen(Personalized):
    """The exact alternation until φ changes by at most `tol`, relative to it, or for `rounds` rounds; then the closing.

    λ, if it is to be found, by cross-validation with K_i of kind 2.
    """

    tol: float = 1e-9
    rounds: int = 200

    client: type[Client] = EigenClient  # type: ignore[type-arg]

    def init(self, rng: Streams) -> Round[PersonalState]:
        return (yield from self.begin(rng))

    def round(self, state: PersonalState, rng: Streams) -> Round[PersonalState]:
        if state.t >= self.rounds or state.change <= self.tol:
            return (yield from self.close(state))
        V, ask = state.V, {**state.shift, "V": state.V, "lam": np.array(state.shrinkage)}
        if self.share == "sums":
            total = (yield from complete(Ask("project", ask, Sum("Y", "phi")))).total
            V, phi = polar(total["Y"]), float(total["phi"])
        else:
            each = (yield from complete(Ask("show", ask))).each.values()
            Q, _ = leading_of_sum(np.hstack([a["U"] for a in each]), self.k)
            V, phi = align(Q, V), float(sum(a["phi"] for a in each))
        return self.moved(state, V, phi)
