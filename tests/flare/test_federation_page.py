"""docs/federation.md and the code say the same: the site's file, the job file, the options of the commands."""

from __future__ import annotations

import re
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedspan.cli.main import app
from fedspan.data.cells.dialect import KEYS_OF_DIALECT
from fedspan.deployment.approval.approval_rules import AlgorithmRule
from fedspan.deployment.policy import Policy, SiteTable
from fedspan.jobs.model import parse

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "federation.md").read_text(encoding="utf-8")
TOML = [tomllib.loads(text) for text in re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)]

SHELL = "".join(re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL))
COMMANDS = sorted(set(re.findall(r"^fedspan .*", SHELL, re.MULTILINE)))


def test_the_sites_file_is_accepted_and_shows_every_key(tmp_path: Path) -> None:
    (tree,) = [tree for tree in TOML if "tables" in tree]
    policy = Policy.parse(tree, tmp_path, tmp_path / "fedspan.toml")
    shown = {key for table in tree["tables"].values() for key in table}
    assert shown - set(KEYS_OF_DIALECT) == {field.name for field in fields(SiteTable)} - {"reading"}
    assert shown & set(KEYS_OF_DIALECT), "how its file is written"
    apart = {"tables", "budget", "approvals", "transcript"}
    who = {"approval", "researchers"}
    assert {*tree["allow"], *tree["require"]} - who == {field.name for field in fields(Policy)} - apart
    assert who <= set(tree["allow"])
    assert {key for rule in tree["algorithms"].values() for key in rule} == {f.name for f in fields(AlgorithmRule)}
    assert policy.transcript == 1e6 * tree["keep"]["transcript_mb"]
    assert policy.secure
    assert policy.others == 2


def test_the_job_file_is_accepted(tmp_path: Path) -> None:
    (tree,) = [tree for tree in TOML if "job" in tree]
    job = parse({**tree, "data": {"clients": {name: f"flare://{name}" for name in "abc"}}}, tmp_path)
    assert job.timeout == 120


@pytest.mark.parametrize("line", COMMANDS)
def test_the_commands_have_these_options(line: str) -> None:
    words = line.split("#")[0].split()[1:]
    depth = 2 if words[0] in ("site", "federation") else 1
    told = CliRunner().invoke(app, [*words[:depth], "--help"], env={"COLUMNS": "200"})
    assert told.exit_code == 0, told.output
    for option in (word for word in words if word.startswith("--")):
        assert option in told.output
