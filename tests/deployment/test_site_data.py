"""What a site makes of cells that its file does not allow: against pandas and scikit-learn on the other rows."""

from __future__ import annotations

import logging
import secrets
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from orders import write_site
from sklearn.datasets import dump_svmlight_file
from sklearn.decomposition import PCA

from fedspan import FederatedClassifier, FederatedGCCA, FederatedPCA
from fedspan.core.ledger import Exchange, Ledger
from fedspan.data.preparation import Preparation
from fedspan.deployment.loopback_federation import LoopbackFederation
from fedspan.deployment.policy import Policy, SiteTable, write_secret
from fedspan.deployment.server_job import RunRequest
from fedspan.deployment.site_tables.site_data import SiteSurvey, open_site_table
from fedspan.errors import InputError

KEYS: dict[str, Any] = {
    "columns": ["age", "sex", "dose"],
    "label": "y",
    "classes": [0, 1],
    "categories": {"sex": ["f", "m"]},
    "units": {"dose": "mg"},
}
NAMES = ["age", "sex=f", "sex=m", "dose"]
GRAM = {"n_components": 2, "solver": "gram", "random_state": 0}


def people(seed: int, n: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "age": rng.normal(50, 9, n),
            "sex": rng.choice(["f", "m"], n),
            "dose": rng.gamma(2.0, 3.0, n),
            "y": rng.integers(0, 2, n).astype(float),
        }
    )


def spoil(rows: pd.DataFrame) -> pd.DataFrame:
    """Cells of every kind that a file does not allow."""
    rows = rows.copy()
    rows.loc[2, "age"], rows.loc[3, "age"], rows.loc[4, "dose"] = np.nan, np.inf, -1e200
    rows.loc[5, "sex"], rows.loc[6, "sex"] = "unknown", None
    return rows


def to_features(rows: pd.DataFrame) -> pd.DataFrame:
    """What a job gets, with NaN for what is not allowed."""
    age, dose = (rows[name].where(rows[name].abs() < 1e100) for name in ("age", "dose"))
    is_known = rows["sex"].isin(["f", "m"])
    female, male = ((rows["sex"] == word).astype(float).where(is_known) for word in "fm")
    return pd.DataFrame({"age": age, "sex=f": female, "sex=m": male, "dose": dose})


TABLES = {"east": spoil(people(1, 40)), "north": people(2, 30), "south": spoil(people(3, 25))}


@pytest.fixture
def three(tmp_path: Path) -> LoopbackFederation:
    sites = {}
    for name, rows in TABLES.items():
        rows.to_csv(tmp_path / f"{name}.csv", index=False)
        sites[name] = write_site(tmp_path / name, {"default": {"path": str(tmp_path / f"{name}.csv"), **KEYS}})
    return LoopbackFederation(tmp_path / "server", sites)


def fit(federation: LoopbackFederation, kind: Any, parameters: dict[str, Any], secure: bool = True, **data: Any) -> Any:
    order = RunRequest(
        secrets.token_hex(16),
        kind.__name__,
        parameters,
        table={"preparation": asdict(Preparation(**data))},
        secure={"enabled": secure},
        timeout=60.0,
    )
    assert federation.carry_out(order) == {"done": True}
    model = kind.load(federation.place(order) / "model.safetensors")
    model.ledger_ = Ledger.read(federation.place(order) / "ledger.jsonl")
    return model


def assert_same_components(model: Any, rows: pd.DataFrame) -> None:
    want = PCA(2, svd_solver="full").fit(rows.to_numpy())
    np.testing.assert_allclose(np.abs(model.components_ @ want.components_.T), np.eye(2), atol=1e-7)
    np.testing.assert_allclose(model.mean_, want.mean_, rtol=1e-9)
    assert model.n_samples_ == len(rows)


@pytest.mark.parametrize("missing", ["refuse", "drop"])
def test_rows_with_what_is_not_allowed_are_left_out_and_logged(
    three: LoopbackFederation, caplog: pytest.LogCaptureFixture, missing: str
) -> None:
    with caplog.at_level(logging.WARNING, logger="fedspan.site"):
        model = fit(three, FederatedPCA, GRAM, missing=missing)
    assert list(model.feature_names_in_) == NAMES
    assert_same_components(model, pd.concat(map(to_features, TABLES.values())).dropna())
    for words in (
        "rows with missing values of 'age': 1; rows used: 35",
        "rows with values of 'age' that are too large or not finite: 1; rows used: 35",
        "rows with values of 'sex' that are none of its categories: 1; rows used: 35",
    ):
        assert words in caplog.text
    assert not (three.sites["east"] / "fedspan" / "refusals.json").exists()


def test_a_sites_own_file_says_how_its_table_is_read(tmp_path: Path) -> None:
    """Three sites write the same kind of table in three ways, and a job knows nothing of it."""
    clean = {name: people(seed, 30).drop(columns="y") for seed, name in enumerate(["east", "north", "south"])}
    east = clean["east"].assign(sex=clean["east"]["sex"].str.upper())
    east.to_csv(tmp_path / "east.csv", index=False, sep=";", decimal=",", encoding="utf-16")
    clean["north"].assign(dose=clean["north"]["dose"] * 1000).to_csv(tmp_path / "north.csv", index=False, na_rep="?")
    clean["south"].to_csv(tmp_path / "south.tsv", index=False, sep="\t")
    how: dict[str, dict[str, Any]] = {
        "east": {"path": "east.csv", "decimal": ",", "encoding": "utf-16", "ignore_case": ["sex"]},
        "north": {"path": "north.csv", "multiply": {"dose": 0.001}, "na_values": ["?"]},
        "south": {"path": "south.tsv"},
    }
    keys = {"columns": KEYS["columns"], "categories": KEYS["categories"]}
    sites = {
        name: write_site(tmp_path / name, {"default": {**keys, **own, "path": str(tmp_path / own["path"])}})
        for name, own in how.items()
    }
    model = fit(LoopbackFederation(tmp_path / "server", sites), FederatedPCA, GRAM)
    assert_same_components(model, pd.concat(map(to_features, clean.values())))
    with pytest.raises(InputError, match=r"decimal in \[tables.default\] of .* must be"):
        Policy.read(write_site(tmp_path / "bad", {"default": {**keys, "path": "x.csv", "decimal": ";"}}))


def test_gaps_are_filled_with_the_means_over_all_sites_which_are_one_secure_sum(three: LoopbackFederation) -> None:
    model = fit(three, FederatedPCA, GRAM, missing="mean")
    rows = pd.concat(map(to_features, TABLES.values()))
    assert_same_components(model, rows.fillna(rows.mean()))
    events = [event for event in model.ledger_.events if isinstance(event, Exchange)]
    assert events[0].task == "add_up_columns"
    assert all(event.secure for event in events)
    assert not {"describe_columns", "list_categories"} & {event.task for event in events}
    new = TABLES["north"].head(4)  # new rows are prepared in the same way
    np.testing.assert_allclose(model.transform(new), model.transform(to_features(new).to_numpy()))


def test_a_job_chooses_columns_and_may_say_what_the_file_says(three: LoopbackFederation) -> None:
    model = fit(three, FederatedPCA, GRAM, columns=("dose", "age"), label="y")
    rows = pd.concat(map(to_features, TABLES.values()))[["dose", "age"]].dropna()
    assert_same_components(model, rows)
    same = fit(three, FederatedPCA, GRAM, categories={"sex": ("f", "m")})
    named = fit(three, FederatedPCA, GRAM, categories={"sex": ()})
    np.testing.assert_array_equal(same.components_, named.components_)


def test_rows_of_other_classes_are_left_out(three: LoopbackFederation, tmp_path: Path) -> None:
    """As if they had never been there; 1, 1.0 and "1.0" are one class."""
    few = {"hidden": 2, "batch_size": 4, "rounds": 3, "random_state": 0}
    before = fit(three, FederatedClassifier, few)
    more = TABLES["north"].iloc[:7].assign(y=[2, 3, np.nan, 7, 8, 9, 2])
    pd.concat([TABLES["north"], more]).to_csv(tmp_path / "north.csv", index=False)
    after = fit(three, FederatedClassifier, few)
    assert after.classes_.tolist() == [0, 1]
    np.testing.assert_array_equal(before.coef_, after.coef_)


def test_a_view_fills_gaps_with_its_own_means_and_loses_no_row(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    common = rng.normal(size=(60, 2))
    views = {
        name: pd.DataFrame(common @ rng.normal(size=(2, 3)) + 0.1 * rng.normal(size=(60, 3)), columns=list("abc"))
        for name in ("east", "north", "south")
    }
    views["north"].loc[3, "b"], views["north"].loc[9, "c"] = np.nan, np.inf
    write_secret(tmp_path / "secret")
    sites = {}
    for name, view in views.items():
        view.assign(who=[f"p{i}" for i in range(60)]).to_csv(tmp_path / f"{name}.csv", index=False)
        table = {"path": str(tmp_path / f"{name}.csv"), "columns": list("abc"), "id": "who"}
        sites[name] = write_site(
            tmp_path / name, {"default": {**table, "secret_file": str(tmp_path / "secret")}}, secure=False
        )
    federation = LoopbackFederation(tmp_path / "server", sites)
    model = fit(federation, FederatedGCCA, {"n_components": 2, "random_state": 0}, secure=False, id="who")
    clean = {name: view.replace(np.inf, np.nan) for name, view in views.items()}
    here = FederatedGCCA(2, random_state=0).fit({name: v.fillna(v.mean()) for name, v in clean.items()})
    np.testing.assert_allclose(model.correlations_, here.correlations_, rtol=1e-9)
    assert not any("order only" in note for note in model.ledger_.notes)

    (tmp_path / "other").write_text(secrets.token_hex(32))
    (tmp_path / "other").chmod(0o600)
    path = sites["south"] / "local" / "fedspan.toml"
    path.write_text(path.read_text().replace(f"{tmp_path}/secret", f"{tmp_path}/other"))
    order = RunRequest(secrets.token_hex(16), "FederatedGCCA", {"n_components": 2}, secure={"enabled": False})
    assert "60 of 60 rows differ" in federation.carry_out(order)["error"]  # another secret is another key
    path.write_text(path.read_text().replace('id = "who"\n', ""))
    order = RunRequest(secrets.token_hex(16), "FederatedGCCA", {"n_components": 2}, secure={"enabled": False})
    assert "Either every site has ids or none does, but site 'south' has none" in federation.carry_out(order)["error"]


@pytest.mark.parametrize("kind", ["npy", "npz", "sparse"])
def test_arrays_without_names(tmp_path: Path, kind: str) -> None:
    X = np.random.default_rng(0).normal(size=(20, 3))
    X[4, 1], X[7, 0], X[9, 2] = np.nan, np.inf, 1e150
    y = np.arange(20) % 3
    path = tmp_path / ("t.npy" if kind == "npy" else "t.npz")
    if kind == "npy":
        np.save(path, X)
    elif kind == "npz":
        np.savez(path, X=X, y=y)
    else:
        rows = sp.csr_array(X)
        parts = {"X_data": rows.data, "X_indices": rows.indices, "X_indptr": rows.indptr, "X_shape": rows.shape}
        np.savez(path, y=y, **parts)
    labels = None if kind == "npy" else ("label", {"0", "1"})
    table = SiteTable(str(path), features=3, **({"label": "y", "classes": (0, 1)} if labels else {}))
    choice = table.choose({})
    opened = open_site_table(table, choice)
    bad = [4, 7, 9]
    rows = opened.X.toarray() if kind == "sparse" else opened.X
    np.testing.assert_array_equal(rows, np.delete(X, bad, axis=0))
    if labels:
        opened = open_site_table(table, Preparation(label="y", n_features=3), {"0", "1"})
        assert opened.labels is not None
        keep = [i for i in range(20) if i not in bad and y[i] < 2]
        np.testing.assert_array_equal(opened.labels, y[keep])
    filled = open_site_table(table, choice, alone=True).X
    filled = filled.toarray() if kind == "sparse" else filled
    assert filled.shape == (20, 3)
    assert filled[4, 1] == pytest.approx(np.delete(X[:, 1], 4).mean())
    given = open_site_table(table, Preparation(missing="mean", fill={"0": 5.0, "1": 6.0, "2": 7.0}, n_features=3)).X
    given = given.toarray() if kind == "sparse" else given
    assert [given[4, 1], given[7, 0], given[9, 2]] == [6.0, 5.0, 7.0]
    with pytest.raises(InputError, match=r"has 4 columns \(features\), but it has 3"):
        open_site_table(SiteTable(str(path), features=4), Preparation())


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_means_of_arrays_of_any_precision_are_over_what_is_finite(tmp_path: Path, kind: str, dtype: Any) -> None:
    X = np.array([[1, 2], [np.inf, 4], [3, np.nan], [5, 6]], dtype=dtype)
    rows = sp.csr_array(X.astype(np.float32) if dtype == np.float16 else X)
    parts = {"X_data": rows.data, "X_indices": rows.indices, "X_indptr": rows.indptr, "X_shape": rows.shape}
    np.savez(tmp_path / "t.npz", **(parts if kind == "sparse" else {"X": X}))
    table = SiteTable(str(tmp_path / "t.npz"), features=2)
    total, count = SiteSurvey(table, table.choose({})).sums()
    assert (total.tolist(), count.tolist()) == ([9.0, 12.0], [3.0, 3.0])
    assert open_site_table(table, table.choose({})).X.shape == (2, 2)


def test_a_file_that_does_not_say_its_width_has_that_of_the_sites_file(tmp_path: Path) -> None:
    rows = np.array([[1.0, 0.0, 2.0], [0.0, 3.0, 0.0]])
    dump_svmlight_file(rows, [0, 1], str(tmp_path / "t.svm"), zero_based=False)
    table = SiteTable(str(tmp_path / "t.svm"), features=5)
    assert open_site_table(table, table.choose({})).X.shape == (2, 5)
