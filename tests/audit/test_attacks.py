"""The attacks: exact where they must succeed, and no better than a guess where they must fail."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from scipy.stats import binom, norm

from fedspan.audit.attacks import (
    Pairs,
    error,
    faps_fit,
    faps_leak,
    membership,
    mu_lower_bound,
)
from fedspan.errors import InputError


def basis(rng: np.random.Generator, d: int, k: int) -> np.ndarray:
    return np.linalg.qr(rng.normal(size=(d, k)))[0]


def gram(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    A = rng.normal(size=(n, d))
    return A.T @ A


def test_one_pair_in_closed_form() -> None:
    """Z = e_1: the first column, and by symmetry the first row, of M are known, the rest is 0."""
    M = np.array([[3.0, 1.0, 2.0], [1.0, 5.0, 4.0], [2.0, 4.0, 7.0]])
    pairs = Pairs(3)
    pairs.add(np.eye(3)[:, :1], M[:, :1])
    np.testing.assert_allclose(pairs.solve(), [[3, 1, 2], [1, 0, 0], [2, 0, 0]], atol=1e-14)
    assert (pairs.rank(), pairs.share()) == (1, 0.5)  # 3 of 6
    assert pairs.misfit(pairs.solve()) < 1e-14
    pairs.add(np.eye(3)[:, 1:2], M[:, 1:2])
    np.testing.assert_allclose(pairs.solve(), M * (1 - np.diag([0, 0, 1])), atol=1e-14)
    assert pairs.share() == pytest.approx(5 / 6)


def test_without_a_pair_nothing_is_known() -> None:
    pairs, M = Pairs(4), np.diag([1.0, 2, 3, 4])
    assert not pairs.solve().any()
    assert (pairs.rank(), pairs.share(), pairs.best(M)) == (0, 0.0, 1.0)


def test_the_solution_is_the_symmetric_least_squares_solution() -> None:
    """Against the normal equations of all d(d+1)/2 unknowns, by lstsq, with noisy answers and more than 2d of them."""
    rng, d = np.random.default_rng(0), 6
    M, pairs, rows, right = gram(rng, 20, d), Pairs(d), [], []
    units = []
    for i in range(d):
        for j in range(i, d):
            E = np.zeros((d, d))
            E[i, j] = E[j, i] = 1.0
            units.append(E)
    for _ in range(9):
        Z = basis(rng, d, 2)
        Y = M @ Z + 0.3 * rng.normal(size=(d, 2))
        pairs.add(Z, Y)
        rows.append(np.column_stack([(E @ Z).ravel() for E in units]))
        right.append(Y.ravel())
    x = np.linalg.lstsq(np.vstack(rows), np.concatenate(right), rcond=None)[0]
    want = sum(a * E for a, E in zip(x, units, strict=True))
    np.testing.assert_allclose(pairs.solve(), want, atol=1e-10)
    left = np.linalg.norm(np.vstack(rows) @ x - np.concatenate(right)) / np.linalg.norm(np.concatenate(right))
    assert pairs.misfit(pairs.solve()) == pytest.approx(left, rel=1e-8)


def test_the_minimum_norm_symmetric_solution_before_all_is_determined() -> None:
    """Against the pseudo-inverse, which takes the least norm too (entries off the diagonal count twice)."""
    rng, d = np.random.default_rng(1), 5
    M, pairs = gram(rng, 9, d), Pairs(d)
    Z = basis(rng, d, 2)
    pairs.add(Z, M @ Z)
    E = np.eye(d * d).reshape(d * d, d, d)
    sym = (E + E.transpose(0, 2, 1)) / 2
    A = np.column_stack([(e @ Z).ravel() for e in sym])
    x = np.linalg.pinv(A) @ (M @ Z).ravel()
    want = np.tensordot(x, sym, axes=1)
    np.testing.assert_allclose(pairs.solve(), want, atol=1e-10)
    P = np.eye(d) - Z @ Z.T
    assert error(pairs.solve(), M) == pytest.approx(np.linalg.norm(P @ M @ P) / np.linalg.norm(M))


def test_subspace_iteration_gives_the_matrix_away_once_the_span_is_full() -> None:
    """Proposition 2, with iterates that become nearly dependent: no digits may be lost to normal equations."""
    rng, d, k = np.random.default_rng(2), 60, 6
    M, other, pairs = gram(rng, 80, d), gram(rng, 500, d), Pairs(d)
    Z, errors = basis(rng, d, k), []
    for _ in range(12):
        pairs.add(Z, M @ Z)
        Z = np.linalg.qr((M + other) @ Z)[0]
        errors.append(pairs.best(M))
    assert errors[4] > 0.05
    assert errors[-1] < 1e-5
    assert pairs.share() == 1.0
    assert all(after <= before * (1 + 1e-6) for before, after in pairwise(errors))


def test_noise_of_the_size_of_the_answers_cannot_be_averaged_away() -> None:
    """And the error falls as 1/√rounds, as it must for a least-squares attacker: he uses every round."""
    rng, d = np.random.default_rng(3), 30
    M, loud, soft = gram(rng, 50, d), Pairs(d), Pairs(d)
    size, errors = np.linalg.norm(M) / d, []
    for t in range(400):
        Z, noise = basis(rng, d, 5), rng.normal(size=(d, 5))
        loud.add(Z, M @ Z + 20 * size * noise)
        soft.add(Z, M @ Z + 0.2 * size * noise)
        if t in (24, 399):
            errors.append((error(loud.solve(), M), error(soft.solve(), M)))
    assert errors[0][0] > 1
    assert errors[0][1] < 0.1
    for i in range(2):
        assert errors[0][i] / errors[1][i] == pytest.approx(4, rel=0.1)


def test_masks_leave_nothing() -> None:
    """Uniform numbers, as secure aggregation sends: the best cut is to use hardly anything."""
    rng, d = np.random.default_rng(4), 20
    M, pairs = gram(rng, 30, d), Pairs(d)
    for _ in range(10):
        pairs.add(basis(rng, d, 4), rng.integers(-(2**62), 2**62, size=(d, 4)).astype(float))
    assert pairs.best(M) > 1e6
    assert pairs.misfit(pairs.solve()) > 0.3


def test_a_prior_and_a_known_trace_fill_what_was_not_asked_for() -> None:
    rng, d, k = np.random.default_rng(5), 12, 3
    M, Z = gram(rng, 40, d), basis(rng, d, k)
    pairs, trace = Pairs(d), float(np.trace(M))
    np.testing.assert_allclose(pairs.solve(trace=trace), np.eye(d) * trace / d)  # a blind guess
    prior = M + np.diag(rng.normal(size=d))
    assert pairs.best(M, prior) == pytest.approx(error(prior, M))
    pairs.add(Z, M @ Z)
    P = np.eye(d) - Z @ Z.T
    assert pairs.best(M, prior) == pytest.approx(np.linalg.norm(P @ (M - prior) @ P) / np.linalg.norm(M))
    even = (trace - np.trace(Z.T @ M @ Z)) / (d - k) * P
    np.testing.assert_allclose(pairs.solve(trace=trace), M - P @ M @ P + even, atol=1e-10)
    assert pairs.best(M, trace=trace) < pairs.best(M)


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InputError, match=r"same shape \(4, k\), but have \(3, 2\) and \(3, 2\)"):
        Pairs(4).add(np.ones((3, 2)), np.ones((3, 2)))


def test_faps_shows_the_off_diagonal_block_and_beta_where_x_is_z() -> None:
    """The paper's start X_i = Z: Λ = XWᵀ + WXᵀ with W = -P⊥MZ, so Y = βZ + P⊥MZ: unmasked but for β."""
    rng, d, k, b = np.random.default_rng(7), 14, 3, 0.7
    M, Z = gram(rng, 30, d), basis(rng, d, k)
    W = Z @ (Z.T @ M @ Z) - M @ Z
    Y = b * Z - Z @ (W.T @ Z) - W
    leak = faps_leak(Z, Y, Z.T @ M @ Z)
    P = np.eye(d) - Z @ Z.T
    np.testing.assert_allclose(leak.off_diagonal, P @ M @ Z, atol=1e-10)
    assert leak.beta == pytest.approx(b)
    np.testing.assert_allclose(leak.M, M - P @ M @ P, atol=1e-10)
    full = faps_leak(Z, Y, Z.T @ M @ Z, float(np.trace(M))).M
    assert np.trace(full) == pytest.approx(np.trace(M))
    np.testing.assert_allclose((full - leak.M) @ Z, 0, atol=1e-10)


def split(M: np.ndarray, X: np.ndarray, Z: np.ndarray, b: float) -> np.ndarray:
    """Y of FAPS, (18) and (19)."""
    W = X @ (X.T @ M @ X) - M @ X
    return b * X @ (X.T @ Z) - X @ (W.T @ Z) - W @ (X.T @ Z)


def test_the_fit_of_all_rounds_is_the_weighted_least_squares_solution() -> None:
    """Against lstsq on all d(d+1)/2 unknowns; X is near Z in some rounds and far in others."""
    rng, d, k, b = np.random.default_rng(10), 7, 2, 3.0
    M, shown, left, right = gram(rng, 20, d), [], [], []
    units = [np.eye(d)[[i]].T @ np.eye(d)[[j]] for i in range(d) for j in range(i, d)]
    units = [(E + E.T) / 2 for E in units]
    raw = []
    for t in range(12):
        Z = basis(rng, d, k)
        X = np.linalg.qr(Z + 0.5 * (t % 3) * rng.normal(size=(d, k)))[0]
        Y, f = split(M, X, Z, b), float(np.trace(Z.T @ M @ Z))
        shown.append((Z, Y, f))
        H = Z.T @ Y
        raw.append(1 / max(np.linalg.norm(H - np.eye(k) * np.trace(H) / k), 1e-3 * np.linalg.norm(H)))
    for (Z, Y, f), w in zip(shown, np.array(raw) / max(raw), strict=True):
        P = np.eye(d) - Z @ Z.T
        left += [w * np.column_stack([(P @ E @ Z).ravel() for E in units])]
        left += [np.array([[np.sum(Z * (E @ Z)) / np.sqrt(k) for E in units]])]
        right += [w * (P @ Y).ravel(), np.array([f / np.sqrt(k)])]
    x = np.linalg.lstsq(np.vstack(left), np.concatenate(right), rcond=None)[0]
    want = sum(a * E for a, E in zip(x, units, strict=True))
    *_, found = faps_fit(shown, np.eye(d), steps=400)
    np.testing.assert_allclose(found, want, atol=1e-4 * np.linalg.norm(want))


def test_the_fit_recovers_the_matrix_if_the_mask_is_off_and_not_if_it_is_on() -> None:
    """With X = Z in all rounds the equations are exact, and enough rounds determine M: FAPS rests on X ≠ Z alone."""
    rng, d, k = np.random.default_rng(11), 10, 2
    M = gram(rng, 30, d)
    bare, masked = [], []
    for _ in range(20):
        Z = basis(rng, d, k)
        f = float(np.trace(Z.T @ M @ Z))
        bare.append((Z, split(M, Z, Z, 5.0), f))
        masked.append((Z, split(M, np.linalg.eigh(M)[1][:, -k:], Z, 5.0), f))
    even = np.eye(d) * np.trace(M) / d
    *_, found = faps_fit(bare, even)
    assert error(found, M) < 1e-6
    assert min(error(found, M) for found in faps_fit(masked, even)) > 0.5 * error(even, M)


def test_membership_without_noise_is_certain_and_with_noise_is_measured() -> None:
    rng, d = np.random.default_rng(8), 40
    M, Z, a = gram(rng, 60, d), basis(rng, d, 4), rng.normal(size=d)
    D = np.outer(a, a @ Z)
    with_row, without = M @ Z, M @ Z - D
    for seen, score in ((with_row, 0.5), (without, -0.5)):
        got = membership(seen, with_row, without)
        assert got.score == pytest.approx(score, abs=1e-9)
        assert got.mu > 1e9
    noise = 0.5 * np.linalg.norm(D)
    got = membership(with_row + noise * rng.normal(size=D.shape), with_row, without)
    assert got.mu == pytest.approx(2, rel=0.15)
    assert membership(with_row, without, without) == (0.0, 0.0)


def test_the_bound_on_mu_agrees_with_clopper_and_pearson() -> None:
    """The defining property: at the bounds themselves, the counts that were seen have the tail probability asked."""
    inside, outside = np.r_[np.ones(80), -np.ones(20)], np.r_[np.ones(10), -np.ones(90)]
    grid = np.linspace(0, 1, 200001)
    low = grid[np.searchsorted(binom.sf(79, 100, grid), 0.005)]
    high = grid[np.searchsorted(-binom.cdf(10, 100, grid), -0.005)]
    assert mu_lower_bound(inside, outside, 0.99) == pytest.approx(norm.ppf(low) - norm.ppf(high), abs=1e-4)


def test_the_bound_on_mu_holds_and_is_close() -> None:
    """Scores of a Gaussian mechanism of μ = 1.5: below it 99 times of 100, and not far below."""
    rng, mu = np.random.default_rng(9), 1.5
    found = [mu_lower_bound(rng.normal(mu / 2, 1, 4000), rng.normal(-mu / 2, 1, 4000), 0.99) for _ in range(200)]
    assert np.mean(np.array(found) > mu) <= 0.02
    assert np.median(found) > 1.35


def test_the_bound_on_mu_at_the_edges() -> None:
    ones = np.ones(500)
    assert mu_lower_bound(ones, -ones) == pytest.approx(2 * norm.ppf(0.005 ** (1 / 500)), rel=1e-9)
    assert mu_lower_bound(-ones, ones) == 0.0
    assert mu_lower_bound(ones, ones) == 0.0
    with pytest.raises(InputError, match="confidence must be between 0 and 1, but is 1"):
        mu_lower_bound(ones, ones, 1)
    with pytest.raises(InputError, match="at least one run"):
        mu_lower_bound(ones, np.zeros(0))
    with pytest.raises(InputError, match="finite scores"):
        mu_lower_bound(ones, np.array([np.nan]))
