"""Rows against the same arithmetic in dense float64 numpy, for every kind of matrix a client may hold."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from fedspan.numerics import operators
from fedspan.numerics.operators import FILLED, Rows, WeightedRows, prefers_gram

N, D = 37, 6


def values(dtype: str) -> np.ndarray:
    """Entries that use the dtype: large unsigned ones that would wrap, columns with unlike means."""
    rng = np.random.default_rng(3)
    if dtype == "bool":
        return rng.random((N, D)) < 0.4
    if dtype in ("uint8", "int8", "int64"):
        return rng.integers(0 if dtype[0] == "u" else -100, 256 if dtype[0] == "u" else 100, (N, D)).astype(dtype)
    dense = (rng.normal(size=(N, D)) + 10 * np.arange(D)) * (rng.random((N, D)) < 0.5)
    return dense.astype(dtype)


DTYPES = ["float64", "float32", "uint8", "int8", "int64", "bool"]
KINDS: dict[str, Callable[[np.ndarray, Path], Any]] = {
    "dense": lambda A, _: A,
    "fortran": lambda A, _: np.asfortranarray(A),
    "strided": lambda A, _: np.repeat(A, 2, axis=0)[::2],
    "memmap": lambda A, folder: _memmap(A, folder),
    "csr": lambda A, _: sp.csr_array(A),
    "csc": lambda A, _: sp.csc_matrix(A),
    "coo": lambda A, _: sp.coo_array(A),
}


def _memmap(A: np.ndarray, folder: Path) -> np.ndarray:
    np.save(folder / "A.npy", A)
    return np.load(folder / "A.npy", mmap_mode="r")


@pytest.fixture(params=["one block", "many blocks"])
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "many blocks":
        monkeypatch.setattr(operators, "_ROW_BLOCK", 5 * D)
        monkeypatch.setattr(operators, "_GRAM_BLOCK", (7 * D, 7 * D))


@pytest.fixture(params=[f"{kind} {dtype}" for kind in KINDS for dtype in DTYPES])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Rows, np.ndarray]:
    """The rows, and the same as dense float64."""
    kind, dtype = request.param.split()
    A = values(dtype)
    return Rows(KINDS[kind](A, tmp_path)), A.astype(np.float64)


def close(got: np.ndarray, want: np.ndarray) -> None:
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12 * np.abs(want).max(initial=1))


@pytest.mark.usefixtures("blocks")
def test_sums_and_squares(pair: tuple[Rows, np.ndarray]) -> None:
    rows, A = pair
    assert (rows.n, rows.d) == A.shape
    close(rows.sums(), A.sum(axis=0))
    close(rows.squares(None), (A**2).sum(axis=0))
    mu = A.mean(axis=0) + 1
    close(rows.squares(mu), ((A - mu) ** 2).sum(axis=0))


@pytest.mark.usefixtures("blocks")
def test_products_and_gram(pair: tuple[Rows, np.ndarray]) -> None:
    rows, A = pair
    V = np.random.default_rng(0).normal(size=(D, 3))
    for mu, s in product((None, A.mean(axis=0) + 0.5), (None, A.std(axis=0) + 1)):
        B = (A - (0 if mu is None else mu)) / (1 if s is None else s)
        close(rows.multiply(V, mu, s), B.T @ (B @ V))
        close(rows.gram(mu, s), B.T @ B)
        close(rows.multiply_by_gram(V, mu, s), B.T @ B @ V)


def test_the_kept_gram_matrix_is_that_of_the_present_shift() -> None:
    A = values("float64")
    rows, V = Rows(A), np.eye(D)
    for mu in (None, np.ones(D), None, np.full(D, 2.0)):
        B = A - (0 if mu is None else mu)
        close(rows.multiply_by_gram(V, mu, None), B.T @ B)


@pytest.mark.parametrize("kind", KINDS)
def test_the_rows_are_left_as_they_are(kind: str, tmp_path: Path) -> None:
    A = values("float64")
    held = KINDS[kind](A.copy(), tmp_path)
    rows, mu = Rows(held), np.ones(D)
    rows.squares(mu), rows.multiply(np.eye(D), mu, mu * 2), rows.gram(mu, mu * 2)
    np.testing.assert_array_equal(held.toarray() if sp.issparse(held) else held, A)


@pytest.mark.parametrize("kind", ["csr", "csc", "coo"])
def test_entries_stored_twice_are_added(kind: str) -> None:
    """A sparse matrix may hold an entry in several parts; (1 + 2)² is not 1² + 2²."""
    i, j, v = np.array([0, 0, 1]), np.array([1, 1, 0]), np.array([1.0, 2.0, 4.0])
    if kind == "csr":
        held = sp.csr_array((v, j, np.array([0, 2, 3])), shape=(2, 2))
    elif kind == "csc":
        held = sp.csc_array((v[[2, 0, 1]], i[[2, 0, 1]], np.array([0, 1, 3])), shape=(2, 2))
    else:
        held = sp.coo_array((v, (i, j)), shape=(2, 2))
    A = np.array([[0.0, 3.0], [4.0, 0.0]])
    for mu in (None, np.ones(2)):
        B = A - (0 if mu is None else mu)
        close(Rows(held).squares(mu), (B**2).sum(axis=0))
        close(Rows(held).gram(mu, None), B.T @ B)


def test_squares_around_a_large_mean_do_not_cancel() -> None:
    A = 1e8 + np.random.default_rng(0).normal(size=(500, 3))
    mu = A.mean(axis=0)
    for rows in (Rows(A), Rows(sp.csr_array(A))):
        np.testing.assert_allclose(rows.squares(mu), ((A - mu) ** 2).sum(axis=0), rtol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_not_finite_counts_entries_rows_and_names_the_first_column(kind: str, tmp_path: Path) -> None:
    A = values("float64")
    assert Rows(KINDS[kind](A, tmp_path)).count_not_finite() == (0, 0, -1)
    A[4, 3], A[4, 5], A[9, 2] = np.nan, np.inf, -np.inf
    assert Rows(KINDS[kind](A, tmp_path)).count_not_finite() == (3, 2, 2)


@pytest.mark.parametrize("kind", [sp.csr_array, sp.csc_array, sp.coo_array])
def test_sparse_rows_are_never_spread(kind: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Dense, these rows would take 160 MB."""
    A = kind(sp.random_array((4000, 5000), density=1e-4, rng=np.random.default_rng(0)))
    mu, s, V = np.ones(5000), np.full(5000, 2.0), np.ones((5000, 2))

    def trap(*_: Any, **__: Any) -> None:
        raise AssertionError("a sparse matrix was made dense")

    for name in ("toarray", "todense"):
        for cls in (sp.csr_array, sp.csc_array, sp.coo_array):
            monkeypatch.setattr(cls, name, trap)
    tracemalloc.start()
    try:
        rows = Rows(A)
        rows.sums(), rows.squares(None), rows.squares(mu), rows.count_not_finite()
        rows.multiply(V, None, None), rows.multiply(V, mu, s)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4e6


def test_dense_rows_are_not_copied_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operators, "_ROW_BLOCK", 1 << 14)
    A = np.ones((20_000, 50), dtype=np.uint8)
    mu, V = np.full(50, 0.5), np.ones((50, 2))
    tracemalloc.start()
    try:
        rows = Rows(A)
        rows.sums(), rows.squares(mu), rows.multiply(V, mu, None)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < A.nbytes  # a copy in float64 would take eight times as much


def test_a_gram_matrix_pays_for_tall_rows_and_many_products_only() -> None:
    assert prefers_gram(10_000, 100, 500)
    assert not prefers_gram(50, 100, 500)
    assert not prefers_gram(10_000, 100, 2)


def test_blocks_of_very_wide_rows_hold_enough_of_them() -> None:
    """By bytes and by rows: two rows at a time would be products of vectors."""
    assert Rows(np.zeros((1, 100)))._rows_at_once(1 << 18) == (1 << 18) // 100
    assert Rows(np.zeros((1, 100_000), dtype=np.int8))._rows_at_once(1 << 18) == 32
    assert Rows(np.zeros((1, 1 << 20), dtype=np.int8))._rows_at_once(1 << 18) == 8  # 64 MB of float64


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.float32])
def test_rows_are_kept_as_they_are_until_the_product(kind: type) -> None:
    A = np.random.default_rng(0).integers(0, 100, size=(50, 7)).astype(kind)
    V, rows = np.eye(7)[:, :2], Rows(A)
    got = rows.multiply(V, None, np.full(7, 2.0))
    assert rows.A is A
    np.testing.assert_allclose(got, A.astype(float).T @ A.astype(float) @ V / 4, rtol=1e-12)


def test_a_scale_whose_square_is_too_large() -> None:
    A = np.random.default_rng(0).normal(size=(20, 3)) * 2.0**500
    unit = np.full(3, 2.0**520)
    np.testing.assert_allclose(Rows(A).gram(None, unit), (A / 2.0**520).T @ (A / 2.0**520), rtol=1e-12)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int8])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("centred", [False, True])
def test_gram_of_sparse_rows_that_are_not_very_sparse(dtype: type, weighted: bool, centred: bool) -> None:
    """By dense blocks (above FILLED) as by sparse products (below it), and as if they were dense."""
    rng = np.random.default_rng(0)
    for density in (0.5, FILLED / 2):
        dense = np.where(rng.random((300, 40)) < density, rng.integers(-50, 50, (300, 40)), 0).astype(dtype)
        A, v = sp.csr_array(dense), rng.uniform(0.5, 2, 300)
        assert (A.nnz > FILLED * A.shape[0] * A.shape[1]) == (density == 0.5)
        mu = rng.normal(size=40) if centred else None
        B = dense.astype(float) - (0 if mu is None else mu)
        expected = (B * v[:, None]).T @ B if weighted else B.T @ B
        G = Rows(WeightedRows(A, v) if weighted else A).gram(mu, None)
        np.testing.assert_allclose(G, expected, atol=1e-12 * np.abs(expected).max())
