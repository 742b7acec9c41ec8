"""A view's projector, by factor and by conjugate gradients, against the pseudo-inverse."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from fedspan.errors import InputError
from fedspan.numerics import view_projector as views
from fedspan.numerics.alignment import alignment_accuracy, bits_per_variable, compression_ratio, measured_ratio
from fedspan.numerics.maxvar import common_step, projected_residual
from fedspan.numerics.view_projector import View


def shifted(X: np.ndarray, center: bool, scale: bool) -> np.ndarray:
    B = X - X.mean(axis=0) if center else X
    return B / np.where(X.std(axis=0) > 0, X.std(axis=0), 1.0) if scale else B


def weights(B: np.ndarray, G: np.ndarray, ridge: float) -> np.ndarray:
    """Least squares with a ridge by stacking: no normal equations."""
    tall = np.vstack([B, np.sqrt(ridge) * np.eye(B.shape[1])])
    return np.linalg.pinv(tall) @ np.vstack([G, np.zeros((B.shape[1], G.shape[1]))])


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(5)


@pytest.mark.parametrize("ridge", [0.0, 2.5])
@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize("kind", ["dense", "float32", "memmap", "sparse", "jacobi"])
def test_weights_and_projection_are_those_of_the_pseudo_inverse(
    kind: str,
    center: bool,
    scale: bool,
    ridge: float,
    rng: np.random.Generator,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    X = rng.normal(size=(90, 12)) * rng.uniform(0.2, 3, size=12) + rng.normal(size=12)
    X[rng.random(X.shape) < 0.5] = 0.0
    X = X.astype(np.float32) if kind == "float32" else X
    given = X
    if kind == "memmap":
        np.save(tmp_path / "x.npy", X)
        given = np.load(tmp_path / "x.npy", mmap_mode="r")
    if kind in ("sparse", "jacobi"):
        given = sp.csr_array(X)
    if kind == "jacobi":
        monkeypatch.setattr(views, "_CHOLESKY", 0)
    view, G = View(given, center, scale, ridge), rng.normal(size=(90, 4))
    B = shifted(X.astype(np.float64), center, scale)
    want = weights(B, G, ridge)
    np.testing.assert_allclose(view.solve(G), want, atol=1e-8 * np.abs(want).max())
    np.testing.assert_allclose(view.project(G), B @ want, atol=1e-9)
    np.testing.assert_allclose(view.cross(G), B.T @ G, atol=1e-10)
    np.testing.assert_allclose(view.some_rows(np.array([3, 70])), B[[3, 70]], atol=1e-12)
    top = np.linalg.norm(B, 2) ** 2
    assert top * (1 - 1e-3) <= view.largest <= 1.02 * top


def test_a_start_changes_only_the_work(rng: np.random.Generator) -> None:
    view, G = View(sp.random_array((200, 30), density=0.3, rng=rng, format="csr")), rng.normal(size=(200, 3))
    cold = view.solve(G)
    np.testing.assert_allclose(view.solve(G, start=cold + rng.normal(size=cold.shape)), cold, atol=1e-8)


@pytest.mark.parametrize("sparse", [False, True])
def test_a_rank_deficient_view_has_the_projector_of_its_column_space(sparse: bool, rng: np.random.Generator) -> None:
    X = rng.normal(size=(60, 5)) @ rng.normal(size=(5, 11))
    X = np.hstack([X, X[:, :2], np.zeros((60, 1)), np.full((60, 1), 7.0)])
    B = X - X.mean(axis=0)
    U = np.linalg.svd(B)[0][:, :5]
    G = rng.normal(size=(60, 3))
    view = View(sp.csr_array(X) if sparse else X)
    np.testing.assert_allclose(view.project(G), U @ (U.T @ G), atol=1e-7)
    if not sparse:
        assert view.rank == 5
        np.testing.assert_allclose(view.solve(G), np.linalg.pinv(B) @ G, atol=1e-9)


def test_small_singular_values_keep_their_digits(rng: np.random.Generator) -> None:
    """Condition 1e9: its square has no digits left in float64, so a Gram matrix would lose the last directions."""
    U = np.linalg.qr(rng.normal(size=(400, 10)))[0]
    X = U * np.logspace(0, -9, 10) @ np.linalg.qr(rng.normal(size=(10, 10)))[0]
    G = rng.normal(size=(400, 3))
    view = View(X, center=False)
    assert view.rank == 10
    np.testing.assert_allclose(view.project(G), U @ (U.T @ G), atol=1e-5)


def test_the_factor_is_the_same_over_any_number_of_blocks(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, G = rng.normal(size=(3000, 300)) + 5.0, rng.normal(size=(3000, 2))  # 524288 entries a block: two of them
    B = X - X.mean(axis=0)
    np.testing.assert_allclose(View(X).factor.S, np.linalg.svd(B, compute_uv=False), rtol=1e-10)
    np.testing.assert_allclose(View(X).project(G), B @ np.linalg.lstsq(B, G)[0], atol=1e-9)


@pytest.mark.parametrize("sparse", [False, True])
def test_a_wide_view_with_a_ridge(sparse: bool, rng: np.random.Generator) -> None:
    X, G = rng.normal(size=(20, 70)), rng.normal(size=(20, 3))
    B = X - X.mean(axis=0)
    view = View(sp.csr_array(X) if sparse else X, ridge=0.7)
    np.testing.assert_allclose(view.project(G), B @ weights(B, G, 0.7), atol=1e-8)


@pytest.mark.parametrize("m", [3, 11, 12])
@pytest.mark.parametrize("sparse", [False, True])
def test_leading_singular_vectors(sparse: bool, m: int, rng: np.random.Generator) -> None:
    X = rng.normal(size=(80, 12)) * 2.0 ** -np.arange(12)
    U, S, _ = np.linalg.svd(X - X.mean(axis=0), full_matrices=False)
    view = View(sp.csr_array(X) if sparse else X)
    got = view.leading_factor(m, rng.normal(size=12))
    np.testing.assert_allclose(got.S, S[:m], rtol=1e-5)
    np.testing.assert_allclose(np.abs(np.sum(view.times(got.V / got.S) * U[:, :m], axis=0)), 1.0, atol=1e-6)


def test_conjugate_gradients_say_when_they_fail(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "_CHOLESKY", 0)
    X = rng.normal(size=(80, 30)) @ (np.eye(30) + 0.99) * np.logspace(0, -7, 30) @ rng.normal(size=(30, 30))
    with pytest.raises(InputError, match="so ill-conditioned that 20 steps"):
        View(sp.csr_array(X))._cgls(rng.normal(size=(80, 2)), None, most=20)


def test_the_common_step_is_the_best_of_all_orthonormal_centred_matrices(rng: np.random.Generator) -> None:
    """(14) by its own definition: no other feasible G, near or far, costs less."""
    parts = rng.normal(size=(3, 40, 4)) + 0.5
    before = common_step(rng.normal(size=(40, 4)))

    def objective(G: np.ndarray, alpha: float) -> float:
        near = np.sum((G - before) ** 2) / (2 * alpha)
        return float(0.5 * sum(np.sum((M - G) ** 2) for M in parts) + near)

    for alpha in (0.1, 3.0):
        G = common_step(parts.sum(axis=0), before, alpha)
        np.testing.assert_allclose(G.T @ G, np.eye(4), atol=1e-12)
        np.testing.assert_allclose(G.sum(axis=0), 0.0, atol=1e-12)
        for size in (1e-3, 0.1, 10.0):
            other = common_step(G + size * rng.normal(size=G.shape))
            assert objective(other, alpha) > objective(G, alpha)


def test_a_sum_in_the_span_has_no_residual(rng: np.random.Generator) -> None:
    G = np.linalg.qr(rng.normal(size=(40, 4)))[0]
    assert projected_residual(G @ rng.normal(size=(4, 4)), G, 3) == pytest.approx(0.0, abs=1e-14)


def test_measures_of_the_paper() -> None:
    assert bits_per_variable(10, 3) == 62
    assert bits_per_variable(10, 3, first=8) == 38
    assert compression_ratio(3, 100, 100) == pytest.approx(0.90625)
    assert measured_ratio(10, 40) == 0.75


def test_alignment_accuracy_by_its_definition(rng: np.random.Generator) -> None:
    shown = [rng.normal(size=(30, 2)) for _ in range(3)]
    shown[1] = shown[0] + 0.3 * rng.normal(size=(30, 2))
    right = 0
    for i in range(3):
        for m in range(3):
            if i != m:
                far = np.linalg.norm(shown[i][:, None] - shown[m][None], axis=2)
                right += sum(far[p, p] <= np.delete(far[p], p).min() for p in range(30))
    assert 0.0 < right < 180
    assert alignment_accuracy(shown, block=7) == pytest.approx(right / 180)
    assert alignment_accuracy([shown[0], shown[0]]) == 1.0
    with pytest.raises(InputError, match="at least two views"):
        alignment_accuracy([shown[0], shown[1][:5]])
