"""What scikit-learn's PCA offers beyond components: whitening, densities, shares, dtypes; against scikit-learn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.datasets import load_iris
from sklearn.decomposition import PCA
from sklearn.exceptions import NotFittedError

import fedspan
from fedspan import FederatedPCA, FederatedSVD, InputError, RowDP

X = load_iris().data
CLIENTS = [X[:20], X[20:90], X[90:]]


def fit(*args: Any, **options: Any) -> FederatedPCA:
    return FederatedPCA(*args, random_state=0, **options).fit(CLIENTS)


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_densities_are_scikit_learns(k: int) -> None:
    ours, pooled = fit(k), PCA(k, svd_solver="full").fit(X)
    np.testing.assert_allclose(ours.get_covariance(), pooled.get_covariance(), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(ours.get_precision(), pooled.get_precision(), rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(ours.score_samples(X), pooled.score_samples(X), rtol=1e-9)
    assert ours.score(X) == pytest.approx(pooled.score(X), rel=1e-9)
    assert ours.score_samples(sp.csr_array(X)) == pytest.approx(pooled.score_samples(X), rel=1e-9)


def test_the_noise_variance_of_few_rows_is_scikit_learns() -> None:
    rows = np.random.default_rng(0).normal(size=(12, 30))
    ours = FederatedPCA(3, random_state=0).fit([rows[:5], rows[5:]])
    assert ours.noise_variance_ == pytest.approx(PCA(3, svd_solver="full").fit(rows).noise_variance_, rel=1e-9)


@pytest.mark.parametrize("solver", ["gram", "krylov"])
def test_whitened_coordinates_have_variance_one_and_go_back(solver: str) -> None:
    ours = fit(3, whiten=True, solver=solver, tol=1e-10)
    Z = ours.transform(X)
    np.testing.assert_allclose(np.cov(Z.T), np.eye(3), atol=1e-8)
    np.testing.assert_allclose(Z, PCA(3, whiten=True, svd_solver="full").fit_transform(X), atol=1e-7)
    np.testing.assert_allclose(ours.inverse_transform(Z), fit(3).inverse_transform(fit(3).transform(X)), atol=1e-7)
    assert ours.score(X) == pytest.approx(fit(3).score(X), rel=1e-7), "whitening does not change the distribution"


@pytest.mark.parametrize("given", [None, 0.9, 0.95, 0.999, "mle"])
def test_the_number_of_components_is_scikit_learns(given: Any) -> None:
    ours, pooled = fit(given), PCA(given, svd_solver="full").fit(X)
    assert ours.n_components == given
    assert ours.n_components_ == pooled.n_components_ == len(ours.components_)
    np.testing.assert_allclose(ours.components_, pooled.components_, atol=1e-9)
    assert ours.noise_variance_ == pytest.approx(pooled.noise_variance_, abs=1e-12)
    assert ours.ledger_.started is not None
    assert "needs all variances" in ours.ledger_.started.why


def test_a_share_can_be_asked_of_krylov_and_of_svd() -> None:
    assert fit(0.95, solver="krylov").n_components_ == 2
    svd = FederatedSVD(0.99, random_state=0).fit(CLIENTS)
    values = np.linalg.svd(X)[1] ** 2
    assert svd.n_components_ == np.searchsorted(np.cumsum(values) / values.sum(), 0.99) + 1


def test_all_components_of_few_rows_are_those_that_exist() -> None:
    rows = np.random.default_rng(0).normal(size=(6, 9))
    assert FederatedPCA(None, random_state=0).fit([rows[:2], rows[2:]]).n_components_ == 5


@pytest.mark.parametrize("solver", ["gram", "krylov"])
def test_float32_stays_float32_and_everything_else_becomes_float64(solver: str) -> None:
    single = FederatedPCA(2, solver=solver, random_state=0).fit([part.astype(np.float32) for part in CLIENTS])
    for name in ("components_", "explained_variance_", "explained_variance_ratio_", "singular_values_", "mean_"):
        assert getattr(single, name).dtype == np.float32, name
    Z = single.transform(X.astype(np.float32))
    assert Z.dtype == single.inverse_transform(Z).dtype == single.get_covariance().dtype == np.float32
    assert single.transform(X).dtype == np.float64
    np.testing.assert_allclose(Z, fit(2).transform(X), atol=1e-4)
    mixed = FederatedPCA(2, solver=solver, random_state=0).fit([X[:50].astype(np.float32), X[50:]])
    whole = FederatedPCA(2, solver=solver, random_state=0).fit([(10 * part).astype(np.int32) for part in CLIENTS])
    assert mixed.components_.dtype == whole.components_.dtype == np.float64


def test_rows_in_lists_are_rows() -> None:
    listed = FederatedPCA(2, random_state=0).fit([part.tolist() for part in CLIENTS])
    np.testing.assert_array_equal(listed.components_, fit(2).components_)
    np.testing.assert_array_equal(listed.transform(X.tolist()), listed.transform(X))


@pytest.mark.parametrize("given", [None, 0.9, "mle"])
def test_models_are_saved_and_exported_with_what_is_new(tmp_path: Path, given: Any) -> None:
    model = FederatedPCA(given, whiten=True, random_state=0).fit([part.astype(np.float32) for part in CLIENTS])
    model.save(tmp_path / "model")
    again = FederatedPCA.load(tmp_path / "model")
    assert (again.n_components, again.whiten, again.n_components_) == (given, True, model.n_components_)
    assert again.components_.dtype == np.float32
    np.testing.assert_array_equal(again.transform(X), model.transform(X))
    np.testing.assert_allclose(model.to_sklearn().transform(X), model.transform(X), atol=1e-4)
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    model.to_onnx(tmp_path / "m.onnx")
    session = runtime.InferenceSession(str(tmp_path / "m.onnx"), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, {"X": X})[0], model.transform(X), atol=1e-4)


@pytest.mark.parametrize(("given", "k"), [("0.9", 1), ('"mle"', 3), ("2", 2)])
def test_a_job_file_can_ask_for_a_share(tmp_path: Path, given: str, k: int) -> None:
    for i, part in enumerate(CLIENTS):
        np.save(tmp_path / f"{i}.npy", part)
    text = (
        f'[job]\ntask = "pca"\nn_components = {given}\nwhiten = true\n\n[data]\nclients = ["0.npy", "1.npy", "2.npy"]\n'
    )
    (tmp_path / "job.toml").write_text(text, encoding="utf-8")
    done = fedspan.Job.load(tmp_path / "job.toml").run(tmp_path / "out")
    assert done.model.n_components_ == k
    assert done.model.whiten


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"n_components": 1.0},
            "an integer of at least 1, a share above 0 and below 1, 'mle', 'auto' or None, but is 1.0",
        ),
        ({"n_components": "male"}, "'mle', 'auto' or None, but is 'male'"),
        ({"n_components": 0.5, "solver": "ssi"}, "needs all variances, which solver 'ssi' is not made for"),
        ({"n_components": 0.5, "bits": 4}, "needs all variances, which solver 'ssi'"),
        ({"n_components": "mle", "center": False}, "'mle' needs variances around the mean"),
        ({"n_components": 0.5, "privacy": RowDP(1.0, 1e-5, 9.0)}, "must be an integer with privacy=RowDP"),
        ({"n_components": 2, "whiten": 1}, "whiten must be True or False, but is 1"),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        FederatedPCA(**options).fit(CLIENTS)


def test_too_few_rows_for_the_estimate_are_refused_and_nothing_is_known_before_the_fit() -> None:
    with pytest.raises(InputError, match="only supported if n_samples >= n_features, but there are 3 rows and 4"):
        FederatedPCA("mle").fit([X[:2], X[2:3]])
    assert not hasattr(FederatedPCA(), "n_components_")
    with pytest.raises(NotFittedError):
        FederatedPCA().get_covariance()
