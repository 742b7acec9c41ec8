"""What the benchmarks of personalized PCA compare with: each baseline against a definition of its own."""

from __future__ import annotations

import sys
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg

from fedspan.numerics.orthonormal import largest_angle
from fedspan.numerics.stiefel import random_point


@pytest.fixture(scope="module")
def problem() -> Any:
    folder = str(Path(__file__).resolve().parents[2] / "benchmarks" / "personalized")
    sys.path.insert(0, folder)
    try:
        return import_module("problem")
    finally:
        sys.path.remove(folder)


def test_the_generator_is_that_of_section_v(problem):
    train, held, true = problem.section_v(0, 0.02, d=12, r=3, m=6, n=4, test=20000)
    assert [X.shape for X in train] == [(4, 12)] * 6
    for U, Y in zip(true, held, strict=True):
        np.testing.assert_allclose(U.T @ U, np.eye(3), atol=1e-13)
        np.testing.assert_allclose(Y.T @ Y / len(Y), U @ U.T + 0.5 * np.eye(12), atol=0.06)
    np.testing.assert_allclose(problem.error(true, held), problem.true_error(12, 3), rtol=0.01)
    alike, apart = (problem.section_v(0, var_u, test=1)[2] for var_u in (1e-6, 0.2))
    assert largest_angle(alike[0], alike[1]) < 0.02
    assert largest_angle(apart[0], apart[1]) > 0.5


def test_local_and_global_pca(problem):
    train, _, _ = problem.section_v(1, 0.05, d=12, r=3, m=5, n=9, test=1)
    for X, U in zip(train, problem.local_pca(train, 3), strict=True):
        assert largest_angle(U, np.linalg.svd(X)[2][:3].T) < 1e-6
    few = problem.local_pca([train[0][:1]], 3)[0]  # one row: its direction, and any others
    np.testing.assert_allclose(few.T @ few, np.eye(3), atol=1e-12)
    np.testing.assert_allclose(few @ (few.T @ train[0][0]), train[0][0], atol=1e-12)
    V = scipy.linalg.eigh(sum(X.T @ X for X in train))[1][:, -3:]
    assert all(largest_angle(U, V) < 1e-6 for U in problem.global_pca(train, 3))


def test_averaging_gradients_ends_at_global_pca(problem):
    train, _, _ = problem.section_v(2, 0.05, d=12, r=3, m=5, n=40, test=1)
    M = sum(X.T @ X for X in train)
    start = random_point(np.random.default_rng(0), 12, 3)
    *_, U = islice(problem.averaged_gradients(train, start, 0.02), 1500)
    assert largest_angle(U, problem.global_pca(train, 3)[0]) < 1e-3
    captured = [np.trace(U.T @ M @ U) for U in islice(problem.averaged_gradients(train, start, 0.02), 50)]
    assert np.diff(captured).min() >= -1e-9


def test_halves_share_no_row(problem):
    clients = {"a": np.arange(21.0).reshape(21, 1), "b": np.arange(4.0).reshape(4, 1)}
    for most, size in ((None, 10), (5, 5)):
        train, held = problem.halves(clients, 0, most)
        assert (len(train["a"]), len(held["a"]), len(train["b"])) == (size, 11, 2)
        assert not set(train["a"][:, 0]) & set(held["a"][:, 0])
