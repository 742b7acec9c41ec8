"""New rows added to sums of old ones, against a pooled weighted oracle; and sites that have drifted away."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.decomposition import PCA

from fedspan import FederatedPCA, FederatedSVD, InputError, Job, RowDP

rng = np.random.default_rng(21)
MIX = rng.normal(size=(9, 9)) * [6, 4, 3, 1, 0.8, 0.5, 0.3, 0.2, 0.1]
BATCHES = [[rng.normal(size=(n, 9)) @ MIX.T + i for n in (50, 30)] for i in range(4)]
ROWS = [np.concatenate(batch) for batch in BATCHES]


def pool(v: np.ndarray, k: int, center: bool = True) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    X = np.concatenate(ROWS)
    mean = np.average(X, axis=0, weights=v) if center else np.zeros(9)
    values, U = np.linalg.eigh(((X - mean) * v[:, None]).T @ (X - mean))
    return mean, values[::-1][:k] / (v.sum() - 1), U[:, ::-1][:, :k], values[::-1][:k] / values.sum()


@pytest.mark.parametrize("forgetting", [1.0, 0.7])
@pytest.mark.parametrize("kind", [FederatedPCA, FederatedSVD])
@pytest.mark.parametrize("solver", ["gram", "auto"])
def test_the_answer_is_that_of_all_rows(kind: type[FederatedPCA], forgetting: float, solver: str) -> None:
    model = kind(3, solver=solver, random_state=0)
    for batch in BATCHES:
        assert model.partial_fit(batch, forgetting=forgetting) is model
    v = np.concatenate([np.full(80, forgetting ** (3 - i)) for i in range(4)])
    mean, variances, U, shares = pool(v, 3, kind is FederatedPCA)
    np.testing.assert_allclose(model.mean_, mean, atol=1e-9)
    np.testing.assert_allclose(model.explained_variance_, variances, rtol=1e-9)
    np.testing.assert_allclose(model.explained_variance_ratio_, shares, rtol=1e-9)
    assert np.linalg.svd(model.components_ @ U, compute_uv=False).min() > 1 - 1e-9
    assert model.n_samples_ == pytest.approx(v.sum())
    assert (model.n_components, model.solver) == (3, solver)
    if kind is FederatedPCA and forgetting == 1:
        whole = FederatedPCA(3, solver="gram").fit(ROWS)
        assert model.noise_variance_ == pytest.approx(whole.noise_variance_)
        assert model.spe_limit() == pytest.approx(whole.spe_limit(), rel=1e-5)


def test_krylov_keeps_the_basis_of_its_run_and_is_nearly_right() -> None:
    model = FederatedPCA(3, solver="krylov", random_state=0)
    for batch in BATCHES:
        model.partial_fit(batch)
    _, variances, U, _ = pool(np.ones(320), 3)
    np.testing.assert_allclose(model.explained_variance_, variances, rtol=1e-2)
    assert np.linalg.svd(model.components_ @ U, compute_uv=False).min() > 0.999


def test_other_counts_and_saved_models(tmp_path: Path) -> None:
    model, gone = FederatedPCA(0.9, solver="gram"), FederatedPCA(0.9, solver="gram")
    for batch in BATCHES[:2]:
        model.partial_fit(batch)
        gone.partial_fit(batch)
    gone.save(tmp_path / "model")
    loaded = FederatedPCA.load(tmp_path / "model")
    for batch in BATCHES[2:]:
        model.partial_fit(batch)
        loaded.partial_fit(batch)
    np.testing.assert_allclose(loaded.components_, model.components_)
    assert loaded.n_components_ == FederatedPCA(0.9, solver="gram").fit(ROWS).n_components_


def test_weights_and_secure_sums() -> None:
    model = FederatedPCA(3, secure=True, random_state=0)
    for batch in BATCHES:
        model.partial_fit(batch, client_weight="equal")
    v = np.concatenate([[80 / 2 / n] * n for _ in BATCHES for n in (50, 30)])
    np.testing.assert_allclose(model.explained_variance_, pool(v, 3)[1], rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "given", "message"),
    [
        ({"solver": "faps"}, {}, "solver is 'faps'"),
        ({"scale": True}, {}, "with scale=True"),
        ({"n_components": "auto"}, {}, "n_components='auto'"),
        ({"privacy": RowDP(1.0, 1e-6, 5.0)}, {}, "with privacy"),
        ({}, {"forgetting": 0}, "forgetting must be above 0"),
        ({}, {"forgetting": 1.5}, "forgetting must be above 0"),
        ({}, {"forgetting": float("nan")}, "forgetting must be above 0"),
    ],
)
def test_what_cannot_be_kept_is_refused(options: dict[str, Any], given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        FederatedPCA(**{"n_components": 2, **options}).partial_fit(BATCHES[0], **given)


def test_a_model_of_fit_has_no_sums_and_columns_must_agree() -> None:
    with pytest.raises(InputError, match="keeps no sums"):
        FederatedPCA(2).fit(BATCHES[0]).partial_fit(BATCHES[1])
    model = FederatedPCA(2).partial_fit(BATCHES[0])
    with pytest.raises(InputError, match="9 features of the earlier ones, but have 4"):
        model.partial_fit([rows[:, :4] for rows in BATCHES[1]])
    assert model.n_samples_ == 80  # it is as it was
    assert model.fit(BATCHES[1]).kept_values_ is None


def test_a_site_that_has_drifted_stands_out() -> None:
    draw = np.random.default_rng(4)
    sites = {name: draw.normal(size=(400, 9)) @ MIX.T for name in "abc"}
    model = FederatedPCA(3, solver="gram").fit(sites)
    new = {name: draw.normal(size=(400, 9)) @ MIX.T for name in "abc"}
    new["b"] = new["b"] + 3 * model.components_[0] * np.sqrt(model.explained_variance_[0])
    new["c"] = new["c"] + 4 * draw.normal(size=(400, 9))
    found = model.measure_drift(new)
    assert found["a"]["t2"] == pytest.approx(1, abs=0.25)
    assert found["a"]["spe"] == pytest.approx(1, abs=0.25)
    assert found["a"]["far"] < 0.03
    assert found["a"]["off"] < 0.03
    assert found["b"]["t2"] > 2.5
    assert found["b"]["far"] > 0.2
    assert found["b"]["spe"] == pytest.approx(1, abs=0.25)
    assert found["c"]["off"] > 0.2
    t2 = model.hotelling_t2(new["b"])
    assert found["b"]["t2"] == pytest.approx(t2.mean() / 3)
    assert found["b"]["far"] == np.mean(t2 > model.t2_limit())


def test_the_report_compares_sites_unless_they_are_protected(tmp_path: Path) -> None:
    sites = {"<b>north": BATCHES[0][0], "south": BATCHES[0][1]}
    for secure, shown in ((False, True), (True, False)):
        model = FederatedPCA(2, solver="gram", secure=secure, random_state=0).fit(sites)
        model.measure_drift(sites)
        model.report(tmp_path / "report.html")
        text = (tmp_path / "report.html").read_text()
        assert ("rows looked at" in text) == shown
        assert "Clients compared" in text
        assert "<b>north" not in text
        model.save(tmp_path / "model")
        assert FederatedPCA.load(tmp_path / "model").site_drift_ == model.site_drift_


def test_a_job_compares_its_sites(tmp_path: Path) -> None:
    for name, rows in zip(("north", "south"), BATCHES[0], strict=True):
        np.save(tmp_path / f"{name}.npy", rows)
    job = '[job]\ntask = "pca"\nsolver = "gram"\n[data]\nclients = ["north.npy", "south.npy"]\n'
    (tmp_path / "job.toml").write_text(job)
    Job.load(tmp_path / "job.toml").run(tmp_path / "open")
    assert "rows looked at" in (tmp_path / "open" / "report.html").read_text()
    Job.load(tmp_path / "job.toml", ["secure.enabled=true"]).run(tmp_path / "closed")
    assert "rows looked at" not in (tmp_path / "closed" / "report.html").read_text()


@pytest.mark.parametrize("scale", [1e150, 1e-150])
@pytest.mark.parametrize("n_components", [2, 0.9, "mle", None])
def test_rows_may_be_huge_or_tiny(n_components: Any, scale: float) -> None:
    unit, rng = 2.0 ** np.round(np.log2(scale)), np.random.default_rng(4)
    rows = rng.normal(size=(150, 6)) * [6, 4, 3, 1, 1, 1] + 2
    model = FederatedPCA(n_components, random_state=0)
    for part in (rows[:90], rows[90:]):
        model.partial_fit([part[:40] * unit, part[40:] * unit])
    pooled = PCA(n_components, svd_solver="full").fit(rows)
    assert model.n_components_ == pooled.n_components_
    np.testing.assert_allclose(model.explained_variance_ / unit**2, pooled.explained_variance_, rtol=1e-9)
    np.testing.assert_allclose(model.noise_variance_ / unit**2, pooled.noise_variance_, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(model.mean_ / unit, pooled.mean_, rtol=1e-12)
    np.testing.assert_allclose(np.abs(np.sum(model.components_ * pooled.components_, axis=1)), 1, rtol=1e-9)
