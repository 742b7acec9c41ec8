"""Columns as they come: scaled by what the clients find together, with scikit-learn and pooled rows as oracles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from fedspan import FederatedClassifier, Secure, VerticalFederatedClassifier
from fedspan.algorithms import Ssca, VerticalSsca
from fedspan.algorithms.learning._labelled_rows import LabelledRows
from fedspan.core.run import run
from fedspan.engines import InProcess
from fedspan.numerics.swish import Swish

SMALL: dict[str, Any] = {"method": "ssca", "hidden": 6, "batch_size": 60, "rounds": 30, "random_state": 0}
UNITS = np.array([1e12, 1.0, 1e-9, 30.0, 0.0])  # the last column is constant
SHIFTS = np.array([3e12, 0.0, 5e-9, 4000.0, 7.0])


def birds(n: int = 300) -> tuple[np.ndarray, np.ndarray]:
    """Rows whose class depends on columns of very different units."""
    rng = np.random.default_rng(5)
    Z = rng.normal(size=(n, 5))
    y = np.where(Z[:, 0] + Z[:, 2] - Z[:, 3] > 0, "gentoo", "adelie")
    return Z * UNITS + SHIFTS, y


def dealt(X: Any, y: np.ndarray) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Three uneven clients, the second with fewer rows than a batch."""
    cuts = {"a": slice(0, 100), "b": slice(100, 120), "c": slice(120, len(y))}
    return {name: X[at] for name, at in cuts.items()}, {name: y[at] for name, at in cuts.items()}


def in_views(X: np.ndarray) -> dict[str, np.ndarray]:
    return {"bank": X[:, :2], "shop": X[:, 2:]}


@pytest.mark.parametrize("secure", [False, True, Secure(verified=True)], ids=["plain", "secure", "verified"])
def test_the_scaling_is_that_of_the_pooled_rows(secure: Any) -> None:
    X, y = birds()
    model = FederatedClassifier(**SMALL | {"rounds": 2}, secure=secure).fit(*dealt(X, y))
    oracle = StandardScaler().fit(X)
    Z = np.clip((X - oracle.mean_) / np.where(UNITS > 0, np.sqrt(oracle.var_), 1.0), -5, 5)
    Z[:, UNITS == 0] = 0
    want = Z * np.sqrt(100 / (Z**2).sum(axis=1).mean())
    np.testing.assert_allclose(model.scaling_.apply(X), want, atol=1e-6)
    assert (model.scaling_.apply(X) ** 2).sum(axis=1).mean() == pytest.approx(100)
    assert model.scaling_.slope[4] == 0.0


def test_views_are_scaled_as_rows_are() -> None:
    X, y = birds()
    rows = FederatedClassifier(**SMALL | {"rounds": 1}).fit(*dealt(X, y)).scaling_
    for options in ({}, {"exchange": "each"}, {"secure": True}, {"secure": Secure(verified=True)}):
        views = VerticalFederatedClassifier(**SMALL | {"rounds": 1}, **options).fit(in_views(X), y).scaling_
        np.testing.assert_allclose(views.apply(X), rows.apply(X), atol=1e-6)


@pytest.mark.parametrize("secure", [False, True])
def test_raw_columns_are_learned_from_like_scaled_ones(secure: bool) -> None:
    X, y = birds()
    pooled = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, y).score(X, y)
    model = FederatedClassifier(**SMALL | {"rounds": 200}, secure=secure).fit(*dealt(X, y))
    assert model.score(X, y) > pooled - 0.03
    vertical = VerticalFederatedClassifier(**SMALL | {"rounds": 200}, secure=secure).fit(in_views(X), y)
    assert vertical.score(in_views(X), y) > pooled - 0.03


def test_a_change_of_units_changes_nothing() -> None:
    rng = np.random.default_rng(1)
    X, y = rng.normal(size=(120, 3)), rng.integers(2, size=120)
    grams = X * [1000.0, 1.0, 0.001] + [5.0, 0.0, -3.0]
    first, second = (FederatedClassifier(**SMALL).fit([T[:70], T[70:]], [y[:70], y[70:]]) for T in (X, grams))
    np.testing.assert_allclose(first.predict_proba(X), second.predict_proba(grams), atol=1e-7)


def test_sparse_rows_and_float32_are_scaled_alike() -> None:
    rng = np.random.default_rng(2)
    X, y = rng.normal(size=(90, 4)) * (rng.random((90, 4)) < 0.4) + 0.0, rng.integers(2, size=90)
    dense = FederatedClassifier(**SMALL).fit([X[:50], X[50:]], [y[:50], y[50:]])
    sparse = FederatedClassifier(**SMALL).fit([sp.csr_array(X[:50]), sp.csr_array(X[50:])], [y[:50], y[50:]])
    np.testing.assert_allclose(sparse.predict_proba(sp.csr_array(X)), dense.predict_proba(X), atol=1e-9)
    narrow = FederatedClassifier(**SMALL).fit(np.split(X.astype(np.float32), [50]), np.split(y, [50]))
    np.testing.assert_allclose(narrow.predict_proba(X.astype(np.float32)), dense.predict_proba(X), atol=1e-3)


def test_without_scaling_and_intercepts_it_is_the_paper() -> None:
    """To the bit: the estimator adds nothing to Algorithm 1."""
    rng = np.random.default_rng(3)
    X, y = rng.normal(size=(120, 4)), rng.integers(2, size=120)
    model = FederatedClassifier(
        method="ssca", standardize=False, intercept=False, hidden=6, batch_size=20, rounds=15, random_state=3
    ).fit({"a": X[:70], "b": X[70:]}, {"a": y[:70], "b": y[70:]})
    paper = Ssca(Swish(6, 2), batch=20, rounds=15)
    clients = {"a": (X[:70], y[:70]), "b": (X[70:], y[70:])}
    np.testing.assert_array_equal(model.coef_, run(paper, InProcess(clients), rounds=15, seed=3).state.omega)
    assert model.scaling_ is None


@pytest.mark.parametrize("standardize", [True, False, (-3.0, [3.0, 4.0, 5.0, 6.0, 7.0])])
def test_the_scaling_is_saved_with_the_model(standardize: Any, tmp_path: Path) -> None:
    X, y = birds(200)
    X = X / np.where(UNITS > 0, UNITS, 1.0)
    model = FederatedClassifier(**SMALL, standardize=standardize).fit(*dealt(X, y))
    model.save(tmp_path / "m.safetensors")
    back = FederatedClassifier.load(tmp_path / "m.safetensors")
    np.testing.assert_array_equal(back.predict_proba(X), model.predict_proba(X))
    spread = VerticalFederatedClassifier(**SMALL, standardize=standardize).fit(in_views(X), y)
    spread.save(tmp_path / "v.safetensors")
    again = VerticalFederatedClassifier.load(tmp_path / "v.safetensors")
    np.testing.assert_array_equal(again.predict_proba(in_views(X)), spread.predict_proba(in_views(X)))


def test_gradients_of_intercepts_agree_with_finite_differences() -> None:
    rng = np.random.default_rng(4)
    net = Swish(5, 3, intercept=True)
    rows = LabelledRows(rng.normal(size=(30, 6)), rng.integers(3, size=30), None, None, 1, net)
    omega, at = rng.normal(size=net.size(6)), np.arange(3, 30)
    _, grad = rows.sums(omega, at)
    for j in range(len(omega)):
        step = np.zeros_like(omega)
        step[j] = 1e-6
        slope = (rows.losses(omega + step, at) - rows.losses(omega - step, at))[0] / 2e-6
        assert grad[0, j] == pytest.approx(slope, abs=1e-5)
    longest = [np.linalg.norm(rows.sums(omega, np.array([i]))[1][0]) for i in range(30)]
    short = np.linalg.norm(rows.clipped(omega, np.array([int(np.argmax(longest))]), 0.5))
    assert short == pytest.approx(0.5)


def test_views_with_intercepts_learn_what_rows_learn() -> None:
    """One full-batch round from the same start: the same gradient, wherever the columns are."""
    X, y = birds(100)
    net = {"method": "ssca", "hidden": 4, "batch_size": None, "rounds": 3, "random_state": 0}
    code = FederatedClassifier(**net).fit([X], [y])
    same = VerticalSsca(tau=0.05, rho=Ssca().rho, gamma=Ssca().gamma)
    views = VerticalFederatedClassifier(**net | {"method": same}).fit(in_views(X), y)
    np.testing.assert_allclose(views.coef_, code.coef_, atol=1e-8)
