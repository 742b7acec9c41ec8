"""Rayleigh-Ritz and the growing basis, by their defining properties."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedspan.numerics.orthonormal import largest_angle, random_orthonormal
from fedspan.numerics.rayleigh_ritz import extension, rayleigh_ritz


def symmetric(seed: int, d: int) -> np.ndarray:
    A = np.random.default_rng(seed).normal(size=(2 * d, d)) * 0.7 ** np.arange(d)
    return A.T @ A


sizes = st.tuples(st.integers(0, 50), st.integers(1, 12), st.integers(1, 12), st.integers(1, 12)).map(
    lambda t: (t[0], max(t[1:]), sorted(t[1:])[1], min(t[1:]))
)  # (seed, d, m, k) with k ≤ m ≤ d


@given(sizes)
def test_ritz_pairs_solve_the_projected_problem(size: tuple[int, int, int, int]) -> None:
    seed, d, m, k = size
    M, Q = symmetric(seed, d), random_orthonormal(np.random.default_rng(seed), d, m)
    theta, S, R = rayleigh_ritz(Q, M @ Q, k)
    scale = np.linalg.norm(M)
    assert (np.diff(theta) <= 0).all()
    np.testing.assert_allclose(S.T @ S, np.eye(m), atol=1e-13)
    np.testing.assert_allclose(Q.T @ M @ Q @ S, S * theta, atol=1e-13 * scale)
    Z = Q @ S[:, :k]
    np.testing.assert_allclose(R, M @ Z - Z * theta[:k], atol=1e-13 * scale)
    np.testing.assert_allclose(R, (np.eye(d) - Z @ Z.T) @ M @ Z, atol=1e-13 * scale)
    np.testing.assert_allclose(Q.T @ R, 0, atol=1e-13 * scale)


@given(sizes)
def test_on_the_whole_space_ritz_values_are_eigenvalues_and_residuals_vanish(size: tuple[int, int, int, int]) -> None:
    seed, d, _, k = size
    M, Q = symmetric(seed, d), random_orthonormal(np.random.default_rng(seed), d, d)
    theta, _, R = rayleigh_ritz(Q, M @ Q, k)
    np.testing.assert_allclose(theta, np.linalg.eigvalsh(M)[::-1], atol=1e-12 * np.linalg.norm(M))
    assert np.linalg.norm(R) <= 1e-12 * np.linalg.norm(M)


def extend(Q: np.ndarray, AQ: np.ndarray, V: np.ndarray, Y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """As block Krylov grows its basis: M U from the products it has, by the map that made U."""
    U, L = extension(Q, V)
    np.testing.assert_allclose(np.hstack([Q, V]) @ L, U, atol=1e-5)
    return np.hstack([Q, U]), np.hstack([AQ, np.hstack([AQ, Y]) @ L])


def check_basis(M: np.ndarray, Q: np.ndarray, AQ: np.ndarray) -> None:
    np.testing.assert_allclose(Q.T @ Q, np.eye(Q.shape[1]), atol=1e-14)
    np.testing.assert_allclose(AQ, M @ Q, atol=1e-12 * np.linalg.norm(M))


@settings(max_examples=40)
@given(sizes, st.integers(1, 4))
def test_a_growing_basis_stays_orthonormal_and_keeps_its_products(size: tuple[int, int, int, int], blocks: int) -> None:
    seed, d, _, k = size
    M, rng = symmetric(seed, d), np.random.default_rng(seed)
    Q = AQ = np.zeros((d, 0))
    span = np.zeros((d, 0))
    for _ in range(blocks):
        V = rng.normal(size=(d, min(k, d))) * 10.0 ** rng.integers(-150, 150)
        Q, AQ = extend(Q, AQ, V, M @ V)
        span = np.hstack([span, V / np.linalg.norm(V)])
        check_basis(M, Q, AQ)
    assert Q.shape[1] == min(d, blocks * k)
    assert largest_angle(Q, np.linalg.qr(span)[0][:, : Q.shape[1]]) < 1e-6


def test_directions_that_are_known_or_zero_or_dependent_are_dropped() -> None:
    d, rng = 9, np.random.default_rng(0)
    M = symmetric(0, d)
    Q, AQ = extend(np.zeros((d, 0)), np.zeros((d, 0)), V := rng.normal(size=(d, 3)), M @ V)
    new = rng.normal(size=(d, 1))
    V = np.hstack([Q[:, :1], new, np.zeros((d, 1)), 2 * new, Q[:, 1:2] + new, Q @ np.ones((3, 1))])
    Q, AQ = extend(Q, AQ, V, M @ V)
    assert Q.shape[1] == 4
    check_basis(M, Q, AQ)
    assert np.linalg.norm(new - Q @ (Q.T @ new)) < 1e-13 * np.linalg.norm(new)


@pytest.mark.parametrize("known", [0, 2, 5])
def test_nothing_new_adds_no_columns(known: int) -> None:
    Q = random_orthonormal(np.random.default_rng(0), 5, 5)[:, :known]
    for V in (Q[:, ::-1], 2 * Q, np.zeros((5, 3)), np.zeros((5, 0))):
        U, L = extension(Q, V)
        assert U.shape == (5, 0)
        assert L.shape == (known + V.shape[1], 0)


def test_a_direction_nearly_in_the_span_is_still_made_orthogonal() -> None:
    """One pass of Gram-Schmidt would leave 1e-16 / 1e-8 of the old directions in the new one."""
    d, rng = 30, np.random.default_rng(2)
    M, Q = symmetric(2, d), random_orthonormal(rng, d, 10)
    V = Q @ rng.normal(size=(10, 2)) + 1e-8 * rng.normal(size=(d, 2))
    Q, AQ = extend(Q, M @ Q, V, M @ V)
    assert Q.shape[1] == 12
    np.testing.assert_allclose(Q.T @ Q, np.eye(12), atol=1e-14)
    np.testing.assert_allclose(AQ, M @ Q, atol=1e-6 * np.linalg.norm(M))  # the map that makes V new magnifies by 1e8


@pytest.mark.parametrize("rank", [1, 3])
def test_a_krylov_space_ends_at_the_rank(rank: int) -> None:
    d, rng = 8, np.random.default_rng(rank)
    A = rng.normal(size=(rank, d))
    M, V = A.T @ A, rng.normal(size=(d, 2))
    Q = AQ = np.zeros((d, 0))
    for _ in range(8):
        Q, AQ = extend(Q, AQ, V, M @ V)
        V = rayleigh_ritz(Q, AQ, 2).R
        V = np.where(np.abs(V) > 1e-13 * np.linalg.norm(M), V, 0.0)
    assert Q.shape[1] <= rank + 2
    check_basis(M, Q, AQ)
