"""Fixtures of the tests that type commands: a small world on disk, and the command itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_world import NAMES, rows, write_csv
from typer.testing import CliRunner

from fedspan.cli.main import app
from fedspan.privacy.budget import Budget

PRIVATE_JOB = """
[job]
task = "pca"
n_components = 2
[data]
clients = ["north.npy", "south.npy"]
[privacy]
epsilon = 2.0
delta = 1e-6
row_norm = 4.0
budgets = "budgets"
[secure]
enabled = true
"""


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
def private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two clients that keep budgets, and a private and secure job; the working directory."""
    for seed, name in enumerate(["north", "south"]):
        X = np.random.default_rng(seed).normal(size=(20_000, 4)) * [2.0, 1.0, 0.5, 0.2]
        np.save(tmp_path / f"{name}.npy", X)
        Budget.grant(tmp_path / "budgets" / f"{name}.json", 2.5, 1e-6)
    (tmp_path / "job.toml").write_text(PRIVATE_JOB)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def fedspan() -> Callable[..., Any]:
    """The command in this process: result.exit_code, result.stdout, result.stderr."""
    return lambda *words: CliRunner().invoke(app, [str(word) for word in words])
