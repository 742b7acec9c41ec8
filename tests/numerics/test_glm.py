"""The losses of linear models against finite differences, scikit-learn's values, and what a loss must be."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import log_loss, mean_poisson_deviance

from fedspan.errors import InputError
from fedspan.numerics.glm import LinearLoss, invert_curvature, lbfgs_direction

LOSSES = {
    "two classes": LinearLoss("logistic", 2),
    "four classes": LinearLoss("logistic", 4),
    "squared": LinearLoss("squared"),
    "poisson": LinearLoss("poisson"),
    "huber": LinearLoss("huber"),
}


def rows(loss: LinearLoss, n: int = 40) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    eta = rng.normal(size=(n, loss.columns))
    if loss.name == "huber":
        eta[:, 1] = 0.8
    y = rng.integers(loss.classes, size=n) if loss.name == "logistic" else rng.poisson(1.5, size=n).astype(float)
    return eta, y


@pytest.mark.parametrize("name", LOSSES)
def test_slopes_and_curvatures_are_those_of_the_loss(name: str) -> None:
    loss, h = LOSSES[name], 1e-5
    eta, y = rows(loss)
    at = loss(eta, y)
    for k in range(loss.columns):
        step = np.zeros(loss.columns)
        step[k] = h
        up, down = loss(eta + step, y), loss(eta - step, y)
        smooth = np.ones(len(y), dtype=bool)
        if loss.name == "huber":  # the second derivative jumps where a residual is ε σ
            smooth = np.abs(np.abs(eta[:, 0] - y) - loss.epsilon * eta[:, 1]) > 1e-3
        np.testing.assert_allclose(at.slope[:, k], (up.loss - down.loss) / (2 * h), atol=1e-8)
        bend = (up.slope - down.slope) / (2 * h)
        np.testing.assert_allclose(at.curve[smooth, :, k], bend[smooth], atol=1e-8)
    assert (np.linalg.eigvalsh(at.curve) >= -1e-12).all()  # convex
    assert (at.loss >= 0).all()


def test_values_are_those_of_scikit_learn() -> None:
    eta, y = rows(LOSSES["four classes"])
    loss = LOSSES["four classes"]
    outputs = eta @ loss.contrast.T
    Q = np.exp(outputs) / np.exp(outputs).sum(axis=1, keepdims=True)
    assert loss(eta, y).loss.mean() == pytest.approx(log_loss(y, Q), rel=1e-12)
    eta, y = rows(LOSSES["poisson"])
    assert 2 * LOSSES["poisson"](eta, y).loss.mean() == pytest.approx(mean_poisson_deviance(y, np.exp(eta[:, 0])))


def test_a_scale_of_zero_or_less_has_no_loss() -> None:
    eta, y = rows(LOSSES["huber"])
    eta[:, 1] = -0.1
    with np.errstate(all="ignore"):
        assert np.isinf(LOSSES["huber"](eta, y).loss).all()


def test_the_best_predictors_without_features_have_no_slope() -> None:
    for name in ("two classes", "four classes", "poisson"):
        loss = LOSSES[name]
        _, y = rows(loss)
        best = loss.null_predictors(loss.target_columns(y).mean(axis=0))
        slope = loss(np.tile(best, (len(y), 1)), y).slope.sum(axis=0)
        np.testing.assert_allclose(slope, 0, atol=1e-10)


def test_flat_directions_are_left_out_whatever_their_units() -> None:
    rng = np.random.default_rng(0)
    A = rng.normal(size=(50, 4)) @ np.diag([1, 1e6, 1e-6, 1])
    A = np.c_[A, A[:, 1] / 1e6 + A[:, 0]]
    inverse = invert_curvature(A.T @ A)
    assert inverse.rank == 4
    assert inverse.unknown.tolist() == [True, True, False, False, True]
    H = A[:, 2:4].T @ A[:, 2:4]
    np.testing.assert_allclose(invert_curvature(H).matrix @ H, np.eye(2), atol=1e-9)
    assert invert_curvature(np.zeros((2, 2))).rank == 0


def test_steps_on_a_quadratic_find_its_curvature() -> None:
    """With as many pairs as dimensions, conjugate to each other, the direction is Newton's."""
    rng = np.random.default_rng(1)
    B = rng.normal(size=(9, 5))
    H = B.T @ B
    S = np.linalg.eigh(H)[1].T
    g = rng.normal(size=5)
    np.testing.assert_allclose(lbfgs_direction(g, S, S @ H), -np.linalg.solve(H, g), rtol=1e-8)
    first = lbfgs_direction(g, np.zeros((0, 5)), np.zeros((0, 5)))
    assert first @ g < 0
    assert np.abs(first).sum() <= 1


@pytest.mark.parametrize(
    ("options", "says"),
    [({"name": "cubic"}, "one of"), ({"name": "logistic", "classes": 1}, "2 classes"), ({"epsilon": 0.5}, "epsilon")],
)
def test_a_loss_that_is_none_is_refused(options: dict, says: str) -> None:
    with pytest.raises(InputError, match=says):
        LinearLoss(**options)


def test_targets_without_a_loss_are_refused() -> None:
    with pytest.raises(InputError, match="2 are negative"):
        LOSSES["poisson"].check_targets(np.array([1.0, -1, -2]))
    with pytest.raises(InputError, match="finite"):
        LOSSES["squared"].check_targets(np.array([1.0, np.nan]))
