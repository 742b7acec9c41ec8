"""Models for others: scikit-learn's own estimators to 1e-12, ONNX graphs to 1e-6, and ours inside a Pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import skops.io
from sklearn.base import clone
from sklearn.decomposition import PCA, TruncatedSVD
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler

from fedspan import (
    DeepFederatedGCCA,
    FederatedClassifier,
    FederatedGCCA,
    FederatedPCA,
    FederatedSVD,
    InputError,
    PersonalizedPCA,
    VerticalFederatedClassifier,
)

rng = np.random.default_rng(3)
X = rng.normal(size=(90, 6)) @ rng.normal(size=(6, 6)) * [1, 2, 5, 0.1, 30, 1] + [0, 3, -8, 1, 100, 0]
y = np.where(X[:, 0] > 0, "yes", "no")
CLIENTS = {"a": X[:50], "b": X[50:]}
NEW = X[::-1] + 0.5


def same(one: Any, two: Any, tol: float) -> None:
    np.testing.assert_allclose(one, two, rtol=tol, atol=tol * np.abs(two).max())


def run_onnx(path: Path, **inputs: Any) -> list[Any]:
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, inputs)


@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("center", [False, True])
def test_pca_as_scikit_learn_has_it(center: bool, scale: bool) -> None:
    model = FederatedPCA(3, center=center, scale=scale, random_state=0).fit(CLIENTS)
    theirs = model.to_sklearn()
    assert isinstance(theirs, Pipeline if scale else PCA)
    same(theirs.transform(NEW), model.transform(NEW), 1e-12)
    same(theirs.inverse_transform(model.transform(NEW)), model.inverse_transform(model.transform(NEW)), 1e-12)
    again = skops.io.loads(skops.io.dumps(theirs))  # nothing that has to be trusted
    np.testing.assert_array_equal(again.transform(NEW), theirs.transform(NEW))


def test_a_pca_that_was_exported_knows_what_a_pca_of_the_pooled_rows_knows() -> None:
    """Every public learned attribute, against scikit-learn's own fit."""
    theirs, pooled = FederatedPCA(3, tol=1e-12, random_state=0).fit(CLIENTS).to_sklearn(), PCA(3).fit(X)
    learned = {name for name in vars(pooled) if name.endswith("_") and not name.startswith("_")}
    assert learned <= set(vars(theirs))
    for name in learned:
        same(np.abs(getattr(theirs, name)), np.abs(getattr(pooled, name)), 1e-9)
    assert theirs.score(X) == pytest.approx(pooled.score(X))
    scaled = FederatedPCA(3, scale=True, tol=1e-12, random_state=0).fit(CLIENTS).to_sklearn()
    both = Pipeline([("scale", StandardScaler()), ("pca", PCA(3))]).fit(X)
    same(np.abs(scaled.transform(NEW)), np.abs(both.transform(NEW)), 1e-8)


@pytest.mark.parametrize("scale", [False, True])
def test_svd_as_scikit_learn_has_it(scale: bool) -> None:
    model = FederatedSVD(3, scale=scale, tol=1e-10, random_state=0).fit(CLIENTS)
    theirs = model.to_sklearn()
    same(theirs.transform(NEW), model.transform(NEW), 1e-12)
    last = theirs[-1] if scale else theirs
    assert isinstance(last, TruncatedSVD)
    assert not hasattr(last, "explained_variance_")
    if not scale:
        pooled = TruncatedSVD(3, algorithm="arpack").fit(X)
        same(np.abs(theirs.transform(NEW)), np.abs(pooled.transform(NEW)), 1e-7)
    skops.io.loads(skops.io.dumps(theirs))


@pytest.mark.parametrize("scale", [False, True])
def test_a_clients_own_components_as_scikit_learn_has_them(scale: bool) -> None:
    model = PersonalizedPCA(2, scale=scale, random_state=0).fit(CLIENTS)
    for client in CLIENTS:
        same(model.to_sklearn(client).transform(NEW), model.transform(NEW, client), 1e-12)
    with pytest.raises(InputError, match="client=… must say whose rows"):
        model.to_sklearn()
    clipped = PersonalizedPCA(2, clip=2.0, random_state=0).fit(CLIENTS)
    with pytest.raises(InputError, match="cannot cut columns"):
        clipped.to_sklearn("a")


def test_names_of_features_go_along() -> None:
    pandas = pytest.importorskip("pandas")
    names = [*"pqrstu"]
    frames = {name: pandas.DataFrame(rows, columns=names) for name, rows in CLIENTS.items()}
    for scale in (False, True):
        theirs = FederatedPCA(2, scale=scale, random_state=0).fit(frames).to_sklearn()
        assert list(theirs.feature_names_in_) == names
        theirs.transform(frames["a"])
        with pytest.raises(ValueError, match="feature names"):
            theirs.transform(frames["a"][names[::-1]])


@pytest.mark.parametrize("kind", [FederatedPCA, FederatedSVD])
@pytest.mark.parametrize("scale", [False, True])
def test_projections_as_onnx(tmp_path: Path, kind: Any, scale: bool) -> None:
    model = kind(3, scale=scale, random_state=0).fit(CLIENTS)
    model.to_onnx(tmp_path / "m.onnx")
    (transformed,) = run_onnx(tmp_path / "m.onnx", X=NEW)
    assert transformed.dtype == np.float64
    same(transformed, model.transform(NEW), 1e-12)
    (one,) = run_onnx(tmp_path / "m.onnx", X=NEW[:1])
    same(one, model.transform(NEW[:1]), 1e-12)


@pytest.mark.parametrize("labels", [y, (y == "yes").astype(int), np.where(y == "yes", 0.5, 2.5)])
def test_a_classifier_as_onnx(tmp_path: Path, labels: Any) -> None:
    model = FederatedClassifier(hidden=5, rounds=30, batch_size=20, random_state=0)
    model.fit(CLIENTS, {"a": labels[:50], "b": labels[50:]})
    model.to_onnx(tmp_path / "m.onnx")
    label, probabilities = run_onnx(tmp_path / "m.onnx", X=NEW)
    same(probabilities, model.predict_proba(NEW), 1e-9)
    assert label.tolist() == model.predict(NEW).tolist()


def test_views_as_onnx(tmp_path: Path) -> None:
    views = {"H": X[:, :2], "west": X[:, 2:]}  # a name that the graph could have used itself
    model = VerticalFederatedClassifier(hidden=5, rounds=20, batch_size=20, random_state=0).fit(views, y)
    model.to_onnx(tmp_path / "m.onnx")
    label, probabilities = run_onnx(tmp_path / "m.onnx", **views)
    same(probabilities, model.predict_proba(views), 1e-9)
    assert label.tolist() == model.predict(views).tolist()


def test_a_torch_model_is_not_ours_to_export(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    model = FederatedClassifier(model=torch.nn.Linear(6, 2), rounds=2, batch_size=20, random_state=0)
    model.fit([X.astype("f4")], [y])
    with pytest.raises(InputError, match=r"torch\.onnx\.export"):
        model.to_onnx(tmp_path / "m.onnx")
    assert list(tmp_path.iterdir()) == []


def test_without_the_extra_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from fedspan.errors import MissingExtraError

    for name in [name for name in sys.modules if name == "onnx" or name.startswith("onnx.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "onnx", None)
    model = FederatedPCA(2, random_state=0).fit(CLIENTS)
    with pytest.raises(MissingExtraError, match=r"pip install 'fedspan\[onnx\]'"):
        model.to_onnx(tmp_path / "m.onnx")


def reloaded(model: Any, tmp_path: Path) -> Any:
    model.save(tmp_path / "model.safetensors")
    return type(model).load(tmp_path / "model.safetensors")


@pytest.mark.parametrize("kind", [FederatedPCA, FederatedSVD])
def test_a_fitted_model_is_a_step_that_is_not_fitted_again(tmp_path: Path, kind: Any) -> None:
    """To the bit: the pipeline makes the same calls on the same arrays."""
    model = reloaded(kind(3, random_state=0).fit(CLIENTS), tmp_path)
    before = model.components_.copy()
    steps = Pipeline([("pca", FrozenEstimator(model)), ("clf", LogisticRegression())]).fit(NEW, y)
    np.testing.assert_array_equal(steps["pca"].estimator.components_, before)
    by_hand = LogisticRegression().fit(model.transform(NEW), y)
    np.testing.assert_array_equal(steps.predict_proba(X), by_hand.predict_proba(model.transform(X)))
    assert len(steps[:-1].get_feature_names_out()) == 3
    bare = Pipeline([("pca", model), ("clf", LogisticRegression())])
    with pytest.raises(InputError, match=r"FrozenEstimator\(model\)"):
        bare.fit(NEW, y)


def test_classifiers_views_and_clients_in_a_pipeline(tmp_path: Path) -> None:
    scaler = StandardScaler().fit(X)
    scaled = {name: scaler.transform(rows) for name, rows in CLIENTS.items()}
    model = FederatedClassifier(hidden=5, rounds=30, batch_size=20, random_state=0)
    model = reloaded(model.fit(scaled, {"a": y[:50], "b": y[50:]}), tmp_path)
    steps = Pipeline([("scale", StandardScaler()), ("net", FrozenEstimator(model))]).fit(X, y)
    np.testing.assert_array_equal(steps.predict(NEW), model.predict(scaler.transform(NEW)))

    gcca = reloaded(FederatedGCCA(2, random_state=0).fit([X[:, :3], X[:, 3:]]), tmp_path)
    views = [NEW[:, :3], NEW[:, 3:]]
    steps = Pipeline([("gcca", FrozenEstimator(gcca)), ("clf", LogisticRegression())]).fit(views, y)
    by_hand = LogisticRegression().fit(gcca.transform(views), y)
    np.testing.assert_array_equal(steps.predict(views), by_hand.predict(gcca.transform(views)))

    vertical = VerticalFederatedClassifier(hidden=5, rounds=20, batch_size=20, random_state=0).fit(views, y)
    steps = Pipeline([("net", FrozenEstimator(reloaded(vertical, tmp_path)))]).fit(views, y)
    np.testing.assert_array_equal(steps.predict(views), vertical.predict(views))

    personal = reloaded(PersonalizedPCA(2, random_state=0).fit(CLIENTS), tmp_path).to_sklearn("b")
    steps = Pipeline([("pca", FrozenEstimator(personal)), ("clf", LogisticRegression())]).fit(NEW, y)
    assert steps.predict(X).shape == y.shape


@pytest.mark.parametrize("kind", [FederatedPCA, FederatedSVD, FederatedGCCA, PersonalizedPCA, FederatedClassifier])
def test_a_clone_has_the_parameters_and_nothing_learned(kind: Any) -> None:
    model = kind(random_state=5)
    copy = clone(model)
    assert copy.get_params() == model.get_params()
    assert not [name for name in vars(copy) if name.endswith("_")]


def test_networks_of_views_in_a_pipeline() -> None:
    torch = pytest.importorskip("torch")
    views = [X[:, :3], X[:, 3:]]
    deep = DeepFederatedGCCA([torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)], 2, rounds=2, random_state=0).fit(views)
    steps = Pipeline([("deep", FrozenEstimator(deep)), ("clf", LogisticRegression())]).fit(views, y)
    by_hand = LogisticRegression().fit(deep.transform(views), y)
    np.testing.assert_array_equal(steps.predict(views), by_hand.predict(deep.transform(views)))
