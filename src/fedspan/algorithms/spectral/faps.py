"""FAPS, Algorithm 1, and an accelerated form.

    L. Wang, X. Liu, Y. Zhang. Seeking Consensus on Subspaces in Federated Principal Component Analysis.
    arXiv, 2020. https://arxiv.org/abs/2012.03461

Notation: M_i = B_iᵀB_i of client i's shifted rows (the paper's A_iA_iᵀ), ‖A_i‖² = λ_max(M_i); Z (d, k) the server's
basis, X_i (d, k) that of client i, P_X = XXᵀ, P_X⊥ = I - P_X, all bases orthonormal; β_i the penalty on X_i ≠ Z;
W_i = -P_X⊥M_iX_i (d, k), the multiplier Λ_i = X_iW_iᵀ + W_iX_iᵀ, H_i = M_i + Λ_i + β_iP_Z, the mask
Q_i = β_iP_X - Λ_i, Y_i = Q_iZ. A round: each client moves X_i towards the leading eigenspace of H_i; Z⁺ = orth(Σ Y_i).

What the server sees: the opening (_moments.py); in every round the sums of Y_i and of the scalars ‖A_iᵀZ‖², the
objective; when it stops, once the sum of ZᵀM_iZ (k, k), which tells it the variances, or with `check` that of M_iZ (if
accelerated, more true products: see `accelerate`); if that does not end the run, it is asked for again, and of few
columns two such products may determine M. Without secure aggregation it sees every client's part.
What the mask hides, and what not: M_i cannot be solved for linearly, as it can from SSI's products. But P_Z⊥Y_i tends
to P_Z⊥M_iZ as the run converges, and β_i, hence the size of ‖A_i‖, can be read off. The paper's "impossible" is not
proved: it is obscurity, not a guarantee. The mask has no known sensitivity: FAPS cannot be combined with DP.

The larger β_i, the closer X_i stays to Z and the less is masked: see `penalty` and `accelerate`.
When not to use it: Z - Z* shrinks by Σβ_i/(Σβ_i + λ_k - λ_{k+1}) in a round, that of SSI by λ_{k+1}/λ_k, so FAPS is the
slower one where Σβ_i is above λ_{k+1}: if the spectrum falls fast (‖M‖ many times λ_k, as of rows that are not centred)
or clients differ (rows sorted by label). Smaller β_i did not converge in a first trial.

What differs from the paper, unless `start` or `penalty` is "paper":
- X_i starts at orth(M_iZ), one local step away from Z. With X_i = Z the first round shows P_Z⊥M_iZ unmasked.
- After ten rounds β_i = g_i·max(0.1‖A_i‖², κ·l_i), where l_i = λ_max(P_Z⊥M_iP_Z⊥) - λ_min(ZᵀM_iZ) says how much client
  i would rather have another Z. Near the answer an exact local step multiplies X_i - Z by up to -l_i/(β_i - l_i), so
  β_i must exceed l_i to be stable; and Z - Z* shrinks by Σβ_i/(Σβ_i + λ_k - λ_{k+1}), so no β_i should be larger than
  it must. Rule (25) finds β_i by waiting, and raises all of them if one client is restless; here g_i is raised if
  client i's own step leads it further away from the same Z. The first ten rounds keep the paper's 0.15‖A_i‖²: l_i of
  a random Z is near ‖A_i‖², and so large a β_i would show the direction of P_Z⊥M_iZ to about a fifth at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, get_args

import numpy as np

from fedspan._types import Array, Arrays
from fedspan.algorithms._moments import RowsClient, Shift, measure, measure_replay, measure_tasks, measure_turns
from fedspan.algorithms.spectral._eigenspace import Spectral, SpectralState, confirm_residual, ritz_pairs
from fedspan.core.protocol import Ask, Client, Course, Replay, Round, Sensitivity, Sum, Turn, complete, task
from fedspan.core.replay import CLOSE, Basis
from fedspan.core.rng import Streams
from fedspan.errors import InputError
from fedspan.numerics.anderson import anderson_weights, combine_bases
from fedspan.numerics.orthonormal import orthonormalize, random_orthonormal
from fedspan.numerics.rayleigh_ritz import extension, rayleigh_ritz

_THETA, _MU, _PERIOD = 0.1, 0.01, 5  # (25)
_EPS_X = 1e-2  # (26)
_C1, _C1_PRIME = 0.1, 1.0  # (13)
_BETA, _OPENING = 0.15, 10  # β_i^(0) / ‖A_i‖² (section 5.2), and for how many rounds
_KAPPA, _KAPPA_RITZ = 1.25, 1.5  # a more exact local step needs more
_MEMORY = 10  # rounds that the accelerated form looks back

Rule = Literal["residual", "change"]
Choice = Literal["local", "paper"]


def _empty() -> Array:
    return np.zeros((0, 0, 0))


@dataclass(frozen=True)
class FapsMemory(Shift):
    """What a client remembers between rounds."""

    t: int = 0  # the last round that it answered
    X: Array = field(default_factory=_empty)  # (d, k) X_i
    L: Array = field(default_factory=_empty)  # (d, q) LLᵀ is the leading part of M_i
    beta: float = 0.0  # β_i of the last round
    growth: float = 1.0  # how much it was raised in all
    mark: float = 0.0  # d_i at the last multiple of 5 rounds
    past: Array = field(default_factory=_empty)  # (h, d, k) the last X_i, the latest last; if accelerated


class FapsClient(RowsClient):
    """Lines 4 to 7 of Algorithm 1."""

    State = FapsMemory

    def __init__(
        self,
        data: object,
        columns: int = 0,
        delta: float = 0.3,
        rule: str = "residual",
        start: str = "local",
        penalty: str = "local",
        beta: float = 0.1,
        cap: int = 12,
    ) -> None:
        super().__init__(data, columns)
        self.delta, self.rule, self.start, self.penalty, self.beta, self.cap = delta, rule, start, penalty, beta, cap

    def init(self) -> FapsMemory:
        return FapsMemory()

    @task(
        releases={"Y": None, "objective": Sensitivity(2)},
        shows="its masked product with the server's basis (obscured, not protected), and its share of the variance",
    )
    def split(self, state: FapsMemory, arrays: Arrays, rng: Streams) -> tuple[FapsMemory, Arrays]:
        """Y_i and ‖A_iᵀZ‖². Asked again for the same round (the answer was lost), it answers the same."""
        Z, t = arrays["Z"], int(arrays["t"])
        MZ = self.product(state, Z)
        if t > state.t:
            state = self.advance(replace(state, t=t), Z, MZ, arrays.get("gamma"), rng)
        X, W = state.X, consensus_multiplier(state.X, self.product(state, state.X))  # Alg. 1, line 6
        Y = state.beta * X @ (X.T @ Z) - X @ (W.T @ Z) - W @ (X.T @ Z)  # (18), (19); Alg. 1, line 7
        return state, {"Y": Y, "objective": np.array(np.sum(Z * MZ))}

    @task(releases={"T": Sensitivity(2)}, shows="its variances along the components")
    def variances(self, state: FapsMemory, arrays: Arrays, rng: Streams) -> tuple[FapsMemory, Arrays]:
        """ZᵀM_iZ."""
        return state, {"T": arrays["Z"].T @ self.product(state, arrays["Z"])}

    def advance(self, state: FapsMemory, Z: Array, MZ: Array, gamma: Array | None, rng: Streams) -> FapsMemory:
        """X_i⁺ from X_i, and β_i for it."""
        X, L, past, k = state.X, state.L, state.past, state.t - 1
        if not X.size:
            X = orthonormalize(MZ) if self.start == "local" else Z  # Alg. 1, line 2
            L = self.leading_part(state, Z.shape[1], rng)
        if gamma is not None and len(gamma) > 1:
            X = orthonormalize(combine_bases(gamma, past[-len(gamma) :], Z))
        norm = float(np.linalg.norm(L, 2)) ** 2  # ‖A_i‖₂²
        floor = self.beta * norm
        opening = self.penalty == "paper" or (gamma is None and k < _OPENING)
        if not opening:
            l_i = np.linalg.norm(L - Z @ (Z.T @ L), 2) ** 2 - np.linalg.eigvalsh(Z.T @ MZ)[0]
            floor = max(floor, (_KAPPA if gamma is None else _KAPPA_RITZ) * l_i)
        elif self.penalty == "local":
            floor = max(floor, _BETA * norm)
        beta = float(state.growth * floor)
        new = self.approach(state, X, Z, beta, norm, exact=gamma is not None)  # Alg. 1, line 5
        if gamma is not None:
            past = np.stack([*past, new][-_MEMORY:])
        d_i, mark, restless = projector_distance(X, Z), state.mark, False  # (21)
        if not opening:
            restless = projector_distance(new, Z) > d_i > 1e-12
        elif self.penalty == "paper" and k % _PERIOD == 0:
            mark, restless = d_i, k > 0 and mark <= (1 + _MU) * d_i  # (25)
        growth = state.growth * (1 + _THETA * restless)
        return replace(state, X=new, L=L, beta=beta, growth=growth, mark=mark, past=past)

    def approach(self, state: FapsMemory, X: Array, Z: Array, beta: float, norm: float, exact: bool) -> Array:
        """An approximate minimiser of (11): subspace iteration from X_i until (13) and (14), or (26), or the cap.

        For the accelerated form, which needs a smooth map: Rayleigh-Ritz on the span of X, HX, H²X, H³X.
        """
        MX = self.product(state, X)
        W = consensus_multiplier(X, MX)

        def H(V: Array, MV: Array) -> Array:
            return MV + X @ (W.T @ V) + W @ (X.T @ V) + beta * Z @ (Z.T @ V)  # (12), (15)

        V, HV = X, H(X, MX)
        if exact:
            B = X
            for _ in range(3):
                V = orthonormalize(HV)
                HV, B = H(V, self.product(state, V)), np.hstack([B, V])
            B = orthonormalize(B)
            return orthonormalize(B @ rayleigh_ritz(B, H(B, self.product(state, B)), 0).S[:, : X.shape[1]])
        r0, h0 = _residual_norm(V, HV), np.sum(V * HV) / 2
        if self.rule == "residual" and r0 <= 1e-14 * (norm + beta) * np.sqrt(X.shape[1]):
            return X  # invariant under H_i: iterating would amplify rounding errors only
        for _ in range(self.cap):
            before, V = V, orthonormalize(HV)
            HV = H(V, self.product(state, V))
            if self.rule == "change":
                enough = np.linalg.norm(V - before) <= _EPS_X * np.linalg.norm(V)  # (26)
            else:
                gained = np.sum(V * HV) / 2 - h0 >= _C1 / (_C1_PRIME * norm + beta) * r0**2  # (13)
                enough = gained and _residual_norm(V, HV) <= self.delta * r0  # (14)
            if enough:
                break
        return V

    def leading_part(self, state: FapsMemory, k: int, rng: Streams) -> Array:
        """L (d, q) with LLᵀ ≤ M_i that holds its leading 2k eigenpairs, by eight subspace iterations at home."""
        V = random_orthonormal(rng("leading"), self.rows.d, min(2 * k + 8, self.rows.d))
        for _ in range(8):
            V = orthonormalize(self.product(state, V))
        theta, S, _ = rayleigh_ritz(V, self.product(state, V), 0)
        return V @ (S * np.sqrt(np.maximum(theta, 0.0)))


def consensus_multiplier(X: Array, MX: Array) -> Array:
    """W = -P_X⊥ M X; the multiplier is Λ = XWᵀ + WXᵀ (15)."""
    return X @ (X.T @ MX) - MX  # (16)


def _residual_norm(X: Array, HX: Array) -> float:
    """‖P_X⊥ H X‖_F."""
    return float(np.linalg.norm(HX - X @ (X.T @ HX)))


def projector_distance(X: Array, Z: Array) -> float:
    """d_p(X, Z) = ‖P_X - P_Z‖_F, accurate if it is small."""
    return float(np.sqrt(2.0) * np.linalg.norm(Z - X @ (X.T @ Z)))


@dataclass(frozen=True)
class FapsState(SpectralState):
    """The server's basis, and what it knows of it.

    Until the run has closed, Z is the next basis to be sent, θ are equal shares of the objective, and the KKT violation
    is known only if it was checked.
    """

    t: int = 0
    objective: float = 0.0  # Σ ‖A_iᵀZ‖² of the last Z that was sent
    change: float = np.inf  # its relative change (27)
    residual: float = np.inf  # ‖P_Z⊥ Σ Y_i‖_F / tr(M), of the same Z; tends to the KKT violation
    enough: float = np.inf  # what the residual must be before the violation is checked (again)
    closed: bool = False
    sent: Array = field(default_factory=_empty)  # (h, d, k) the last Z that were sent, if accelerated
    found: Array = field(default_factory=_empty)  # (h, d, k) what Alg. 1 made of each
    gamma: Array = field(default_factory=lambda: np.ones(1))  # weights of the last of them in Z


@dataclass(frozen=True)
class Faps(Spectral[FapsState]):
    """FAPS until (27): the objective changes by at most `tol` of itself in a round; or until a true residual.

    Parameters:
        check: Whether `tol` bounds the true scaled KKT violation instead. Once the residual that the masked products
            show is at most `tol`, the server asks once for true products of Z, and goes on if they say otherwise.
        delta: How far a client reduces its residual in a round (14); at most `cap` local iterations.
        rule: "residual" (13) and (14), or "change" (26) with ε_x = 0.01.
        start: X_i at orth(M_iZ) ("local"), or at Z ("paper": its first round is not masked).
        penalty: β_i from how far client i disagrees, after ten rounds ("local"), or by rule (25) ("paper").
        beta: The least β_i ("paper": the first) over ‖A_i‖²; None: 0.1 ("paper": 0.15; accelerated: 0.2).
            The paper's settings: Faps(rule="change", start="paper", penalty="paper", cap=200).
        accelerate: Anderson acceleration on the whole state. The server takes from the last ten rounds the weights γ
            that make Σ γ_j(Z_j⁺ - Z_j) least, and sends them with Z = orth(Σ γ_j Z_j⁺), so that clients weigh their own
            X_i the same way. As it can be drawn to any stationary point, it must prove its answer: when its residual is
            at most `tol`, which is now the scaled KKT violation, the server asks twice for true products, of Z and of
            directions V that Z has left, and random ones: it takes the best k of what they span, and ends if their true
            violation is at most `tol`; else it goes on from there. These are rounds of SSI: what they show of M is not
            masked. Nor is much of the rest: β_i follows l_i from the first round on, and P_Z⊥Y_i shows the direction of
            P_Z⊥M_iZ to about a fifth from there on. Take it for speed under secure aggregation, not for the mask.
    """

    k: int = 2
    tol: float = 1e-10
    center: bool = True
    scale: bool = False
    delta: float = 0.3
    rule: Rule = "residual"
    start: Choice = "local"
    penalty: Choice = "local"
    beta: float | None = None
    cap: int = 12
    accelerate: bool = False
    check: bool = False

    State = FapsState
    client: ClassVar[type[Client[object]]] = FapsClient

    def __post_init__(self) -> None:
        if not 0 <= self.delta < 1:
            raise InputError(f"delta must be from 0 to below 1, but is {self.delta!r}.")
        if self.cap < 1:
            raise InputError(f"cap must be at least 1, but is {self.cap!r}.")
        if self.beta is not None and self.beta <= 0:
            raise InputError(f"beta must be above 0, but is {self.beta!r}.")
        for name, value, known in (
            ("rule", self.rule, get_args(Rule)),
            ("start", self.start, get_args(Choice)),
            ("penalty", self.penalty, get_args(Choice)),
        ):
            if value not in known:
                raise InputError(f"{name} must be {known[0]!r} or {known[1]!r}, but is {value!r}.")

    def client_options(self) -> dict[str, float | int | str | bool]:
        usual = _BETA if self.penalty == "paper" else 0.2 if self.accelerate else 0.1
        return {
            "columns": 300 * self.k,
            "beta": usual if self.beta is None else self.beta,
            "delta": self.delta,
            "rule": self.rule,
            "start": self.start,
            "penalty": self.penalty,
            "cap": self.cap,
        }

    def asks(self) -> frozenset[str]:
        closing = "multiply" if self.accelerate else "confirm" if self.check else "variances"
        return measure_tasks(self.center, self.scale) | {"split", closing}

    def course(self) -> Course:
        closing = Turn("confirm") if self.check else Turn("variances", rounds=1)
        if self.accelerate:
            closing = Turn("multiply", most=2)
        return Course(measure_turns(self.center, self.scale), (Turn("split", after=["settle"]), closing))

    def replay(self) -> Replay | str:
        opening = measure_replay(self.center, self.scale)
        if self.accelerate:
            return "the weights of its extrapolation follow from the sums only up to large rounding errors"
        closing = {"confirm": {"V": Basis()}} if self.check else {"variances": {"Z": Basis()}}
        return {**opening, "split": {"Z": Basis(), "t": CLOSE}, **closing}

    def init(self, rng: Streams) -> Round[FapsState]:
        moments = yield from measure(self.center, self.scale)
        Z = random_orthonormal(rng("start"), len(moments.mean), self.k)  # Alg. 1, line 2
        return FapsState(moments, Z, np.zeros(self.k), np.nan)

    def round(self, state: FapsState, rng: Streams) -> Round[FapsState]:
        Z, t, trace = state.Z, state.t + 1, state.moments.trace or 1.0
        arrays = {"Z": Z, "t": np.array(t)} | ({"gamma": state.gamma} if self.accelerate else {})
        total = (yield from complete(Ask("split", arrays, Sum("Y", "objective")))).total
        Y, f, before = total["Y"], float(total["objective"]), state.objective
        state = replace(
            state,
            t=t,
            Z=orthonormalize(Y),  # Alg. 1, line 9
            theta=np.full(self.k, f / self.k),
            kkt=np.nan,
            objective=f,
            change=abs(f - before) / (f or 1.0),
            residual=_residual_norm(Z, Y) / trace,
        )
        if self.accelerate:
            state = _extrapolate(state, Z, settled=state.change <= 1e-2 and f >= (1 - 1e-6) * before)
            return (yield from self.prove(state, Z, rng)) if state.residual <= self.tol else state
        if self.check:
            return (yield from self.confirm(state)) if state.residual <= min(self.tol, state.enough) else state
        # What differs from the paper: (27) alone can be met at the turning point of an oscillation, or at a saddle.
        if state.change <= self.tol and state.residual <= np.sqrt(self.tol):
            T = (yield from complete(Ask("variances", {"Z": state.Z}, Sum("T")))).total["T"]
            theta, S, _ = rayleigh_ritz(np.eye(self.k), T, self.k)
            state = replace(state, Z=state.Z @ S, theta=theta, closed=True)
        return state

    def confirm(self, state: FapsState) -> Round[FapsState]:
        """The true violation of the next Z; if it is too large, the residual must fall before it is asked for again."""
        true = yield from confirm_residual(state.moments, state.Z, self.k)
        if true.kkt <= self.tol:
            return replace(state, Z=true.Z, theta=true.theta, kkt=true.kkt, closed=True)
        return replace(state, kkt=true.kkt, enough=state.residual * min(0.5, self.tol / true.kkt))

    def prove(self, state: FapsState, Z: Array, rng: Streams) -> Round[FapsState]:
        """True products with Z and with directions outside it; the best that they span; whether it is good enough."""
        V = extension(Z, np.hstack([state.sent[0], random_orthonormal(rng("probe"), len(Z), self.k)]))[0]
        Q = np.hstack([Z, V])
        AQ = (yield from complete(Ask("multiply", {"Z": Q}, Sum("Y")))).total["Y"]
        V = extension(Q, AQ[:, self.k :])[0]
        if V.size:
            Y = (yield from complete(Ask("multiply", {"Z": V}, Sum("Y")))).total["Y"]
            Q, AQ = np.hstack([Q, V]), np.hstack([AQ, Y])
        theta, S, kkt = ritz_pairs(state.moments, Q, AQ, self.k)
        return replace(
            state,
            Z=Q @ S[:, : self.k],
            theta=theta[: self.k],
            kkt=kkt,
            closed=kkt <= self.tol,
            sent=_empty(),
            found=_empty(),
            gamma=np.ones(1),
        )

    def done(self, state: FapsState) -> bool:
        return state.closed

    def metrics(self, state: FapsState) -> dict[str, float]:
        seen = {"change": state.change, "residual": state.residual, "kkt": state.kkt}
        return super().metrics(state) | seen


def _extrapolate(state: FapsState, Z: Array, settled: bool) -> FapsState:
    """Anderson's step, once the objective has settled; begun anew when it falls or the residual doubles."""
    sent, found = np.stack([*state.sent, Z][-_MEMORY:]), np.stack([*state.found, state.Z][-_MEMORY:])
    gamma = anderson_weights(sent, found, Z) if settled else None
    if gamma is None:
        return replace(state, sent=sent[-1:], found=found[-1:], gamma=np.ones(1))
    return replace(state, Z=orthonormalize(combine_bases(gamma, found, Z)), sent=sent, found=found, gamma=gamma)
