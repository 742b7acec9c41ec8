"""Fixtures of the tests that type commands: a small world on disk, and the command itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_world import NAMES, rows, write_csv
from typer.testing import CliRunner

from fedspan.cli.main import app


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two CSV clients and a job; the working directory."""
    write_csv(tmp_path / "north.csv", rows(0, 40), NAMES)
    write_csv(tmp_path / "south.csv", rows(1, 25), NAMES)
    (tmp_path / "job.toml").write_text(
        '[job]\ntask = "pca"\nn_components = 2\nsolver = "krylov"\nrandom_state = 7\n\n'
        '[data]\nclients = ["north.csv", "south.csv"]\n'
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def fedspan() -> Callable[..., Any]:
    """The command in this process: result.exit_code, result.stdout, result.stderr."""
    return lambda *words: CliRunner().invoke(app, [str(word) for word in words])
