"""The low-rank guess against a dense eigendecomposition, and its corrections against dense solves."""

from __future__ import annotations

import numpy as np
import pytest

from fedspan.numerics.precondition import corrections, low_rank_sum, low_rank_sum_at_once


@pytest.fixture
def factors() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    found = [rng.normal(size=(30, 4)) for _ in range(3)]
    return [*found, found[0]]  # the last brings nothing new: 12 directions of 16 columns


@pytest.mark.parametrize("join", [lambda F: low_rank_sum(F, most=99), low_rank_sum_at_once], ids=["in turn", "at once"])
def test_the_guess_is_the_sum_of_the_factors_squares(factors, join) -> None:
    P, lam = join(factors)
    M = sum(F @ F.T for F in factors)
    assert len(lam) == 12
    np.testing.assert_allclose(lam, np.linalg.eigvalsh(M)[::-1][:12], rtol=1e-10)
    np.testing.assert_allclose(P.T @ P, np.eye(12), atol=1e-9)
    np.testing.assert_allclose((P * lam) @ P.T, M, atol=1e-9 * lam[0])


def test_a_cut_keeps_the_leading_directions(factors) -> None:
    P, lam = low_rank_sum(factors[:1], most=2)
    w, U = np.linalg.eigh(factors[0] @ factors[0].T)
    np.testing.assert_allclose(lam, w[::-1][:2], rtol=1e-10)
    np.testing.assert_allclose(np.abs(np.sum(P * U[:, ::-1][:, :2], axis=0)), 1, rtol=1e-10)


def test_corrections_are_those_of_dense_solves(factors) -> None:
    P, lam = low_rank_sum_at_once(factors)
    theta, R = np.array([2.5 * lam[0], 0.3 * lam[-1]]), np.random.default_rng(1).normal(size=(30, 2))
    dense = [np.linalg.solve((P * lam) @ P.T - t * np.eye(30), R[:, j]) for j, t in enumerate(theta)]
    np.testing.assert_allclose(corrections(R, theta, P, lam), np.column_stack(dense), rtol=1e-8)
    near = corrections(R, lam[:2] * (1 + 1e-12), P, lam)  # held: no division by next to nothing
    assert np.abs(near).max() < 1e4 * np.abs(R).max() / lam[1]
