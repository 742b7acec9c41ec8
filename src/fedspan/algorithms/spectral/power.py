"""Simultaneous subspace iteration (SSI), Z⁺ = orth(Σ_i M_i Z), and LocalPower.

SSI is the federated form in section 1.1 of:
    L. Wang, X. Liu, Y. Zhang. Seeking Consensus on Subspaces in Federated Principal Component Analysis.
    arXiv, 2020. https://arxiv.org/abs/2012.03461
LocalPower (section 5.3 there) is from:
    X. Li, S. Wang, K. Chen, Z. Zhang. Communication-Efficient Distributed SVD via Local Power Iterations.
    ICML, 2021. https://arxiv.org/abs/2002.08014

Notation: M_i = B_iᵀB_i of client i's shifted rows (d, d), Z (d, k) orthonormalize, Y = Σ M_i Z (d, k), q the local
iterations of a round, Y_i = M_i orth(M_i orth(… M_i Z)).

What the server sees: of SSI, Y. Without secure aggregation it sees every M_i Z, and can work out M_i from enough of
them (FAPS, Proposition 2). Of LocalPower, Σ Y_i and T = Σ ZᵀM_iZ (k, k), which tells it the Ritz values of Z; while
q > 1 it does not see M Z, so the KKT violation is not known (nan).

What differs from the papers: once no local steps are taken, orth is the polar factor, not that of a QR factorisation.
It spans the same, but comes to rest with the subspace, where the Q of a QR goes on turning within it: so the
differences that a quantised channel sends shrink as fast as the iteration converges (3 bits on MNIST: 82 rounds
instead of 159).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedspan._types import Array, Arrays
from fedspan.algorithms._moments import RowsClient, Shift, measure, measure_tasks
from fedspan.algorithms.spectral._eigenspace import Spectral, SpectralState, ritz_pairs
from fedspan.core.protocol import Ask, Client, Round, Sensitivity, Sum, complete, task
from fedspan.core.rng import Streams
from fedspan.errors import InputError
from fedspan.numerics.orthonormal import orthonormalize, polar, random_orthonormal
from fedspan.numerics.rayleigh_ritz import rayleigh_ritz


@dataclass(frozen=True)
class PowerState(SpectralState):
    """An eigenspace, and what will be multiplied in the next round."""

    next: Array  # (d, k)


@dataclass(frozen=True)
class Ssi(Spectral[PowerState]):
    """Subspace iteration until the scaled KKT violation is at most `tol`."""

    k: int = 2
    tol: float = 1e-6
    center: bool = True
    scale: bool = False

    State = PowerState
    client: ClassVar[type[Client[object]]] = RowsClient

    def client_options(self) -> dict[str, float | int | str | bool]:
        return {"columns": 100 * self.k}  # it takes hundreds of rounds: a Gram matrix soon pays

    def asks(self) -> frozenset[str]:
        return measure_tasks(self.center, self.scale) | {"multiply"}

    def init(self, rng: Streams) -> Round[PowerState]:
        moments = yield from measure(self.center, self.scale)
        Z = random_orthonormal(rng("start"), len(moments.mean), self.k)
        return PowerState(moments, Z, np.zeros(self.k), np.inf, next=Z)

    def round(self, state: PowerState, rng: Streams) -> Round[PowerState]:
        Z = state.next
        Y = (yield from complete(Ask("multiply", {"Z": Z}, Sum("Y")))).total["Y"]
        theta, S, kkt = ritz_pairs(state.moments, Z, Y, self.k)
        return PowerState(state.moments, Z @ S, theta, kkt, next=polar(Y))

    def done(self, state: PowerState) -> bool:
        return state.kkt <= self.tol


class LocalPowerClient(RowsClient):
    """A client that takes power iterations on its own rows between two communications."""

    def local(self, state: Shift, Z: Array, steps: int) -> tuple[Array, Array, Array]:
        """After `steps` iterations from Z: the last basis, M_i times it, and ZᵀM_iZ of the first."""
        Y = self.product(state, Z)
        T = Z.T @ Y
        for _ in range(steps - 1):
            Z = orthonormalize(Y)
            Y = self.product(state, Z)
        return Z, Y, T

    @task(
        releases={"Y": None, "T": Sensitivity(2)},
        shows="its estimate after local steps, and its share of the variances",
    )
    def iterate(self, state: Shift, arrays: Arrays, rng: Streams) -> tuple[Shift, Arrays]:
        """Y_i has no sensitivity: what is multiplied depends on the private rows since the last synchronisation."""
        _, Y, T = self.local(state, arrays["Z"], int(arrays["steps"]))
        return state, {"Y": Y, "T": T}


@dataclass(frozen=True)
class LocalState(PowerState):
    """An eigenspace, and how many rounds led to it."""

    t: int


@dataclass(frozen=True)
class LocalPower(Spectral[LocalState]):
    """q local subspace iterations per round, q halved after every round until it is 1; then SSI, until `tol`."""

    k: int = 2
    tol: float = 1e-6
    center: bool = True
    scale: bool = False
    q: int = 8

    State = LocalState
    client: ClassVar[type[Client[object]]] = LocalPowerClient

    def __post_init__(self) -> None:
        if self.q < 1:
            raise InputError(f"q, the number of local iterations, must be at least 1, but is {self.q!r}.")

    def client_options(self) -> dict[str, float | int | str | bool]:
        return {"columns": 100 * self.k}

    def asks(self) -> frozenset[str]:
        tasks = {"multiply"} if self.q == 1 else {"iterate", "multiply"}
        return measure_tasks(self.center, self.scale) | tasks

    def init(self, rng: Streams) -> Round[LocalState]:
        moments = yield from measure(self.center, self.scale)
        Z = random_orthonormal(rng("start"), len(moments.mean), self.k)
        return LocalState(moments, Z, np.zeros(self.k), np.inf, next=Z, t=0)

    def round(self, state: LocalState, rng: Streams) -> Round[LocalState]:
        Z, q, k = state.next, max(self.q >> state.t, 1), self.k
        if q > 1:
            ask = Ask("iterate", {"Z": Z, "steps": np.array(q)}, Sum("Y", "T"))
            total = (yield from complete(ask)).total
            theta, S, _ = rayleigh_ritz(np.eye(k), total["T"], k)
            Z_next, kkt = orthonormalize(total["Y"]), np.nan
        else:
            Y = (yield from complete(Ask("multiply", {"Z": Z}, Sum("Y")))).total["Y"]
            theta, S, kkt = ritz_pairs(state.moments, Z, Y, k)
            Z_next = polar(Y)
        return LocalState(state.moments, Z @ S, theta, kkt, next=Z_next, t=state.t + 1)

    def done(self, state: LocalState) -> bool:
        return state.kkt <= self.tol
