"""The default method: tables as they are, the guard of held-out rows, honest answers where nothing can be learned."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import confusion_matrix, log_loss

from fedspan import FederatedClassifier, InputError, Participation, Secure, VerticalFederatedClassifier
from fedspan.algorithms.learning.held_out import deal_rows, measure_outputs, temper_rows
from fedspan.algorithms.learning.training_guard import HeldOutGuard, choose_temperature, judge, prior_loss
from fedspan.numerics.swish import softmax


def split(load: Any, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    X, y = load(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(y))
    k = int(0.3 * len(y))
    return X[order[k:]], y[order[k:]], X[order[:k]], y[order[:k]]


def deal(X: np.ndarray, y: np.ndarray, skewed: bool) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Five clients; skewed: by class, so that none has seen all."""
    parts = np.array_split(np.argsort(y, kind="stable") if skewed else np.arange(len(y)), 5)
    return [X[p] for p in parts], [y[p] for p in parts]


@pytest.mark.parametrize("skewed", [False, True])
@pytest.mark.parametrize(("load", "least"), [(load_wine, 0.92), (load_breast_cancer, 0.93), (load_digits, 0.93)])
def test_raw_tables_are_learned_blind(load: Any, least: float, skewed: bool) -> None:
    X, y, Xt, yt = split(load)
    model = FederatedClassifier(rounds=300, random_state=0).fit(*deal(X, y, skewed))
    assert model.converged_
    assert model.score(Xt, yt) > least - 0.03 * skewed
    assert log_loss(yt, model.predict_proba(Xt)) < 0.5


@pytest.mark.parametrize(("load", "least"), [(load_wine, 0.92), (load_digits, 0.93)])
def test_raw_views_are_learned_blind(load: Any, least: float) -> None:
    X, y, Xt, yt = split(load)
    cuts = np.array_split(np.arange(X.shape[1]), 3)
    model = VerticalFederatedClassifier(random_state=0).fit([X[:, c] for c in cuts], y)
    assert model.converged_
    assert model.score([Xt[:, c] for c in cuts], yt) > least
    assert model.evaluation_.n == round(0.1 * len(y))


@pytest.mark.parametrize("skewed", [False, True])
@pytest.mark.parametrize("secure", [True, Secure(verified=True)], ids=["secure", "verified"])
def test_secure_sums_learn_the_same(secure: Any, skewed: bool) -> None:
    X, y, _, _ = split(load_wine)
    data = deal(X, y, skewed)
    options: dict[str, Any] = {"method": "auto", "hidden": 4, "rounds": 6, "random_state": 0}
    with pytest.warns(ConvergenceWarning):
        plain, masked = (FederatedClassifier(**options, secure=s).fit(*data) for s in (False, secure))
    np.testing.assert_allclose(masked.coef_, plain.coef_, atol=1e-6)
    np.testing.assert_array_equal(masked.evaluation_.confusion, plain.evaluation_.confusion)


def test_labels_that_no_column_explains_are_told() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(400, 5)), rng.integers(2, size=400)
    Xs, ys = np.split(X, 4), np.split(y, 4)
    with pytest.warns(ConvergenceWarning, match="no better on held-out rows than the shares of the classes"):
        # Ten held-out rows of each client; what noise leaves of a gain is undone by a large step at once.
        model = FederatedClassifier(local_steps=50, rounds=40, random_state=0).fit(Xs, ys)
    assert not model.converged_


def test_the_held_out_loss_is_that_of_the_clients_that_answered() -> None:
    """Three clients with the same rows: however many take part, the mean loss at the start is the same."""
    X, y, _, _ = split(load_wine)
    losses = []
    for part in (None, Participation(count=1)):
        model = FederatedClassifier(hidden=4, rounds=1, participation=part, random_state=0)
        with pytest.warns(ConvergenceWarning):
            losses.append(model.fit([X] * 3, [y] * 3).history_[-1]["held_out_loss"])
    assert losses[1] == pytest.approx(losses[0], rel=1e-9)


def test_a_run_that_could_go_on_does_not_say_that_it_is_done() -> None:
    X, y, _, _ = split(load_digits)
    with pytest.warns(ConvergenceWarning, match="could still fall after 2 rounds"):
        model = FederatedClassifier(rounds=2, random_state=0).fit(*deal(X, y, False))
    assert not model.converged_


def test_one_row_per_client_and_a_huge_column_are_learned_from() -> None:
    rng = np.random.default_rng(3)
    y = np.arange(12) % 2
    X = np.stack([y * 1e12 + rng.normal(size=12), rng.normal(size=12)], axis=1)
    model = FederatedClassifier(hidden=4, rounds=60, random_state=0).fit(list(X[:, None]), list(y[:, None]))
    assert model.score(X, y) > 0.8
    assert model.evaluation_ is None  # nobody can hold a row out


def test_the_model_file_has_the_evaluation(tmp_path: Path) -> None:
    X, y, Xt, _ = split(load_wine)
    model = FederatedClassifier(hidden=8, random_state=0).fit(*deal(X, y, False))
    model.save(tmp_path / "m.safetensors")
    back = FederatedClassifier.load(tmp_path / "m.safetensors")
    np.testing.assert_array_equal(back.predict_proba(Xt), model.predict_proba(Xt))
    assert back.evaluation_.accuracy == model.evaluation_.accuracy


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"hidden": 0, "cost_limit": 0.3}, "hidden=0, a linear model, cannot do cost_limit"),
        ({"hidden": 0, "local_steps": 3}, "cannot do local_steps"),
        ({"hidden": 0, "standardize": (0, 9)}, "hidden=0 finds the scaling of the columns itself"),
        ({"hidden": "wide"}, "hidden must be an integer of at least 0 or 'auto', but is 'wide'"),
        ({"validation": 1.0}, "validation must be a number from 0 to below 1, but is 1.0"),
    ],
)
def test_what_it_cannot_do_is_refused(options: dict[str, Any], says: str) -> None:
    X, y, _, _ = split(load_wine)
    with pytest.raises(InputError, match=says):
        FederatedClassifier(**options).fit(*deal(X, y, False))


@pytest.mark.parametrize(
    ("options", "labels", "says"),
    [
        ({"cost_limit": 0.0, "method": "ssca"}, np.arange(60) % 2, "cost_limit must be a number above 0"),
        ({"class_weight": {0: 1.0, "x": 2.0}}, np.arange(60) % 2, "'x' is not one. Known: 0, 1"),
        ({}, np.linspace(0.0, 1.0, 60), "60 different values in 60 rows.*look like measurements"),
    ],
)
def test_labels_and_options_that_make_no_sense_are_refused(options: dict[str, Any], labels: Any, says: str) -> None:
    X = np.random.default_rng(0).normal(size=(60, 2))
    with pytest.raises(InputError, match=says):
        FederatedClassifier(**options).fit([X[:30], X[30:]], [labels[:30], labels[30:]])


def test_held_out_rows_are_an_even_share_of_each_class() -> None:
    y = np.repeat([0, 1, 2], [500, 60, 40])
    train, held = deal_rows(y, 0.1)
    assert sorted([*train, *held]) == list(range(600))
    assert np.bincount(y[held]).tolist() == [50, 6, 4]
    assert len(deal_rows(np.zeros(1, dtype=int), 0.9)[1]) == 0


def test_the_guard_goes_back_and_closes() -> None:
    zero, one = np.zeros(1), np.ones(1)
    guard, back = judge(HeldOutGuard(zero, np.inf, 0.7, 0.2), one, 0.5, 1e4)
    assert (guard.loss, back) == (0.5, False)
    assert guard.best is one
    worse, back = judge(guard, zero, 5.0, 1e4)
    assert (worse.rate, worse.cuts, worse.explosions, back) == (
        0.1,
        0,
        1,
        True,
    )  # no sign that there is no more to gain
    assert not replace(guard, cuts=5, explosions=11).closed
    assert replace(guard, cuts=6).closed
    assert replace(guard, explosions=12).closed
    assert judge(guard, zero, np.nan, 1e4)[1]
    for _ in range(3):
        guard, back = judge(guard, zero, 0.5, 1e4)
    assert (guard.cuts, back) == (1, True)
    assert prior_loss(np.array([30.0, 10.0]), np.array([3e6, 1e6])) == pytest.approx(
        -0.75 * np.log(0.75) - 0.25 * np.log(0.25)
    )


def test_sums_over_held_out_rows_are_those_of_scikit_learn() -> None:
    rng = np.random.default_rng(1)
    O, y = rng.normal(size=(200, 3)) * 3, rng.integers(3, size=200)  # noqa: E741 - the outputs
    found = measure_outputs(O, y, None)
    np.testing.assert_array_equal(found["confusion"], confusion_matrix(y, O.argmax(axis=1)))
    assert found["loss"] / 200 == pytest.approx(log_loss(y, softmax(O)))
    assert found["curve"][:, 0].sum() == 200
    assert found["curve"][:, 2].sum() == np.trace(found["confusion"])
    losses, wrong = temper_rows(O, y, np.array([1.0, 2.0]))
    assert losses[1] / 200 == pytest.approx(log_loss(y, softmax(O / 2)))
    assert wrong[1] < wrong[0]
    assert losses[0] > losses[1]  # random labels: less certain is better


def test_a_temperature_moves_for_many_rows_and_hardly_for_few() -> None:
    rng = np.random.default_rng(2)
    O = rng.normal(size=(5000, 3))  # noqa: E741 - the outputs
    y = np.array([rng.choice(3, p=q) for q in softmax(O)])
    for sharp in (1.0, 3.0):
        T = choose_temperature(*temper_rows(O * sharp, y, np.exp(np.linspace(0.0, 2.5, 51))), 5000)
        assert pytest.approx(sharp, rel=0.1) == T


def test_every_client_reads_its_own_held_out_rows_in_its_own_log(caplog: pytest.LogCaptureFixture) -> None:
    """And nobody else's: the server has sums only."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 4))
    y = np.where(X[:, 0] > 0, "yes", "no")
    with caplog.at_level("INFO", logger="fedspan.evaluation"):
        model = FederatedClassifier(rounds=40, random_state=0).fit([X[:120], X[120:]], [y[:120], y[120:]])
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2
    rows = [int(text.split()[2]) for text in told]
    assert sum(rows) == model.evaluation_.n
    right = [float(text.split("predicts ")[1].split()[0]) * n for text, n in zip(told, rows, strict=True)]
    assert sum(right) == pytest.approx(model.evaluation_.accuracy * model.evaluation_.n, abs=0.1)


@pytest.mark.parametrize("method", ["ssca", "fedsgd", "fedavg"])
def test_a_method_without_held_out_rows_does_not_call_a_useless_model_converged(method: str) -> None:
    """Columns that are far too large for its steps: the losses are finite, and the model is of no use."""
    rng = np.random.default_rng(0)
    X = 1e4 * rng.normal(size=(300, 5))
    y = np.where(X[:, 0] + X[:, 1] > 0, "a", "b")
    wild = FederatedClassifier(method=method, rounds=3, standardize=False, random_state=0)
    with pytest.warns(ConvergenceWarning, match=r"guessing by the shares of the classes.*too long|NaN or infinite"):
        wild.fit(np.split(X, 3), np.split(y, 3))
    assert not wild.converged_
    parts = {"bank": X[:, :3], "shop": X[:, 3:]}
    if method != "fedavg":
        other = "sgd" if method == "fedsgd" else method
        views = VerticalFederatedClassifier(method=other, rounds=3, standardize=False, random_state=0)
        with pytest.warns(ConvergenceWarning, match="guessing by the shares of the classes|NaN or infinite"):
            views.fit(parts, y)
        assert not views.converged_
    tame = FederatedClassifier(method=method, rounds=40, random_state=0).fit(np.split(X, 3), np.split(y, 3))
    assert tame.converged_
