"""Turning one basis towards another: the minimiser over all orthogonal matrices, and over signs."""

from __future__ import annotations

from itertools import product

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedspan.numerics.orthonormal import orthonormalize
from fedspan.numerics.procrustes import procrustes, sign_fixing


def bases(seed: int, d: int, r: int) -> tuple[np.ndarray, np.ndarray, np.random.Generator]:
    rng = np.random.default_rng(seed)
    return orthonormalize(rng.normal(size=(d, r))), orthonormalize(rng.normal(size=(d, r))), rng


@given(seed=st.integers(0, 99), r=st.integers(1, 4))
def test_procrustes_is_orthogonal_and_no_other_rotation_is_nearer(seed: int, r: int) -> None:
    Z, Z1, rng = bases(seed, 7, r)
    D = procrustes(Z, Z1)
    np.testing.assert_allclose(D.T @ D, np.eye(r), atol=1e-13)
    best = np.linalg.norm(Z @ D - Z1)
    for _ in range(5):
        O = orthonormalize(rng.normal(size=(r, r)))  # noqa: E741 - the paper's letter
        assert best <= np.linalg.norm(Z @ O - Z1) + 1e-12
        assert best <= np.linalg.norm(Z @ D @ orthonormalize(np.eye(r) + 1e-3 * rng.normal(size=(r, r))) - Z1) + 1e-12


@given(seed=st.integers(0, 99), r=st.integers(1, 4))
def test_procrustes_undoes_a_rotation(seed: int, r: int) -> None:
    Z, Z1, rng = bases(seed, 7, r)
    O = orthonormalize(rng.normal(size=(r, r)))  # noqa: E741
    np.testing.assert_allclose(Z @ O @ procrustes(Z @ O, Z), Z, atol=1e-12)
    np.testing.assert_allclose(Z @ O @ procrustes(Z @ O, Z1), Z @ procrustes(Z, Z1), atol=1e-12)


@given(seed=st.integers(0, 99))
def test_sign_fixing_is_the_nearest_of_all_sign_patterns(seed: int) -> None:
    Z, Z1, _ = bases(seed, 6, 3)
    D = sign_fixing(Z, Z1)
    best = min(np.linalg.norm(Z @ np.diag(signs) - Z1) for signs in product((-1.0, 1.0), repeat=3))
    np.testing.assert_allclose(np.linalg.norm(Z @ D - Z1), best, rtol=1e-12)


def test_sign_fixing_turns_a_flipped_column_back_and_keeps_an_orthogonal_one() -> None:
    Z = np.eye(5)[:, :2]
    np.testing.assert_array_equal(sign_fixing(Z * [1, -1], Z), np.diag([1.0, -1.0]))
    np.testing.assert_array_equal(sign_fixing(Z, np.eye(5)[:, 2:4]), np.eye(2))  # sgn(0) must not lose a column
