"""Limits as users write them: what they mean, that they hold, what held-out rows say, what is refused."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedspan import FederatedClassifier, VerticalFederatedClassifier
from fedspan.errors import InputError
from fedspan.jobs.model import Job

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
SMALL: dict[str, Any] = {"method": "ssca", "hidden": 8, "batch_size": 40, "rounds": 90, "random_state": 0}
GAP = [{"on": "group", "column": "sex", "gap": 0.03}]


def people(n: int = 400) -> tuple[pd.DataFrame, np.ndarray]:
    """Rows of two groups; the label of one of them is harder to predict."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(n, 4))
    sex = rng.choice(["f", "m"], n)
    noise = rng.normal(size=n) * np.where(sex == "f", 1.0, 0.2)
    return pd.DataFrame(X, columns=list("abcd")).assign(sex=sex), np.where(X[:, 0] + noise > 0.4, "ill", "well")


def dealt(table: pd.DataFrame, y: np.ndarray) -> tuple[list[pd.DataFrame], list[np.ndarray]]:
    return [table[i::3].reset_index(drop=True) for i in range(3)], [y[i::3] for i in range(3)]


def losses(model: Any, X: Any, y: np.ndarray) -> np.ndarray:
    proba = model.predict_proba(X)
    return -np.log(proba[np.arange(len(y)), np.searchsorted(model.classes_, y)])


def test_a_gap_between_groups_holds_and_their_column_is_no_feature() -> None:
    table, y = people()
    model = FederatedClassifier(**SMALL, validation=0, limits=GAP).fit(*dealt(table, y))
    assert model.feature_names_in_.tolist() == list("abcd")
    own = losses(model, table, y)  # a table that still has the column
    f = (table["sex"] == "f").to_numpy()
    gap = own[f].mean() - own[~f].mean()
    assert abs(gap) <= 0.03 + 1e-9
    assert model.verified_["loss(f) - loss(m) ≤ 0.03"] == pytest.approx(gap, abs=1e-9)
    free = FederatedClassifier(**SMALL, validation=0).fit(
        [t.drop(columns="sex") for t in dealt(table, y)[0]], dealt(table, y)[1]
    )
    without = losses(free, table.drop(columns="sex"), y)
    assert without[f].mean() - without[~f].mean() > 0.1  # so the limit did something


def test_a_recall_is_reached_by_a_bound_on_the_loss_of_its_class() -> None:
    table, y = people()
    limits = [{"on": "class", "class": "ill", "recall": 0.8}]
    X = table.drop(columns="sex").to_numpy()
    Xs, ys = [X[i::3] for i in range(3)], [y[i::3] for i in range(3)]
    model = FederatedClassifier(**SMALL, validation=0, limits=limits).fit(Xs, ys)
    ill = y == "ill"
    loss = losses(model, X, y)[ill].mean()
    assert model.limits_[0].value == pytest.approx(loss, abs=1e-9)
    assert loss <= (1 - 0.8) * math.log(2)
    recall = (model.predict(X)[ill] == "ill").mean()
    assert recall >= max(0.8, 1 - loss / math.log(2))


def test_held_out_rows_are_not_trained_on_and_say_what_a_pooled_look_says() -> None:
    """The client's own dealing of rows, repeated here."""
    from fedspan.algorithms.learning.held_out import deal_rows

    table, y = people()
    tables, ys = dealt(table, y)
    model = FederatedClassifier(**SMALL, limits=[{"on": "cost", "at_most": 0.5}], standardize=False)
    Xs = [t.drop(columns="sex").to_numpy() for t in tables]
    model.fit(Xs, ys)
    shares = [deal_rows(np.searchsorted(model.classes_, labels), 0.1) for labels in ys]
    train, held = (
        [np.concatenate([losses(model, X[at[k]], labels[at[k]]) for X, labels, at in zip(Xs, ys, shares, strict=True)])]
        for k in (0, 1)
    )
    outcome = model.limits_[0]
    assert outcome.value == pytest.approx(train[0].mean(), abs=1e-9)
    assert outcome.held_out == pytest.approx(held[0].mean(), abs=1e-9)
    assert outcome.held_out_rows == len(held[0])
    assert outcome.held_out_met == (held[0].mean() <= 0.5)


def test_several_limits_at_once_over_views_and_rows_are_the_same_limits() -> None:
    table, y = people()
    limits = [*GAP, {"on": "class", "class": "ill", "at_most": 0.5}, {"on": "group", "column": "sex", "at_most": 0.6}]
    views = {"bank": table[["a", "b", "sex"]], "shop": table[["c", "d"]]}
    model = VerticalFederatedClassifier(**SMALL, limits=limits).fit(views, y)
    assert model.views_ == {"bank": 2, "shop": 2}
    assert len(model.limits_) == 5
    assert all(outcome.met for outcome in model.limits_)
    assert {outcome.held_out_rows for outcome in model.limits_} > {0} or all(o.held_out_rows for o in model.limits_)
    whole = VerticalFederatedClassifier(**SMALL, limits=limits, validation=0).fit(views, y)
    own = losses(whole, {"bank": table[["a", "b"]], "shop": table[["c", "d"]]}, y)
    f = (table["sex"] == "f").to_numpy()
    assert whole.limits_[0].value == pytest.approx(own[f].mean() - own[~f].mean(), abs=1e-9)
    assert whole.limits_[2].value == pytest.approx(own[y == "ill"].mean(), abs=1e-9)


def test_outcomes_are_in_the_report_and_in_the_model_file(tmp_path: Path) -> None:
    table, y = people()
    limits = [*GAP, {"on": "cost", "at_most": 0.01}]  # which cannot be met
    model = FederatedClassifier(**SMALL, limits=limits).fit(*dealt(table, y))
    assert not model.converged_
    model.report(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "loss(f) - loss(m) ≤ 0.03" in page
    assert "missed by" in page
    assert "held-out rows" in page
    model.save(tmp_path / "model")
    assert FederatedClassifier.load(tmp_path / "model").limits_ == model.limits_


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        ([{"on": "cost", "at_most": -1}], "Limit 1: at_most must be above 0"),
        ([{"on": "group", "column": "sex", "gap": -0.1}], "gap must be above 0"),
        ([{"on": "class", "class": "ill", "recall": 1.5}], "recall must be above 0 and below 1"),
        ([{"on": "class", "class": "dead", "at_most": 0.3}], "class 'dead', of which there are no rows.*'ill', 'well'"),
        ([{"on": "group", "column": "sex", "group": "x", "at_most": 0.3}], "group 'x', of which there are no rows"),
        ([{"on": "group", "column": "gender", "gap": 0.1}], "There is no column 'gender'"),
        ([{"on": "loss", "at_most": 0.1}], "on 'cost', 'group' or 'class'"),
        ([{"on": "cost", "at_most": 0.1, "gap": 0.1}], "unknown key 'gap'"),
        ([{"on": "cost"}], "needs exactly one of at_most, but has none"),
        ([{"on": "class", "at_most": 0.1}], "must name the class"),
        ([{"on": "group", "column": "sex", "gap": 0.1}, {"on": "group", "column": "a", "gap": 0.1}], "same column"),
        ([{"on": "group", "column": "sex", "coefficients": {"f": 0}, "at_most": 0.1}], "all coefficients are 0"),
        ([{"on": "cost", "at_most": math.nan}], "at_most must be a number"),
        ([3], "Limit 1 must be a table"),
        ({"on": "cost"}, "limits must be a list"),
    ],
)
def test_bad_limits_are_refused_in_one_sentence(limits: Any, why: str) -> None:
    table, y = people(60)
    tables, ys = dealt(table, y)
    named = isinstance(limits, list) and any(isinstance(limit, dict) and "column" in limit for limit in limits)
    if not named:
        tables = [part.drop(columns="sex") for part in tables]
    with pytest.raises(InputError, match=why):
        FederatedClassifier(**SMALL, limits=limits).fit(tables, ys)


def test_a_gap_needs_two_groups() -> None:
    table, y = people(60)
    with pytest.raises(InputError, match="A gap needs at least two groups, but all rows are in 'f'"):
        FederatedClassifier(**SMALL, limits=GAP).fit(*dealt(table.assign(sex="f"), y))
    with pytest.raises(InputError, match="Every row must have a group, but 1 of 20"):
        FederatedClassifier(**SMALL, limits=GAP).fit(*dealt(table.assign(sex=[None, *["f"] * 59]), y))


def test_limits_in_a_job_file_horizontal_and_vertical(tmp_path: Path) -> None:
    table, y = people()
    for i, part in enumerate(dealt(table.assign(state=y), y)[0]):
        part.to_csv(tmp_path / f"c{i}.csv", index=False)
    table[["a", "b", "sex"]].assign(state=y).to_csv(tmp_path / "bank.csv", index=False)
    table[["c", "d"]].to_csv(tmp_path / "shop.csv", index=False)
    head = 'method = "ssca"\nhidden = 8\nbatch_size = 40\nrounds = 90\nrandom_state = 0\n'
    head += 'limits = [{ on = "group", column = "sex", gap = 0.03 }, { on = "class", class = "ill", at_most = 0.5 }]\n'
    (tmp_path / "rows.toml").write_text(
        f'[job]\ntask = "classifier"\n{head}[data]\nclients = ["c0.csv", "c1.csv", "c2.csv"]\nlabel = "state"\n'
    )
    (tmp_path / "views.toml").write_text(
        f'[job]\ntask = "vertical-classifier"\n{head}[data]\nviews = ["bank.csv", "shop.csv"]\nlabel = "state"\n'
    )
    rows = Job.load(tmp_path / "rows.toml").run(tmp_path / "rows").model
    direct = FederatedClassifier(**SMALL, limits=[*GAP, {"on": "class", "class": "ill", "at_most": 0.5}])
    parts = zip(*dealt(table, y), strict=True)
    by_name = {f"c{i}": part for i, part in enumerate(parts)}
    direct.fit({name: part[0] for name, part in by_name.items()}, {name: part[1] for name, part in by_name.items()})
    assert [outcome.name for outcome in rows.limits_] == [outcome.name for outcome in direct.limits_]
    np.testing.assert_allclose(rows.coef_, direct.coef_)
    views = Job.load(tmp_path / "views.toml").run(tmp_path / "views").model
    assert views.views_ == {"bank": 2, "shop": 2}
    assert all(outcome.met for outcome in views.limits_)
    text = (tmp_path / "rows" / "job.toml").read_text()
    assert 'on = "group"' in text
    with pytest.raises(InputError, match=r"job.limits: Limit 1: at_most must be above 0"):
        Job.load(tmp_path / "rows.toml", ['job.limits=[{ on = "cost", at_most = 0 }]'])


def test_weights_count_as_repeated_rows(tmp_path: Path) -> None:
    """Full batches, no held-out rows: weight 2 is a row twice, however it is scaled; in Python and from a column."""
    table, y = people(120)
    X = table.drop(columns="sex").to_numpy()
    w = np.random.default_rng(5).integers(1, 3, size=len(y))
    options: dict[str, Any] = {**SMALL, "batch_size": None, "rounds": 30, "standardize": False, "l2": 1e-3}
    again = np.repeat(np.arange(len(y)), w)
    want = FederatedClassifier(**options).fit([X[again]], [y[again]])
    got = FederatedClassifier(**options).fit([X], [y], sample_weight=[7.0 * w])
    np.testing.assert_allclose(got.coef_, want.coef_, atol=1e-8)
    views = VerticalFederatedClassifier(**options).fit([X[:, :2], X[:, 2:]], y, sample_weight=w)
    twice = VerticalFederatedClassifier(**options).fit([X[again][:, :2], X[again][:, 2:]], y[again])
    np.testing.assert_allclose(views.coef_, twice.coef_, atol=1e-8)
    pd.DataFrame(X, columns=list("abcd")).assign(state=y, w=w).to_csv(tmp_path / "all.csv", index=False)
    (tmp_path / "job.toml").write_text(
        '[job]\ntask = "classifier"\nmethod = "ssca"\nhidden = 8\nrounds = 3\n[data]\nclients = ["all.csv"]\n'
        'label = "state"\nweight = "w"\n'
    )
    assert Job.load(tmp_path / "job.toml").run(tmp_path / "run").model.n_features_in_ == 4
    with pytest.raises(InputError, match="finite numbers of at least 0"):
        FederatedClassifier(**options).fit([X], [y], sample_weight=[-w])
    with pytest.raises(InputError, match="all are 0"):
        FederatedClassifier(**options).fit([X], [y], sample_weight=[0 * w])
