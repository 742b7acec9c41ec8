"""Regressions in a federation: a site's file names what may be predicted, and rows without it are left out."""

from __future__ import annotations

import secrets
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from orders import write_site
from sklearn.linear_model import LinearRegression

from fedspan import FederatedPCA, FederatedRegressor
from fedspan.data.preparation import Preparation
from fedspan.data.tables import find_source
from fedspan.deployment.loopback_federation import LoopbackFederation
from fedspan.deployment.policy import Policy
from fedspan.deployment.server_job import RunRequest
from fedspan.deployment.site_tables.site_data import CheckedSource
from fedspan.errors import InputError

COLUMNS = ["age", "sex", "dose"]
FEATURES = ["age", "sex=f", "sex=m", "dose"]


def people(seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    rows = pd.DataFrame({"age": rng.normal(50, 9, 40), "sex": rng.choice(["f", "m"], 40), "dose": rng.normal(size=40)})
    rows["pressure"] = 90 + 0.5 * rows["age"] + 4 * (rows["sex"] == "m") + rng.normal(size=40)
    rows.loc[3, "dose"], rows.loc[5, "pressure"], rows.loc[6, "pressure"] = np.nan, np.nan, 1e200
    return rows


TABLES = {"east": people(1), "north": people(2), "south": people(3)}


def make(tmp_path: Path, **keys: Any) -> LoopbackFederation:
    sites = {}
    for name, rows in TABLES.items():
        rows.to_csv(tmp_path / f"{name}.csv", index=False)
        table = {"path": str(tmp_path / f"{name}.csv"), "columns": COLUMNS, "categories": {"sex": ["f", "m"]}, **keys}
        sites[name] = write_site(tmp_path / name, {"default": table})
    return LoopbackFederation(tmp_path / "server", sites)


def order(kind: str = "FederatedRegressor", parameters: dict[str, Any] | None = None, **data: Any) -> RunRequest:
    return RunRequest(
        secrets.token_hex(16),
        kind,
        {"random_state": 0, **(parameters or {})},
        table={"preparation": asdict(Preparation(**data))},
        secure={"enabled": True},
        timeout=60.0,
    )


@pytest.mark.parametrize("missing", ["drop", "mean"])
@pytest.mark.parametrize("label", [None, "pressure"])
def test_rows_without_a_target_are_left_out(tmp_path: Path, missing: str, label: str | None) -> None:
    """The words of a category sum to one, so columns depend on each other: predictions are compared."""
    federation = make(tmp_path, target="pressure")
    request = order(parameters={"l2": 1e-9}, missing=missing, label=label)
    assert federation.carry_out(request) == {"done": True}
    model = FederatedRegressor.load(federation.place(request) / "model.safetensors")
    rows = pd.concat(TABLES.values())
    X = (
        rows[["age", "dose"]]
        .assign(**{"sex=f": rows["sex"] == "f", "sex=m": rows["sex"] == "m"})[FEATURES]
        .astype(float)
    )
    known = rows["pressure"].abs() < 1e100
    # The agreement on means is over all rows that a site's file allows, whether they have a target or not.
    X = X.fillna(X.mean()) if missing == "mean" else X
    known &= X.notna().all(axis=1)
    other = LinearRegression().fit(X[known].to_numpy(), rows["pressure"][known])
    np.testing.assert_allclose(model.predict(X[known].to_numpy()), other.predict(X[known].to_numpy()), rtol=1e-6)
    assert model.n_samples_ == int(known.sum())
    assert list(model.feature_names_in_) == FEATURES


def test_no_other_job_gets_the_target(tmp_path: Path) -> None:
    federation = make(tmp_path, target="pressure")
    request = order("FederatedPCA", {"n_components": 1}, missing="drop")
    assert federation.carry_out(request) == {"done": True}
    assert list(FederatedPCA.load(federation.place(request) / "model.safetensors").feature_names_in_) == FEATURES
    request = order("FederatedPCA", {"n_components": 1}, columns=("age", "pressure"), missing="drop")
    assert federation.carry_out(request)["done"]
    assert "pressure" not in FederatedPCA.load(federation.place(request) / "model.safetensors").feature_names_in_


def test_without_a_target_the_site_refuses_and_says_why(tmp_path: Path) -> None:
    error = make(tmp_path).carry_out(order(missing="drop"))["error"]
    assert "This site's table has no column of targets. Its owner must name it: target = …" in error


def test_another_column_cannot_be_made_the_target(tmp_path: Path) -> None:
    error = make(tmp_path, target="pressure").carry_out(order(missing="drop", label="dose"))["error"]
    assert "which column is the label, and it is not 'dose'" in error


def test_a_target_that_is_the_id_is_no_target(tmp_path: Path) -> None:
    make(tmp_path, target="who", id="who")
    with pytest.raises(InputError, match="must be a column of its own"):
        Policy.read(tmp_path / "east")


def test_a_pass_over_other_columns_leaves_out_the_same_rows(tmp_path: Path) -> None:
    TABLES["east"].to_csv(tmp_path / "t.csv", index=False)
    source = find_source(str(tmp_path / "t.csv"))
    assert source is not None
    checked = CheckedSource(source, Preparation(columns=("age", "pressure")), drop=False, target="pressure")
    assert sum(len(batch["age"]) for batch in checked.batches(["age"], [])) == 38
