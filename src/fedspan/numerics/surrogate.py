"""Running convex surrogates of an objective and M constraints, and the convex problem that a server solves with them.

Notation: F̄_m(ω) = constant_m + linear_m·ω + curvature_m ‖ω‖², m = 0 the objective, m = 1..M the constraints F_m ≤ 0;
ω (d,), τ_m the curvature of a sample's own surrogate, ρ the weight of the newest samples, c the price of a slack s_m,
ν_m in [0, c] the multiplier of constraint m, σ(ν) = curvature·(1, ν).

All curvatures are multiples of the identity. So the minimiser for given multipliers is ω(ν) = -linearᵀ(1, ν) / 2σ(ν),
and what is left is a concave problem in M numbers over a box (mini-batch SSCA leaves it to an interior-point method in
d). It needs the Gram matrix of the M+1 linear parts only: one pass over them, whatever d is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedspan.errors import InputError
from fedspan.protocol import Array

_STEPS = 500  # Newton steps at most; a dozen is usual
_EXACT = 1e-13  # relative size of a constraint's value that counts as zero


@dataclass(frozen=True)
class Surrogate:
    """M+1 quadratic functions of ω whose curvature is the same in all directions."""

    constant: Array  # (M+1,)
    linear: Array  # (M+1, d)
    curvature: Array  # (M+1,)

    def __call__(self, omega: Array) -> Array:
        """F̄_0(ω) .. F̄_M(ω)."""
        return self.constant + self.linear @ omega + self.curvature * (omega @ omega)


def nothing(M: int, d: int) -> Surrogate:
    """F̄⁽⁰⁾ = 0."""
    return Surrogate(np.zeros(M + 1), np.zeros((M + 1, d)), np.zeros(M + 1))


def blend(old: Surrogate, rho: float, values: Array, slopes: Array, omega: Array, tau: Array) -> Surrogate:
    """(1-ρ) F̄ + ρ f̄ with f̄(ω') = values + slopes·(ω'-ω) + τ‖ω'-ω‖²: (3), (14), (16), (25) with (7), (15), (19), (27).

    An objective that is ‖ω‖² itself is kept exactly by value ‖ω‖², slope 2ω and τ = 1.
    """
    constant = values - slopes @ omega + tau * (omega @ omega)
    linear = slopes - np.multiply.outer(2 * tau, omega)
    if rho == 1.0:
        return Surrogate(constant, linear, np.array(tau, dtype=np.float64))
    linear *= rho
    linear += (1 - rho) * old.linear
    curvature = (1 - rho) * old.curvature + rho * tau
    return Surrogate((1 - rho) * old.constant + rho * constant, linear, curvature)


def minimise(F: Surrogate, c: float, start: Array | None = None) -> tuple[Array, Array, Array]:
    """(ω̄, ν, s) of Problems 2, 5, 7, 10: min F̄_0(ω) + c Σ s_m subject to F̄_m(ω) ≤ s_m, s_m ≥ 0.

    `start`: multipliers to begin with, those of the last round.
    """
    if not F.curvature[0] > 0 or (F.curvature < 0).any():
        raise InputError(f"need a strongly convex objective and convex constraints, got curvatures {F.curvature}")
    M = len(F.constant) - 1
    nu = np.zeros(M) if start is None else np.clip(start, 0.0, c)
    if M:
        nu = _multipliers(F.linear @ F.linear.T, F.constant, F.curvature, c, nu)
    x = np.concatenate([[1.0], nu])
    omega = x @ F.linear
    omega *= -1 / (2 * float(F.curvature @ x))  # (10), (24), (38), (39), (43), (44)
    return omega, nu, np.maximum(F(omega)[1:], 0.0)


def _multipliers(G: Array, k: Array, q: Array, c: float, nu: Array) -> Array:
    """The ν in [0, c]^M that maximises min_ω F̄_0 + Σ ν_m F̄_m: a Newton method with projection (Bertsekas 1982).

    G the Gram matrix of the linear parts, k the constants, q the curvatures. The slope of the dual in ν_m is
    F̄_m(ω(ν)), its curvature -(∇F̄_m·∇F̄_l)/2σ; both follow from G.
    """

    def look(nu: Array) -> tuple[float, Array, Array, Array]:
        """The negative dual, its gradient and Hessian, and the size of what the gradient is a difference of."""
        x = np.concatenate([[1.0], nu])
        sigma, Gx = float(q @ x), G @ x
        b = -Gx / (2 * sigma)  # linear_m·ω
        squared = max(float(x @ Gx), 0.0) / (4 * sigma**2)  # ‖ω‖²
        F = k + b + q * squared
        cross = np.multiply.outer(q, b)
        inner = G + 2 * (cross + cross.T) + 4 * squared * np.multiply.outer(q, q)  # ∇F̄_m·∇F̄_l
        scale = np.abs(k) + np.abs(b) + q * squared
        return sigma * squared - float(k @ x), -F[1:], inner[1:, 1:] / (2 * sigma), scale[1:]

    value, g, H, scale = look(nu)
    for _ in range(_STEPS):
        held = ((nu <= 0) & (g > 0)) | ((nu >= c) & (g < 0))
        if (held | (np.abs(g) <= _EXACT * scale)).all():
            break
        free = ~held
        damp = 1e-14 * np.trace(H) + np.finfo(np.float64).tiny
        step = np.zeros_like(nu)
        step[free] = -np.linalg.solve(H[np.ix_(free, free)] + damp * np.eye(int(free.sum())), g[free])
        length = 1.0
        while length > 1e-12:
            trial = np.clip(nu + length * step, 0.0, c)
            found = look(trial)
            if found[0] <= value + 1e-4 * float(g @ (trial - nu)):
                break
            length /= 2
        else:
            trial = _coordinate(G, k, q, c, nu)
            found = look(trial)
        if (trial == nu).all() or found[0] > value:
            break
        nu, (value, g, H, scale) = trial, found
    return nu


def _coordinate(G: Array, k: Array, q: Array, c: float, nu: Array) -> Array:
    """Each ν_m in turn, exactly, the others held (Lemma 1 is this for M = 1): for where Newton's step does not descend.

    With u = σ the negative dual in ν_m is (α + γu²)/4u plus a line, so that u² = α / (γ - 4k_m q_m) where it is least.
    """
    nu = nu.copy()
    for m in range(1, len(k)):
        x = np.concatenate([[1.0], nu])
        x[m] = 0.0
        p, N, cross = float(q @ x), float(x @ G @ x), float(G[m] @ x)
        if q[m] == 0:
            best = (2 * p * k[m] - cross) / G[m, m] if G[m, m] > 0 else (c if k[m] > 0 else 0.0)
        else:
            gamma = G[m, m] / q[m] ** 2
            alpha = N - 2 * cross * p / q[m] + gamma * p**2
            slope = gamma - 4 * k[m] / q[m]
            best = (np.sqrt(max(alpha, 0.0) / slope) - p) / q[m] if slope > 0 else c  # (45)
        nu[m - 1] = min(max(best, 0.0), c)
    return nu
