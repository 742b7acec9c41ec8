"""Alternating Stiefel gradient descent for personalized components.

    K. Ozkara, B. Huang, S. Diggavi. Personalized PCA for Federated Heterogeneous Data. IEEE ISIT, 2023. (Algorithm 1)

Notation: S_i = M_i/n_i (d, d), W_i = U_iU_iᵀ + σ²I, σ² = σ_ε², P_{T_U} the projection on the tangent space at U, R_U
the polar retraction; f_i = n_i/2 (log|W_i| + tr(W_i⁻¹S_i)) + d²(V, U_i)/(2σ_U²) (4), d(V, U) = ‖P_{T_V}(U)‖_F;
λ = σ²(1+σ²)/σ_U². UᵀU = I gives W⁻¹ = (I - UUᵀ/(1+σ²))/σ² and |W| = (1+σ²)^r σ^(2(d-r)): no d×d matrix.

What differs from the paper:
- Fact 1 has -n/2 (...) for the likelihood's gradient; it is -n (...), as finite differences show.
- The retraction is the polar factor by SVD: the closed form drifts off the manifold and blows up.
- Steps. On the manifold f_i is, up to constants, -(n tr(UᵀSU)/(σ²(1+σ²)) + ‖sym(VᵀU)‖²/σ_U²)/2: concave in U, and in
  V. Let ∇ be the gradient of that, and C = -sym(Uᵀ∇) = nUᵀSU/(σ²(1+σ²)) + sym(UᵀV sym(VᵀU))/σ_U² (r×r). A retracted
  step along -P_T(∇) cannot raise f as long as I - αC is positive semi-definite: U⁺ maximises ⟨U(I - αC) - α∇, ·⟩ over
  St(d, r), ⟨U(I - αC), ·⟩ is largest at U itself, so ⟨∇, U⁺ - U⟩ ≤ 0, which bounds f(U⁺) - f(U). So step="safe" is
  α_i = 1/λ_max(C) at each client, and β = σ_U² (30 times 1/(L_V + G_V) of Lemma 4): no backtracking is needed.
  step="lemmas" is 1/(L_U + G_U) and 1/(L_V + G_V).
- Clients send V_i - V_{t-1} instead of V_i, so that a sum over a cohort suffices. `local_steps` repeats lines 6 and 7.

What the server sees: sums over the clients of P_{T_V}(∇_V f_i) and of f_i; and the opening (personal_server.py).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from fedspan._types import Array, Arrays
from fedspan.algorithms.personalized._client import Personal, PersonalClient
from fedspan.algorithms.personalized.personal_server import Personalized, PersonalState
from fedspan.core.protocol import Ask, Client, Course, Round, Sum, task
from fedspan.core.replay import CLOSE, Basis, Comparison
from fedspan.core.rng import Streams
from fedspan.errors import InputError
from fedspan.numerics.folds import RowPart
from fedspan.numerics.stiefel import lift, random_point, retract, sym, tangent, tangent_distance

_SAFE, _LEMMAS = "safe", "lemmas"  # the step sizes that have names


def personal_loss(own: RowPart, MU: Array, U: Array, V: Array, noise: float, precision: float) -> float:
    """f_i(V, U_i) (4), with M_iU_i; `noise` is σ_ε², `precision` 1/σ_U²."""
    d, r = U.shape
    logdet = r * np.log(1 + noise) + (d - r) * np.log(noise)
    inside = (own.trace - np.einsum("ij,ij->", U, MU) / (1 + noise)) / noise  # n tr(W⁻¹S)
    return float((own.n * logdet + inside + precision * tangent_distance(V, U) ** 2) / 2)


def gradient_U(own: RowPart, MU: Array, U: Array, V: Array, noise: float, precision: float) -> Array:
    """∇_U f_i (Fact 1, with the factor n in place of n/2)."""
    MW1U, W1U = MU / (1 + noise), U / (1 + noise)  # W⁻¹U
    W1MW1U = (MW1U - U @ (U.T @ MW1U) / (1 + noise)) / noise
    return -(W1MW1U - own.n * W1U) + precision * lift(V, U)


def gradient_V(U: Array, V: Array, precision: float) -> Array:
    """∇_V f_i (Fact 1)."""
    return -precision * lift(V, U) @ sym(U.T @ V)


def lemma_steps(n: int, op: float, noise: float, precision: float) -> tuple[float, float]:
    """1/(L_U + G_U) and 1/(L_V + G_V) of Lemmas 3 and 4, for ‖S_i‖ = op."""
    L_U = n / 2 * (1 / noise + op / noise**2 + (1 + 2 * op / noise) * 2 / noise**2) + 2 * precision
    G_U = n / 2 * (op / noise**2 + 1 / noise) + precision
    return 1 / (L_U + G_U), 1 / max(30 * precision, 1e-300)


class PaperClient(PersonalClient):
    """A client that keeps U_i and moves it along the gradient."""

    @task(
        releases={"h": None, "f": None, "n": None},
        shows="its gradient for the shared components, and its part of the objective",
    )
    def descend(self, state: Personal, arrays: Arrays, rng: Streams) -> tuple[Personal, Arrays]:
        """Alg. 1, lines 5 to 10. Also f_i(V_{t-1}, U_{i,t-1})."""
        own, V = self.prepare_rows(state, arrays).whole, arrays["V"]
        noise, precision, alpha = float(arrays["noise"]), float(arrays["precision"]), float(arrays["alpha"])
        U = state.U
        if U is None:
            U = random_point(rng("start"), *V.shape) if int(arrays["scatter"]) else V
        MU = own.multiply(U)
        f = personal_loss(own, MU, U, V, noise, precision)
        for j in range(int(arrays["steps"])):
            MU = own.multiply(U) if j else MU
            g = tangent(U, gradient_U(own, MU, U, V, noise, precision))  # line 6
            U = retract(U, -self.choose_step(own, MU, U, V, noise, precision, alpha) * g)  # line 7
        h = tangent(V, gradient_V(U, V, precision))  # line 8
        return replace(state, U=U), {"h": h, "f": np.array(f), "n": np.array(1)}

    def choose_step(
        self, own: RowPart, MU: Array, U: Array, V: Array, noise: float, precision: float, alpha: float
    ) -> float:
        """The step α that the server sent, or (-1) that of Lemma 3, or (0) 1/λ_max(C)."""
        if alpha > 0:
            return alpha
        if alpha < 0:
            op = float(np.linalg.norm(own.leading_factor(1))) ** 2 / max(own.n, 1)
            return lemma_steps(own.n, op, noise, precision)[0]
        A = V.T @ U
        C = sym(U.T @ MU) / (noise * (1 + noise)) + precision * sym(A.T @ sym(A))
        floor = 1e-9 * own.n / (1 + noise)  # rows without any variance: their gradient is rounding error
        return 1 / max(float(np.linalg.eigvalsh(C)[-1]), precision, floor)


@dataclass(frozen=True)
class PersonalPaper(Personalized):
    """Algorithm 1 until f changes by at most `tol`, relative to it, or for T = `rounds` rounds; then the closing.

    Parameters:
        noise: σ_ε²; only λ decides the answer, this the scale of f.
        step: "safe", "lemmas", or the pair (α, β).
        scatter: With start="random", whether also every U_{i,0} is a random point (as in the paper) or V₀.
    """

    tol: float = 1e-9
    rounds: int = 2000
    noise: float = 1.0
    step: str | tuple[float, float] = _SAFE
    local_steps: int = 1
    scatter: bool = True

    client: ClassVar[type[Client[object]]] = PaperClient

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.step, str):
            known = self.step in (_SAFE, _LEMMAS)
        else:
            known = isinstance(self.step, tuple | list) and len(self.step) == 2 and all(x > 0 for x in self.step)
        if not known:
            raise InputError(f"step must be 'safe', 'lemmas' or a pair (α, β) above 0, but is {self.step!r}.")
        if not self.noise > 0:
            raise InputError(f"noise must be above 0, but is {self.noise!r}.")
        if self.local_steps < 1:
            raise InputError(f"local_steps must be at least 1, but is {self.local_steps!r}.")

    def asks(self) -> frozenset[str]:
        return super().asks() | self.round_asks("descend")

    def course(self) -> Course:
        return self.round_course("descend")

    def own_replay(self, name: str) -> dict[str, Comparison]:
        numbers = ("noise", "precision", "alpha", "steps", "scatter")
        return {"V": Basis(), **dict.fromkeys(numbers, CLOSE)} if name == "V" else {}

    def init(self, rng: Streams) -> Round[PersonalState]:
        return (yield from self.begin(rng))

    def round(self, state: PersonalState, rng: Streams) -> Round[PersonalState]:
        if state.t >= self.rounds or state.change <= self.tol:
            return (yield from self.close(state))
        V, precision = state.V, state.shrinkage / (self.noise * (1 + self.noise))  # 1/σ_U²
        if isinstance(self.step, str):
            alpha, factor = (0.0, 1.0) if self.step == _SAFE else (-1.0, 1 / 30)
            beta = factor / precision if precision > 0 else 0.0
        else:
            alpha, beta = self.step
        scatter = self.start == "random" and self.scatter
        ask = {
            **state.shift,
            "V": V,
            "noise": np.array(self.noise),
            "precision": np.array(precision),
            "alpha": np.array(float(alpha)),
            "steps": np.array(self.local_steps),
            "scatter": np.array(int(scatter)),
        }
        total = (yield Ask("descend", ask, Sum("h", "f", "n"), self.draw(state.clients, rng))).total
        m = int(total["n"])
        V = retract(V, -beta * total["h"] / m)  # line 14
        return self.advance(state, V, float(total["f"]) / m)
