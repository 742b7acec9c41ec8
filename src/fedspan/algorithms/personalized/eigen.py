"""The exact alternation "eigen" for personalized components.

    K. Ozkara, B. Huang, S. Diggavi. Personalized PCA for Federated Heterogeneous Data. IEEE ISIT, 2023.

Notation: personal_server.py. "eigen" minimises over all U_i and V, orthonormal,

    φ = Σ_i [ t_i - tr(U_iᵀM_iU_i) + λ (r - ‖VᵀU_i‖²) ]

which is the paper's problem (4): 2σ_ε²(1+σ_ε²) m f = φ + constant, for λ = σ_ε²(1+σ_ε²)/σ_U², once the rotation of each
U_i, which the likelihood does not see, is the best one. Each half of a round is exact:
U_i = top_r(M_i + λVVᵀ), V = top_r(Σ U_iU_iᵀ). A client of many rows has a large M_i and keeps to itself; each client is
one draw from the prior, so all U_iU_iᵀ weigh the same in V (one with hardly any rows has U_i ≈ V, and draws V nowhere).

With share="sums" V⁺ is the polar factor of Σ U_iU_iᵀV: tr(VᵀPV), P = Σ U_iU_iᵀ, is convex in V, so its linearisation
is a lower bound and φ cannot grow; it takes some rounds more.

What the server sees: the opening and the closing (personal_server.py); in every round each client's U_i and its part of
φ, or with share="sums" only the sums of U_iU_iᵀV and of φ.

What differs from the paper: it takes gradient steps on (4) (see paper.py); here both halves are solved exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedspan._types import Array, Arrays
from fedspan.algorithms.personalized._client import Personal, PersonalClient
from fedspan.algorithms.personalized.personal_server import Personalized, PersonalState
from fedspan.core.protocol import Ask, Client, Course, Round, Sum, complete, task
from fedspan.core.replay import CLOSE, Basis, Comparison
from fedspan.core.rng import Streams
from fedspan.numerics.folds import leading_eigenpairs_of_sum, top_eigenvectors
from fedspan.numerics.orthonormal import polar
from fedspan.numerics.stiefel import align


class EigenClient(PersonalClient):
    """A client that takes the exact half-step for the shared V that the server sends."""

    def half_step(self, state: Personal, arrays: Arrays) -> tuple[Array, Array]:
        """U_i = top_r(M_i + λVVᵀ), and its part of φ."""
        own, V, lam = self.prepare_rows(state, arrays).whole, arrays["V"], float(arrays["lam"])
        r = V.shape[1]
        P = own.basis(V)
        M, C = own.within(P), V if P is None else P.T @ V
        U = top_eigenvectors(M + max(lam, 1e-10 * own.trace / r) * (C @ C.T), r)  # V decides what these rows leave open
        phi = own.trace - np.einsum("ir,ir->", U, M @ U) + lam * (r - np.linalg.norm(C.T @ U) ** 2)
        return U if P is None else P @ U, np.array(phi)

    @task(
        releases={"U": None, "phi": None},
        shows="its own components of that round, and its part of the objective",
    )
    def step(self, state: Personal, arrays: Arrays, rng: Streams) -> tuple[Personal, Arrays]:
        """U_i."""
        U, phi = self.half_step(state, arrays)
        return state, {"U": U, "phi": phi}

    @task(
        releases={"Y": None, "phi": None},
        shows="its projection of the shared components on its own, and its part of the objective",
    )
    def overlap(self, state: Personal, arrays: Arrays, rng: Streams) -> tuple[Personal, Arrays]:
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

    client: ClassVar[type[Client[object]]] = EigenClient

    @property
    def round_task(self) -> str:
        """What a round asks for."""
        return "overlap" if self.share == "sums" else "step"

    def asks(self) -> frozenset[str]:
        return super().asks() | self.round_asks(self.round_task)

    def course(self) -> Course:
        return self.round_course(self.round_task)

    def own_replay(self, name: str) -> dict[str, Comparison]:
        return {"V": Basis(), "lam": CLOSE} if name == "V" else {}

    def init(self, rng: Streams) -> Round[PersonalState]:
        return (yield from self.begin(rng))

    def round(self, state: PersonalState, rng: Streams) -> Round[PersonalState]:
        if state.t >= self.rounds or state.change <= self.tol:
            return (yield from self.close(state))
        V, ask = state.V, {**state.shift, "V": state.V, "lam": np.array(state.shrinkage)}
        if self.share == "sums":
            total = (yield from complete(Ask(self.round_task, ask, Sum("Y", "phi")))).total
            V, phi = polar(total["Y"]), float(total["phi"])
        else:
            each = (yield from complete(Ask(self.round_task, ask))).each.values()
            Q, _ = leading_eigenpairs_of_sum(np.hstack([a["U"] for a in each]), self.k)
            V, phi = align(Q, V), float(sum(a["phi"] for a in each))
        return self.advance(state, V, phi)
