"""Linear regression over views: against scikit-learn and against the regression of the pooled rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_diabetes
from sklearn.linear_model import LinearRegression, PoissonRegressor, Ridge

from fedspan import FederatedRegressor, VerticalFederatedRegressor
from fedspan.algorithms.learning.vertical_linear import ViewRegressionClient
from fedspan.core.protocol import declared_releases
from fedspan.errors import InputError
from fedspan.secure.masking import Secure


def diabetes() -> tuple[np.ndarray, np.ndarray]:
    """Ten columns of very different units, some of them strongly correlated."""
    X, y = load_diabetes(return_X_y=True)
    return X * np.logspace(0, 4, 10) + 5, y


def split(X: Any) -> dict[str, Any]:
    return {"a": X[:, :4], "b": X[:, 4:7], "c": X[:, 7:]}


def check_same(model: Any, coef: np.ndarray, intercept: float, rtol: float) -> None:
    np.testing.assert_allclose(model.coef_, coef, rtol=rtol, atol=rtol * np.abs(coef).min())
    assert model.intercept_ == pytest.approx(intercept, rel=rtol)
    assert model.converged_


@pytest.mark.parametrize("secure", [False, Secure()])
def test_least_squares_and_ridge_are_those_of_all_columns_in_few_rounds(secure: Any) -> None:
    X, y = diabetes()
    model = VerticalFederatedRegressor(secure=secure).fit(split(X), y)
    want = LinearRegression().fit(X, y)
    check_same(model, want.coef_, want.intercept_, 1e-6)
    assert model.n_rounds_ <= 12
    np.testing.assert_allclose(model.predict(split(X)), want.predict(X), rtol=1e-6)
    assert model.score(split(X), y) == pytest.approx(want.score(X, y), abs=1e-9)
    raw = VerticalFederatedRegressor(l2=0.1, standardize=False, secure=secure).fit(split(X), y)
    want = Ridge(alpha=2 * len(y) * 0.1, solver="svd").fit(X, y)
    np.testing.assert_allclose(raw.coef_, want.coef_, rtol=1e-6, atol=1e-6 * np.abs(want.coef_).max())


@pytest.mark.parametrize("loss", ["squared", "poisson", "huber"])
def test_it_is_the_regression_of_the_pooled_rows(loss: str) -> None:
    X, y = diabetes()
    Z = (X - X.mean(axis=0)) / X.std(axis=0)
    rng = np.random.default_rng(0)
    if loss == "poisson":
        y = rng.poisson(np.exp(0.5 + 0.4 * Z[:, 0] - 0.3 * Z[:, 5])).astype(float)
    if loss == "huber":
        y = y + 1000.0 * (np.arange(len(y)) % 20 == 0)
    weight = rng.integers(1, 4, size=len(y)).astype(float)
    pooled = FederatedRegressor(loss=loss, l2=0.02).fit([X], [y])
    model = VerticalFederatedRegressor(loss=loss, l2=0.02).fit(split(X), y)
    check_same(model, pooled.coef_, pooled.intercept_, 1e-5)
    if loss == "huber":
        assert model.residual_scale_ == pytest.approx(pooled.residual_scale_, rel=1e-6)
    weighed = FederatedRegressor(loss=loss).fit([X], [y], sample_weight=[weight])
    model = VerticalFederatedRegressor(loss=loss).fit(split(X), y, sample_weight=weight)
    check_same(model, weighed.coef_, weighed.intercept_, 1e-4)


def test_counts_as_scikit_learn_fits_them() -> None:
    X, _ = diabetes()
    Z = (X - X.mean(axis=0)) / X.std(axis=0)
    y = np.random.default_rng(0).poisson(np.exp(0.5 + 0.4 * Z[:, 0] - 0.3 * Z[:, 5]))
    want = PoissonRegressor(alpha=0.04, solver="newton-cholesky", tol=1e-12).fit(Z, y)
    model = VerticalFederatedRegressor(loss="poisson", l2=0.02).fit(split(Z), y)
    check_same(model, want.coef_, want.intercept_, 1e-5)
    assert model.score(split(Z), y) == pytest.approx(want.score(Z, y), abs=1e-6)


def test_columns_that_say_the_same_at_two_clients_still_give_the_best_fit() -> None:
    X, y = diabetes()
    twice = {"a": X[:, :5], "b": X[:, 3:], "c": np.full((len(y), 2), 7.0)}
    model = VerticalFederatedRegressor().fit(twice, y)
    np.testing.assert_allclose(model.predict(twice), LinearRegression().fit(X, y).predict(X), rtol=1e-6)
    assert (model.coef_[-2:] == 0).all(), "constant columns say nothing"


def test_no_mean_or_deviation_of_a_column_leaves_its_client() -> None:
    """The server sees predictions summed over the clients, numbers, and in the end the coefficients."""
    released = {name for arrays in declared_releases(ViewRegressionClient).values() for name in arrays}
    assert released == {
        *("n", "features", "eta", "u", "rz", "loss", "ridge", "curve", "losses"),
        *("coef", "offset", "scale"),
    }


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    X, y = diabetes()
    with pytest.raises(InputError, match="442 targets, but client 'b' has 441 rows"):
        VerticalFederatedRegressor().fit(split(X) | {"b": X[1:, 4:7]}, y)
    with pytest.raises(InputError, match="targets must be numbers"):
        VerticalFederatedRegressor().fit(split(X), ["high"] * len(y))
    with pytest.raises(InputError, match="counts of at least 0"):
        VerticalFederatedRegressor(loss="poisson").fit(split(X), -y)
    with pytest.raises(InputError, match="targets of the rows are missing"):
        VerticalFederatedRegressor().fit(split(X))
    with pytest.warns(UserWarning, match="not reached in 1 rounds"):
        model = VerticalFederatedRegressor(max_rounds=1).fit(split(X), y)
    assert not model.converged_
    model.save(tmp_path / "m")
    again = VerticalFederatedRegressor.load(tmp_path / "m")
    np.testing.assert_array_equal(again.predict(split(X)), model.predict(split(X)))
    model.report(tmp_path / "r.html")
    assert "Vertical federated regression" in (tmp_path / "r.html").read_text(encoding="utf-8")
    with pytest.raises(InputError, match="was fitted on the views"):
        model.predict({"a": X, "b": X, "c": X})
