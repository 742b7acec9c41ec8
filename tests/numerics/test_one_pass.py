"""One pass over the rows: sums, squares and Gram matrices around any point, against dense float64."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from fedspan.algorithms.spectral.oneshot import find_leading
from fedspan.numerics import operators
from fedspan.numerics.operators import RowBatches, Rows


class Counted(RowBatches):
    """Rows in batches, which count how often they were read."""

    def __init__(self, A: np.ndarray) -> None:
        self.A, self.shape, self.reads = A, A.shape, 0

    def batches(self) -> Iterator[np.ndarray]:
        self.reads += 1
        yield from np.array_split(self.A, 3)


def check(A: Any, exact: np.ndarray, tol: float) -> None:
    rows, mean = Rows(A, at_once=True), exact.mean(axis=0)
    np.testing.assert_allclose(rows.sums(), exact.sum(axis=0), rtol=tol, atol=tol * np.abs(exact).sum(axis=0).max())
    for mu in (mean, mean + 3 * exact.std(axis=0), None):
        B = exact if mu is None else exact - mu
        M = B.T @ B
        np.testing.assert_allclose(rows.gram(mu, None), M, atol=tol * M.diagonal().max())
        np.testing.assert_allclose(rows.squares(mu), M.diagonal(), rtol=100 * tol, atol=tol * M.diagonal().max())
    s = np.arange(1.0, A.shape[1] + 1)
    M = (exact - mean).T @ (exact - mean) / np.outer(s, s)
    np.testing.assert_allclose(rows.gram(mean, s), M, atol=tol * M.diagonal().max())


@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize("dtype", ["float64", "float32", "int8", "uint8", "bool", "int64"])
@pytest.mark.parametrize("n", [5, 300])
def test_any_dtype_and_any_number_of_rows(dtype: str, n: int, small: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if small:
        monkeypatch.setattr(operators, "_PASS_BLOCK", (60, 60))
    A = np.random.default_rng(0).normal(0, 40, size=(n, 6)) + 30
    A = (
        (A > 30)
        if dtype == "bool"
        else np.abs(A).astype(dtype)
        if dtype == "uint8"
        else A.clip(-127, 127).astype(dtype)
    )
    check(A, A.astype(np.float64), 1e-6 if dtype == "float32" else 1e-13)


@pytest.mark.parametrize("scale", [1e-150, 1e-30, 1e30, 1e140])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_extreme_scales(scale: float, dtype: str) -> None:
    if dtype == "float32" and not 1e-37 < scale < 1e37:
        return
    A = (np.random.default_rng(1).normal(size=(200, 4)) * scale).astype(dtype)
    check(A, A.astype(np.float64), 1e-6 if dtype == "float32" else 1e-13)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_columns_of_very_different_scales_and_constant_ones(dtype: str) -> None:
    A = (np.random.default_rng(1).normal(size=(200, 4)) * [1, 1e-25, 1, 1] * [1, 1, 0, 1] + [0, 0, 7, 0]).astype(dtype)
    exact = A.astype(np.float64)
    rows, mean = Rows(A, at_once=True), exact.mean(axis=0)
    tol = 1e-5 if dtype == "float32" else 1e-12
    np.testing.assert_allclose(rows.squares(mean)[[0, 1, 3]], ((exact - mean) ** 2).sum(axis=0)[[0, 1, 3]], rtol=tol)
    assert rows.squares(mean)[2] < 1e-25


def test_a_large_offset_does_not_cancel_even_if_the_first_rows_mislead() -> None:
    rng = np.random.default_rng(2)
    A = rng.normal(size=(400, 3)) + 1e8
    A[:70] += 1e6  # the first rows are far from the others
    rows, mean = Rows(A, at_once=True), A.mean(axis=0)
    want = (A - mean).T @ (A - mean)
    np.testing.assert_allclose(rows.gram(mean, None), want, rtol=1e-9)
    far = rng.normal(size=(4000, 3)) + 1e8
    far[:64] -= 1e8
    kept = Rows(far, at_once=True)
    np.testing.assert_allclose(kept.gram(far.mean(axis=0), None), np.cov(far.T, bias=True) * 4000, rtol=1e-9)


def test_many_rows_are_read_once_and_few_are_not_kept() -> None:
    A = np.random.default_rng(3).normal(size=(60, 5))
    counted = Counted(A)
    rows = Rows(counted, at_once=True)
    rows.sums(), rows.squares(A.mean(axis=0)), rows.gram(A.mean(axis=0), None)
    assert counted.reads == 2, "the first batch for c, and one pass"
    rows.drop_pass()
    rows.gram(None, None)
    assert counted.reads == 4
    few = Counted(A[:10])
    rows = Rows(few, at_once=True)
    rows.sums(), rows.squares(A.mean(axis=0)), rows.gram(A.mean(axis=0), None)
    assert few.reads == 3


def test_numbers_that_are_not_finite_are_seen_in_the_sums() -> None:
    A = np.ones((40, 3))
    A[7, 1] = np.nan
    assert np.isnan(Rows(A, at_once=True).sums()[1])
    huge = np.full((40, 3), 1e200) * np.arange(40)[:, None]
    assert not np.isfinite(Rows(huge, at_once=True).squares(None)).any()


def symmetric(values: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    Q = np.linalg.qr(np.random.default_rng(seed).normal(size=(len(values), len(values))))[0]
    M = (Q * values) @ Q.T
    return (M + M.T) / 2, Q


@pytest.mark.parametrize(
    "values",
    [
        np.linspace(1, 1.01, 450)[::-1],  # no gap: Lanczos gives up
        0.9 ** np.arange(450.0),
        np.r_[
            [5.0] * 4, [3.0] * 2, 0.99 ** np.arange(444.0)
        ],  # doubled eigenvalues, of which Lanczos sees one at a time
        np.r_[[2.0, 1.0], np.zeros(448)],  # more components than there are
    ],
)
def test_leading_eigenpairs_are_those_of_a_dense_decomposition(values: np.ndarray) -> None:
    M, Q = symmetric(values, 0)
    k = 6
    theta, Z = find_leading(M, k)
    np.testing.assert_allclose(theta, values[:k], atol=1e-12 * values[0])
    np.testing.assert_allclose(Z.T @ Z, np.eye(k), atol=1e-12)
    assert np.linalg.norm(M @ Z - Z * theta) < 1e-11 * values[0]
    if values[k - 1] - values[k] > 1e-3 * values[0]:
        assert np.linalg.norm(Q[:, :k] - Z @ (Z.T @ Q[:, :k])) < 1e-9
