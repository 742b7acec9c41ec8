"""FederatedRegressor against scikit-learn and statsmodels on all rows together."""

from __future__ import annotations

import warnings
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LinearRegression, PoissonRegressor
from sklearn.metrics import d2_tweedie_score, r2_score

from fedspan import FederatedRegressor, InputError, RowDP, Secure
from fedspan.estimators._bases.coefficients import tabulate_coefficients

sm = pytest.importorskip("statsmodels.api")

NAMES = ["age", "dose", "weight"]
CUTS = [0, 70, 90, 200]


def table(kind: str = "squared") -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(11)
    X = rng.normal(size=(200, 3)) * [1, 100, 0.01] + [5, 1000, 0]
    eta = (X - [5, 1000, 0]) / [1, 100, 0.01] @ [0.5, -0.3, 0.0] + 1
    y = rng.poisson(np.exp(eta)).astype(float) if kind == "poisson" else 30 * eta + 12 * rng.standard_t(4, size=200)
    return X, y


def parts(*arrays: Any) -> list[Any]:
    return [[array[a:b] for a, b in pairwise(CUTS)] for array in arrays]


def fitted(kind: str = "squared", **options: Any) -> FederatedRegressor:
    X, y = table(kind)
    frames = [pd.DataFrame(rows, columns=NAMES) for rows in parts(X)[0]]
    return FederatedRegressor(loss=kind, **options).fit(frames, parts(y)[0])


def compare(model: FederatedRegressor, other: Any) -> None:
    """Against a result of statsmodels whose first parameter is the constant."""
    rows = model.summary().rows
    order = [3, 0, 1, 2]
    for ours, theirs in (("estimate", "params"), ("standard_error", "bse"), ("statistic", "tvalues")):
        found = np.array([getattr(rows[i], ours) for i in order])
        np.testing.assert_allclose(found, getattr(other, theirs), rtol=1e-6)
    np.testing.assert_allclose([rows[i].p_value for i in order], other.pvalues, rtol=1e-6, atol=1e-300)
    np.testing.assert_allclose([(rows[i].low, rows[i].high) for i in order], other.conf_int(), rtol=1e-6)
    np.testing.assert_allclose(model.standard_errors_, np.asarray(other.bse)[1:], rtol=1e-6)
    np.testing.assert_allclose(model.p_values_, np.asarray(other.pvalues)[1:], rtol=1e-6)
    np.testing.assert_allclose(model.confidence_intervals_, np.asarray(other.conf_int())[1:], rtol=1e-6)
    wide = [(row.low, row.high) for row in model.summary(level=0.5).rows]
    np.testing.assert_allclose([wide[i] for i in order], other.conf_int(alpha=0.5), rtol=1e-6)


def test_least_squares_has_the_standard_errors_of_statsmodels() -> None:
    X, y = table()
    other = sm.OLS(y, sm.add_constant(X)).fit()
    model = fitted()
    compare(model, other)
    assert model.n_rounds_ == 1
    assert model.degrees_of_freedom_ == other.df_resid
    assert model.residual_scale_**2 == pytest.approx(other.scale, rel=1e-9)
    assert 1 - model.deviance_ / model.null_deviance_ == pytest.approx(other.rsquared, rel=1e-9)
    cov = model.covariance_[np.ix_([3, 0, 1, 2], [3, 0, 1, 2])]
    np.testing.assert_allclose(cov, other.cov_params(), rtol=1e-6, atol=1e-12)


def test_robust_standard_errors_are_those_of_statsmodels() -> None:
    X, y = table()
    compare(fitted(robust=True), sm.OLS(y, sm.add_constant(X)).fit(cov_type="HC1", use_t=True))
    X, y = table("poisson")
    other = sm.GLM(y, sm.add_constant(X), family=sm.families.Poisson()).fit(cov_type="HC0", tol=1e-14)
    compare(fitted("poisson", robust=True), other)


def test_poisson_regression_has_the_standard_errors_of_statsmodels() -> None:
    X, y = table("poisson")
    other = sm.GLM(y, sm.add_constant(X), family=sm.families.Poisson()).fit(tol=1e-14)
    model = fitted("poisson")
    compare(model, other)
    assert model.deviance_ == pytest.approx(other.deviance, rel=1e-9)
    assert model.null_deviance_ == pytest.approx(other.null_deviance, rel=1e-9)
    np.testing.assert_allclose(model.predict(pd.DataFrame(X, columns=NAMES)), other.fittedvalues, rtol=1e-8)
    assert model.score(pd.DataFrame(X, columns=NAMES), y) == pytest.approx(
        d2_tweedie_score(y, other.fittedvalues, power=1)
    )


def test_weighted_least_squares_is_that_of_statsmodels() -> None:
    X, y = table()
    weight = np.random.default_rng(1).uniform(0.2, 3, size=200)
    other = sm.WLS(y, sm.add_constant(X), weights=weight).fit()
    Xs, ys, ws = parts(X, y, weight)
    compare(FederatedRegressor().fit(Xs, ys, sample_weight=ws), other)


def test_without_an_intercept_as_statsmodels() -> None:
    X, y = table()
    other = sm.OLS(y, X).fit()
    model = FederatedRegressor(intercept=False).fit(*parts(X, y))
    np.testing.assert_allclose(model.coef_, other.params, rtol=1e-8)
    np.testing.assert_allclose(model.standard_errors_, other.bse, rtol=1e-6)
    assert model.intercept_ == 0
    assert [row.name for row in model.summary().rows] == ["x0", "x1", "x2"]


def test_huber_is_not_drawn_by_outliers_and_has_the_sandwich_of_its_estimating_equations() -> None:
    X, y = table()
    far = y.copy()
    far[::20] += 1e4
    model = FederatedRegressor(loss="huber").fit(*parts(X, far))
    clean = fitted()
    np.testing.assert_allclose(model.coef_, clean.coef_, atol=3 * clean.standard_errors_.max())
    # The sandwich from numerical derivatives of scikit-learn's loss.
    A = np.c_[X, np.ones(200)]
    at = np.r_[model.coef_, model.intercept_, model.residual_scale_]

    def slopes(params: np.ndarray) -> np.ndarray:
        r, s = A @ params[:-1] - far, params[-1]
        z = np.clip(r / s, -1.35, 1.35)
        return np.c_[A * z[:, None], (1 - z * z) / 2]

    steps = 1e-6 * np.maximum(np.abs(at), 1e-3)
    H = np.stack([(slopes(at + e).sum(0) - slopes(at - e).sum(0)) / (2 * e.max()) for e in np.diag(steps)])
    G = slopes(at).T @ slopes(at)
    sandwich = np.linalg.solve(H, G) @ np.linalg.inv(H).T * 200 / (200 - 4)
    np.testing.assert_allclose(slopes(at).sum(axis=0) / np.abs(slopes(at)).sum(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(model.standard_errors_, np.sqrt(np.diag(sandwich))[:3], rtol=1e-3)


def test_a_penalised_estimate_has_the_spread_that_repeated_samples_have() -> None:
    """By its formula: the estimate is linear in y, so its covariance is known exactly."""
    X, y = table()
    model = FederatedRegressor(l2=0.1).fit(*parts(X, y))
    Z = (X - X.mean(axis=0)) / X.std(axis=0)
    R = np.linalg.solve(Z.T @ Z + 2 * 0.1 * 200 * np.eye(3), Z.T)  # from y to the estimate
    deviations = np.sqrt(np.diag(R @ R.T)) * model.residual_scale_
    np.testing.assert_allclose(model.standard_errors_ * X.std(axis=0), deviations, rtol=1e-8)
    np.testing.assert_allclose(model.coef_ * X.std(axis=0), R @ y, rtol=1e-8)


@pytest.mark.parametrize("secure", [True, Secure(verified=True)])
def test_secure_sums_give_the_same_answer(secure: Any) -> None:
    for kind in ("squared", "poisson", "huber"):
        plain, hidden = fitted(kind), fitted(kind, secure=secure)
        np.testing.assert_allclose(hidden.coef_, plain.coef_, rtol=1e-9)
        np.testing.assert_allclose(hidden.standard_errors_, plain.standard_errors_, rtol=1e-6)


def test_by_gradients_there_are_no_standard_errors() -> None:
    model = fitted("poisson", solver="lbfgs")
    np.testing.assert_allclose(model.coef_, fitted("poisson").coef_, rtol=1e-4)
    assert np.isnan(model.standard_errors_).all()
    with pytest.raises(InputError, match="need the Hessian"):
        fitted(solver="lbfgs", robust=True)


def test_many_columns_are_learned_by_gradients() -> None:
    rng = np.random.default_rng(0)
    X = sp.random_array((200, 600), density=0.02, rng=rng, format="csr")
    y = rng.poisson(np.exp(np.asarray(X[:, :5].sum(axis=1)).ravel()))
    model = FederatedRegressor(loss="poisson", l2=0.05, max_rounds=300).fit(parts(X)[0], parts(y)[0])
    assert "would be too large to send" in str(model.ledger_.started.why)
    dense = X.toarray()
    s = dense.std(axis=0)
    other = PoissonRegressor(alpha=0.1, tol=1e-9, max_iter=5000).fit(
        (dense - dense.mean(axis=0)) / np.where(s > 0, s, 1), y
    )
    np.testing.assert_allclose(model.coef_ * s, other.coef_, atol=1e-4)


def test_save_load_and_exports(tmp_path: Path) -> None:
    X, y = table()
    frame = pd.DataFrame(X, columns=NAMES)
    model = fitted()
    model.save(tmp_path / "model.safetensors")
    again = FederatedRegressor.load(tmp_path / "model.safetensors")
    assert str(again.summary()) == str(model.summary())
    np.testing.assert_array_equal(again.predict(frame), model.predict(frame))
    plain = model.to_sklearn()
    assert isinstance(plain, LinearRegression)
    np.testing.assert_allclose(plain.predict(frame), model.predict(frame), rtol=1e-12)
    assert model.score(frame, y) == pytest.approx(r2_score(y, LinearRegression().fit(X, y).predict(X)))
    counts = fitted("poisson")
    np.testing.assert_allclose(counts.to_sklearn().predict(frame), counts.predict(frame), rtol=1e-12)
    runtime = pytest.importorskip("onnxruntime")
    for kind in ("squared", "poisson"):
        model = fitted(kind)
        model.to_onnx(tmp_path / f"{kind}.onnx")
        session = runtime.InferenceSession(tmp_path / f"{kind}.onnx")
        np.testing.assert_allclose(session.run(None, {"X": X})[0], model.predict(frame), rtol=1e-10)


def test_the_table_reads_well(tmp_path: Path) -> None:
    model = fitted()
    lines = str(model.summary()).splitlines()
    assert lines[0].split() == ["name", "estimate", "std.", "error", "t", "P>|t|", "95", "%", "from", "to"]
    assert [line.split()[0] for line in lines[1:]] == [*NAMES, "(intercept)"]
    assert model.summary()["dose"].estimate == model.coef_[1]
    assert len(model.summary()) == 4
    with pytest.raises(KeyError):
        model.summary()["height"]
    with pytest.raises(InputError, match="level must be between 0 and 1"):
        model.summary(level=95)
    model.report(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert all(word in page for word in ("Coefficients", "dose", "(intercept)", "R² (training rows)"))
    several = tabulate_coefficients(["a"], np.ones((2, 1)), np.ones((2, 1)), np.inf, 0.9, ["red", "blue"])
    assert str(several).splitlines()[2].split()[:2] == ["blue", "a"]


def test_columns_that_cannot_be_told_apart_have_no_standard_error() -> None:
    X, y = table()
    A = np.c_[X, X[:, 0] * 2 + 1, np.full(200, 3.0)]
    with pytest.warns(ConvergenceWarning, match="Only 4 of 6 parameters can be told apart"):
        model = FederatedRegressor().fit(*parts(A, y))
    assert np.isnan(model.standard_errors_).tolist() == [True, False, False, True, True]
    assert model.coef_[4] == 0
    other = sm.OLS(y, sm.add_constant(X)).fit()
    np.testing.assert_allclose(model.standard_errors_[1:3], other.bse[2:], rtol=1e-6)
    np.testing.assert_allclose(model.predict(A), other.fittedvalues, rtol=1e-8)


def test_what_has_no_optimum_is_told() -> None:
    group = np.repeat([0.0, 1.0], 50)
    y = np.where(group == 1, 3.0, 0.0)
    with pytest.warns(ConvergenceWarning, match="no finite optimum"):
        model = FederatedRegressor(loss="poisson").fit([group[::2, None], group[1::2, None]], [y[::2], y[1::2]])
    assert not model.converged_
    with pytest.warns(ConvergenceWarning, match="not reached in 2 rounds"):
        assert not fitted("poisson", max_rounds=2).converged_


def test_more_columns_than_rows_and_one_row_per_client() -> None:
    rng = np.random.default_rng(3)
    X, y = rng.normal(size=(4, 6)), rng.normal(size=4)
    with pytest.warns(ConvergenceWarning, match="Only 4 of 7"):
        model = FederatedRegressor().fit([row[None] for row in X], [[value] for value in y])
    np.testing.assert_allclose(model.predict(X), y, atol=1e-9)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        FederatedRegressor(l2=0.1).fit([row[None] for row in X], [[value] for value in y])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"ys": None}, "targets of every client's rows are missing"),
        ({"ys": [["a"] * 2, ["b"] * 2]}, "Client '0': targets must be numbers"),
        ({"ys": [[1.0, np.nan], [1, 2]]}, "row 1 has nan"),
        ({"ys": [[1.0], [1, 2]]}, "needs 2 targets"),
        ({"sample_weight": [[1, -1], [1, 1]]}, "weights must be at least 0"),
    ],
)
def test_bad_input_is_refused(change: dict[str, Any], says: str) -> None:
    given: dict[str, Any] = {"ys": [[1.0, 2.0], [3.0, 4.0]], **change}
    with pytest.raises(InputError, match=says):
        FederatedRegressor().fit([np.eye(2), np.eye(2)], given.pop("ys"), **given)


def test_privacy_is_refused_with_the_reason() -> None:
    with pytest.raises(InputError, match=r"privacy must be None.*would not leave a usable answer"):
        FederatedRegressor(privacy=RowDP(1.0, 1e-5, 1.0)).fit([np.eye(2)], [[1.0, 2.0]])


def test_a_run_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    def stop(info: Any) -> None:
        if info.round == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fitted("poisson", checkpoint=tmp_path / "run", callback=stop, random_state=0)
    again = fitted("poisson", checkpoint=tmp_path / "run", random_state=0)
    np.testing.assert_array_equal(again.coef_, fitted("poisson").coef_)
