"""`fedspan check JOB --on KIT` at a site: what is wrong with its tables, and how the job would end there."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
from orders import write_site
from typer.testing import CliRunner

from fedspan.cli.main import app

JOB = '[job]\ntask = "pca"\nn_components = 1\nrandom_state = 0\n[data]\ncolumns = ["age", "dose"]\n'


def test_a_job_is_checked_at_the_site(tmp_path: Path) -> None:
    rows = pd.DataFrame(np.random.default_rng(0).normal(size=(30, 2)), columns=["age", "dose"])
    path = tmp_path / "rows.csv"
    rows.to_csv(path, index=False, sep=";", decimal=",")
    (tmp_path / "job.toml").write_text(JOB)
    table = {"path": str(path), "columns": ["age", "dose"]}
    words = ["check", str(tmp_path / "job.toml"), "--on", str(tmp_path / "north")]
    write_site(tmp_path / "north", {"default": table})
    wrong = CliRunner().invoke(app, words)
    assert wrong.exit_code == 2
    assert "column 'age': 30 cells that are not numbers" in wrong.stdout
    assert "Not ready: " in wrong.stdout
    write_site(tmp_path / "north", {"default": {**table, "decimal": ","}})
    right = CliRunner().invoke(app, words)
    assert right.exit_code == 0, right.stdout
    assert "not numbers" not in right.stdout
    assert right.stdout.endswith("Ready: the job would run at this site.\nNothing of this was sent.\n")
    assert json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)["ok"]
    other = CliRunner().invoke(app, [*words[:-1], str(tmp_path)])
    assert other.exit_code == 2
    assert "Only a site sees what is in its tables" in other.stderr
