"""The classifiers: labels as they come, limits, files, and every kind of bad input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from fedspan import FederatedClassifier, InputError, Participation, VerticalFederatedClassifier
from fedspan.algorithms import Ssca, Steps, VerticalSsca

SMALL: dict[str, Any] = {"method": "ssca", "hidden": 6, "batch_size": 15, "rounds": 60, "random_state": 0}
SHORT = SMALL | {"rounds": 12}  # where it does not matter how much is learned


def people(n: int = 150) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    y = rng.integers(3, size=n)
    return rng.normal(size=(3, 5))[y] * 2 + rng.normal(size=(n, 5)), np.array(["cat", "dog", "emu"])[y]


@pytest.fixture
def three() -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    X, y = people()
    names = ("a", "b", "c")
    return dict(zip(names, np.split(X, 3), strict=True)), dict(zip(names, np.split(y, 3), strict=True))


def mean_loss(model: Any, X: Any, y: np.ndarray) -> float:
    at = np.searchsorted(model.classes_, y)
    return float(-np.log(model.predict_proba(X)[np.arange(len(y)), at]).mean())


@pytest.mark.parametrize("method", ["ssca", "fedsgd", "fedsgdm", "fedavg", "scaffold", "fedadam"])
def test_every_method_learns(three: Any, method: str) -> None:
    X, y = people()
    model = FederatedClassifier(**SMALL | {"rounds": 120, "method": method}).fit(*three)
    assert model.score(X, y) > LogisticRegression().fit(X, y).score(X, y) - 0.05
    np.testing.assert_allclose(model.predict_proba(X).sum(axis=1), 1.0)
    assert model.classes_.tolist() == ["cat", "dog", "emu"]
    assert (model.n_features_in_, model.n_samples_, model.n_clients_, model.n_rounds_) == (5, 150, 3, 120)
    assert model.converged_


def test_lists_mappings_tables_and_sparse_rows_are_the_same_to_it(three: Any) -> None:
    Xs, ys = three
    want = FederatedClassifier(**SHORT).fit(*three).coef_
    tables = {name: pd.DataFrame(X, columns=list("vwxyz")) for name, X in Xs.items()}
    named = FederatedClassifier(**SHORT).fit(tables, {name: pd.Series(y) for name, y in ys.items()})
    np.testing.assert_allclose(named.coef_, want, atol=1e-9)  # a table lies otherwise in memory
    assert named.feature_names_in_.tolist() == list("vwxyz")
    sparse = FederatedClassifier(**SHORT).fit({name: sp.csr_array(X) for name, X in Xs.items()}, ys)
    np.testing.assert_allclose(sparse.coef_, want, atol=1e-9)


def test_files_are_opened_where_they_are_needed(three: Any, tmp_path: Path) -> None:
    """To the bit: the same rows, which lie in memory alike."""
    Xs, ys = three
    for name, X in Xs.items():
        np.save(tmp_path / f"{name}.npy", X)
    paths = {name: tmp_path / f"{name}.npy" for name in Xs}
    np.testing.assert_array_equal(
        FederatedClassifier(**SHORT).fit(paths, ys).coef_, FederatedClassifier(**SHORT).fit(*three).coef_
    )


def test_a_client_need_not_have_seen_all_classes() -> None:
    X, y = people()
    order = np.argsort(y, kind="stable")
    parts = np.split(order, 3)  # every client has about one class
    model = FederatedClassifier(**SMALL | {"rounds": 200}).fit([X[p] for p in parts], [y[p] for p in parts])
    assert model.classes_.tolist() == ["cat", "dog", "emu"]
    assert model.score(X, y) > 0.9


@pytest.mark.parametrize("labels", [[10, 20, 30], [False, True, True], [0.5, 1.5, 2.5]])
def test_labels_come_back_as_they_were_given(three: Any, labels: list[Any]) -> None:
    Xs, ys = three
    given = {name: np.array(labels)[np.searchsorted(["cat", "dog", "emu"], y)] for name, y in ys.items()}
    model = FederatedClassifier(**SHORT).fit(Xs, given)
    assert model.classes_.tolist() == sorted(set(labels))
    assert model.predict(Xs["a"]).dtype == np.array(labels).dtype


def test_a_cost_limit_holds_and_history_tells_how(three: Any) -> None:
    X, y = people()
    model = FederatedClassifier(**SMALL | {"rounds": 250, "cost_limit": 0.25, "validation": 0}).fit(*three)
    assert mean_loss(model, X, y) <= 0.25
    assert model.verified_["cost ≤ 0.25"] == pytest.approx(mean_loss(model, X, y))
    assert model.converged_
    last = model.history_[-1]
    assert last["norm2"] == pytest.approx(model.coef_ @ model.coef_)
    assert {"cost", "constraint_1", "slack_1", "multiplier_1", "penalty"} <= set(last)
    free = FederatedClassifier(**SMALL | {"rounds": 250}).fit(*three)
    assert model.coef_ @ model.coef_ < free.coef_ @ free.coef_


def test_an_infeasible_limit_is_named_with_what_was_reached(three: Any) -> None:
    X, y = people()
    with pytest.warns(ConvergenceWarning, match=r"cost ≤ 1e-06: reached 0\.\d+.*least violation is kept"):
        model = FederatedClassifier(**SMALL | {"cost_limit": 1e-6, "validation": 0}).fit(*three)
    assert not model.converged_
    assert model.verified_["cost ≤ 1e-06"] == pytest.approx(mean_loss(model, X, y))


def test_a_limit_that_was_not_verified_is_not_claimed_to_hold(three: Any) -> None:
    as_printed = Ssca(paper=True, rho=Steps(0.3, 0.1), gamma=Steps(0.3, 0.1))
    with pytest.warns(ConvergenceWarning, match="not verified"):
        model = FederatedClassifier(**SMALL | {"rounds": 20, "method": as_printed}, cost_limit=5.0).fit(*three)
    assert not model.converged_
    assert model.verified_ == {}


def test_limits_on_groups_hold(three: Any) -> None:
    X, y = people()
    Xs, ys = three
    groups = {name: np.where(x[:, 0] > 0, "left", "right") for name, x in Xs.items()}
    gap = [({"left": 1, "right": -1}, 0.005), ({"left": -1, "right": 1}, 0.005)]
    model = FederatedClassifier(**SMALL | {"rounds": 250, "limits": gap, "validation": 0}).fit(Xs, ys, groups=groups)
    left = X[:, 0] > 0
    assert abs(mean_loss(model, X[left], y[left]) - mean_loss(model, X[~left], y[~left])) <= 0.005
    assert len(model.verified_) == 2
    with pytest.raises(
        InputError, match=r"A limit is on the group 'middle', of which there are no rows\. Known: 'left', 'right'"
    ):
        FederatedClassifier(**SMALL, limits=[({"middle": 1}, 0.1)]).fit(Xs, ys, groups=groups)


def test_class_weights_shift_what_is_predicted() -> None:
    rng = np.random.default_rng(2)
    y = (rng.random(400) < 0.1).astype(int)
    X = np.hstack([rng.normal(size=(400, 2)) + y[:, None], np.ones((400, 1))])
    Xs, ys = np.split(X, 4), np.split(y, 4)
    plain, even = (
        FederatedClassifier(**SMALL, class_weight=weight).fit(Xs, ys).predict(X).mean() for weight in (None, "balanced")
    )
    by_hand = FederatedClassifier(**SMALL, class_weight={0: 400 / (2 * (y == 0).sum()), 1: 400 / (2 * y.sum())})
    assert even > 2 * plain
    assert by_hand.fit(Xs, ys).predict(X).mean() == even


def test_part_of_the_clients_is_enough(three: Any) -> None:
    X, y = people()
    model = FederatedClassifier(**SMALL | {"rounds": 150}, participation=Participation(count=2)).fit(*three)
    assert model.score(X, y) > 0.85
    asked = [row["clients"] for row in model.ledger_.rows() if row["event"] == "exchange" and row["round"] > 0]
    assert {len(clients) for clients in asked} == {2}


def test_a_fit_goes_on_from_its_checkpoint_and_a_file_gives_the_model_back(three: Any, tmp_path: Path) -> None:
    """To the bit: the rounds before are in the checkpoint, those after it are the same operations."""
    X, _ = people()
    want = FederatedClassifier(**SHORT).fit(*three)

    class Stop(Exception):
        pass

    def stop(info: Any) -> None:
        if info.round == 5:
            raise Stop

    with pytest.raises(Stop):
        FederatedClassifier(**SHORT, checkpoint=tmp_path / "run", callback=stop).fit(*three)
    again = FederatedClassifier(**SHORT, checkpoint=tmp_path / "run").fit(*three)
    np.testing.assert_array_equal(again.coef_, want.coef_)
    again.save(tmp_path / "model.safetensors")
    back = FederatedClassifier.load(tmp_path / "model.safetensors")
    assert back.predict(X).tolist() == want.predict(X).tolist()


def test_a_torch_module_is_a_model(three: Any, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from fedspan.algorithms.learning.torch import Problem, TorchModel, cross_entropy

    X, y = people()
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(5, 6), torch.nn.Tanh(), torch.nn.Linear(6, 3))
    model = FederatedClassifier(**SMALL, model=module).fit(*three)
    assert model.score(X, y) > 0.85
    model.save(tmp_path / "m.safetensors")
    back = FederatedClassifier.load(tmp_path / "m.safetensors", model=module)
    np.testing.assert_array_equal(back.predict_proba(X), model.predict_proba(X))  # the saved arrays, as they lay
    problem = Problem(cross_entropy, (lambda out, y: (out**2).sum(dim=1) - 9.0,))
    held = FederatedClassifier(**SMALL | {"rounds": 150}, model=TorchModel(module, problem)).fit(*three)
    assert held.converged_
    outputs = np.log(held.predict_proba(X))
    assert ((outputs - outputs.mean(axis=1, keepdims=True)) ** 2).sum(axis=1).mean() <= 9.0  # outputs but for a shift
    assert list(held.verified_) == ["constraint 1 ≤ 0"]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"method": "sca"}, "Did you mean 'ssca'"),
        ({"method": VerticalSsca()}, "VerticalSsca is for another kind of clients"),
        ({"hidden": -1}, "hidden"),
        ({"hidden": 0}, "hidden=0, a linear model, is for method='auto'"),
        ({"rounds": 0}, "rounds"),
        ({"batch_size": 2.5}, "batch_size"),
        ({"method": "fedsgd", "strict": True}, "strict=True is for methods 'auto' and 'ssca'"),
        ({"method": "fedsgd", "cost_limit": 0.3}, "'fedsgd' cannot do cost_limit"),
        ({"method": "ssca", "local_steps": 3}, "'ssca' cannot do local_steps"),
        ({"class_weight": 3}, "class_weight"),
        ({"privacy": object()}, "privacy must be a RowDP object or None, but is <object"),
        ({"secure": 3}, "secure must be True, False or a Secure object, but is 3"),
        ({"random_state": -1}, "random_state"),
    ],
)
def test_parameters_that_make_no_sense_are_refused(three: Any, change: dict[str, Any], why: str) -> None:
    with pytest.raises(InputError, match=why):
        FederatedClassifier(**SMALL | change).fit(*three)


def test_step_sizes_that_break_the_theory_are_refused_when_they_are_made() -> None:
    with pytest.raises(InputError, match=r"\(6\)"):
        FederatedClassifier(method=Ssca(gamma=Steps(0.3, 0.4)))


def test_labels_that_make_no_sense_are_refused(three: Any) -> None:
    Xs, ys = three
    model = FederatedClassifier(**SMALL)
    with pytest.raises(InputError, match="client 'c' has rows and no labels"):
        model.fit(Xs, {"a": ys["a"], "b": ys["b"]})
    with pytest.raises(InputError, match=r"Client 'b' has 50 rows, so it needs 50 labels, but they have shape \(49,\)"):
        model.fit(Xs, ys | {"b": ys["b"][1:]})
    with pytest.raises(InputError, match="client 'b' has text and others have numbers"):
        model.fit(Xs, ys | {"a": np.arange(50)})
    with pytest.raises(InputError, match="client 'a' has a row without one"):
        model.fit(
            Xs, {name: np.where(y == "cat", np.nan, 1.0) if name == "a" else np.ones(50) for name, y in ys.items()}
        )
    with pytest.raises(InputError, match="At least 2 classes are needed over all clients, but the labels have 1"):
        model.fit(Xs, {name: np.ones(50) for name in Xs})


def test_a_loss_that_is_not_finite_is_told_and_the_last_good_model_is_kept(three: Any) -> None:
    Xs, ys = three
    seen: list[np.ndarray] = []
    huge = {name: X * 1e60 for name, X in Xs.items()}
    with pytest.warns(ConvergenceWarning, match="A loss was NaN or infinite in round"):
        model = FederatedClassifier(**SMALL, standardize=False, callback=lambda info: seen.append(info.estimate)).fit(
            huge, ys
        )
    assert not model.converged_
    assert model.n_rounds_ < 60
    assert np.isfinite(model.coef_).all()


# features spread over clients


def views() -> tuple[dict[str, np.ndarray], np.ndarray]:
    X, y = people()
    return {"bank": X[:, :2], "shop": X[:, 2:]}, y


@pytest.mark.parametrize("method", ["ssca", "sgd", "sgdm"])
def test_features_that_are_spread_are_learned_from(method: str, tmp_path: Path) -> None:
    parts, y = views()
    model = VerticalFederatedClassifier(**SMALL | {"rounds": 150, "method": method}).fit(parts, y)
    X = np.hstack(list(parts.values()))
    assert model.score(parts, y) > LogisticRegression().fit(X, y).score(X, y) - 0.05
    model.save(tmp_path / "m.safetensors")
    back = VerticalFederatedClassifier.load(tmp_path / "m.safetensors")
    assert back.predict(parts).tolist() == model.predict(parts).tolist()
    assert back.views_ == {"bank": 2, "shop": 3}


def test_both_exchanges_learn_the_same_model() -> None:
    """To the bit: a sum over two clients is the same, whoever adds them up."""
    parts, y = views()
    one, other = (VerticalFederatedClassifier(**SHORT, exchange=form).fit(parts, y).coef_ for form in ("each", "sum"))
    np.testing.assert_array_equal(one, other)


def test_a_cost_limit_holds_over_spread_features() -> None:
    parts, y = views()
    model = VerticalFederatedClassifier(**SMALL | {"rounds": 200, "cost_limit": 0.3, "validation": 0}).fit(parts, y)
    assert mean_loss(model, parts, y) <= 0.3
    assert model.converged_


def test_views_that_do_not_match_are_refused() -> None:
    parts, y = views()
    model = VerticalFederatedClassifier(**SHORT)
    with pytest.raises(InputError, match="same rows, one for each of the 150 labels, but client 'shop' has 149 rows"):
        model.fit(parts | {"shop": parts["shop"][1:]}, y)
    with pytest.raises(InputError, match="one view per client"):
        model.fit(parts["bank"], y)
    model.fit(parts, y)
    with pytest.raises(InputError, match="The model was fitted on the views"):
        model.predict({"bank": parts["bank"]})
    with pytest.raises(InputError, match="another kind of clients"):
        VerticalFederatedClassifier(**SHORT | {"method": Ssca()}).fit(parts, y)
