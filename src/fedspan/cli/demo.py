"""Federated PCA of real data, three ways, against the answer that pooled data would give. Works offline."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA

from fedspan._files import make_private_folder, write_whole
from fedspan._types import Array
from fedspan.cli.progress import TerminalProgress, say
from fedspan.core.ledger import Ledger, Note
from fedspan.estimators.pca import FederatedPCA
from fedspan.jobs.folder import RunFolder
from fedspan.jobs.model import Job
from fedspan.jobs.runner import run_in_process, update_report
from fedspan.numerics.orthonormal import largest_angle
from fedspan.reports.format import format_bytes, format_count, format_duration

_CLIENTS, _COMPONENTS = 8, 10
_REPORTED = "krylov"  # the run whose folder and report stay
_SEES = {"gram": "{d}×{d} moments", "ssi": "{d}×{k} products", "krylov": "{d}×{k} products"}


def demo_command(
    out: Annotated[Path, typer.Option(help="The run folder; that of an earlier demo is replaced.")] = Path("demo-run"),
) -> None:
    """Compare federated PCA of real data with PCA of the pooled rows, and write a report."""
    compare_solvers(out, Console())


def compare_solvers(path: Path, console: Console) -> None:
    """Cut the digits into clients, run every solver, compare, and leave a run folder with a report."""
    digits = load_digits()
    X, names = digits.data, [str(name) for name in digits.feature_names]
    cuts = (len(X) * np.cumsum(np.arange(1, _CLIENTS)) / (_CLIENTS * (_CLIENTS + 1) / 2)).astype(int)
    data = path.absolute() / "data"
    rows = {f"client-{i}": part for i, part in enumerate(np.split(X, cuts), 1)}
    options = {"n_components": _COMPONENTS, "solver": _REPORTED, "tol": 1e-9, "max_rounds": 1000, "random_state": 0}
    job = Job("pca", options, {name: str(data / f"{name}.csv") for name in rows}).resolve()
    folder = RunFolder.create(path, job.to_toml(), demo=True)
    make_private_folder(data)
    for name, part in rows.items():
        lines = [names, *(map("{:g}".format, row) for row in part.tolist())]
        write_whole(data / f"{name}.csv", "".join(",".join(line) + "\n" for line in lines))

    sizes = ", ".join(str(len(part)) for part in rows.values())
    say(console, f"{len(X)} handwritten digits of {X.shape[1]} pixels, at {_CLIENTS} clients of {sizes} rows")
    pooled = PCA(_COMPONENTS, svd_solver="full").fit(X)
    models: dict[str, FederatedPCA] = {}
    for solver in ("gram", "ssi"):
        say(console, f"running {solver} …")
        models[solver] = FederatedPCA(**{**job.parameters, "solver": solver}).fit(job.sources())
    say(console, f"running {_REPORTED}, in {path} …")
    model = run_in_process(folder, job, TerminalProgress(console), new=True).model
    if isinstance(model, FederatedPCA):
        models[_REPORTED] = model

    ledger = Ledger(folder.ledger)
    for solver, model in models.items():
        angle, variance = _compare(pooled, model)
        cost = f"{format_count(model.n_rounds_, 'round')}, {format_bytes(model.ledger_.bytes_up)} up"
        ledger.add(
            Note(
                f"demo: {solver} took {cost}; largest angle to scikit-learn's PCA of the pooled rows {angle:.1e}, "
                f"variances within {variance:.1e}"
            )
        )
    ledger.close()
    update_report(folder, job, ledger, models[_REPORTED])
    console.print(_build_table(models, pooled))
    say(console, f"report: {folder.report}")
    say(console, "try next:")
    say(
        console,
        f"  fedspan run {shlex.quote(str(folder.job))} --set job.solver=ssi --set job.bits=8 --set job.tol=1e-6",
    )
    say(console, "  fedspan doctor")


def _compare(pooled: PCA, model: FederatedPCA) -> tuple[float, float]:
    """The largest principal angle to the pooled components, and the largest relative error of a variance."""
    angle = largest_angle(pooled.components_.T, model.components_.T)
    error: Array = np.abs(model.explained_variance_ / pooled.explained_variance_ - 1)
    return angle, float(error.max())


def _build_table(models: dict[str, FederatedPCA], pooled: PCA) -> Table:
    table = Table(
        title="Three solvers on the same clients, against scikit-learn's PCA of all rows",
        caption="In each round the server sees the last column, of each client: the demo uses no noise and no masks.",
        title_justify="left",
        caption_justify="left",
        box=SIMPLE,
        pad_edge=False,
        collapse_padding=True,
    )
    for column in ("solver", "rounds", "up", "down", "time", "angle", "variance", "server sees"):
        table.add_column(column, justify="left" if column in ("solver", "server sees") else "right")
    for solver, model in models.items():
        ledger, (angle, variance) = model.ledger_, _compare(pooled, model)
        sees = _SEES[solver].format(d=model.n_features_in_, k=len(model.components_))
        table.add_row(
            solver,
            str(model.n_rounds_),
            format_bytes(ledger.bytes_up),
            format_bytes(ledger.bytes_down),
            format_duration(ledger.seconds),
            f"{angle:.1e}",
            f"{variance:.1e}",
            sees,
        )
    return table
