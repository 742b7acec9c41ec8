"""Linear models on sums, against scikit-learn on all rows together, and where there is no single optimum."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_wine
from sklearn.linear_model import LinearRegression, LogisticRegression, PoissonRegressor, Ridge

from fedspan.algorithms import LogisticNewton, RegressionNewton
from fedspan.algorithms.learning.newton import LinearNewton, LinearState, prefers_newton
from fedspan.core.run import Result, run
from fedspan.engines import InProcess
from fedspan.errors import ClientError, InputError
from fedspan.numerics.glm import LinearLoss


def share(X: Any, y: np.ndarray, *more: np.ndarray, clients: int = 4) -> dict[str, tuple[Any, ...]]:
    """The rows at uneven clients, sorted by target, so that some have seen few classes."""
    order = np.argsort(y, kind="stable")
    ends = (len(y) * np.linspace(0, 1, clients + 1) ** 1.5).astype(int)
    parts = [order[a:b] for a, b in pairwise(ends)]
    return {f"client {i}": (X[at], y[at], *(extra[at] for extra in more)) for i, at in enumerate(parts)}


def fit(server: LinearNewton, clients: dict[str, tuple[Any, ...]]) -> Result[LinearState]:
    return run(server, InProcess(clients, threads=1), rounds=server.rounds, seed=0)


def standardise(X: np.ndarray) -> np.ndarray:
    s = X.std(axis=0)
    return (X - X.mean(axis=0)) / np.where(s > 0, s, 1)


X, Y = load_diabetes(return_X_y=True)
X = X * np.array([1, 100, 1, 1e-4, 1, 1, 1, 1, 1e4, 1]) + np.arange(10)  # units that differ


def counts() -> np.ndarray:
    return np.random.default_rng(5).poisson(np.exp(standardise(X)[:, :3] @ [0.4, -0.3, 0.6])).astype(float)


@pytest.mark.parametrize("alpha", [0.0, 3.0])
@pytest.mark.parametrize("standardize", [True, False])
def test_ridge_in_one_round_to_ten_digits(alpha: float, standardize: bool) -> None:
    server = RegressionNewton(l2=alpha / (2 * len(Y)), standardize=standardize)
    result = fit(server, share(X, Y))
    scaled = standardize or not alpha  # least squares of raw columns: scikit-learn would drop the small ones
    rows = standardise(X) if scaled else X
    other = (Ridge(alpha=alpha) if alpha else LinearRegression()).fit(rows, Y)
    found = server.estimate(result.state)[0]
    prediction = X @ found[:-1] + found[-1]
    assert result.rounds == 1
    np.testing.assert_allclose(prediction, other.predict(rows), rtol=1e-10)
    slopes = found[:-1] * (X.std(axis=0) if scaled else 1)
    np.testing.assert_allclose(slopes, other.coef_, atol=1e-10 * np.abs(other.coef_).max())
    assert result.state.loss * Y.var() == pytest.approx(np.mean((Y - prediction) ** 2) / 2, rel=1e-10)


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("solver", ["newton", "lbfgs"])
def test_logistic_regression_is_that_of_scikit_learn(classes: int, solver: Any) -> None:
    A, y = load_breast_cancer(return_X_y=True) if classes == 2 else load_wine(return_X_y=True)
    server = LogisticNewton(classes=classes, l2=1 / (2 * len(y)), solver=solver)
    result = fit(server, share(A, y))
    other = LogisticRegression(C=1.0, tol=1e-10, max_iter=5000).fit(standardise(A), y)
    W = server.estimate(result.state)[:, :-1] * A.std(axis=0)
    assert result.converged
    np.testing.assert_allclose(W[1:] if classes == 2 else W, other.coef_, atol=1e-4)
    if solver == "newton":
        assert result.rounds <= 11
        assert result.state.decrement <= 1e-13


def test_rounds_to_a_millionth_of_the_optimum() -> None:
    A, y = load_breast_cancer(return_X_y=True)
    server = LogisticNewton(l2=1 / (2 * len(y)))
    values: list[float] = []
    run(
        server,
        InProcess(share(A, y), threads=1),
        rounds=20,
        seed=0,
        callback=lambda info: values.append(objective(A, y, info.estimate)),
    )
    assert values[8] - min(values) <= 1e-6


def objective(A: np.ndarray, y: np.ndarray, estimate: np.ndarray) -> float:
    z = A @ estimate[1, :-1] + estimate[1, -1]
    w = estimate[1, :-1] * A.std(axis=0)
    return float(np.mean(np.logaddexp(0, z) - y * z) + (w @ w) / (2 * len(y)))


@pytest.mark.parametrize("solver", ["newton", "lbfgs"])
def test_poisson_regression_is_that_of_scikit_learn(solver: Any) -> None:
    y = counts()
    server = RegressionNewton(loss="poisson", l2=0.005, solver=solver)
    result = fit(server, share(X, y))
    other = PoissonRegressor(alpha=0.01, tol=1e-10, max_iter=1000, solver="newton-cholesky").fit(standardise(X), y)
    found = server.estimate(result.state)[0]
    np.testing.assert_allclose(found[:-1] * X.std(axis=0), other.coef_, atol=1e-5)
    assert result.converged


def test_huber_regression_is_the_optimum_of_its_convex_problem() -> None:
    """Against cvxpy: scikit-learn's own answer is off by more than the tolerance here."""
    cvxpy = pytest.importorskip("cvxpy")
    y = Y + 900.0 * (np.arange(len(Y)) % 11 == 0)
    server = RegressionNewton(loss="huber", l2=1e-3)
    result = fit(server, share(X, y))
    Z, epsilon = standardise(X), 1.35
    w, b, sigma = cvxpy.Variable(10), cvxpy.Variable(), cvxpy.Variable(nonneg=True)
    r, n = y - Z @ w - b, len(y)
    small, large = cvxpy.Variable(n), cvxpy.Variable(n)  # r = small + large: Huber's loss is the least of their costs
    cost = cvxpy.quad_over_lin(small, sigma) / 2 + epsilon * cvxpy.norm1(large) + n * sigma / 2
    problem = cvxpy.Problem(cvxpy.Minimize(cost / n + 1e-3 * cvxpy.sum_squares(w)), [small + large == r])
    problem.solve(solver=cvxpy.CLARABEL)
    found = server.estimate(result.state)[0]
    np.testing.assert_allclose(found[:-1] * X.std(axis=0), w.value, atol=1e-3)
    assert result.state.theta[-1, 1] * result.state.standard.target[1] == pytest.approx(float(sigma.value), rel=1e-5)
    assert result.state.value * y.std() == pytest.approx(problem.value, rel=1e-7)
    assert not result.state.failed


@pytest.mark.parametrize("solver", ["newton", "lbfgs"])
def test_sparse_rows_and_weights_mean_what_they_say(solver: Any) -> None:
    """A row of weight 2 counts like two rows; sparse rows like dense ones."""
    rng = np.random.default_rng(2)
    A = rng.poisson(0.4, size=(150, 6)).astype(float)
    y = rng.integers(3, size=150)
    weight = rng.integers(1, 4, size=150).astype(float)
    repeated = np.repeat(np.arange(150), weight.astype(int))
    server = LogisticNewton(classes=3, l2=0.01, solver=solver)
    plain = fit(server, share(A[repeated], y[repeated]))
    sparse = fit(server, share(sp.csr_array(A), y, weight))
    found, expected = server.estimate(sparse.state), server.estimate(plain.state)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_without_an_intercept() -> None:
    server = RegressionNewton(intercept=False)
    found = server.estimate(fit(server, share(X, Y)).state)[0]
    other = LinearRegression(fit_intercept=False).fit(X, Y)
    np.testing.assert_allclose(X @ found[:-1], other.predict(X), rtol=1e-8)
    assert found[-1] == 0


def test_columns_that_depend_on_each_other_get_the_answer_of_least_norm() -> None:
    A = np.c_[X, X[:, 0] + X[:, 2], np.full(len(Y), 7.0)]
    server = RegressionNewton()
    state = fit(server, share(A, Y)).state
    Z = standardise(A)
    expected = np.linalg.pinv(Z) @ (Y - Y.mean()) / Y.std()
    np.testing.assert_allclose(state.theta[:-1, 0], expected, atol=1e-8)
    assert state.rank == 11  # ten columns and the intercept
    assert not state.infinite


def test_more_columns_than_rows_are_fitted_exactly() -> None:
    rng = np.random.default_rng(4)
    A, y = rng.normal(size=(12, 30)), rng.normal(size=12)
    server = RegressionNewton()
    state = fit(server, share(A, y, clients=3)).state
    found = server.estimate(state)[0]
    np.testing.assert_allclose(A @ found[:-1] + found[-1], y, atol=1e-8)
    assert state.rank == 12


def test_classes_that_can_be_separated_have_their_optimum_at_infinity() -> None:
    rng = np.random.default_rng(6)
    A = rng.normal(size=(200, 3))
    y = (A[:, 0] > 0).astype(int)
    assert fit(LogisticNewton(), share(A, y)).state.infinite
    noisy = np.where(rng.random(200) < 0.1, 1 - y, y)
    assert not fit(LogisticNewton(), share(A, noisy)).state.infinite
    assert not fit(LogisticNewton(l2=0.01), share(A, y)).state.infinite


def test_a_group_without_any_count_has_its_optimum_at_infinity() -> None:
    rng = np.random.default_rng(7)
    group = rng.integers(2, size=200).astype(float)
    y = rng.poisson(2.0, size=200) * (group == 1)
    assert fit(RegressionNewton(loss="poisson"), share(group[:, None], y.astype(float))).state.infinite


def test_a_step_that_goes_too_far_is_halved() -> None:
    """From the null model Newton's full step overshoots for counts that grow by orders of magnitude."""
    x = np.linspace(-3, 3, 60)[:, None]
    y = np.round(np.exp(4 * x[:, 0]))
    server = RegressionNewton(loss="poisson")
    result = fit(server, share(x, y))
    other = PoissonRegressor(alpha=0, tol=1e-12, max_iter=5000, solver="newton-cholesky").fit(x, y)
    assert result.converged
    assert not result.state.failed
    np.testing.assert_allclose(server.estimate(result.state)[0, :1], other.coef_, rtol=1e-6)


def test_targets_that_are_all_the_same_need_no_features() -> None:
    server = RegressionNewton()
    found = server.estimate(fit(server, share(X, np.full(len(Y), 5.0))).state)[0]
    np.testing.assert_allclose(found, [*np.zeros(10), 5.0], atol=1e-12)


def test_a_column_far_from_zero_keeps_its_digits() -> None:
    """A constant of 1e12 says nothing; a column around 1e6 is centred before it is squared."""
    A = np.c_[X, np.full(len(Y), 1e12)]
    A[:, 0] += 1e6
    server = RegressionNewton()
    found = server.estimate(fit(server, share(A, Y)).state)[0]
    assert found[10] == 0
    prediction = (A - A.mean(axis=0)) @ found[:-1] + Y.mean()
    np.testing.assert_allclose(prediction, LinearRegression().fit(standardise(X), Y).predict(standardise(X)), rtol=1e-6)


@pytest.mark.parametrize(
    ("server", "y", "says"),
    [
        (RegressionNewton(loss="poisson"), -np.ones(20), "20 are negative|negative"),
        (RegressionNewton(), np.full(20, np.nan), "finite"),
    ],
)
def test_targets_without_a_loss_are_refused(server: LinearNewton, y: np.ndarray, says: str) -> None:
    with pytest.raises((InputError, ClientError), match=says):
        fit(server, {"only": (np.ones((20, 2)), y)})


def test_rows_that_are_not_finite_are_refused() -> None:
    with pytest.raises((InputError, ClientError), match="finite"):
        fit(RegressionNewton(), {"only": (np.full((3, 1), np.inf), np.ones(3))})


@pytest.mark.parametrize("options", [{"solver": "cg"}, {"l2": -1.0}, {"rounds": 0}, {"memory": 0}, {"tol": -1.0}])
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(options))):
        RegressionNewton(**options)


def test_when_the_hessian_is_small_enough_to_send() -> None:
    assert prefers_newton(500, "logistic")
    assert not prefers_newton(501, "poisson")
    assert prefers_newton(2000, "squared")


def test_ten_digits_of_digits() -> None:
    """Constant pixels, ten classes: 585 parameters by gradients alone."""
    A, y = load_digits(return_X_y=True)
    server = LogisticNewton(classes=10, l2=0.01, solver="lbfgs", rounds=300)
    result = fit(server, share(A, y))
    other = LogisticRegression(C=1 / (2 * 0.01 * len(y)), tol=1e-8, max_iter=5000).fit(standardise(A), y)
    outputs = A @ server.estimate(result.state)[:, :-1].T + server.estimate(result.state)[:, -1]
    loss = LinearLoss("logistic", 10)
    ours = loss(outputs @ loss.contrast, y).loss.mean()
    theirs = loss(other.decision_function(standardise(A)) @ loss.contrast, y).loss.mean()
    assert ours == pytest.approx(theirs, rel=1e-5)
