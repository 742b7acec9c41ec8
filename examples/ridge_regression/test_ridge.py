"""Federated ridge regression against scikit-learn's `Ridge` on the pooled rows."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from fedspan.protocol import Release, declared_releases
from sklearn.datasets import load_diabetes
from sklearn.linear_model import Ridge as PooledRidge

from fedspan import InputError, RowDP, Secure, run
from fedspan.core.checkpoint import Checkpoint
from fedspan.engines import InProcess
from fedspan.privacy.plan import plan_for
from ridge_regression import Ridge
from ridge_regression.ridge import RidgeClient

X, y = load_diabetes(return_X_y=True, scaled=False)
X = (X - X.mean(axis=0)) / X.std(axis=0)
CUTS = [0, 200, 260, len(X)]
CLINICS = {f"clinic {i}": (X[a:b], y[a:b]) for i, (a, b) in enumerate(pairwise(CUTS))}


@pytest.mark.parametrize("alpha", [0.01, 1.0, 100.0])
@pytest.mark.parametrize("secure", [None, Secure()], ids=["plain", "secure"])
def test_it_is_the_ridge_regression_of_the_pooled_rows(alpha: float, secure: Secure | None) -> None:
    result = run(Ridge(alpha), InProcess(CLINICS), rounds=2, seed=0, secure=secure)
    pooled = PooledRidge(alpha).fit(X, y)
    assert result.converged
    np.testing.assert_allclose(result.state.weights, pooled.coef_, rtol=1e-9, atol=1e-9)
    assert result.state.intercept == pytest.approx(pooled.intercept_, rel=1e-9)
    assert result.metrics["r2"] == pytest.approx(pooled.score(X, y), rel=1e-9)
    assert result.metrics["gradient"] < 1e-6 * np.linalg.norm(X.T @ y)


def test_under_secure_aggregation_nothing_but_sums_is_seen() -> None:
    result = run(Ridge(), InProcess(CLINICS), rounds=2, seed=0, secure=Secure())
    exchanges = [row for row in result.ledger.rows() if row["event"] == "exchange"]
    assert {row["task"] for row in exchanges} >= Ridge().asks()
    assert all(row["secure"] for row in exchanges)


def test_a_run_that_was_cut_off_resumes_to_the_same_bits(tmp_path: Path) -> None:
    whole = run(Ridge(), InProcess(CLINICS), rounds=2, seed=0).state
    run(Ridge(), InProcess(CLINICS), rounds=1, seed=0, checkpoint=Checkpoint(tmp_path))  # and then the power failed
    again = run(Ridge(), InProcess(CLINICS), rounds=2, seed=0, checkpoint=Checkpoint(tmp_path))
    assert "resumed after round 1" in again.ledger.notes
    assert again.state.weights.tobytes() == whole.weights.tobytes()
    assert (again.state.error, again.state.gradient) == (whole.error, whole.gradient)


def test_one_row_changes_a_release_by_no_more_than_is_declared() -> None:
    C, rng = 2.0, np.random.default_rng(0)
    declared = declared_releases(RidgeClient)
    told = {"mean": rng.normal(size=4)}
    for trial in range(50):
        rows, targets = rng.normal(size=(6, 3)) * 5, rng.normal(size=6) * 5
        pair = [RidgeClient((rows[:n], targets[:n]), row_norm=C) for n in (5, 6)]
        for name in ("count", "second_moments"):
            less, more = (getattr(client, name)(None, told, None)[1] for client in pair)
            for array, sensitivity in declared[name].items():
                change = np.linalg.norm(more[array] - less[array])
                assert change <= sensitivity.bound(C, False) * (1 + 1e-9), (trial, name, array)


def test_a_private_run_spends_its_budget_and_no_more() -> None:
    rng, truth = np.random.default_rng(0), np.array([1.0, -2.0, 0.5])
    rows = rng.normal(size=(6000, 3))
    targets = rows @ truth + 0.3 * rng.normal(size=6000)
    clinics = {str(i): (rows[i::3], targets[i::3]) for i in range(3)}
    server = Ridge(check=False)
    dp = RowDP(epsilon=2.0, delta=1e-5, row_norm=6.0, simulate=True)  # simulate: noise that repeats, for tests only
    plan = plan_for(dp, declared_releases(RidgeClient), server.planned(), spread=len(clinics))
    private = run(server, InProcess(clinics), rounds=1, seed=0, privacy=plan, secure=Secure())
    assert private.ledger.epsilon(1e-5) <= 2.0001
    assert np.abs(private.state.weights - truth).max() < 0.2


def test_the_check_cannot_be_made_private() -> None:
    dp = RowDP(epsilon=5.0, delta=1e-5, row_norm=5.0, simulate=True)
    with pytest.raises(InputError, match="without a known sensitivity"):
        plan_for(dp, declared_releases(RidgeClient), [Release("residuals", "squared_error", 1, 1.0)])
