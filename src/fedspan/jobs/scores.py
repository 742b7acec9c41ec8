"""Where rows lie in the first two components: kept for the report by a run that has all rows in its own process.

Single rows are drawn only where nothing was asked to hide them: not with noise or secure sums, and not where the rows
are at other sites. `fedspan report --without-rows` leaves them out.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from fedspan._types import Array
from fedspan.core.checkpoint import load_tree, save_tree
from fedspan.jobs.model import Job

_POINTS = 4000  # in all; every client gets its part of them
_TASKS = ("pca", "svd")


class Watched:
    """Makes an engine as `make` does, and remembers the rows that it was given last."""

    def __init__(self, make: Callable[[Mapping[str, Any]], Any]) -> None:
        self._make = make
        self.data: Mapping[str, Any] = {}

    def __call__(self, data: Mapping[str, Any]) -> Any:
        self.data = data
        return self._make(data)


def keep_scores(path: Path, job: Job, model: Any, data: Mapping[str, Any]) -> None:
    """Write the first two coordinates of some rows of each client, if they may be shown and there are two."""
    if job.task not in _TASKS or job.privacy or job.secure.get("enabled") or len(model.components_) < 2:
        return
    most = max(1, _POINTS // max(1, len(data)))
    W = model.components_[:2].T / model.scale_[:, None]
    scores = {name: _some(source() if callable(source) else source, most) @ W for name, source in data.items()}
    shift = model.mean_ @ W
    save_tree(
        path, "table of scores", {name: np.asarray(rows - shift, dtype=np.float32) for name, rows in scores.items()}
    )


def _some(X: Any, most: int) -> Array:
    """At most so many rows, evenly from the first to the last, as float64."""
    n = X.shape[0]
    chosen = np.linspace(0, n - 1, min(n, most)).astype(int)
    if hasattr(X, "batches"):  # rows that are not in memory
        kept, start = [], 0
        for batch in X.batches():
            here = chosen[(chosen >= start) & (chosen < start + len(batch))] - start
            kept.append(np.asarray(batch[here], dtype=np.float64))
            start += len(batch)
        return np.concatenate(kept)
    rows = X.tocsr()[chosen].toarray() if sp.issparse(X) else X[chosen]
    return np.asarray(rows, dtype=np.float64)


def load_scores(path: Path) -> dict[str, Array] | None:
    """What was kept, if anything was."""
    return dict(load_tree(path, "table of scores")) if path.exists() else None


def protected(job: str) -> bool:
    """Whether the job asks that nobody sees single rows, or a single client's part."""
    given = tomllib.loads(job)
    return bool(given.get("privacy") or given.get("secure", {}).get("enabled"))


def why_not(job: str, model: Any) -> str:
    """Why there is no picture of rows, in one sentence."""
    if protected(job):
        return "Rows are not drawn: the job asks to protect them, and a picture of single rows would not."
    if len(model.components_) < 2:
        return "With one component there is nothing to scatter."
    return "Rows are not drawn: they are not in this run folder, and stay where they are."
