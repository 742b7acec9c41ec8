"""Tables that go wrong, with default settings: each is learned from, or refused with its reason; also as a job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedspan import FederatedClassifier, InputError
from fedspan.algorithms import LocalSsca
from fedspan.jobs.model import Job

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
ROUNDS = 25


def people(n: int = 60, columns: int = 3) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    y = np.arange(n) % 2
    X = rng.normal(size=(n, columns))
    X[:, 0] += 4 * y
    return X, y


def floats() -> Any:
    X, y = people()
    return X, y.astype(float), [20, 40]


def class_of_one_site() -> Any:
    X, y = people()
    y = y.copy()
    y[50:] = 2
    X[50:, 1] += 6
    return X, y, [25, 50]


def one_row_each() -> Any:
    X, y = people(12)
    return X, y, list(range(1, 12))


def one_class_at_a_site() -> Any:
    X, y = people()
    order = np.argsort(y, kind="stable")
    return X[order], y[order], [30]


def wide() -> Any:
    X, y = people(30, 80)
    return X, y, [10, 20]


def huge_column() -> Any:
    X, y = people()
    X[:, 1] = 1e12 + 1e10 * X[:, 1]
    return X, y, [20, 40]


def constant_and_outlier() -> Any:
    X, y = people()
    X[:, 1], X[3, 2] = 7.0, 1e9
    return X, y, [20, 40]


GOOD = [floats, class_of_one_site, one_row_each, one_class_at_a_site, wide, huge_column, constant_and_outlier]


def write_job(folder: Path, X: np.ndarray, y: np.ndarray, cuts: list[int], keys: str) -> Job:
    names = [f"client{i}" for i in range(len(cuts) + 1)]
    for name, rows, labels in zip(names, np.split(X, cuts), np.split(y, cuts), strict=True):
        frame = pd.DataFrame(rows, columns=[f"x{j}" for j in range(X.shape[1])]).assign(y=labels)
        frame.to_csv(folder / f"{name}.csv", index=False)
    listed = ", ".join(f'"{name}.csv"' for name in names)
    text = f'[job]\ntask = "classifier"\nrandom_state = 0\n{keys}\n[data]\nclients = [{listed}]\nlabel = "y"\n'
    (folder / "job.toml").write_text(text)
    return Job.load(folder / "job.toml")


@pytest.mark.parametrize("hidden", ["auto", 0])
@pytest.mark.parametrize("make", GOOD)
def test_it_is_learned_from(make: Any, hidden: str | int) -> None:
    X, y, cuts = make()
    model = FederatedClassifier(hidden=hidden, rounds=ROUNDS, random_state=0)
    model.fit(np.split(X, cuts), np.split(y, cuts))
    assert model.score(X, y) > 0.8
    assert np.isfinite(model.predict_proba(X)).all()


@pytest.mark.parametrize("keys", [f"rounds = {ROUNDS}", "hidden = 0"])
@pytest.mark.parametrize("make", [floats, class_of_one_site, wide, huge_column])
def test_a_job_learns_from_it(tmp_path: Path, make: Any, keys: str) -> None:
    X, y, cuts = make()
    done = write_job(tmp_path, X, y, cuts, keys).run(tmp_path / "run")
    assert (tmp_path / "run" / "report.html").exists()
    labels = np.array([str(label) for label in y]) if isinstance(done.model.classes_[0], str) else y
    assert np.mean(done.model.predict(X) == labels) > 0.85


@pytest.mark.parametrize("hidden", ["auto", 0])
@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda X, y: (X, np.where(np.arange(len(y)) == 7, np.nan, y)), "Every row must have a label"),
        (lambda X, y: (np.where(np.arange(X.size).reshape(X.shape) == 5, np.nan, X), y), "NaN"),
        (lambda X, y: (X, np.zeros(len(y))), "At least 2 classes are needed"),
    ],
)
def test_it_is_refused_with_the_reason(spoil: Any, says: str, hidden: str | int) -> None:
    X, y = spoil(*people())
    with pytest.raises(InputError, match=says):
        FederatedClassifier(hidden=hidden, rounds=5).fit(np.split(X, [20, 40]), np.split(y, [20, 40]))


def test_steps_that_lead_to_infinity_are_taken_back() -> None:
    X, y = people()
    method = LocalSsca(rate=1e5)
    model = FederatedClassifier(method=method, rounds=60, random_state=0)
    model.fit(np.split(X, [20, 40]), np.split(y, [20, 40]))
    assert np.isfinite(model.coef_).all()
    assert model.history_[-1]["best_held_out_loss"] <= model.history_[1]["held_out_loss"]
