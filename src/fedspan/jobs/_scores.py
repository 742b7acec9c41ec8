"""Where rows lie in the first two components: kept for the report by a run that has all rows in its own process.

Single rows are drawn only where nothing was asked to hide them: not with noise or secure sums, and not where the rows
are at other sites. `fedspan report --without-rows` leaves them out.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np
import scipy.sparse as sp

from fedspan._types import Array
from fedspan.core.checkpoint import build, load_tree, save_tree
from fedspan.core.run import Engine
from fedspan.data.clients import open_client
from fedspan.errors import CheckpointError
from fedspan.estimators.classifier import FederatedClassifier
from fedspan.estimators.pca import FederatedPCA
from fedspan.jobs.tasks import AnyModel
from fedspan.numerics.operators import RowBatches, RowKernel, WeightedRows
from fedspan.reports.drawing.scatter import COLOURS
from fedspan.reports.facts import Scores

if TYPE_CHECKING:
    from fedspan.jobs.model import Job

_POINTS = 4000  # in all; every client gets its part of them


class _Kept(TypedDict):
    """The file of scores."""

    by: str
    groups: dict[str, Array]


class WatchedEngine:
    """Makes an engine as `make` does, and remembers the rows that it was given last."""

    def __init__(self, make: Callable[[Mapping[str, object]], Engine]) -> None:
        self._make = make
        self.data: Mapping[str, object] = {}

    def __call__(self, data: Mapping[str, object]) -> Engine:
        self.data = data
        return self._make(data)


def keep_scores(path: Path, job: Job, model: AnyModel, data: Mapping[str, object]) -> None:
    """Write the first two coordinates of some rows of each client, if they may be shown and there are two.

    For the report the model is told how these rows of each client lie in it, or how many it predicts rightly.

    The rows are grouped by the job's label where that has few values, and else by client.
    """
    if job.privacy or job.secure.get("enabled"):
        return
    if isinstance(model, FederatedClassifier):
        model.client_accuracy_ = _measure_accuracy(model, data)
    if not isinstance(model, FederatedPCA):
        return
    most = max(1, _POINTS // max(1, len(data)))
    opened = {name: _open_rows(source) for name, source in data.items()}
    kernels = {name: X for name, X in opened.items() if isinstance(X, RowKernel)}
    if kernels:  # rows that project themselves: reading single ones would cost more than all of them
        _keep_projected(path, kernels, model, most)
        return
    rows = {name: _sample_rows(X, most) for name, X in opened.items()}
    if len(rows) > 1 and model.n_samples_ > len(model.components_):
        with warnings.catch_warnings():  # these rows are arrays, with their columns in the model's order
            warnings.filterwarnings("ignore", "X does not have valid feature names", UserWarning)
            model.measure_drift(rows)
    if len(model.components_) < 2:
        return
    W = model.components_[:2].T / model.scale_[:, None]
    shift = model.mean_ @ W
    scores = {name: np.asarray(X @ W - shift, dtype=np.float32) for name, X in rows.items()}
    labelled = _group_by_label(job, scores) if job.label else None
    kept = Scores("client", scores) if labelled is None else labelled
    save_tree(path, "table of scores", {"by": kept.by, "groups": dict(kept.groups)})


def _keep_projected(path: Path, kernels: Mapping[str, RowKernel], model: FederatedPCA, most: int) -> None:
    """The same for rows that are never formed."""
    if len(model.components_) < 2:
        return
    W = np.asarray(model.components_[:2].T / model.scale_[:, None], dtype=np.float64)
    shift = np.asarray(model.mean_, dtype=np.float64) @ W
    scores = {name: X.project(W) - shift for name, X in kernels.items()}
    groups = {name: rows[_pick_rows(len(rows), most)].astype(np.float32) for name, rows in scores.items()}
    save_tree(path, "table of scores", {"by": "client", "groups": groups})


def _measure_accuracy(model: FederatedClassifier, data: Mapping[str, object]) -> dict[str, list[float]] | None:
    """By client its number of rows, and the share of them that the model predicts rightly; None: rows not in memory."""
    labels, found = np.array(model.labels_), {}
    for name, held in data.items():
        X, codes = held[:2] if isinstance(held, tuple) else (None, None)
        if not isinstance(X, np.ndarray) or not isinstance(codes, np.ndarray):
            return None
        with warnings.catch_warnings():  # as above
            warnings.filterwarnings("ignore", "X does not have valid feature names", UserWarning)
            found[name] = [float(len(X)), float(np.mean(model.predict(X) == labels[codes]))]
    return found


def _group_by_label(job: Job, scores: Mapping[str, Array]) -> Scores | None:
    """The same coordinates by the label of their rows; None if there are too many labels to tell them apart."""
    groups: dict[str, list[Array]] = {}
    for name, source in job.sources().items():
        labels = open_client(name, source, in_batches=True).labels
        if labels is None:
            return None
        for label, row in zip(labels[_pick_rows(len(labels), len(scores[name]))], scores[name], strict=True):
            groups.setdefault(str(label), []).append(row)
        if len(groups) > COLOURS:
            return None
    return Scores(str(job.label), {label: np.stack(groups[label]) for label in sorted(groups)})


def _pick_rows(n: int, most: int) -> Array:
    """The rows that are shown, evenly from the first to the last."""
    return np.linspace(0, n - 1, min(n, most)).astype(int)


def _open_rows(source: object) -> object:
    """The rows of a client, whatever they count."""
    rows = source() if callable(source) else source
    return rows.rows if isinstance(rows, WeightedRows) else rows


def _sample_rows(X: Any, most: int) -> Array:
    """Take at most that many rows, evenly from the first to the last, as float64."""
    n = X.shape[0]
    chosen = _pick_rows(n, most)
    if isinstance(X, RowBatches):  # rows that are not in memory
        kept, start = [], 0
        for batch in X.batches():
            here = chosen[(chosen >= start) & (chosen < start + len(batch))] - start
            kept.append(np.asarray(batch[here], dtype=np.float64))
            start += len(batch)
        return np.concatenate(kept)
    rows = X.tocsr()[chosen].toarray() if sp.issparse(X) else X[chosen]
    return np.asarray(rows, dtype=np.float64)


def load_scores(path: Path) -> Scores | None:
    """Read what was kept, if anything was."""
    if not path.exists():
        return None
    tree = load_tree(path, "table of scores")
    whole = tree if isinstance(tree.get("by"), str) else {"by": "client", "groups": tree}  # 0.1 knew clients only
    kept = build(_Kept, whole)
    if any(rows.ndim != 2 or rows.shape[1] != 2 for rows in kept["groups"].values()):
        raise CheckpointError(f"{path} must hold two coordinates of each row. Delete it: the report can do without it.")
    return Scores(kept["by"], kept["groups"])
