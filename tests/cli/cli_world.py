"""A small world of clients on disk, and ways to type commands at it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

NAMES = ["age", "height", "weight", "pulse", "steps"]


def write_csv(path: Path, X: Any, names: list[str]) -> None:
    lines = [",".join(names), *(",".join(map(repr, row)) for row in np.asarray(X, dtype=float).tolist())]
    path.write_text("\n".join(lines) + "\n")


def rows(seed: int, n: int, d: int = len(NAMES)) -> Any:
    return np.random.default_rng(seed).normal(size=(n, d)) * np.arange(d, 0, -1)


def tree(folder: Path) -> dict[str, bytes | None]:
    """Everything below a folder: to see that nothing was left behind and nothing overwritten."""
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in sorted(folder.rglob("*"))}


def spawn(*words: object, **options: Any) -> subprocess.Popen[str]:
    """The command as a process of its own, and of its own group, so that a test can kill it.

    Its pipe holds one page: a run that prints a line per round waits in its first 50 rounds until somebody reads.
    """
    command = [sys.executable, "-m", "fedspan.cli.main", *map(str, words)]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", **options.pop("env", {})}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "pipesize": 4096}
    return subprocess.Popen(command, env=environment, start_new_session=True, **{**pipes, **options})
