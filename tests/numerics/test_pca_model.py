"""What a fitted PCA says about rows, against scikit-learn's and scipy's own."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.stats
from sklearn.decomposition._pca import _infer_dimension

from fedspan import InputError
from fedspan.numerics.pca_model.coordinates import project_rows, square_distances
from fedspan.numerics.pca_model.gaussian import GaussianModel
from fedspan.numerics.pca_model.minka import count_for_share, infer_dimension


@pytest.mark.parametrize("seed", range(12))
def test_minkas_choice_is_scikit_learns(seed: int) -> None:
    rng = np.random.default_rng(seed)
    d, true = int(rng.integers(3, 30)), int(rng.integers(1, 8))
    spectrum = np.sort(np.concatenate([rng.uniform(3, 30, min(true, d)), rng.uniform(0.9, 1.1, max(d - true, 0))]))
    n = int(rng.integers(d, 2000))
    assert infer_dimension(spectrum[::-1], n) == _infer_dimension(spectrum[::-1].copy(), n)


def test_minkas_choice_with_variances_of_zero_and_with_one_feature() -> None:
    assert infer_dimension(np.array([1, 1e-30, 1e-30, 1e-30]), 10) == 1
    assert infer_dimension(np.array([5.0, 4.0, 0.0, 0.0]), 50) == 2
    assert infer_dimension(np.array([3.0]), 50) == 1
    spectrum = np.array([9.0, 7.0, 5.0, 1.1, 1.0, 0.9])
    assert [infer_dimension(spectrum * unit, 200) for unit in (1.0, 1e-300, 1e-20, 1e300)] == [3, 3, 3, 3]


def test_a_share_takes_components_until_it_is_passed() -> None:
    ratio = np.array([0.5, 0.25, 0.125, 0.125])
    assert [count_for_share(ratio, share) for share in (0.4, 0.5, 0.7, 0.9, 0.9999)] == [1, 2, 2, 4, 4]
    assert count_for_share(np.array([0.6, 0.3]), 0.95) == 2, "no more than there are"


@pytest.mark.parametrize("k", [2, 5])
def test_the_gaussian_model_is_scipys(k: int) -> None:
    rng = np.random.default_rng(k)
    V = np.linalg.qr(rng.normal(size=(5, 5)))[0][:k]
    scale, mean = np.array([1, 2, 0.5, 3, 1.0]), rng.normal(size=5)
    model = GaussianModel(V, np.array([9.0, 4.0, 3.0, 2.0, 1.5])[:k], 1.0 if k < 5 else 0.0, scale)
    C = model.covariance()
    want = (
        np.diag(scale) @ (V.T @ np.diag(model.variances - model.noise) @ V + model.noise * np.eye(5)) @ np.diag(scale)
    )
    np.testing.assert_allclose(C, want, atol=1e-12)
    np.testing.assert_allclose(model.precision() @ C, np.eye(5), atol=1e-12)
    X = rng.normal(size=(7, 5))
    found = model.log_likelihoods(project_rows(X, mean, V.T / scale[:, None]), square_distances(X, mean, scale))
    np.testing.assert_allclose(found, scipy.stats.multivariate_normal(mean, C).logpdf(X), rtol=1e-12)


def test_a_covariance_without_an_inverse_is_refused() -> None:
    model = GaussianModel(np.eye(3)[:2], np.array([2.0, 1.0]), 0.0, np.ones(3))
    with pytest.raises(InputError, match=r"only 2 of them for 3 features.*Use fewer components"):
        model.precision()


@pytest.mark.parametrize("kind", [np.asarray, sp.csr_array])
def test_coordinates_and_distances(kind: Any) -> None:
    rng = np.random.default_rng(0)
    X, mean, W, scale = rng.normal(size=(50, 6)), rng.normal(size=6), rng.normal(size=(6, 2)), rng.uniform(1, 2, 6)
    np.testing.assert_allclose(project_rows(kind(X), mean, W), (X - mean) @ W, atol=1e-13)
    want = (((X - mean) / scale) ** 2).sum(axis=1)
    np.testing.assert_allclose(square_distances(kind(X), mean, scale), want, rtol=1e-12)


def test_rows_far_from_zero_keep_their_digits_and_are_not_copied() -> None:
    rng = np.random.default_rng(1)
    X = (rng.normal(size=(40_000, 50)) + 3000).astype(np.float32)
    mean, W = X.mean(axis=0, dtype=np.float64).astype(np.float32), rng.normal(size=(50, 2)).astype(np.float32)
    tracemalloc.start()
    Z = project_rows(X, mean, W)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert Z.dtype == np.float32
    assert peak < 0.4 * X.nbytes
    np.testing.assert_allclose(Z, (X.astype(float) - mean) @ W.astype(float), atol=1e-3)
