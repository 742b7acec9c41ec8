"""Whole pipelines for others: words, gaps, scaling, network; in scikit-learn (as skops reads it) and in ONNX."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pandas as pd
import pytest
import skops.io
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.pipeline import Pipeline

from fedspan import (
    FederatedClassifier,
    FederatedPCA,
    FederatedRegressor,
    FederatedSVD,
    InputError,
    PersonalizedPCA,
    VerticalFederatedClassifier,
    prepare,
)

N = 120


def make_people(seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "age": rng.integers(20, 90, N).astype(float),
            "ward": rng.choice(["East", "West", "Öst"], N),
            "weight": rng.normal(75, 10, N),
            "sex": rng.choice(["f", "m"], N),
            "visits": rng.integers(0, 9, N),
        }
    )
    frame.loc[3, "age"] = np.nan
    frame.loc[[5, 8], "ward"] = None
    return frame


CLIENTS = {"north": make_people(1), "south": make_people(2)}
NEW = make_people(3)[["sex", "visits", "weight", "ward", "age"]].assign(remark="not a feature")  # another order
TARGETS = {name: (frame["weight"] > 75).to_numpy() for name, frame in CLIENTS.items()}


@pytest.fixture(scope="module")
def clients() -> Any:
    return prepare(CLIENTS, categories=["ward", "sex"], missing="mean")


def through_skops(model: Any) -> Any:
    data = skops.io.dumps(model)
    assert skops.io.get_untrusted_types(data=data) == []
    return skops.io.loads(data)


def to_inputs(frame: pd.DataFrame, columns: list[str]) -> dict[str, Any]:
    """A column each, (n, 1): doubles, and words with "" where there is none."""
    shown = {name: frame[name] for name in columns}
    return {
        name: column.astype(float).to_numpy()[:, None]
        if column.dtype.kind in "fi"
        else column.fillna("").to_numpy(dtype=object)[:, None]
        for name, column in shown.items()
    }


def run_onnx(path: Path, inputs: dict[str, Any]) -> list[Any]:
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, inputs)


def close(one: Any, two: Any) -> None:
    np.testing.assert_allclose(np.asarray(one, dtype=float), np.asarray(two, dtype=float), rtol=1e-9, atol=1e-9)


COLUMNS = ["age", "ward", "weight", "sex", "visits"]


@pytest.mark.parametrize("kind", [FederatedPCA, FederatedSVD])
@pytest.mark.parametrize("scale", [False, True])
def test_from_the_original_table_to_coordinates(kind: Any, scale: bool, clients: Any, tmp_path: Path) -> None:
    model = kind(3, scale=scale, random_state=0).fit(clients)
    theirs = through_skops(model.to_sklearn())
    assert isinstance(theirs, Pipeline)
    close(theirs.transform(NEW), model.transform(NEW))
    model.to_onnx(tmp_path / "m.onnx")
    close(run_onnx(tmp_path / "m.onnx", to_inputs(NEW, COLUMNS))[0], model.transform(NEW))
    loaded = kind.load(_save(model, tmp_path))
    close(loaded.to_sklearn().transform(NEW), model.transform(NEW))


def _save(model: Any, folder: Path) -> Path:
    model.save(folder / "m.safetensors")
    return folder / "m.safetensors"


def test_words_that_nobody_knows_are_refused_and_never_guessed(clients: Any, tmp_path: Path) -> None:
    model = FederatedPCA(2, random_state=0).fit(clients)
    odd = NEW.assign(ward=["zoo", *NEW["ward"][1:]])
    with pytest.raises(InputError, match="categories"):
        model.transform(odd)
    with pytest.raises(ValueError, match="unknown categories"):
        model.to_sklearn().transform(odd)
    model.to_onnx(tmp_path / "m.onnx")  # a graph cannot refuse: NaN says that nothing is known
    (there,) = run_onnx(tmp_path / "m.onnx", to_inputs(odd, COLUMNS))
    assert np.isnan(there[0]).all()
    close(there[1:], model.transform(NEW)[1:])


def test_without_means_gaps_are_refused(tmp_path: Path) -> None:
    whole = {name: frame.dropna() for name, frame in CLIENTS.items()}
    model = FederatedPCA(2, random_state=0).fit(prepare(whole, categories=["ward", "sex"]))
    theirs = model.to_sklearn()
    close(theirs.transform(NEW.dropna()), model.transform(NEW.dropna()))
    for column in ("age", "ward"):
        gap = NEW.dropna().reset_index(drop=True)
        gap.loc[0, column] = None if column == "ward" else np.nan
        with pytest.raises(ValueError, match=r"NaN|unknown categories"):
            theirs.transform(gap)
        model.to_onnx(tmp_path / f"{column}.onnx")
        (there,) = run_onnx(tmp_path / f"{column}.onnx", to_inputs(gap, COLUMNS))
        assert np.isnan(there[0]).all()
        assert np.isfinite(there[1:]).all()


@pytest.mark.parametrize(
    "options",
    [{}, {"hidden": 6}, {"hidden": 6, "intercept": False}, {"hidden": 6, "standardize": False}, {"hidden": 0}],
)
@pytest.mark.parametrize("classes", [2, 3])
def test_classifiers(options: dict[str, Any], classes: int, clients: Any, tmp_path: Path) -> None:
    labels = {name: np.array(["no", "perhaps", "yes"])[(np.arange(N) + (frame["age"] > 50)) % classes]
              for name, frame in CLIENTS.items()}  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # four rounds are few
        model = FederatedClassifier(**options, rounds=4, random_state=0).fit(clients, labels)
    theirs = through_skops(model.to_sklearn())
    close(theirs.predict_proba(NEW), model.predict_proba(NEW))
    assert theirs.predict(NEW).tolist() == model.predict(NEW).tolist()
    assert theirs.classes_.tolist() == model.classes_.tolist()
    if options == {"hidden": 0}:
        assert isinstance(theirs[-1], LogisticRegression)
    model.to_onnx(tmp_path / "m.onnx")
    label, probabilities = run_onnx(tmp_path / "m.onnx", to_inputs(NEW, COLUMNS))
    close(probabilities, model.predict_proba(NEW))
    assert label.tolist() == model.predict(NEW).tolist()


@pytest.mark.parametrize("named", [False, True])
def test_a_network_far_from_zero_and_without_a_table(named: bool) -> None:
    """Where swish is as good as 0 or linear, its three terms cancel; names of columns give no warning."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, 4)) * 100, np.arange(60) % 3 * 1.5
    rows = pd.DataFrame(X, columns=list("pqrs")) if named else X
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = FederatedClassifier(hidden=5, standardize=False, rounds=2, random_state=0).fit([rows], [y])
    theirs = through_skops(model.to_sklearn())
    far = rows * 50
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        close(theirs.predict_proba(far), model.predict_proba(far))
    assert theirs.predict(far).tolist() == model.predict(far).tolist()


@pytest.mark.parametrize("loss", ["squared", "huber", "poisson"])
def test_regressions(loss: str, clients: Any, tmp_path: Path) -> None:
    targets = {name: frame["visits"].to_numpy() for name, frame in CLIENTS.items()}
    model = FederatedRegressor(loss=loss, l2=0.1).fit(clients, targets)
    theirs = through_skops(model.to_sklearn())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        close(theirs.predict(NEW), model.predict(NEW))
    assert isinstance(theirs[-1], LinearRegression) == (loss != "poisson")
    model.to_onnx(tmp_path / "m.onnx")
    close(run_onnx(tmp_path / "m.onnx", to_inputs(NEW, COLUMNS))[0], model.predict(NEW))


@pytest.mark.parametrize("options", [{}, {"scale": True}, {"clip": 1.5}])
def test_personalized(options: dict[str, Any], clients: Any, tmp_path: Path) -> None:
    model = PersonalizedPCA(2, **options, random_state=0).fit(clients)
    here = model.transform(NEW, "south")
    if "clip" in options:
        with pytest.raises(InputError, match="use to_onnx"):
            model.to_sklearn("south")
    else:
        close(through_skops(model.to_sklearn("south")).transform(NEW), here)
    model.to_onnx(tmp_path / "m.onnx", "south")
    close(run_onnx(tmp_path / "m.onnx", to_inputs(NEW, COLUMNS))[0], here)


def test_views_side_by_side() -> None:
    rng = np.random.default_rng(4)
    views, y = {"b": rng.normal(size=(90, 2)), "a": rng.normal(size=(90, 3))}, np.arange(90) % 2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = VerticalFederatedClassifier(hidden=5, rounds=5, batch_size=20, random_state=0).fit(views, y)
    theirs = through_skops(model.to_sklearn())
    close(theirs.predict_proba(np.hstack([views["a"], views["b"]])), model.predict_proba(views))


def test_a_column_called_as_an_output_is_refused(tmp_path: Path) -> None:
    frame = make_people(1)[["age", "weight"]].rename(columns={"age": "transformed"})
    model = FederatedPCA(1, random_state=0).fit(prepare({"a": frame}, missing="mean"))
    with pytest.raises(InputError, match="cannot be called 'transformed'"):
        model.to_onnx(tmp_path / "m.onnx")
    assert not list(tmp_path.iterdir())
