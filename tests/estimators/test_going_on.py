"""Models that go on: warm starts, new rows, new clients; and torch modules that do not fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedspan import FederatedClassifier, VerticalFederatedClassifier
from fedspan.errors import InputError

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
SMALL: dict[str, Any] = {"method": "ssca", "hidden": 6, "batch_size": 40, "rounds": 40, "random_state": 0}


def rows(n: int = 400, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = 100 + 30 * rng.normal(size=(n, 4))
    return X, np.where(X[:, 0] + X[:, 1] > 200, "yes", "no")


def log_loss(model: Any, X: Any, y: np.ndarray) -> float:
    proba = model.predict_proba(X)
    return float(-np.log(proba[np.arange(len(y)), np.searchsorted(model.classes_, y)]).mean())


@pytest.mark.parametrize("method", ["ssca", "auto", "fedavg"])
def test_a_second_fit_begins_where_the_first_one_ended(method: str) -> None:
    X, y = rows()
    first = FederatedClassifier(**SMALL | {"method": method}).fit([X[:200], X[200:]], [y[:200], y[200:]])
    before, scaling = first.coef_.copy(), first.scaling_
    on = first.set_params(warm_start=True, rounds=1).fit([X[:200], X[200:]], [y[:200], y[200:]])
    assert on.scaling_ is not None
    np.testing.assert_array_equal(on.scaling_.mean, scaling.mean)
    anew = FederatedClassifier(**SMALL | {"method": method, "rounds": 1})
    anew.fit([X[:200], X[200:]], [y[:200], y[200:]])
    assert np.linalg.norm(on.coef_ - before) < np.linalg.norm(anew.coef_ - before)
    assert log_loss(on, X, y) < log_loss(anew, X, y)


def test_partial_fit_takes_new_rows_new_clients_and_clients_without_some_class() -> None:
    X, y = rows()
    model = FederatedClassifier(**SMALL).partial_fit([X[:200]], [y[:200]])
    assert not model.warm_start
    mean = model.scaling_.mean.copy()
    new, labels = rows(200, seed=1)
    yes = labels == "yes"
    model.set_params(rounds=20).partial_fit(
        {"a": new[yes], "b": new[~yes][:50], "c": X[:50]}, {"a": labels[yes], "b": labels[~yes][:50], "c": y[:50]}
    )
    assert model.n_clients_ == 3
    assert model.classes_.tolist() == ["no", "yes"]
    np.testing.assert_array_equal(model.scaling_.mean, mean)
    model.partial_fit([new[yes]], [labels[yes]])  # one class only
    assert model.classes_.tolist() == ["no", "yes"]
    with pytest.raises(InputError, match="cannot learn 'maybe' as another one"):
        model.partial_fit([X[:50]], [["maybe"] * 50])
    with pytest.raises(InputError, match=r"fitted on 4 columns.*these tables have 3"):
        model.partial_fit([X[:50, :3]], [y[:50]])
    table = pd.DataFrame(X, columns=list("abcd"))
    named = FederatedClassifier(**SMALL).fit([table], [y])
    with pytest.raises(InputError, match=r"same order, but these tables have 4 \(b, a, c, d\)"):
        named.partial_fit([table[list("bacd")]], [y])


def test_views_go_on_too() -> None:
    X, y = rows()
    views = {"bank": X[:, :2], "shop": X[:, 2:]}
    for method in ("sgd", "auto"):  # a new surrogate of SSCA takes large steps at first, wherever it begins
        model = VerticalFederatedClassifier(**SMALL | {"method": method}).fit(views, y)
        model.set_params(rounds=5).partial_fit(views, y)
        anew = VerticalFederatedClassifier(**SMALL | {"method": method, "rounds": 5}).fit(views, y)
        assert log_loss(model, views, y) < log_loss(anew, views, y)
        with pytest.raises(InputError, match="fitted on the views"):
            model.partial_fit({"bank": X[:, :1], "shop": X[:, 1:]}, y)


def test_a_torch_module_that_does_not_fit_is_refused_with_both_widths() -> None:
    torch = pytest.importorskip("torch")
    X, y = rows(60)

    def fit(*layers: Any) -> None:
        FederatedClassifier(model=torch.nn.Sequential(*layers), method="ssca", rounds=2).fit([X], [y])

    with pytest.raises(InputError, match="Layer '0' of the torch model takes 5 numbers, but is given 4: the"):
        fit(torch.nn.Linear(5, 8), torch.nn.Linear(8, 2))
    with pytest.raises(InputError, match="Layer '1' of the torch model takes 9 numbers, but is given 8"):
        fit(torch.nn.Linear(4, 8), torch.nn.Linear(9, 2))
    with pytest.raises(InputError, match="puts out 3 numbers for each row, but the labels have 2 classes"):
        fit(torch.nn.Linear(4, 8), torch.nn.Linear(8, 3))
    fit(torch.nn.Linear(4, 8), torch.nn.SiLU(), torch.nn.Linear(8, 2))
