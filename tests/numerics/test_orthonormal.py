"""Bases, signs and angles."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.decomposition import PCA
from sklearn.utils.extmath import svd_flip

from fedspan.numerics.orthonormal import (
    fix_signs,
    largest_angle,
    orthonormalize,
    polar,
    projection_distance,
    random_orthonormal,
)

sizes = st.tuples(st.integers(0, 99), st.integers(1, 10), st.integers(1, 10)).map(
    lambda t: (t[0], max(t[1:]), min(t[1:]))
)  # (seed, d, k) with k ≤ d


@given(sizes)
def test_orthonormal_is_the_q_of_the_qr_with_a_positive_diagonal(size: tuple[int, int, int]) -> None:
    seed, d, k = size
    Y = np.random.default_rng(seed).normal(size=(d, k))
    Q = orthonormalize(Y)
    R = Q.T @ Y
    np.testing.assert_allclose(Q.T @ Q, np.eye(k), atol=1e-14)
    np.testing.assert_allclose(Q @ R, Y, atol=1e-13)
    np.testing.assert_allclose(np.tril(R, -1), 0, atol=1e-13)
    assert (np.diagonal(R) > 0).all()
    np.testing.assert_allclose(orthonormalize(Q), Q, atol=1e-13)


@given(sizes)
def test_a_random_basis_is_orthonormal_and_named_by_its_stream(size: tuple[int, int, int]) -> None:
    """To the bit: the same operations on the same draws."""
    seed, d, k = size
    Q, same = (random_orthonormal(np.random.default_rng(seed), d, k) for _ in range(2))
    np.testing.assert_allclose(Q.T @ Q, np.eye(k), atol=1e-14)
    np.testing.assert_array_equal(Q, same)


@given(seed=st.integers(0, 99), data=st.data())
def test_signs_are_those_of_scikit_learn(seed: int, data: st.DataObject) -> None:
    """Whatever signs a solver returns, the components are those of PCA(svd_solver="full")."""
    X = np.random.default_rng(seed).normal(size=(30, 6))
    want = PCA(4, svd_solver="full").fit(X).components_
    flips = np.array(data.draw(st.lists(st.sampled_from([-1.0, 1.0]), min_size=4, max_size=4)))
    np.testing.assert_array_equal(fix_signs(want * flips[:, None]), want)
    U, _, Vt = np.linalg.svd(X - X.mean(axis=0), full_matrices=False)
    np.testing.assert_array_equal(fix_signs(Vt), svd_flip(U, Vt, u_based_decision=False)[1])  # only signs change


def test_a_row_of_zeros_has_no_sign() -> None:
    np.testing.assert_array_equal(fix_signs(np.zeros((2, 3))), np.zeros((2, 3)))


@pytest.mark.parametrize("angle", [1e-12, 1e-10, 1e-8, 1e-4, 0.3, np.pi / 2])
def test_angles_are_accurate_down_to_rounding(angle: float) -> None:
    """The arccosine of σ would read 0 for every angle below 1e-8."""
    turn = random_orthonormal(np.random.default_rng(0), 7, 7)
    U = turn[:, :2]
    V = np.column_stack([turn[:, 0], np.cos(angle) * turn[:, 1] + np.sin(angle) * turn[:, 2]])
    assert largest_angle(U, V) == pytest.approx(angle, rel=1e-3)
    assert projection_distance(U, V) == pytest.approx(np.sin(angle), rel=1e-3)


@given(sizes)
def test_a_subspace_has_no_angle_to_itself_in_another_basis(size: tuple[int, int, int]) -> None:
    seed, d, k = size
    rng = np.random.default_rng(seed)
    U, turn = random_orthonormal(rng, d, k), random_orthonormal(rng, k, k)
    assert largest_angle(U, U @ turn) < 1e-13
    assert projection_distance(U, U @ turn) < 1e-13


def test_the_polar_basis_spans_the_same_and_rests_on_an_invariant_subspace() -> None:
    rng = np.random.default_rng(0)
    Y = rng.normal(size=(9, 3))
    P = polar(Y)
    np.testing.assert_allclose(P.T @ P, np.eye(3), atol=1e-14)
    assert largest_angle(P, Y) < 1e-14
    A = rng.normal(size=(3, 3))
    np.testing.assert_allclose(polar(P @ (A @ A.T)), P, atol=1e-12)
