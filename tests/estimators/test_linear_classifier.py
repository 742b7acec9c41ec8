"""hidden=0 is logistic regression of all rows together; small tables get the mean of a network and a linear model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_breast_cancer, load_iris, load_wine
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from fedspan import FederatedClassifier, InputError
from fedspan.algorithms import LocalSsca
from fedspan.numerics.swish import linear_proba, split_models
from fedspan.privacy.request import RowDP


def dealt(X: np.ndarray, y: np.ndarray, clients: int = 4) -> tuple[list[np.ndarray], list[np.ndarray]]:
    order = np.random.default_rng(0).permutation(len(y))
    return [X[at] for at in np.array_split(order, clients)], [y[at] for at in np.array_split(order, clients)]


@pytest.mark.parametrize("load", [load_breast_cancer, load_wine])
@pytest.mark.parametrize("secure", [False, True])
def test_without_hidden_cells_it_is_scikit_learns_logistic_regression(load: Any, secure: bool) -> None:
    X, y = load(return_X_y=True)
    model = FederatedClassifier(hidden=0, secure=secure).fit(*dealt(X, y))
    Z = StandardScaler().fit_transform(X)
    want = LogisticRegression(tol=1e-10, max_iter=5000).fit(Z, y).predict_proba(Z)
    np.testing.assert_allclose(model.predict_proba(X), want, atol=1e-4)
    assert model.converged_
    assert model.n_rounds_ <= 10


@pytest.mark.parametrize("classes", [2, 3])
def test_its_standard_errors_are_those_of_statsmodels(classes: int) -> None:
    statsmodels = pytest.importorskip("statsmodels.api")
    rng = np.random.default_rng(3)
    Z = rng.normal(size=(400, 3))
    X = pd.DataFrame(Z * [1, 50, 0.01] + [0, 300, 0], columns=["age", "weight", "dose"])
    eta = Z @ rng.normal(size=(3, classes))
    y = (eta + rng.gumbel(size=eta.shape)).argmax(axis=1)
    model = FederatedClassifier(hidden=0, l2=0).fit([X[:150], X[150:]], [y[:150], y[150:]])
    want = statsmodels.MNLogit(y, statsmodels.add_constant(X)).fit(disp=0, tol=1e-12)
    table = model.summary()
    order = [1, 2, 3, 0]  # statsmodels has the constant first
    got = np.array([row.standard_error for row in table.rows]).reshape(classes - 1, 4)
    np.testing.assert_allclose(got, np.asarray(want.bse).T.reshape(classes - 1, 4)[:, order], rtol=1e-6)
    p = np.array([row.p_value for row in table.rows]).reshape(classes - 1, 4)
    np.testing.assert_allclose(p, np.asarray(want.pvalues).T.reshape(classes - 1, 4)[:, order], atol=1e-6)
    assert [row.name for row in table.rows[:4]] == ["age", "weight", "dose", "(intercept)"]
    assert {row.equation for row in table.rows} == ({"1", "2"} if classes > 2 else {""})


def test_a_linear_model_survives_its_file_and_onnx(tmp_path: Path) -> None:
    X, y = load_iris(return_X_y=True)
    names = np.array(["setosa", "versicolor", "virginica"])[y]
    model = FederatedClassifier(hidden=0).fit(*dealt(X, names))
    model.save(tmp_path / "m.safetensors")
    back = FederatedClassifier.load(tmp_path / "m.safetensors")
    np.testing.assert_array_equal(back.predict(X), model.predict(X))
    assert str(back.summary()) == str(model.summary())
    runtime = pytest.importorskip("onnxruntime")
    model.to_onnx(tmp_path / "m.onnx")
    label, probabilities = runtime.InferenceSession(tmp_path / "m.onnx").run(None, {"X": X})
    np.testing.assert_allclose(probabilities, model.predict_proba(X), atol=1e-9)
    assert label.tolist() == model.predict(X).tolist()


def test_classes_that_columns_separate_are_told_without_a_penalty() -> None:
    X = np.arange(40.0)[:, None]
    y = (X[:, 0] > 20).astype(int)
    with pytest.warns(ConvergenceWarning, match="separate the classes"):
        model = FederatedClassifier(hidden=0, l2=0.0).fit([X[::2], X[1::2]], [y[::2], y[1::2]])
    assert not model.converged_


def test_the_coefficients_of_a_network_are_not_summarised() -> None:
    X, y = load_iris(return_X_y=True)
    model = FederatedClassifier(hidden=3, rounds=40, random_state=0)
    with pytest.warns(ConvergenceWarning, match="could still fall"):
        model.set_params(rounds=2).fit(*dealt(X, y))
    with pytest.raises(InputError, match="set hidden=0"):
        model.summary()


def test_a_linear_model_cannot_be_private() -> None:
    X, y = load_iris(return_X_y=True)
    with pytest.raises(InputError, match="no noise that hides a row would leave a usable step"):
        FederatedClassifier(hidden=0, privacy=RowDP(1.0, 1e-5, 1.0)).fit(*dealt(X, y))


def test_small_tables_get_the_mean_of_a_network_and_a_linear_model(tmp_path: Path) -> None:
    X, y = load_wine(return_X_y=True)
    model = FederatedClassifier(random_state=0).fit(*dealt(X, y))
    net = model._make_network(model.labels_)
    omega, W = split_models(net, model.coef_, X.shape[1])
    Z = model.scaling_.apply(X)
    np.testing.assert_allclose(model.predict_proba(X), (net.proba(omega, Z) + linear_proba(W, Z)) / 2)
    held = round(0.1 * len(y))
    twin = LogisticRegression(max_iter=5000).fit(StandardScaler().fit_transform(X), y)
    plain = linear_proba(W, Z)
    assert np.abs(plain - twin.predict_proba(StandardScaler().fit_transform(X))).max() < 0.2  # it misses held-out rows
    assert abs(model.evaluation_.n - held) <= 2
    model.save(tmp_path / "m.safetensors")
    np.testing.assert_array_equal(
        FederatedClassifier.load(tmp_path / "m.safetensors").predict_proba(X), model.predict_proba(X)
    )
    runtime = pytest.importorskip("onnxruntime")
    model.to_onnx(tmp_path / "m.onnx")
    _, probabilities = runtime.InferenceSession(tmp_path / "m.onnx").run(None, {"X": X})
    np.testing.assert_allclose(probabilities, model.predict_proba(X), atol=1e-9)


def test_a_network_that_is_asked_for_stands_alone() -> None:
    X, y = load_wine(return_X_y=True)
    model = FederatedClassifier(hidden=16, random_state=0).fit(*dealt(X, y))
    assert len(model.coef_) == model._make_network(model.labels_).size(X.shape[1])


@pytest.mark.parametrize(
    ("options", "family", "why"),
    [
        ({}, "LocalSsca", "local steps"),
        ({"strict": True}, "Ssca", "proof of convergence"),
        ({"cost_limit": 0.9}, "Ssca", "only ssca keeps limits"),
        ({"privacy": RowDP(5.0, 1e-4, 1.0, simulate=True), "standardize": False}, "Ssca", "known sensitivity"),
        ({"hidden": 0}, "LogisticNewton", "the Hessian can be sent"),
        ({"method": LocalSsca(steps=3)}, "LocalSsca", "as requested"),
    ],
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning", "ignore::UserWarning")
def test_what_auto_stands_for_and_why_is_in_the_ledger(options: dict[str, Any], family: str, why: str) -> None:
    X, y = load_iris(return_X_y=True)
    model = FederatedClassifier(**{"rounds": 4, "hidden": 3, "random_state": 0} | options).fit(*dealt(X, y, 2))
    started = model.ledger_.started
    assert (started.algorithm, why in started.why) == (family, True)


def test_weighted_rows_give_the_weighted_optimum() -> None:
    """Scikit-learn's, on columns that are scaled by their weighted moments; only relative weights count."""
    X, y = load_breast_cancer(return_X_y=True)
    weight = np.random.default_rng(0).integers(0, 4, len(y)).astype(float)
    parts = [slice(0, 200), slice(200, None)]
    Xs, ys = [X[part] for part in parts], [y[part] for part in parts]
    scaler = StandardScaler().fit(X, sample_weight=weight)
    pooled = LogisticRegression(C=1.0, tol=1e-12, max_iter=10_000)
    pooled.fit(scaler.transform(X), y, sample_weight=weight / weight.mean())
    for factor in (1.0, 100.0):
        model = FederatedClassifier(hidden=0, random_state=0)
        model.fit(Xs, ys, sample_weight=[factor * weight[part] for part in parts])
        np.testing.assert_allclose(model.predict_proba(X), pooled.predict_proba(scaler.transform(X)), atol=1e-5)


def test_a_linear_model_does_not_pretend_to_go_on() -> None:
    X, y = load_breast_cancer(return_X_y=True)
    model = FederatedClassifier(hidden=0, random_state=0).partial_fit([X[:300]], [y[:300]])
    with pytest.raises(InputError, match="keeps nothing of earlier rows"):
        model.partial_fit([X[300:]], [y[300:]])


def test_a_model_with_a_linear_one_beside_it_goes_on() -> None:
    """Of hidden="auto" the network goes on, and the linear model is found anew; their classes are kept."""
    X, y = load_breast_cancer(return_X_y=True)
    model = FederatedClassifier(random_state=0, rounds=30).fit([X[:200], X[200:400]], [y[:200], y[200:400]])
    size = model.coef_.size
    model.partial_fit([X[400:]], [y[400:]])
    assert model.coef_.size <= size
    assert model.score(X, y) > 0.9
