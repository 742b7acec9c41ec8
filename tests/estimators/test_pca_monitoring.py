"""Hotelling's T², the squared prediction error and their limits, against dense formulas and new rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedspan import FederatedPCA, InputError
from fedspan.numerics.pca_model.control_limits import limit_spe

rng = np.random.default_rng(11)
MIX = rng.normal(size=(8, 8)) * [5, 4, 3, 1, 1, 0.8, 0.6, 0.3]
X, NEW = (rng.normal(size=(n, 8)) @ MIX.T + 2 for n in (1500, 20_000))
CLIENTS = [X[:300], X[300:1000], X[1000:]]


def dense(k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    values, V = np.linalg.eigh(np.cov(X.T))
    return values[::-1], V[:, ::-1][:, :k], (NEW - X.mean(axis=0))


@pytest.mark.parametrize("options", [{}, {"whiten": True}, {"n_components": 0.8}])
def test_both_are_those_of_the_dense_formulas(options: dict[str, Any]) -> None:
    model = FederatedPCA(**{"n_components": 3, "solver": "gram", "random_state": 0, **options}).fit(CLIENTS)
    k = model.n_components_
    values, V, B = dense(k)
    np.testing.assert_allclose(model.hotelling_t2(NEW), ((B @ V) ** 2 / values[:k]).sum(axis=1), rtol=1e-9)
    np.testing.assert_allclose(model.spe(NEW), ((B - B @ V @ V.T) ** 2).sum(axis=1), rtol=1e-9, atol=1e-9)
    theta = np.array([(values[k:] ** i).sum() for i in (1, 2, 3)])
    assert model.spe_limit(0.95) == pytest.approx(limit_spe(theta, 0.95), rel=1e-5)


@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.99])
def test_new_rows_stay_below_the_limits_as_often_as_promised(confidence: float) -> None:
    model = FederatedPCA(3, solver="gram", random_state=0).fit(CLIENTS)
    for found, limit in (
        (model.hotelling_t2(NEW), model.t2_limit(confidence)),
        (model.spe(NEW), model.spe_limit(confidence)),
    ):
        assert np.mean(found <= limit) == pytest.approx(confidence, abs=0.02)


def test_a_saved_model_has_the_same_limits(tmp_path: Path) -> None:
    model = FederatedPCA(3, solver="gram", random_state=0).fit(CLIENTS)
    model.save(tmp_path / "model")
    assert FederatedPCA.load(tmp_path / "model").spe_limit(0.9) == model.spe_limit(0.9)
    whole = FederatedPCA(8, solver="gram", random_state=0).fit(CLIENTS)
    assert whole.spe_limit() < 1e-9 * whole.explained_variance_.sum()


def test_what_is_not_known_is_not_made_up(tmp_path: Path) -> None:
    model = FederatedPCA(3, solver="krylov", random_state=0).fit(CLIENTS)
    assert model.t2_limit() > 0
    with pytest.raises(InputError, match=r"which this solver does not know.*fit with solver='gram'"):
        model.spe_limit()
    model.save(tmp_path / "model")
    assert FederatedPCA.load(tmp_path / "model").rest_ is None
    for wrong in (0, 1, 2.0, float("nan"), "x"):
        with pytest.raises(InputError, match="confidence must be above 0 and below 1"):
            model.t2_limit(wrong)  # type: ignore[arg-type]
    few = FederatedPCA(3, solver="krylov", center=False, random_state=0).fit([X[:3]])
    with pytest.raises(InputError, match="needs more than 3 rows"):
        few.t2_limit()
