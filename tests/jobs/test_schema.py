"""The JSON schema for editors: it agrees with the parser, key by key, and says what each key means."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from cli_world import tree

from fedspan.errors import InputError
from fedspan.jobs.model import Job, parse, schema
from fedspan.jobs.schema import json_schema
from fedspan.jobs.tasks import TASKS, choices
from fedspan.jobs.template import text_for

Fedspan = Callable[..., Any]
SCHEMA = json_schema()
VALID = jsonschema.Draft202012Validator(SCHEMA)


def template(task: str) -> dict[str, Any]:
    return tomllib.loads(text_for(task, "x.toml"))


def test_it_is_a_schema_and_plain_json() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert json.loads(json.dumps(SCHEMA, allow_nan=False)) == SCHEMA


@pytest.mark.parametrize("task", TASKS)
def test_every_template_is_valid_as_written_and_as_resolved(tmp_path: Path, task: str) -> None:
    VALID.validate(template(task))
    (tmp_path / "job.toml").write_text(parse(template(task), tmp_path).resolve().to_toml())
    Job.load(tmp_path / "job.toml")
    VALID.validate(tomllib.loads((tmp_path / "job.toml").read_text()))


@pytest.mark.parametrize("task", TASKS)
def test_it_knows_the_parsers_keys_and_no_others_and_has_words_for_each(task: str) -> None:
    own = next(part["then"]["properties"] for part in SCHEMA["allOf"] if task in json.dumps(part["if"]).split('"'))
    other = "views" if TASKS[task].over == "clients" else "clients"
    for table, keys in schema(task).items():
        assert set(own[table]["properties"]) == set(keys) - ({other} if table == "data" else set())
        for key, value in own[table]["properties"].items():
            assert value.get("description"), f"{table}.{key} has no words in cli/words.py"


@pytest.mark.parametrize(
    ("table", "key", "value"),
    [
        ("job", "n_componets", 3), ("job", "n_components", "ten"), ("job", "n_components", 0),
        ("job", "center", 1), ("job", "solver", "krilov"), ("job", "tol", "small"), ("job", "bits", 2.5),
        ("job", "participation", {"fractoin": 0.1}), ("job", "participation", 0.1), ("job", "hidden", 3),
        ("data", "colums", []), ("data", "clients", "a.csv"), ("data", "clients", [1]), ("data", "views", ["a.csv"]),
        ("run", "checkpoint_every", 0), ("secure", "enabled", 1), ("privacy", "epsilon", 1.0),
        ("jbo", "task", "pca"),
    ],
)  # fmt: skip
def test_what_the_parser_refuses_the_schema_refuses(tmp_path: Path, table: str, key: str, value: Any) -> None:
    job = template("pca")
    job.setdefault(table, {})[key] = value
    assert not VALID.is_valid(job)
    with pytest.raises(InputError):
        parse(job, tmp_path)


@pytest.mark.parametrize("task", TASKS)
def test_every_choice_and_default_is_the_parsers(tmp_path: Path, task: str) -> None:
    name = TASKS[task].choice
    for choice in choices(task):
        job = template(task)
        job["job"][name] = choice
        VALID.validate(job)
        parse(job, tmp_path)
    own = next(part["then"]["properties"] for part in SCHEMA["allOf"] if task in json.dumps(part["if"]).split('"'))
    defaults = {key: value["default"] for key, value in own["job"]["properties"].items() if "default" in value}
    resolved = parse(template(task), tmp_path).resolve().parameters
    assert {key: resolved[key] for key in defaults if key != "n_components"} == {
        key: value for key, value in defaults.items() if key != "n_components"
    }


def test_the_command_prints_writes_and_spares(world: Path, fedspan: Fedspan) -> None:
    printed = fedspan("schema")
    assert printed.exit_code == 0
    assert json.loads(printed.stdout) == SCHEMA
    assert fedspan("schema", "--out", "job.schema.json").exit_code == 0
    assert fedspan("schema", "--out", "job.schema.json").exit_code == 0
    assert json.loads((world / "job.schema.json").read_text()) == SCHEMA
    before = tree(world)
    for place in ("north.csv", "job.toml", ".", "no/such/folder.json"):
        refused = fedspan("schema", "--out", place)
        assert refused.exit_code == 2, place
        assert refused.stderr.count("\n") == 1
    assert tree(world) == before


def test_a_new_job_refers_to_the_schema_that_is_beside_it(world: Path, fedspan: Fedspan) -> None:
    fedspan("new", "pca", "plain.toml")
    assert "#:schema" not in (world / "plain.toml").read_text()
    fedspan("schema", "--out", "job.schema.json")
    fedspan("new", "pca", "hinted.toml")
    assert (world / "hinted.toml").read_text().startswith("#:schema ./job.schema.json\n# A fedspan job")
    assert Job.load(world / "hinted.toml").task == "pca"
