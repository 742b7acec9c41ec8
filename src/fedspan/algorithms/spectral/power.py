"""Simultaneous subspace iteration (SSI), the federated form of FAPS section 1.1: Z⁺ = orth(Σ_i M_i Z); and LocalPower.

Notation: M_i = B_iᵀB_i of client i's shifted rows (d, d), Z (d, k) orthonormal, Y = Σ M_i Z (d, k).
The server sees Y. Without secure aggregation it sees every M_i Z, and can work out M_i from enough of them
(FAPS, Proposition 2).

Differs from the paper: orth is the polar factor, not that of a QR factorisation, once no local steps are taken. It
spans the same, but comes to rest with the subspace, where the Q of a QR goes on turning within it: so the differences
that a quantised channel sends shrink as fast as the iteration converges (3 bits on MNIST: 82 rounds instead of 159).

LocalPower (FAPS section 5.3, after Li et al. 2021): every client takes q subspace iterations on its own rows,
Y_i = M_i orth(M_i orth(... M_i Z)), and Z⁺ = orth(Σ_i Y_i). q is halved after every round until it is 1, and then it
is SSI. The server sees Σ Y_i and T = Σ ZᵀM_iZ (k, k), from which it knows the Ritz values of Z; while q > 1 it does
not see M Z, so the KKT violation is not known (nan).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedspan._types import Array, Arrays
from fedspan.algorithms._moments import MEASURE, Moments, RowsClient, Shift, measure
from fedspan.core.protocol import Ask, Client, Round, Sensitivity, Server, Sum, complete, task
from fedspan.core.rng import Streams
from fedspan.errors import InputError
from fedspan.numerics.orthonormal import orthonormal, polar, random_orthonormal
from fedspan.numerics.rayleigh_ritz import rayleigh_ritz


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

    def asks(self) -> frozenset[str]:
        return MEASURE | {"multiply"}

    def init(self, rng: Streams) -> Round[SpectralState]:
        moments = yield from measure(self.center, self.scale)
        Z = random_orthonormal(rng("start"), len(moments.mean), self.k)
        return SpectralState(moments, Z, Z, np.zeros(self.k), np.inf)

    def round(self, state: SpectralState, rng: Streams) -> Round[SpectralState]:
        Q = state.next
        Y = (yield from complete(Ask("multiply", {"Z": Q}, Sum("Y")))).total["Y"]
        theta, S, R = rayleigh_ritz(Q, Y, self.k)
        kkt = float(np.linalg.norm(R)) / (state.moments.trace or 1.0)
        return SpectralState(state.moments, polar(Y), Q @ S, theta, kkt)

    def done(self, state: SpectralState) -> bool:
        return state.kkt <= self.tol

    def estimate(self, state: SpectralState) -> Array:
        return state.Z.T

    def metrics(self, state: SpectralState) -> dict[str, float]:
        return {"objective": float(state.theta.sum()), "kkt": state.kkt}


class LocalClient(RowsClient):
    """A client that takes power iterations on its own rows between two communications."""

    def local(self, state: Shift, Z: Array, steps: int) -> tuple[Array, Array, Array]:
        """After `steps` iterations from Z: the last basis, M_i times it, and ZᵀM_iZ of the first."""
        Y = self.product(state, Z)
        T = Z.T @ Y
        for _ in range(steps - 1):
            Z = orthonormal(Y)
            Y = self.product(state, Z)
        return Z, Y, T

    @task(releases={"Y": None, "T": Sensitivity(2)})
    def iterate(self, state: Shift, arrays: Arrays, rng: Streams) -> tuple[Shift, Arrays]:
        """Y has no sensitivity: what is multiplied depends on the private rows since the last synchronisation."""
        _, Y, T = self.local(state, arrays["Z"], int(arrays["steps"]))
        return state, {"Y": Y, "T": T}


@dataclass(frozen=True)
class LocalState(SpectralState):
    """An eigenspace, and how many rounds led to it."""

    t: int


@dataclass(frozen=True)
class LocalPower(Server[LocalState]):
    """q local subspace iterations per round, q halved after every round until it is 1; then SSI, until `tol`."""

    k: int = 2
    tol: float = 1e-6
    center: bool = True
    scale: bool = False
    q: int = 8

    State = LocalState
    client: type[Client] = LocalClient  # type: ignore[type-arg]

    def __post_init__(self) -> None:
        if self.q < 1:
            raise InputError(f"need at least one local iteration, got q={self.q!r}")

    def client_options(self) -> dict[str, float | int | str | bool]:
        return {"columns": 100 * self.k}

    def asks(self) -> frozenset[str]:
        return MEASURE | {"multiply", "iterate"}

    def init(self, rng: Streams) -> Round[LocalState]:
        moments = yield from measure(self.center, self.scale)
        Z = random_orthonormal(rng("start"), len(moments.mean), self.k)
        return LocalState(moments, Z, Z, np.zeros(self.k), np.inf, 0)

    def round(self, state: LocalState, rng: Streams) -> Round[LocalState]:
        Z, q, k = state.next, max(self.q >> state.t, 1), self.k
        if q > 1:
            ask = Ask("iterate", {"Z": Z, "steps": np.array(q)}, Sum("Y", "T"))
            total = (yield from complete(ask)).total
            Y, (theta, S, _), kkt = total["Y"], rayleigh_ritz(np.eye(k), total["T"], k), np.nan
        else:
            Y = (yield from complete(Ask("multiply", {"Z": Z}, Sum("Y")))).total["Y"]
            theta, S, R = rayleigh_ritz(Z, Y, k)
            kkt = float(np.linalg.norm(R)) / (state.moments.trace or 1.0)
        Z_next = orthonormal(Y) if q > 1 else polar(Y)
        return LocalState(state.moments, Z_next, Z @ S, theta, kkt, state.t + 1)

    def done(self, state: LocalState) -> bool:
        return state.kkt <= self.tol

    def estimate(self, state: LocalState) -> Array:
        return state.Z.T

    def metrics(self, state: LocalState) -> dict[str, float]:
        return {"objective": float(state.theta.sum()), "kkt": state.kkt}
