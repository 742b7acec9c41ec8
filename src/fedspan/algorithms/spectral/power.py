"""Simultaneous subspace iteration (SSI), Z⁺ = orth(Σ_i M_i Z), and LocalPower.

SSI is the federated form in section 1.1 of:
    L. Wang, X. Liu, Y. Zhang. Seeking Consensus on Subspaces in Federated Principal Component Analysis.
    arXiv, 2020. https://arxiv.org/abs/2012.03461
LocalPower (section 5.3 there) is from:
    X. Li, S. Wang, K. Chen, Z. Zhang. Communication-Efficient Distributed SVD via Local Power Iterations.
    ICML, 2021. https://arxiv.org/abs/2002.08014

Notation: M_i = B_iᵀB_i of client i's shifted rows (d, d), Z (d, k) orthonormal, Y = Σ M_i Z (d, k), q the local
iterations of a round, Y_i = M_i orth(M_i orth(… M_i Z)).

What the server sees: the opening (_moments.py); of SSI, Y, and with `check` a last Y as it is. Without secure
aggregation it sees every M_i Z, and can work out M_i from enough of them (FAPS, Proposition 2). Of LocalPower, while
q > 1, Σ Y_i and T = Σ ZᵀM_iZ (k, k), which tells it the Ritz values of Z, but not M Z, so the KKT violation is not
known (nan); then Y, as of SSI.

What differs from the papers: once no local steps are taken, orth is the polar factor, not that of a QR factorisation.
It spans the same, but comes to rest with the subspace, where the Q of a QR goes on turning within it: so the
differences that a quantised channel sends shrink as fast as the iteration converges (3 bits on MNIST: 82 rounds
instead of 159).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, TypeVar, cast

import numpy as np

from fedspan._types import Array, Arrays
from fedspan.algorithms._moments import RowsClient, Shift, measure, measure_replay, measure_tasks, measure_turns
from fedspan.algorithms.spectral._eigenspace import Spectral, SpectralState, confirm_residual, ritz_pairs
from fedspan.core.protocol import Ask, Client, Course, Replay, Round, Sensitivity, Sum, Turn, complete, task
from fedspan.core.replay import CLOSE, Basis, Comparison
from fedspan.core.rng import Streams
from fedspan.errors import InputError
from fedspan.numerics.orthonormal import orthonormalize, polar, random_orthonormal
from fedspan.numerics.rayleigh_ritz import rayleigh_ritz

_NOISY = 2.0  # what is shorter than so many times its error is taken for error
_STALE_ROUNDS = 25  # rounds in which a lossy channel may keep the violation from falling


@dataclass(frozen=True)
class PowerState(SpectralState):
    """An eigenspace, and what will be multiplied in the next round."""

    next: Array  # (d, k)
    best: float = field(default=np.inf, kw_only=True)  # the smallest violation so far
    stale: int = field(default=0, kw_only=True)  # rounds since then


PowerLike = TypeVar("PowerLike", bound=PowerState)


def count_stale(state: PowerLike, before: PowerState) -> PowerLike:
    """How long the violation has not fallen: a lossy channel may keep it from falling at all."""
    if state.kkt < before.best:
        return replace(state, best=state.kkt, stale=0)
    return replace(state, best=before.best, stale=before.stale + 1)


def is_lost(state: PowerState) -> bool:
    """Whether the lossy channel lets the run come no further, so that it must go on without it."""
    return state.stale >= _STALE_ROUNDS


def step_exactly(state: PowerLike) -> Round[PowerLike]:
    """A step by true products, and its true violation."""
    true = yield from confirm_residual(state.moments, state.next, len(state.theta))
    following = steady_polar(true.MV, state.next)
    return replace(state, Z=true.Z, theta=true.theta, kkt=true.kkt, next=following)


def steady_polar(Y: Array, Z: Array) -> Array:
    """polar(Y) for Y = M Z; where M has less than k components, it keeps directions of Z instead of rounding errors.

    Then it is that of (M + εI) Z, which has the eigenvectors of M. How large the errors of a lossy channel are can be
    told from ZᵀY, which would be symmetric without them.
    """
    U, s, Vt = np.linalg.svd(Y, full_matrices=False)
    errors = _NOISY * _guess_errors(Y, Z)
    if s[-1] > max(1e-9 * s[0], errors):
        return np.asarray(U @ Vt)
    return polar(Y + max(1e-12 * s[0], errors) * Z)


def _guess_errors(Y: Array, Z: Array) -> float:
    """How long the error in a column of Y = M Z is."""
    d, k = Z.shape
    T = Z.T @ Y
    return float(np.linalg.norm(T - T.T)) * np.sqrt(d / (2 * k * (k - 1))) if k > 1 else 0.0


@dataclass(frozen=True)
class Ssi(Spectral[PowerState]):
    """Subspace iteration until the scaled KKT violation is at most `tol`.

    `check` is for lossy channels, where what a round shows is not the true violation: the run ends by one more
    exchange, which no such channel touches, and goes on if the true violation is above `tol`. If nothing has been
    gained for 25 rounds (M has less than k components, or the bits are too few), it goes on without them.
    """

    k: int = 2
    tol: float = 1e-6
    center: bool = True
    scale: bool = False
    check: bool = False

    State = PowerState
    client: ClassVar[type[Client[object]]] = RowsClient

    def client_options(self) -> dict[str, float | int | str | bool]:
        return {"columns": 100 * self.k}  # it takes hundreds of rounds: a Gram matrix soon pays

    def asks(self) -> frozenset[str]:
        return measure_tasks(self.center, self.scale) | {"multiply"} | ({"confirm"} if self.check else set())

    def course(self) -> Course:
        last = (Turn("confirm", after=["multiply"]),) if self.check else ()
        return Course(measure_turns(self.center, self.scale), (Turn("multiply", after=["settle"]), *last))

    def replay(self) -> Replay | str:
        last = {"confirm": {"V": Basis()}} if self.check else {}
        return {**measure_replay(self.center, self.scale), "multiply": {"Z": Basis()}, **last}

    def init(self, rng: Streams) -> Round[PowerState]:
        moments = yield from measure(self.center, self.scale)
        Z = random_orthonormal(rng("start"), len(moments.mean), self.k)
        return PowerState(moments, Z, np.zeros(self.k), np.inf, next=Z)

    def round(self, state: PowerState, rng: Streams) -> Round[PowerState]:
        if self.check and is_lost(state):
            return (yield from step_exactly(state))
        before, Z = state, state.next
        Y = (yield from complete(Ask("multiply", {"Z": Z}, Sum("Y")))).total["Y"]
        theta, S, kkt = ritz_pairs(state.moments, Z, Y, self.k)
        state = replace(state, Z=Z @ S, theta=theta, kkt=kkt, next=steady_polar(Y, Z))
        if not self.check:
            return state
        state = count_stale(state, before)
        return (yield from step_exactly(state)) if kkt <= self.tol else state

    def done(self, state: PowerState) -> bool:
        return state.kkt <= self.tol

    def accept(self, state: PowerState, arrays: Arrays) -> PowerState | None:
        """One more round, if rounding decides whether `tol` is met."""
        barely = 0.99 * self.tol <= state.kkt <= self.tol
        return replace(state, kkt=float(np.nextafter(self.tol, np.inf))) if barely else None


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
class LocalPower(Ssi):
    """q local subspace iterations per round, q halved after every round until it is 1; then SSI, until `tol`."""

    q: int = 8

    State = LocalState  # type: ignore[assignment]
    client: ClassVar[type[Client[object]]] = LocalPowerClient

    def __post_init__(self) -> None:
        if self.q < 1:
            raise InputError(f"q, the number of local iterations, must be at least 1, but is {self.q!r}.")

    def asks(self) -> frozenset[str]:
        return super().asks() | ({"iterate"} if self.q > 1 else set())

    def course(self) -> Course:
        course = super().course()
        local = (Turn("iterate", rounds=self.q.bit_length() - 1, after=["settle"]),) if self.q > 1 else ()
        return replace(course, round=(*local, *course.round))

    def replay(self) -> Replay | str:
        known = super().replay()
        local: dict[str, Comparison] = {"Z": Basis(), "steps": CLOSE}
        return {**known, "iterate": local} if self.q > 1 and not isinstance(known, str) else known

    def init(self, rng: Streams) -> Round[LocalState]:
        state = yield from super().init(rng)
        return LocalState(**vars(state), t=0)

    def round(self, state: LocalState, rng: Streams) -> Round[LocalState]:  # type: ignore[override]
        Z, q, t = state.next, self.q >> state.t, state.t + 1
        if q <= 1:
            found = cast(LocalState, (yield from super().round(state, rng)))  # of the class that it was given
            return replace(found, t=t)
        total = (yield from complete(Ask("iterate", {"Z": Z, "steps": np.array(q)}, Sum("Y", "T")))).total
        theta, S, _ = rayleigh_ritz(np.eye(self.k), total["T"], self.k)
        return replace(state, Z=Z @ S, theta=theta, kkt=np.nan, next=orthonormalize(total["Y"]), t=t)
