"""`fedspan site init`, `check` and `reopen`, `fedspan federation secret`: what an administrator is told, with rows."""

from __future__ import annotations

import json
import stat
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cryptography", reason="needs fedspan[flare]")

from fedspan.deployment.kit import policy_file
from fedspan.deployment.policy import Policy
from fedspan.deployment.site_rules.shutter import Shutter
from typed import assert_refused, call

ROWS = """who,name,age,sex,dose,outcome
a,Smith,40,f,1.5,ill
b,Jones,,m,2.5,well
c,Brown,51,x,1e300,well
d,Davis,60,f,3.5,dead
d,Evans,61,m,4.5,ill
"""


@pytest.fixture
def kit(tmp_path: Path) -> Path:
    """A site's kit as FLARE makes it, as far as fedspan looks at it."""
    kit = tmp_path / "north"
    (kit / "startup").mkdir(parents=True)
    (kit / "local").mkdir()
    (kit / "startup" / "fed_client.json").write_text("{}")
    (kit / "local" / "authorization.json.default").write_text(json.dumps({"permissions": {"lead": {"byoc": "any"}}}))
    (kit / "local" / "resources.json.default").write_text(json.dumps({"components": []}))
    return kit


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "t.csv"
    path.write_text(ROWS)
    return path


def read_file(kit: Path) -> Any:
    return tomllib.loads((kit / "local" / "fedspan.toml").read_text(encoding="utf-8"))


def test_the_columns_must_be_named(kit: Path, table: Path) -> None:
    assert_refused(call("site", "init", kit, "--data", table), 2, "--columns a,b,c", "--all-columns")
    both = call("site", "init", kit, "--data", table, "--columns", "age", "--all-columns")
    assert_refused(both, 2, "--columns a,b,c")
    assert_refused(call("site", "init", kit, "--data", table, "--columns", "agee"), 2, "There is no column 'agee'")
    assert not (kit / "local" / "fedspan.toml").exists()


def test_all_columns_writes_down_what_it_found_for_review(kit: Path, table: Path) -> None:
    words = ["--all-columns", "--id", "who", "--label", "outcome", "--categories", "sex", "--min-rows", "3"]
    done = call("site", "init", kit, "--data", table, *words)
    assert done.exit_code == 0, done.output
    assert "left out 'name': it is not numeric" in done.stdout  # surnames are not opened by the way
    assert "classes of 'outcome': dead, ill, well" in done.stdout
    assert "categories of 'sex': f, m, x" in done.stdout
    assert "others are told of 5 rows" in done.stdout
    assert read_file(kit)["tables"]["default"] == {
        "path": str(table),
        "columns": ["age", "sex", "dose"],
        "id": "who",
        "label": "outcome",
        "classes": ["dead", "ill", "well"],
        "categories": {"sex": ["f", "m", "x"]},
        "kinds": {"age": "integer", "dose": "number"},
        "rows": 5,
        "min_rows": 3,
        "min_rows_per_class": 5,
    }
    Policy.read(kit)


def test_words_of_any_kind_can_be_written_and_read_back(kit: Path, tmp_path: Path) -> None:
    odd = ['a "b"', "ü\u202e\U0001f600", "x = 1 # y", "back\\slash", "\x7f"]
    tables = {
        "default": {"path": "t.csv", "columns": ["c"], "categories": {"c": odd}},
        'o\'b "x"': {"path": "q", "features": 1},
    }
    (kit / "local" / "fedspan.toml").write_text(policy_file(tables), encoding="utf-8")
    policy = Policy.read(kit)
    assert policy.tables["default"].categories["c"] == tuple(odd)
    assert 'o\'b "x"' in policy.tables


def test_a_table_without_names_is_opened_as_a_whole(kit: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "t.npz", X=np.ones((1234, 7)), y=np.arange(1234) % 2)
    assert_refused(call("site", "init", kit, "--data", tmp_path / "t.npz", "--columns", "0"), 2, "have no names")
    done = call("site", "init", kit, "--data", tmp_path / "t.npz", "--all-columns", "--label", "y")
    assert done.exit_code == 0, done.output
    found = read_file(kit)["tables"]["default"]
    assert (found["features"], found["classes"], found["rows"]) == (7, [0, 1], 1200)
    np.savez(tmp_path / "t.npz", X=np.ones((1234, 7)), y=np.arange(1234))
    again = call("site", "init", kit, "--data", tmp_path / "t.npz", "--all-columns", "--label", "y", "--replace")
    assert_refused(again, 2, "1234 different values", "does not look like a column of classes")


def write_policy(kit: Path, table: Path, **keys: Any) -> None:
    own: dict[str, Any] = {
        "path": str(table),
        "columns": ["age", "sex", "dose"],
        "id": "who",
        "label": "outcome",
        "classes": ["ill", "well"],
        "categories": {"sex": ["f", "m"]},
        "min_rows_per_class": 2,
        **keys,
    }
    (kit / "local" / "fedspan.toml").write_text(policy_file({"default": own}, secure=False), encoding="utf-8")


def test_check_tells_the_administrator_everything_with_rows(kit: Path, table: Path) -> None:
    write_policy(kit, table, min_rows=4)
    done = call("site", "check", kit)
    assert done.exit_code == 0, done.output
    for words in (
        "table default: 5 rows, 4 features",
        "column 'age': 1 missing values (row 2)",
        "column 'sex': 1 values that are none of its categories (row 3: 'x')",
        "column 'dose': 1 numbers that are too large or not finite (row 3: '1e300')",
        "column 'outcome': 1 labels that are none of the classes (row 4: 'dead')",
        "column 'who': 1 ids that another row has, too (row 5: 'd')",
        "2 of 5 rows have missing values, and jobs leave them out",
        "jobs get 3 rows, fewer than min_rows = 4: refused",
        "class ill has 2 rows",
        "ids are not compared without secret_file",
    ):
        assert words in done.stdout


def test_check_finds_cells_that_are_not_numbers_and_columns_that_are_not_there(kit: Path, table: Path) -> None:
    table.write_text(ROWS.replace("3.5", "a lot").replace("age,", "years,"))
    write_policy(kit, table)
    done = call("site", "check", kit)
    assert "column 'dose': 1 cells that are not numbers: jobs are refused (row 4: 'a lot')" in done.stdout
    assert "there is no column 'age' in the table" in done.stdout


def test_check_looks_at_arrays_too(kit: Path, tmp_path: Path) -> None:
    X = np.ones((30, 3))
    X[4, 1] = np.nan
    np.savez(tmp_path / "t.npz", X=X, y=[0] * 20 + [1] * 9 + [7])
    keys = {
        "path": str(tmp_path / "t.npz"),
        "features": 3,
        "label": "y",
        "classes": [0, 1, 2],
        "min_rows_per_class": 10,
    }
    (kit / "local" / "fedspan.toml").write_text(policy_file({"default": keys}))
    done = call("site", "check", kit)
    assert "table default: 30 rows, 3 features" in done.stdout
    assert "1 numbers are missing, too large or not finite (row 5, column 2)" in done.stdout
    assert "1 labels '7' are none of the classes" in done.stdout
    assert "class '1' has 9 rows, fewer than min_rows_per_class = 10: refused" in done.stdout


def test_a_job_can_be_tried_at_the_site_with_its_reasons(kit: Path, table: Path, tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    job.write_text('[job]\ntask = "pca"\nn_components = 1\nsolver = "gram"\nrandom_state = 0\n')
    write_policy(kit, table)
    done = call("site", "check", kit, "--job", job)
    assert done.exit_code == 0, done.output
    assert done.stdout.rstrip().endswith("job job.toml: done")
    write_policy(kit, table, min_rows=4)
    done = call("site", "check", kit, "--job", job)
    assert "The job would use 3 rows, but min_rows of this table is 4. Lower min_rows" in done.stdout
    assert "refused [" in done.stdout.rstrip().splitlines()[-1]
    job.write_text(job.read_text() + '[data]\ncolumns = ["name"]\n')
    assert "Column 'name' is not open to jobs at this site." in call("site", "check", kit, "--job", job).stdout
    assert not (kit / "fedspan").exists()  # neither counted nor remembered


def test_a_table_that_is_shut_is_shown_and_opened_again(kit: Path, table: Path) -> None:
    write_policy(kit, table)
    for _ in range(5):
        Shutter(kit).count("default")
    assert "table default: shut" in call("site", "check", kit).stdout
    assert_refused(call("site", "reopen", kit, "defualt"), 2, "Did you mean 'default'?")
    assert "table default is open; its refusals are forgotten" in call("site", "reopen", kit).stdout
    assert "shut" not in call("site", "check", kit).stdout
    assert "as it was" in call("site", "reopen", kit, "default").stdout


def test_a_secret_is_random_and_its_owners_alone(kit: Path, table: Path, tmp_path: Path) -> None:
    paths = [tmp_path / "one", tmp_path / "two"]
    for path in paths:
        assert call("federation", "secret", path).exit_code == 0
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    texts = [path.read_text().strip() for path in paths]
    assert [len(text) for text in texts] == [64, 64]
    assert texts[0] != texts[1]
    assert_refused(call("federation", "secret", paths[0]), 2, "already exists")
    assert paths[0].read_text().strip() == texts[0]

    words = ["site", "init", kit, "--data", table, "--columns", "age,dose", "--id", "who", "--secret-file", paths[0]]
    assert call(*words).exit_code == 0
    assert Policy.read(kit).tables["default"].read_secret() == texts[0]
    paths[0].chmod(0o644)
    assert_refused(call("site", "check", kit), 2, "mode is 644", "chmod 600")
    assert_refused(call(*words, "--replace"), 2, "mode is 644")
    paths[0].chmod(0o600)
    paths[0].write_text("agreed by telephone")
    assert_refused(call(*words, "--replace"), 2, "at least 32 hexadecimal digits")
