"""Federated PCA of real data, three ways, against the answer that pooled data would give. Works offline."""

from __future__ import annotations

import shlex
from pathlib import Path

import numpy as np
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA

from fedspan._files import write_whole
from fedspan._types import Array
from fedspan.cli.progress import count, duration, say, size
from fedspan.core.ledger import Ledger, Note
from fedspan.estimators.pca import FederatedPCA
from fedspan.jobs.folder import RunFolder
from fedspan.jobs.model import Job
from fedspan.jobs.runner import execute, write_report
from fedspan.numerics.orthonormal import largest_angle

_CLIENTS, _COMPONENTS = 8, 10
_SHOWN = "krylov"  # the run whose folder and report stay
_SEES = {"gram": "{d}×{d} moments", "ssi": "{d}×{k} products", "krylov": "{d}×{k} products"}


def demo(path: Path, console: Console) -> None:
    """Cut the digits into clients, run every solver, compare, and leave a run folder with a report."""
    digits = load_digits()
    X, names = digits.data, [str(name) for name in digits.feature_names]
    cuts = (len(X) * np.cumsum(np.arange(1, _CLIENTS)) / (_CLIENTS * (_CLIENTS + 1) / 2)).astype(int)
    data = path.absolute() / "data"
    rows = {f"client-{i}": part for i, part in enumerate(np.split(X, cuts), 1)}
    options = {"n_components": _COMPONENTS, "solver": _SHOWN, "tol": 1e-9, "max_rounds": 1000, "random_state": 0}
    job = Job("pca", options, {name: str(data / f"{name}.csv") for name in rows}).resolved()
    folder = RunFolder.create(path, job, demo=True)
    data.mkdir(exist_ok=True)
    for name, part in rows.items():
        lines = [names, *(map("{:g}".format, row) for row in part.tolist())]
        write_whole(data / f"{name}.csv", "".join(",".join(line) + "\n" for line in lines))

    sizes = ", ".join(str(len(part)) for part in rows.values())
    say(console, f"{len(X)} handwritten digits of {X.shape[1]} pixels, at {_CLIENTS} clients of {sizes} rows")
    pooled = PCA(_COMPONENTS, svd_solver="full").fit(X)
    models = {}
    for solver in ("gram", "ssi"):
        say(console, f"running {solver} …")
        models[solver] = FederatedPCA(**{**job.parameters, "solver": solver}).fit(job.sources())
    say(console, f"running {_SHOWN}, in {path} …")
    models[_SHOWN] = execute(folder, job, console, new=True)

    ledger = Ledger(folder.ledger)
    for solver, model in models.items():
        angle, variance = _against(pooled, model)
        ledger.add(
            Note(
                f"demo: {solver} took {count(model.n_rounds_, 'round')}, {size(model.ledger_.bytes_up)} up; largest "
                f"angle to scikit-learn's PCA of the pooled rows {angle:.1e}, variances within {variance:.1e}"
            )
        )
    ledger.close()
    write_report(folder, ledger, models[_SHOWN])
    console.print(_table(models, pooled))
    say(console, f"report: {folder.report}")
    say(console, "try next:")
    say(
        console,
        f"  fedspan run {shlex.quote(str(folder.job))} --set job.solver=ssi --set job.bits=8 --set job.tol=1e-6",
    )
    say(console, "  fedspan doctor")


def _against(pooled: PCA, model: FederatedPCA) -> tuple[float, float]:
    """The largest principal angle to the pooled components, and the largest relative error of a variance."""
    angle = largest_angle(pooled.components_.T, model.components_.T)
    error: Array = np.abs(model.explained_variance_ / pooled.explained_variance_ - 1)
    return angle, float(error.max())


def _table(models: dict[str, FederatedPCA], pooled: PCA) -> Table:
    table = Table(
        title="Three solvers on the same clients, against scikit-learn's PCA of all rows",
        caption="The server sees the last column of each client, in every round: no noise or masks were asked for.",
        title_justify="left", caption_justify="left", box=SIMPLE, pad_edge=False, collapse_padding=True,
    )  # fmt: skip
    for column in ("solver", "rounds", "up", "down", "time", "angle", "variance", "server sees"):
        table.add_column(column, justify="left" if column in ("solver", "server sees") else "right")
    for solver, model in models.items():
        ledger, (angle, variance) = model.ledger_, _against(pooled, model)
        sees = _SEES[solver].format(d=model.n_features_in_, k=len(model.components_))
        table.add_row(
            solver, str(model.n_rounds_), size(ledger.bytes_up), size(ledger.bytes_down), duration(ledger.seconds),
            f"{angle:.1e}", f"{variance:.1e}", sees,
        )  # fmt: skip
    return table
