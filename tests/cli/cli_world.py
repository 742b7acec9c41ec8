"""A small world of clients on disk, and ways to type commands at it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from fedspan.jobs.tasks import TASKS

NAMES = ["age", "height", "weight", "pulse", "steps"]
IDS = [f"p{i:02d}" for i in range(60)]


def write_csv(path: Path, X: Any, names: list[str]) -> None:
    lines = [",".join(names), *(",".join(map(repr, row)) for row in np.asarray(X, dtype=float).tolist())]
    path.write_text("\n".join(lines) + "\n")


def rows(seed: int, n: int, d: int = len(NAMES)) -> Any:
    return np.random.default_rng(seed).normal(size=(n, d)) * np.arange(d, 0, -1)


def tree(folder: Path) -> dict[str, bytes | None]:
    """Everything below a folder: to see that nothing was left behind and nothing overwritten."""
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in sorted(folder.rglob("*"))}


def check_refused(result: Any, says: str) -> None:
    """A command refused its input: exit code 2, and one line on stderr that says why."""
    assert result.exit_code == 2, result.output
    assert says in result.stderr
    assert result.stderr.count("\n") == 1


def spawn(*words: object, **options: Any) -> subprocess.Popen[str]:
    """The command as a process of its own, and of its own group, so that a test can kill it.

    Its pipe holds one page: a run that prints a line per round waits in its first 50 rounds until somebody reads.
    """
    command = [sys.executable, "-m", "fedspan.cli.main", *map(str, words)]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", **options.pop("env", {})}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "pipesize": 4096}
    return subprocess.Popen(command, env=environment, start_new_session=True, **{**pipes, **options})


def table(path: Path, X: Any, **columns: Any) -> None:
    """A CSV file of numbers, with further columns of text."""
    head = [*(f"x{j}" for j in range(X.shape[1])), *columns]
    lines = [[*map(repr, row), *(str(values[i]) for values in columns.values())] for i, row in enumerate(X.tolist())]
    path.write_text("\n".join(",".join(line) for line in [head, *lines]) + "\n")


def write_jobs(folder: Path) -> None:
    """One job for each task, and its data: three clients with rows, three with views of 60 people."""
    rng = np.random.default_rng(0)
    for i, name in enumerate(("north", "south", "west")):
        X = rng.normal(size=(30, 3)) @ rng.normal(size=(3, 9)) + 0.1 * rng.normal(size=(30, 9))
        table(
            folder / f"{name}.csv",
            X,
            y=np.where(X[:, 0] > 0, "ill", "well"),
            person=[f"{name}{j}" for j in range(30)],
        )
        hidden = np.random.default_rng(9).normal(size=(60, 2))
        V = hidden @ rng.normal(size=(2, 5)) + 0.1 * rng.normal(size=(60, 5))
        more = {"y": (hidden[:, 0] > 0).astype(int)} if i == 1 else {}
        table(folder / f"view-{name}.csv", V, person=IDS, **more)
    clients = '"north.csv", "south.csv", "west.csv"'
    views = '"view-north.csv", "view-south.csv", "view-west.csv"'
    for task, keys in {
        "pca": "n_components = 2",
        "svd": "n_components = 2",
        "personalized": "n_components = 2",
        "gcca": "n_components = 2",
        "deep-gcca": "n_components = 2\nrounds = 5",
        "classifier": "hidden = 6\nbatch_size = 10\nrounds = 40\ncost_limit = 0.4",
        "vertical-classifier": "hidden = 6\nbatch_size = 20\nrounds = 30",
        "regressor": "l2 = 0.001",
        "vertical-regressor": "l2 = 0.001",
        "vertical-pca": "n_components = 2",
        "vertical-svd": "n_components = 2",
    }.items():
        over = f"views = [{views}]" if TASKS[task].over == "views" else f"clients = [{clients}]"
        text = f'[job]\ntask = "{task}"\n{keys}\nrandom_state = 3\n\n[data]\n{over}\nid = "person"\nlabel = "y"\n'
        if task == "regressor":  # a column of numbers from the others
            columns = ", ".join(f'"x{j}"' for j in range(8))
            text = text.replace('label = "y"', f'label = "x8"\ncolumns = [{columns}]')
        if task == "deep-gcca":
            text += 'network = "networks.py:small"\n'
        (folder / f"{task}.toml").write_text(text)
    (folder / "networks.py").write_text(
        "from torch import nn\n\ndef small(k):\n    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, k))\n"
    )
