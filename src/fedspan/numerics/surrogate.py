"""Running convex surrogates of an objective and M constraints, and the convex problem that a server solves with them.

Notation: F̄_m(ω) = constant_m + linear_m·ω + curvature_m ‖ω‖², m = 0 the objective, m = 1..M the constraints F_m ≤ 0;
ω (d,), τ_m the curvature of a sample's own surrogate, ρ the weight of the newest samples, c the price of a slack s_m,
ν_m in [0, c] the multiplier of constraint m, σ(ν) = curvature·(1, ν).

All curvatures are multiples of the identity. So the minimiser for given multipliers is ω(ν) = -linearᵀ(1, ν) / 2σ(ν),
and what is left is a concave problem in M numbers over a box (mini-batch SSCA leaves it to an interior-point method in
d). It needs the Gram matrix of the M+1 linear parts only: one pass over them, whatever d is.

The answer certifies itself. A feasible pair (ω, ν) has a primal value P(ω) = F̄_0(ω) + c Σ max(F̄_m(ω), 0) and a dual
value D(ν) = F̄_0(ω(ν)) + Σ ν_m F̄_m(ω(ν)), and D(ν) ≤ minimum ≤ P(ω) whatever the solver did.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from fedspan._types import Array
from fedspan.errors import InputError

_EPS = float(np.finfo(np.float64).eps)
_SMALLEST = float(np.finfo(np.float64).tiny)
CERTIFIED = 1e-9  # a relative duality gap up to this is a solution
_AIM = 1e-10  # the relative gap that is aimed at
_NEWTON_STEPS = 500  # Newton steps at most; a dozen is usual
_FLAT = 1e-200  # curvature below which the dual is a plane
_HALVINGS = 40  # of a step that does not ascend
_MARGINS = (0.0, 2.0, 8.0, 64.0, 512.0)  # how far inside its constraints ω is sought, in rounding errors
_CLEAR = 1e-8  # relative size of a constraint's value that is surely not zero


@dataclass(frozen=True)
class Surrogate:
    """M+1 quadratic functions of ω whose curvature is the same in all directions."""

    constant: Array  # (M+1,)
    linear: Array  # (M+1, d)
    curvature: Array  # (M+1,)

    def __call__(self, omega: Array) -> Array:
        """F̄_0(ω) .. F̄_M(ω)."""
        return self.constant + self.linear @ omega + self.curvature * (omega @ omega)


def zero_surrogate(M: int, d: int) -> Surrogate:
    """F̄⁽⁰⁾ = 0."""
    return Surrogate(np.zeros(M + 1), np.zeros((M + 1, d)), np.zeros(M + 1))


def blend_surrogate(old: Surrogate, rho: float, values: Array, slopes: Array, omega: Array, tau: Array) -> Surrogate:
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


@dataclass(frozen=True)
class Minimum:
    """The solution of the server's problem, with the two values that prove it."""

    omega: Array  # (d,)
    nu: Array  # (M,) multipliers, in [0, c]
    slack: Array  # (M,)
    primal: float  # F̄_0(ω) + c Σ s_m: the minimum is at most this
    dual: float  # and at least this
    gap: float  # primal - dual at most, if each function's value is off by its rounding

    @property
    def relative_gap(self) -> float:
        """The gap over the larger of the two values."""
        return self.gap / max(abs(self.primal), abs(self.dual), _SMALLEST) if self.gap else 0.0

    @property
    def certified(self) -> bool:
        """Whether this is the minimum to nine digits."""
        return self.relative_gap <= CERTIFIED


def minimise(F: Surrogate, c: float) -> Minimum:
    """Solve Problems 2, 5, 7, 10: min F̄_0(ω) + c Σ s_m subject to F̄_m(ω) ≤ s_m, s_m ≥ 0.

    A large price c turns a violation of rounding size into a large primal value. So where the plain solution is not
    certified, ω is sought a few rounding errors inside its constraints. If nothing is certified, the best one says so.
    """
    if not F.curvature[0] > 0 or (F.curvature < 0).any():
        raise InputError(
            f"The objective must be strongly convex and the constraints convex, but the curvatures are {F.curvature}."
        )
    best = _evaluate(F, c, np.zeros(len(F.constant) - 1))
    if best.gap == 0:  # no constraint binds
        return best
    units = _Units.of(F)
    for margin in _MARGINS:
        k = F.constant.copy()
        k[1:] += margin * _roundings(F, best.omega)[1:]
        nu = np.clip(units.multipliers(k, c), 0.0, c)
        for found in (_evaluate(F, c, nu), _evaluate(F, c, _snap(F, c, nu))):
            if found.gap <= best.gap or found.relative_gap <= _AIM:  # so the exact ends of the box are preferred
                best = found
        if best.relative_gap <= _AIM:
            break
    return best


def _evaluate(F: Surrogate, c: float, nu: Array) -> Minimum:
    """ω(ν) and both values there."""
    omega = _minimiser(F, nu)
    values, off = F(omega), _roundings(F, omega)[1:]
    slack = np.maximum(values[1:], 0.0)
    primal = float(values[0] + c * slack.sum())
    gap = (c - nu) @ np.maximum(values[1:] + off, 0.0) + nu @ np.maximum(off - values[1:], 0.0)
    return Minimum(omega, nu, slack, primal, primal - float(gap), float(gap))


def _minimiser(F: Surrogate, nu: Array) -> Array:
    """ω(ν): (10), (24), (38), (39), (43), (44)."""
    x = np.concatenate([[1.0], nu])
    omega: Array = x @ F.linear
    omega *= -1 / (2 * float(F.curvature @ x))
    return omega


def _term_sizes(F: Surrogate, omega: Array) -> Array:
    """(M+1,) the size of what each function's value at ω is a sum of."""
    return np.abs(F.constant) + np.linalg.norm(F.linear, axis=1) * np.linalg.norm(omega) + F.curvature * (omega @ omega)


def _roundings(F: Surrogate, omega: Array) -> Array:
    """(M+1,) how far the computed values at ω may be off: the errors of d terms add up like a random walk."""
    return _EPS * (4 + np.sqrt(len(omega)) / 8) * _term_sizes(F, omega)


def _snap(F: Surrogate, c: float, nu: Array) -> Array:
    """Multipliers at the ends of their box, exactly, where the constraint is clearly kept or clearly broken."""
    omega = _minimiser(F, nu)
    values, sizes = F(omega)[1:], _term_sizes(F, omega)[1:]
    return np.where(values < -_CLEAR * sizes, 0.0, np.where(values > _CLEAR * sizes, c, nu))


@dataclass(frozen=True)
class _Units:
    """The problem in units in which functions and ω are about one: F̄_m = a_m F̃_m, ω = R ω̃, ν_m = ν̃_m a_0 / a_m."""

    a: Array  # (M+1,)
    G: Array  # (M+1, M+1) Gram matrix of the linear parts
    q: Array  # (M+1,) curvatures

    @classmethod
    def of(cls, F: Surrogate) -> _Units:
        G = F.linear @ F.linear.T
        lengths = np.sqrt(np.diag(G))
        # How far ω goes: to the objective's minimiser, and from 0 to a constraint's boundary or minimiser.
        R = lengths[0] / (2 * F.curvature[0])
        for k, length, q in zip(F.constant[1:], lengths[1:], F.curvature[1:], strict=True):
            if length > 0:
                R = max(R, min(abs(k) / length, length / (2 * q) if q > 0 else np.inf))
        R = R if R > 0 else 1.0
        a = np.abs(F.constant) + lengths * R + F.curvature * R**2
        a[0] -= abs(F.constant[0])
        a[a == 0] = 1.0
        return cls(a, G * R**2 / np.multiply.outer(a, a), F.curvature * R**2 / a)

    def multipliers(self, k: Array, c: float) -> Array:
        """(M,) the maximiser of the dual in the problem's own units."""
        solve = _lemma_1 if len(k) == 2 else _maximise_dual
        return solve(self.G, k / self.a, self.q, c * self.a[1:] / self.a[0]) * self.a[0] / self.a[1:]


@dataclass(frozen=True)
class _Dual:
    """min_ω F̄_0 + Σ ν_m F̄_m at one ν, from the Gram matrix G of the linear parts, constants k and curvatures q."""

    G: Array
    k: Array
    q: Array
    nu: Array

    @cached_property
    def sigma(self) -> float:
        return float(self.q[0] + self.q[1:] @ self.nu)

    @cached_property
    def products(self) -> Array:
        """(M+1,) linear_m·ω(ν)."""
        return -(self.G[0] + self.nu @ self.G[1:]) / (2 * self.sigma)

    @cached_property
    def squared(self) -> float:
        """‖ω(ν)‖²."""
        return max(-float(self.products[0] + self.nu @ self.products[1:]), 0.0) / (2 * self.sigma)

    @cached_property
    def slope(self) -> Array:
        """(M,) of the dual: the constraints' values F̄_m(ω(ν))."""
        return (self.k + self.products + self.q * self.squared)[1:]

    @cached_property
    def bend(self) -> Array:
        """(M, M) minus the dual's second derivative: (∇F̄_m·∇F̄_l)/2σ."""
        cross = np.multiply.outer(self.q, self.products)
        inner = self.G + 2 * (cross + cross.T) + 4 * self.squared * np.multiply.outer(self.q, self.q)
        return inner[1:, 1:] / (2 * self.sigma)

    @cached_property
    def sizes(self) -> Array:
        """(M,) the sizes of what the slope is a sum of."""
        return (np.abs(self.k) + np.abs(self.products) + self.q * self.squared)[1:]

    def gain(self, step: Array) -> float:
        """How much larger the dual is at ν + step, without the rounding errors of a difference of two values."""
        turned = float(self.q[1:] @ step)
        sigma = self.sigma + turned
        other = self.products[1:] + self.q[1:] * self.squared
        curved = float(step @ self.G[1:, 1:] @ step) / (4 * sigma)
        return float(self.slope @ step) - turned / sigma * float(step @ other) - curved


def _maximise_dual(G: Array, k: Array, q: Array, c: Array) -> Array:
    """The ν in [0, c] that maximises the dual: a Newton method with projection (Bertsekas 1982)."""
    dual = _Dual(G, k, q, np.zeros(len(c)))
    for _ in range(_NEWTON_STEPS):
        nu, F = dual.nu, dual.slope
        free = ~(((nu <= 0) & (F < 0)) | ((nu >= c) & (F > 0)))
        if (np.abs(F[free]) <= 8 * _EPS * dual.sizes[free]).all():
            break
        step = np.zeros_like(nu)
        step[free] = _newton_step(dual.bend[np.ix_(free, free)], F[free])
        for _ in range(_HALVINGS):
            moved = np.clip(nu + step, 0.0, c) - nu
            gain = dual.gain(moved)
            if gain >= 1e-4 * float(F @ moved) > 0:
                break
            step /= 2
        else:
            moved = _ascend_coordinates(dual, c) - nu
            gain = dual.gain(moved)
        if gain <= 0:
            break
        dual = replace(dual, nu=np.clip(nu + moved, 0.0, c))
    return dual.nu


def _newton_step(H: Array, F: Array) -> Array:
    """The step to F̄ = 0, with the matrix scaled to a diagonal of ones; a constraint may occur twice."""
    s = 1 / np.sqrt(np.maximum(np.diag(H), _FLAT))
    return s * np.linalg.solve(H * np.multiply.outer(s, s) + 64 * _EPS * np.eye(len(s)), s * F)


def _ascend_coordinates(dual: _Dual, c: Array) -> Array:
    """Maximise over one ν_m after the other, exactly: where Newton's step does not ascend."""
    nu = dual.nu.copy()
    for m in range(len(nu)):
        x = np.concatenate([[1.0], nu])
        x[m + 1] = 0.0
        rest = x @ dual.G
        two = np.array([[x @ rest, rest[m + 1]], [rest[m + 1], dual.G[m + 1, m + 1]]])
        k, q = (np.array([x @ parts, parts[m + 1]]) for parts in (dual.k, dual.q))
        nu[m] = _lemma_1(two, k, q, c[m : m + 1])[0]
    return nu


def _lemma_1(G: Array, k: Array, q: Array, c: Array) -> Array:
    """The multiplier of one constraint, in closed form: (45), for any objective and not only ‖ω‖².

    With u = σ(ν) the negative dual is (α + γu²)/4u plus a line of slope -k_1/q_1, least at u² = α / (γ - 4k_1/q_1).
    """
    if q[1] == 0:  # a line: the dual is quadratic
        best = (2 * q[0] * k[1] - G[0, 1]) / G[1, 1] if G[1, 1] > 0 else np.inf * np.sign(k[1])
    else:
        gamma = G[1, 1] / q[1] ** 2
        alpha = max(G[0, 0] - 2 * G[0, 1] * q[0] / q[1] + gamma * q[0] ** 2, 0.0)
        slope = gamma - 4 * k[1] / q[1]
        best = (np.sqrt(alpha / slope) - q[0]) / q[1] if slope > 0 else np.inf
    return np.clip([best], 0.0, c)
