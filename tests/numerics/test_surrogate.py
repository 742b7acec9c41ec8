"""The surrogates against their definition; the box dual against Clarabel, Lemma 1 and its own certificate."""

from __future__ import annotations

import warnings

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedspan.errors import InputError
from fedspan.numerics import surrogate
from fedspan.numerics.surrogate import Surrogate, blend_surrogate, minimise, zero_surrogate


def clarabel(F: Surrogate, c: float) -> tuple[np.ndarray, float]:
    """Problem 5 as an interior-point method solves it, with one cone for ‖ω‖²: as exactly as it can."""
    M, d = len(F.constant) - 1, F.linear.shape[1]
    w, s, r = cp.Variable(d), cp.Variable(M), cp.Variable()
    f = [F.constant[m] + F.linear[m] @ w + F.curvature[m] * r for m in range(M + 1)]
    rules = [s >= 0, cp.sum_squares(w) <= r, *(f[m] <= s[m - 1] for m in range(1, M + 1))]
    problem = cp.Problem(cp.Minimize(f[0] + c * cp.sum(s)), rules)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it stops short of 1e-11
        problem.solve(cp.CLARABEL, tol_gap_abs=1e-11, tol_gap_rel=1e-11, tol_feas=1e-11)
    return w.value, problem.value


def random_surrogate(rng: np.random.Generator, M: int, d: int, shift: float) -> Surrogate:
    constant = np.concatenate([rng.normal(size=1), shift + rng.normal(size=M)])
    return Surrogate(constant, rng.normal(size=(M + 1, d)), rng.uniform(0.05, 1.0, size=M + 1))


def primal_and_dual(F: Surrogate, c: float, omega: np.ndarray, nu: np.ndarray) -> tuple[float, float]:
    """Both values by their definitions, in twice the digits where the platform has them."""
    k, L, q, w = (np.asarray(part, dtype=np.longdouble) for part in (F.constant, F.linear, F.curvature, omega))
    values = k + L @ w + q * (w @ w)
    x = np.concatenate([[1.0], nu]).astype(np.longdouble)
    combined = x @ L
    dual = x @ k - combined @ combined / (4 * (q @ x))
    return float(values[0] + c * np.maximum(values[1:], 0).sum()), float(dual)


@pytest.mark.parametrize("seed", range(12))
def test_three_constraints_as_clarabel_solves_them(seed: int) -> None:
    """Feasible, binding and infeasible ones (where slacks are positive), alike and unlike gradients."""
    rng = np.random.default_rng(seed)
    F = random_surrogate(rng, 3, 40, shift=(-2.0, 1.0, 4.0)[seed % 3])
    if seed % 4 == 3:  # nearly dependent constraints
        F.linear[2] = F.linear[1] + 1e-3 * rng.normal(size=40)
    c = (5.0, 1e5)[seed % 2]
    least = minimise(F, c)
    want, value = clarabel(F, c)
    assert least.certified
    assert least.primal == pytest.approx(value, rel=1e-6, abs=1e-6)
    np.testing.assert_allclose(least.omega, want, atol=1e-6 * max(1.0, np.abs(want).max()))
    assert ((least.nu >= 0) & (least.nu <= c)).all()


KINDS = ("plain", "nearly the same", "nearly opposite", "the same twice", "some straight", "of unlike size", "norm")


def hard_surrogate(rng: np.random.Generator, kind: str) -> Surrogate:
    """One to six constraints whose gradients, sizes or curvatures make the dual ill-conditioned."""
    M = int(rng.integers(1, 7))
    F = random_surrogate(rng, M, M + int(rng.integers(0, 40)), rng.uniform(-3, 6))
    k, L, q = F.constant, F.linear, F.curvature
    near = 10.0 ** -rng.integers(1, 12) * rng.normal(size=L.shape[1])
    if kind == "nearly the same" and M > 1:
        L[2] = L[1] + near
    elif kind == "nearly opposite" and M > 1:
        L[2] = -L[1] + near
    elif kind == "the same twice" and M > 1:
        k[2], L[2], q[2] = k[1], L[1], q[1]
    elif kind == "some straight":
        q[1:] *= rng.integers(0, 2, size=M)
    elif kind == "of unlike size":
        sizes = 10.0 ** rng.uniform(-6, 6, size=M + 1)
        k, L, q = k * sizes, L * sizes[:, None], q * sizes
    elif kind == "norm":
        unit = 10.0 ** rng.uniform(-6, 6)
        k[0], L[0], L, q = 0.0, 0.0, L * unit, q * unit**2
        L[0] = 0.0
    return Surrogate(k, L, q)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("c", [1.0, 1e3, 1e5, 1e8])
def test_every_solution_is_certified_by_its_duality_gap(kind: str, c: float) -> None:
    """The gap is computed here from ω and ν, by other formulas than the solver's."""
    for seed in range(20):
        rng = np.random.default_rng([seed, KINDS.index(kind), int(c)])
        F = hard_surrogate(rng, kind)
        least = minimise(F, c)
        assert least.certified, f"seed {seed}: relative gap {least.relative_gap:.1e}"
        primal, dual = primal_and_dual(F, c, least.omega, least.nu)
        assert primal - dual <= 1e-9 * max(abs(primal), abs(dual))
        assert ((least.nu >= 0) & (least.nu <= c)).all()


def test_a_solver_that_stops_early_is_not_certified(monkeypatch: pytest.MonkeyPatch) -> None:
    """The certificate does not come from the solver: with one Newton step it tells that the answer is wrong."""
    F = random_surrogate(np.random.default_rng(1), 3, 40, shift=1.0)
    good = minimise(F, 1e5)
    assert good.certified
    monkeypatch.setattr(surrogate, "_NEWTON_STEPS", 1)
    cut = minimise(F, 1e5)
    assert not cut.certified
    assert cut.dual <= good.primal * (1 + 1e-9)
    assert cut.primal >= good.dual * (1 - 1e-9)
    assert cut.primal - cut.dual > 1e-3


@given(st.integers(0, 10**6), st.integers(1, 6), st.floats(-3, 6), st.sampled_from([1.0, 1e3, 1e5]))
@example(0, 5, 0.0, 1e3)  # ν was 1e3 less a rounding
@settings(max_examples=100)
def test_the_multipliers_fulfil_the_optimality_conditions(seed: int, M: int, shift: float, c: float) -> None:
    rng = np.random.default_rng(seed)
    F = random_surrogate(rng, M, M + int(rng.integers(0, 4)), shift)
    least = minimise(F, c)
    omega, nu = least.omega, least.nu
    x = np.concatenate([[1.0], nu])
    values = F(omega)
    size = 1 + np.abs(F.constant) + np.abs(F.linear @ omega) + F.curvature * (omega @ omega)
    np.testing.assert_allclose(2 * (F.curvature @ x) * omega, -x @ F.linear, rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(least.slack, np.maximum(values[1:], 0))  # the same call of F on the same ω
    for m in range(M):
        if nu[m] < c:
            assert values[m + 1] <= 1e-7 * size[m + 1]  # feasible, unless the price is all paid
        if nu[m] > 0:
            assert values[m + 1] >= -1e-7 * size[m + 1]  # a multiplier only where the constraint binds


@pytest.mark.parametrize("c", [0.3, 1e5])
@pytest.mark.parametrize("bound", [-1.0, 0.13, 40.0])
def test_lemma_1_is_the_case_of_one_constraint_on_the_norm(bound: float, c: float) -> None:
    rng = np.random.default_rng(0)
    A, C, tau = rng.normal(size=30), 1.7, 0.05
    least = minimise(Surrogate(np.array([0.0, C - bound]), np.stack([0 * A, A]), np.array([1.0, tau])), c)
    b = A @ A
    room = b + 4 * tau * (bound - C)
    want = min(max((np.sqrt(b / room) - 1) / tau, 0.0), c) if room > 0 else c  # (45)
    assert least.nu[0] == pytest.approx(want, rel=1e-8)
    np.testing.assert_allclose(least.omega, -want * A / (2 * (1 + want * tau)), rtol=1e-8)  # (43), (44)


def test_without_constraints_it_is_the_closed_form() -> None:
    F = random_surrogate(np.random.default_rng(1), 0, 5, 0.0)
    least = minimise(F, 1e5)
    np.testing.assert_allclose(least.omega, -F.linear[0] / (2 * F.curvature[0]), rtol=1e-14)  # (10)
    assert least.nu.shape == least.slack.shape == (0,)
    assert least.certified


def test_coordinate_steps_end_where_newton_does() -> None:
    """The fallback is exact by itself."""
    F = random_surrogate(np.random.default_rng(5), 3, 20, 1.0)
    want, G, c = minimise(F, 100.0).nu, F.linear @ F.linear.T, np.full(3, 100.0)
    nu = np.zeros(3)
    for _ in range(2000):
        nu = surrogate._ascend_coordinates(surrogate._Dual(G, F.constant, F.curvature, nu), c)
    np.testing.assert_allclose(nu, want, rtol=1e-6)


def test_the_gain_of_a_step_is_the_difference_of_two_values() -> None:
    F = random_surrogate(np.random.default_rng(6), 4, 9, 1.0)
    nu, step = np.array([0.3, 2.0, 0.1, 0.7]), np.array([0.4, -1.0, 0.2, 0.5])
    dual = surrogate._Dual(F.linear @ F.linear.T, F.constant, F.curvature, nu)
    values = [primal_and_dual(F, 1.0, np.zeros(9), multipliers)[1] for multipliers in (nu, nu + step)]
    assert dual.gain(step) == pytest.approx(values[1] - values[0], rel=1e-12)


def test_a_surrogate_is_the_weighted_mean_of_the_samples_surrogates() -> None:
    """(3) and (14) by their definition, with F̄⁽⁰⁾ = 0."""
    rng = np.random.default_rng(2)
    F, tau, probe = zero_surrogate(2, 4), np.array([1.0, 0.05, 0.2]), rng.normal(size=4)
    want = np.zeros(3)
    for rho in (1.0, 0.7, 0.2):
        values, slopes, omega = rng.normal(size=3), rng.normal(size=(3, 4)), rng.normal(size=4)
        F = blend_surrogate(F, rho, values, slopes, omega, tau)
        step = probe - omega
        want = (1 - rho) * want + rho * (values + slopes @ step + tau * (step @ step))
    np.testing.assert_allclose(F(probe), want, rtol=1e-12)


def test_the_norm_is_its_own_surrogate() -> None:
    omega = np.random.default_rng(3).normal(size=6)
    F = blend_surrogate(zero_surrogate(0, 6), 1.0, np.array([omega @ omega]), 2 * omega[None], omega, np.ones(1))
    np.testing.assert_allclose(F(2 * omega + 1), (2 * omega + 1) @ (2 * omega + 1))


def test_an_objective_without_curvature_is_refused() -> None:
    with pytest.raises(InputError, match="strongly convex"):
        minimise(Surrogate(np.zeros(2), np.ones((2, 3)), np.array([0.0, 1.0])), 1.0)
