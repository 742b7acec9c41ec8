"""`fedspan runs`, and a run that says little."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from typer.testing import CliRunner

from fedspan.cli.main import app

JOB = '[job]\ntask = "pca"\nn_components = 1\nrandom_state = 0\n[data]\nclients = ["a.npy", "b.npy"]\n'


def test_runs_are_listed_and_may_be_quiet(tmp_path: Path) -> None:
    for name in "ab":
        np.save(tmp_path / f"{name}.npy", np.random.default_rng(ord(name)).normal(size=(20, 3)))
    (tmp_path / "job.toml").write_text(JOB)

    def call(*words: object) -> str:
        result = CliRunner().invoke(app, [str(word) for word in words])
        assert result.exit_code == 0, result.output
        return result.stdout

    assert call("runs", tmp_path) == f"There are no run folders in {tmp_path}.\n"
    assert call("run", tmp_path / "job.toml", "--out", tmp_path / "one", "--quiet") == ""
    told = json.loads(call("run", tmp_path / "job.toml", "--out", tmp_path / "two", "--json"))
    assert told["folder"] == str(tmp_path / "two")
    assert Path(told["report"]).exists()
    assert told["rounds"] >= 1
    (tmp_path / "two" / "model.safetensors").unlink()
    listed = {Path(run["folder"]).name: run for run in json.loads(call("runs", tmp_path, "--json"))}
    assert {name: (run["task"], run["result"]) for name, run in listed.items()} == {
        "one": ("pca", "done"),
        "two": ("pca", "interrupted"),
    }
    assert "  pca                  done          " in call("runs", tmp_path)
    missing = CliRunner().invoke(app, ["runs", str(tmp_path / "nowhere")])
    assert missing.exit_code == 2
    assert "There is no folder" in missing.stderr
