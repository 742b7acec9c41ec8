"""FederatedGCCA says what is really shared: held out, by chance, with entities missing, and with weights at home."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.linalg

from fedspan import FederatedGCCA, InputError, Job, Secure
from fedspan.algorithms import CuteMaxVar, MaxVarKrylov
from fedspan.numerics.maxvar import edge_by_chance
from fedspan.numerics.orthonormal import largest_angle


def planted(J: int, N: int, strength: float, seed: int, shared: int = 2) -> tuple[np.ndarray, list[np.ndarray]]:
    rng = np.random.default_rng(seed)
    hidden = rng.normal(size=(J, shared))
    return hidden, [strength * hidden @ rng.normal(size=(shared, N)) + rng.normal(size=(J, N)) for _ in range(3)]


def explain(hidden: np.ndarray, G: np.ndarray) -> float:
    """R² of what is hidden on the representation."""
    A = np.column_stack([np.ones(len(G)), G])
    left = hidden - A @ np.linalg.lstsq(A, hidden, rcond=None)[0]
    return 1 - float(np.sum(left**2) / np.sum((hidden - hidden.mean(axis=0)) ** 2))


def with_gaps(views: list[np.ndarray], share: float, seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    keep = rng.random((len(views[0]), len(views))) >= share
    keep[~keep.any(axis=1), 0] = True
    return [np.where(keep[:, i : i + 1], X, np.nan) for i, X in enumerate(views)]


def pooled_masked(views: list[np.ndarray], k: int, ridge: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """(values, G with GᵀDG = m·I) by a dense generalised eigenproblem."""
    J, m = len(views[0]), len(views)
    P, D = np.zeros((J, J)), np.zeros(J)
    for X in views:
        rows = np.flatnonzero(~np.isnan(X).any(axis=1))
        B = X[rows] - X[rows].mean(axis=0)
        D[rows] += 1
        P[np.ix_(rows, rows)] += B @ np.linalg.solve(B.T @ B + ridge * np.eye(B.shape[1]), B.T)
    w, G = scipy.linalg.eigh(P, np.diag(D))
    return m * w[::-1][:k], np.sqrt(m) * G[:, ::-1][:, :k]


@pytest.mark.parametrize("seed", [100, 101])
def test_views_of_noise_share_nothing_and_the_report_says_so(seed: int, tmp_path: Path) -> None:
    _, views = planted(100, 60, 0.0, seed)
    with pytest.warns(UserWarning, match="Nothing is shared"):
        gcca = FederatedGCCA("auto", ridge="auto", random_state=seed).fit(views)
    assert gcca.n_components_ == 0
    assert gcca.common_.shape == (100, 0)
    assert gcca.transform(views).shape == (100, 0)
    assert gcca.score(views) == 0.0
    gcca.report(tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    assert "Nothing is shared: these views have no common component" in text
    gcca.save(tmp_path / "model.safetensors")
    assert FederatedGCCA.load(tmp_path / "model.safetensors").n_components_ == 0


def test_noise_that_looks_perfect_in_the_sample_is_warned_of() -> None:
    _, views = planted(100, 60, 0.0, 3)
    with pytest.warns(UserWarning, match="that have nothing in common would show components 1 to 2, too"):
        gcca = FederatedGCCA(2, random_state=0).fit(views)
    assert gcca.correlations_.min() > 0.95  # the trap
    assert gcca.eigenvalue_by_chance_ == pytest.approx(edge_by_chance(np.array([60, 60, 60]), 99))
    with_folds = FederatedGCCA(2, ridge=1.0, folds=4, random_state=0).fit(views)
    assert np.abs(with_folds.held_out_correlations_).max() < 0.3


def test_the_edge_by_chance_is_that_of_random_projectors() -> None:
    rng = np.random.default_rng(0)
    for J, ranks in ((300, (60, 90, 30)), (200, (50, 10)), (400, (20, 20, 20, 20))):
        largest = []
        for _ in range(5):
            bases = [np.linalg.qr(rng.normal(size=(J, n)))[0] for n in ranks]
            largest.append(np.linalg.norm(np.hstack(bases), 2) ** 2)
        assert edge_by_chance(np.array(ranks), J) == pytest.approx(np.mean(largest), abs=0.06)


def test_auto_finds_how_much_is_shared_and_a_good_ridge() -> None:
    hidden, views = planted(100, 60, 0.2, 104)
    gcca = FederatedGCCA("auto", ridge="auto", random_state=0).fit(views)
    assert gcca.n_components_ == 2
    assert explain(hidden, gcca.common_) > 0.78
    assert 0.2 < gcca.held_out_correlations_.min() < gcca.held_out_correlations_.max() < 0.8
    assert gcca.correlations_.min() > 0.8  # in the sample
    with pytest.warns(UserWarning, match="have nothing in common would show component"):
        bare = FederatedGCCA(2, random_state=0).fit([X[:, :45] for X in views])
    assert explain(hidden, bare.common_) < 0.6


def test_more_components_are_looked_at_if_all_are_shared() -> None:
    _, views = planted(300, 15, 2.0, 105, shared=8)
    gcca = FederatedGCCA("auto", random_state=0).fit(views)
    assert gcca.n_components_ == 8
    assert len(gcca.held_out_correlations_) == 8
    assert gcca.held_out_correlations_.min() > 0.5


def test_score_is_the_agreement_about_new_entities() -> None:
    rng = np.random.default_rng(0)
    mixes = [rng.normal(size=(2, 8)) for _ in range(3)]

    def draw(n: int) -> list[np.ndarray]:
        hidden = rng.normal(size=(n, 2))
        return [hidden @ mix + 0.5 * rng.normal(size=(n, 8)) for mix in mixes]

    gcca = FederatedGCCA(2, random_state=0).fit(draw(300))
    assert gcca.score(draw(300)) > 0.8
    assert abs(gcca.score([rng.normal(size=(300, 8)) for _ in range(3)])) < 0.15
    with pytest.raises(InputError, match="at least two must be given"):
        gcca.score([draw(10)[0], None, None])


def test_bits_choose_the_exact_method_and_the_papers_start_has_a_name() -> None:
    _, views = planted(200, 8, 1.0, 0)
    exact = FederatedGCCA(2, tol=1e-7, random_state=0).fit(views)
    rounded = FederatedGCCA(2, bits=4, tol=1e-6, random_state=0).fit(views)
    assert rounded.ledger_.started.algorithm == MaxVarKrylov.__name__
    assert largest_angle(rounded.common_, exact.common_) < 1e-4
    assert rounded.ledger_.bytes_up < 0.5 * exact.ledger_.bytes_up
    started = FederatedGCCA(2, solver="cutemaxvar", start="mvlsa", max_rounds=8, tol=0, random_state=0).fit(views)
    assert started.ledger_.started.algorithm == CuteMaxVar.__name__
    assert started.ledger_.started.options["start"] == "mvlsa"
    with pytest.raises(InputError, match="start='mvlsa' is for solver='altmaxvar'"):
        FederatedGCCA(2, start="mvlsa").fit(views)


@pytest.mark.parametrize("secure", [True, Secure(verified=True)])
def test_secure_sums_give_the_same_and_leave_the_weights_at_home(secure: Any) -> None:
    _, views = planted(150, 7, 1.0, 0)
    plain = FederatedGCCA(2, tol=1e-9, random_state=0).fit(views)
    gcca = FederatedGCCA(2, tol=1e-9, secure=secure, random_state=0).fit(views)
    assert largest_angle(gcca.common_, plain.common_) < 1e-6
    np.testing.assert_allclose(gcca.eigenvalues_, plain.eigenvalues_, rtol=1e-9)
    np.testing.assert_allclose(gcca.correlations_, plain.correlations_, atol=1e-6)
    np.testing.assert_allclose(gcca.explained_variance_ratio_, plain.explained_variance_ratio_, atol=1e-6)
    np.testing.assert_allclose(np.abs(gcca.transform(views)), np.abs(plain.transform(views)), atol=1e-6)
    assert gcca.cost_ == pytest.approx(plain.cost_)
    tasks = {row["task"] for row in gcca.ledger_.rows() if "task" in row}
    assert "keep_weights" in tasks
    assert "solve" not in tasks


@pytest.mark.parametrize("options", [{}, {"secure": True}, {"bits": "auto"}])
@pytest.mark.parametrize("ridge", [0.0, 20.0])
def test_missing_entities_agree_with_a_pooled_oracle(options: dict[str, Any], ridge: float) -> None:
    _, views = planted(200, 10, 0.8, 7)
    gaps = with_gaps(views, 0.3, 8)
    w, G = pooled_masked(gaps, 2, ridge)
    tol = 1e-6 if options.get("bits") else 1e-8
    gcca = FederatedGCCA(2, tol=tol, ridge=ridge, random_state=0, **options).fit(gaps, missing="mask")
    np.testing.assert_allclose(gcca.eigenvalues_, w, rtol=1e-5)
    D = np.sqrt(gcca.view_counts_)[:, None]
    assert largest_angle(gcca.common_ * D, G * D) < 1e-5
    np.testing.assert_allclose((gcca.common_ * D).T @ (gcca.common_ * D), 3 * np.eye(2), atol=1e-6)
    np.testing.assert_array_equal(gcca.view_counts_, np.sum([~np.isnan(X[:, 0]) for X in gaps], axis=0))


def test_masks_beat_complete_rows_and_imputation() -> None:
    by_mask, by_drop, by_mean = [], [], []
    for seed in (100, 101, 102):
        rng = np.random.default_rng(seed)
        hidden = rng.normal(size=(400, 3))
        views = [hidden @ rng.normal(size=(3, 20)) + 2.5 * rng.normal(size=(400, 20)) for _ in range(4)]
        gaps = with_gaps(views, 0.3, seed)
        masked = FederatedGCCA(3, random_state=0).fit(gaps, missing="mask")
        by_mask.append(explain(hidden, masked.common_))
        dropped = FederatedGCCA(3, random_state=0).fit(gaps, missing="drop")
        by_drop.append(explain(hidden, dropped.transform(gaps)))
        filled = [np.where(np.isnan(X), np.nanmean(X, axis=0), X) for X in gaps]
        by_mean.append(explain(hidden, FederatedGCCA(3, random_state=0).fit(filled).common_))
    assert np.mean(by_mask) > np.mean(by_drop) + 0.02
    assert np.mean(by_mask) > np.mean(by_mean) + 0.02


def test_equal_masks_are_a_fit_to_the_other_rows() -> None:
    _, views = planted(120, 6, 1.0, 1)
    gaps = [np.where(np.arange(120)[:, None] < 20, np.nan, X) for X in views]
    with pytest.warns(UserWarning, match="No view has 20 of the 120 entities"):
        masked = FederatedGCCA(2, tol=1e-9, random_state=0).fit(gaps, missing="mask")
    plain = FederatedGCCA(2, tol=1e-9, random_state=0).fit([X[20:] for X in views])
    np.testing.assert_allclose(masked.eigenvalues_, plain.eigenvalues_, rtol=1e-9)
    assert largest_angle(masked.common_[20:], plain.common_) < 1e-6
    assert np.isnan(masked.common_[:20]).all()
    assert masked.cost_ == pytest.approx(plain.cost_)
    dropped = FederatedGCCA(2, tol=1e-9, random_state=0).fit(gaps, missing="drop")
    assert largest_angle(dropped.common_[20:], plain.common_) < 1e-6


def test_masks_may_be_given_beside_the_rows_and_tables_may_have_empty_rows() -> None:
    _, views = planted(90, 5, 1.0, 2)
    gaps = with_gaps(views, 0.2, 3)
    masks = [~np.isnan(X[:, 0]) for X in gaps]
    by_rows = FederatedGCCA(2, random_state=0).fit(gaps, missing="mask")
    by_masks = FederatedGCCA(2, random_state=0).fit(views, missing="mask", masks=masks)
    np.testing.assert_allclose(by_masks.eigenvalues_, by_rows.eigenvalues_, rtol=1e-9)
    frames = [pd.DataFrame(X, columns=[f"c{j}" for j in range(5)]) for X in gaps]
    by_tables = FederatedGCCA(2, random_state=0).fit(frames, missing="mask")
    np.testing.assert_allclose(by_tables.eigenvalues_, by_rows.eigenvalues_, rtol=1e-9)
    said = by_rows.transform(gaps)
    assert not np.isnan(said).any()
    alone = by_rows.transform([gaps[0], None, None])
    np.testing.assert_array_equal(np.isnan(alone[:, 0]), ~masks[0])


def test_a_study_of_views_with_gaps_finds_what_is_shared() -> None:
    _, views = planted(200, 12, 1.0, 106)
    gcca = FederatedGCCA("auto", ridge="auto", random_state=0).fit(with_gaps(views, 0.3, 1), missing="mask")
    assert gcca.n_components_ == 2
    assert gcca.held_out_correlations_.min() > 0.6


def test_what_cannot_be_is_refused() -> None:
    _, views = planted(60, 4, 1.0, 0)
    holes = [X.copy() for X in views]
    holes[1][3, 2] = np.nan
    with pytest.raises(InputError, match="1 rows have NaN in some features"):
        FederatedGCCA(1).fit(holes, missing="mask")
    apart = [np.where((np.arange(60) % 3 == i)[:, None], X, np.nan) for i, X in enumerate(views)]
    with pytest.raises(InputError, match="No entity is in two views"):
        FederatedGCCA(1).fit(apart, missing="mask")
    with pytest.raises(InputError, match="Only 0 of 60 entities are in all 3 views"):
        FederatedGCCA(1).fit(apart, missing="drop")
    with pytest.raises(InputError, match="none of the entities"):
        FederatedGCCA(1).fit([*views[:2], np.full((60, 4), np.nan)], missing="mask")
    with pytest.raises(InputError, match="missing must be 'mask', 'drop' or None"):
        FederatedGCCA(1).fit(views, missing="mean")
    with pytest.raises(InputError, match="also give missing="):
        FederatedGCCA(1).fit(views, masks=[np.ones(60, dtype=bool)] * 3)
    with pytest.raises(InputError, match="only solver='krylov' can run"):
        FederatedGCCA(1, solver="altmaxvar", secure=True).fit(views)
    with pytest.raises(InputError, match="patience cannot be used"):
        FederatedGCCA(1, patience=2, secure=True).fit(views, held_out=views)
    with pytest.raises(InputError, match="n_components must be from 1 to 12"):
        FederatedGCCA(13).fit(views, missing="mask")
    with pytest.raises(InputError, match="60 rows and client"):
        FederatedGCCA(1).fit([views[0], views[1][:50], views[2]], missing="mask")
    with pytest.raises(InputError, match="cannot run with verified sums"):
        FederatedGCCA("auto", secure=Secure(verified=True)).fit(views)


def test_views_of_one_column() -> None:
    _, views = planted(80, 1, 2.0, 4, shared=1)
    gaps = with_gaps(views, 0.2, 5)
    gcca = FederatedGCCA(1, tol=1e-9, random_state=0).fit(gaps, missing="mask")
    np.testing.assert_allclose(gcca.eigenvalues_, pooled_masked(gaps, 1)[0], rtol=1e-8)
    auto = FederatedGCCA("auto", random_state=0).fit(views)
    assert auto.n_components_ == 1


def test_a_job_with_missing_entities_and_auto(tmp_path: Path) -> None:
    _, views = planted(150, 6, 1.0, 6)
    for name, X in zip("abc", with_gaps(views, 0.3, 6), strict=True):
        pd.DataFrame(X, columns=[f"{name}{j}" for j in range(6)]).assign(who=range(150)).to_csv(
            tmp_path / f"{name}.csv", index=False
        )
    (tmp_path / "job.toml").write_text(
        '[job]\ntask = "gcca"\nn_components = "auto"\nridge = "auto"\nrandom_state = 0\n[data]\n'
        'views = ["a.csv", "b.csv", "c.csv"]\nid = "who"\nmissing = "mask"\n[secure]\nenabled = true\n'
    )
    done = Job.load(tmp_path / "job.toml").run(tmp_path / "out")
    assert done.model.n_components_ == 2
    text = done.folder.report.read_text()
    assert "<h2>Missing entities</h2>" in text
    assert "held out" in text
