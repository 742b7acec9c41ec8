"""Twelve hostile but realistic tables: `fedspan check` lists all problems at once, and its lines lead to a model."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import fedspan as package
from fedspan import FederatedPCA
from fedspan.cli.main import app
from fedspan.jobs.checking.fixed_job import replace_data
from fedspan.jobs.model import Job

JOB = '[job]\ntask = "pca"   # kept\nn_components = 3\nrandom_state = 0\n\n[data]\n# old\n[data.clients]\n{}\n'
COLUMNS = ["patient", "age", "weight", "glucose", "smoker", "admitted", "ward"]


@pytest.fixture
def fedspan() -> Callable[..., Any]:
    return lambda *words: CliRunner().invoke(app, [str(word) for word in words])


def make_people(site: int, n: int = 40) -> pd.DataFrame:
    rng = np.random.default_rng(site)
    admitted = pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 900, n), unit="D")
    return pd.DataFrame(
        {
            "patient": [f"{site:02d}{i:04d}" for i in range(n)],
            "age": rng.integers(20, 90, n),
            "weight": rng.normal(75, 10, n).round(1),
            "glucose": rng.normal(5.5, 0.8, n).round(2),
            "smoker": rng.choice(["yes", "no"], n),
            "admitted": admitted.strftime("%Y-%m-%d"),
            "ward": rng.choice(["East", "West"], n),
        }
    )


def write_tables(folder: Path) -> dict[str, pd.DataFrame]:
    """The tables as each site would have them if all wrote alike; the files are written as they do."""
    clean = {f"s{i:02d}": make_people(i, 3 if i == 12 else 40) for i in range(1, 13)}
    shown = {name: frame.copy() for name, frame in clean.items()}

    def save(name: str, **how: Any) -> None:
        shown[name].to_csv(folder / f"{name}.csv", index=False, **how)

    save("s01")
    save("s02", sep=";")  # semicolons
    save("s03", sep=";", decimal=",")  # decimal commas
    shown["s04"]["ward"] = ["Öst" if word == "East" else "West" for word in shown["s04"]["ward"]]
    clean["s04"]["ward"] = shown["s04"]["ward"]
    save("s04", encoding="latin-1")
    save("s05", encoding="utf-8-sig")  # BOM
    shown["s06"]["glucose"] = shown["s06"]["glucose"].astype(object)
    shown["s06"].loc[[3, 4], "glucose"] = "?"
    clean["s06"].loc[[3, 4], "glucose"] = np.nan
    save("s06")
    shown["s07"]["age"] = shown["s07"]["age"].astype(object)
    shown["s07"].loc[5, "age"] = "-"
    clean["s07"]["age"] = clean["s07"]["age"].astype(float)
    clean["s07"].loc[5, "age"] = np.nan
    save("s07")
    shown["s08"]["admitted"] = pd.to_datetime(shown["s08"]["admitted"]).dt.strftime("%d.%m.%Y")  # dates
    save("s08")
    shown["s09"]["smoker"] = shown["s09"]["smoker"].str.title()  # Yes and No
    shown["s09"]["ward"] = shown["s09"]["ward"].str.lower()
    save("s09")
    twice = shown["s10"].rename(columns={"age": " age "})  # padded, and one name twice
    twice["weight again"] = twice["weight"]
    twice.columns = [*twice.columns[:-1], "weight"]
    twice.to_csv(folder / "s10.csv", index=False)
    shown["s11"] = shown["s11"][COLUMNS[::-1]].assign(remark="late")  # another order, and one column more
    save("s11")
    shown["s12"]["weight"] = (shown["s12"]["weight"] * 1000).round()  # g beside kg, and three rows
    save("s12")
    return clean


@pytest.fixture
def job(tmp_path: Path) -> Path:
    clients = "\n".join(f's{i:02d} = "s{i:02d}.csv"' for i in range(1, 13))
    (tmp_path / "job.toml").write_text(JOB.format(clients))
    return tmp_path / "job.toml"


def expected_components(clean: dict[str, pd.DataFrame]) -> np.ndarray:
    rows = pd.concat(clean.values())
    days = (pd.to_datetime(rows["admitted"]) - pd.Timestamp("1970-01-01")).dt.days
    ward = rows["ward"].str.lower()
    words = sorted(ward.unique())
    X = np.column_stack(
        [rows["age"], rows["weight"], rows["glucose"], rows["smoker"] == "yes", days, *(ward == w for w in words)]
    ).astype(float)
    X = np.where(np.isnan(X), np.nanmean(X, axis=0), X)
    return np.abs(np.linalg.svd(X - X.mean(axis=0), full_matrices=False)[2][:3])


def test_one_check_and_one_run(job: Path, fedspan: Callable[..., Any]) -> None:
    clean = write_tables(job.parent)
    assert fedspan("run", job, "--out", job.parent / "first").exit_code == 2
    checked = fedspan("check", job)
    assert checked.exit_code == 2, checked.output
    said = checked.stdout
    for words in (
        "- s03: column 'weight': has decimal commas",
        '→ s03: decimal = ","',
        "- s04: The text is not UTF-8; cp1252 can be read.",
        "- s06: column 'glucose': contains '?', which seems to mean a missing value.",
        "- s07: column 'age': contains '-', which seems to mean a missing value.",
        "- s08: column 'admitted': contains dates of the form '%d.%m.%Y'.",
        '→ s08: dates = { admitted = "%d.%m.%Y" }',
        "column 'smoker': says yes or no, spelled 'No', 'Yes', 'no', 'yes'.",
        "column 'ward': has spellings that differ in case or blanks only: 'East' and 'east'; 'West' and 'west'.",
        "- s10: Names of columns must differ, but these occur more than once or are empty: 'weight'.",
        "- s10: Blanks around the names of columns do not count: ' age '.",
        "- s11: has columns that not all clients have: 'remark'.",
        "- s11: has its columns in another order; they are matched by name.",
        "- s12: column 'weight': has a mean of ",
        "about 1000 times that of the others",
        "- s12: has only 3 rows",
        "column 'patient': looks like ids: all values differ, and some numbers begin with 0.",
        "Values are missing in the columns",
        "The rows stay where they are.",
        "Not ready: ",
    ):
        assert words in said, words
    assert "must be solved in the tables" not in said
    proposed = said.split("Put these lines in place of [data] in the job file:\n\n")[1].split("\n\nNot ready")[0]
    job.write_text(job.read_text().split("[data]")[0] + proposed)  # literally
    again = fedspan("check", job)
    assert again.exit_code == 0, again.stdout
    assert "Ready: the job can run." in again.stdout
    ran = fedspan("run", job, "--out", job.parent / "out")
    assert ran.exit_code == 0, ran.stderr
    model = FederatedPCA.load(job.parent / "out" / "model.safetensors")
    np.testing.assert_allclose(np.abs(model.components_), expected_components(clean), atol=1e-5)


def test_the_same_in_a_new_file_and_as_json(job: Path, fedspan: Callable[..., Any]) -> None:
    write_tables(job.parent)
    new = job.parent / "new.toml"
    result = fedspan("check", job, "--write", new, "--json")
    found = json.loads(result.stdout)
    assert not found["ok"]
    assert {finding["weight"] for finding in found["findings"]} == {"problem", "warning", "note"}
    assert found["tables"]["s12"]["rows"] == 3
    assert 'task = "pca"   # kept' in new.read_text()
    assert "# old" not in new.read_text()
    assert package.check(new).ok
    assert fedspan("check", job, "--write", new).exit_code == 2
    assert "already exists" in fedspan("check", job, "--write", new).stderr


def test_tables_that_no_line_can_mend(tmp_path: Path, fedspan: Callable[..., Any]) -> None:
    (tmp_path / "a.csv").write_text("x,y,z\n1,2,3\n4,5\n6,high,8\n7,8,9\n")
    (tmp_path / "b.csv").write_text("x,y,z\n1,2,3 kg\n4,5,4 kg\n2,7,5\n")
    (tmp_path / "job.toml").write_text(
        '[job]\ntask = "pca"\nn_components = 1\n[data]\nclients = ["a.csv", "b.csv", "gone.csv"]\n'
    )
    result = fedspan("check", tmp_path / "job.toml")
    assert result.exit_code == 2
    for words in (
        "- a: 1 lines do not have 3 cells as the first line has: 3.",
        "- a: column 'y': contains numbers and also 'high'.",
        "- b: column 'z': contains numbers and also '3 kg' (with the unit 'kg').",
        "gone.csv does not exist",
        "must be solved in the tables or the job file",
    ):
        assert words in result.stdout, words


def test_what_would_leave_is_what_the_tasks_say(tmp_path: Path) -> None:
    for name in "ab":
        frame = pd.DataFrame(np.random.default_rng(ord(name)).normal(size=(30, 4)), columns=list("pqrs"))
        frame.assign(y=np.arange(30) % 2).to_csv(tmp_path / f"{name}.csv", index=False)
    text = '[job]\ntask = "{}"\n{}\n[data]\nlabel = "y"\nclients = ["a.csv", "b.csv"]\n{}'
    for task, more, tail, words in (
        ("pca", 'n_components = 2\nsolver = "krylov"', "", "With krylov (of each client): "),
        ("svd", "n_components = 2", "[secure]\nenabled = true\n", "summed over all clients; no single client's values"),
        ("personalized", "n_components = 2", "", "With personal"),
        ("classifier", 'method = "fedsgd"\nrounds = 2', "", "(of each client): "),
    ):
        (tmp_path / "job.toml").write_text(text.format(task, more, tail))
        result = package.check(tmp_path / "job.toml")
        assert result.ok, str(result)
        assert any(words in line for line in result.leaves), (task, result.leaves)
    (tmp_path / "job.toml").write_text(text.format("pca", "n_components = 20", ""))
    broken = package.check(tmp_path / "job.toml")
    assert not broken.ok
    assert "The job itself: n_components" in str(broken)


def test_from_python() -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=20), "w": rng.choice(["x", "y"], 20)})
    result = package.check({"one": frame, "two": frame.assign(w=frame["w"].str.upper())})
    assert not result.ok
    assert result.data is not None
    assert result.data["categories"] == ["w"]
    assert result.data["ignore_case"] == ["w"]
    assert package.check([rng.normal(size=(20, 3)), rng.normal(size=(30, 3))]).ok


def test_a_check_sends_and_writes_nothing(job: Path) -> None:
    write_tables(job.parent)
    before = {path: path.read_bytes() for path in job.parent.iterdir()}
    package.check(Job.load(job))
    assert {path: path.read_bytes() for path in job.parent.iterdir()} == before


def test_only_the_data_of_a_job_file_is_replaced() -> None:
    text = '[job]\ntask = "pca"\n[data]\nid = "x"\n[data.clients]\na = "a.csv"\n[run]\nretries = 1\n'
    new = replace_data(text, '[data]\nclients = ["b.csv"]\n')
    assert tomllib.loads(new) == {"job": {"task": "pca"}, "run": {"retries": 1}, "data": {"clients": ["b.csv"]}}
