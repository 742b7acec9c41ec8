"""What this machine has: versions, BLAS, threads, and what each optional extra would give."""

from __future__ import annotations

import platform
import re
from importlib.metadata import PackageNotFoundError, requires, version

import scipy.linalg  # noqa: F401 - loaded so that its BLAS is seen
import threadpoolctl
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedspan._version import __version__
from fedspan.engines.inprocess import count_cores
from fedspan.reports.format import format_count

GIVES = {
    "data": "Parquet, Arrow and PostgreSQL clients, faster CSV",
    "excel": "Excel files as clients",
    "genomics": "genotypes as clients (PLINK, PGEN)",
    "singlecell": "single-cell tables as clients (h5ad)",
    "dask": "clients on the workers of a Dask cluster",
    "figures": "figures of reports as PNG files",
    "plots": "matplotlib plots of models",
    "privacy": "differential privacy, secure aggregation",
    "flare": "federations over a network (NVIDIA FLARE)",
    "deep": "deep GCCA, torch models as classifiers",
    "onnx": "model.to_onnx(), fedspan export --to onnx",
    "skops": "fedspan export --to sklearn",
    "mlflow": "fedspan.callbacks.MLflowLogger",
    "tensorboard": "fedspan.callbacks.TensorBoardLogger",
}


def doctor_command() -> None:
    """Show versions, BLAS, threads, and which extras are installed and what the others would add."""
    show_installation(Console())


def show_installation(console: Console) -> None:
    """Print two tables: what runs, and what could be added."""
    here = Table("what", "here", title="This machine", title_justify="left")
    for what, value in _list_core().items():
        here.add_row(what, value)
    console.print(here)
    extras = Table("extra", "gives", "here", title="Extras: all else works without them", title_justify="left")
    lost = []
    for extra, gives in GIVES.items():
        missing = _list_missing(extra)
        lost += [extra] if missing else []
        extras.add_row(extra, gives, f"no ({', '.join(missing)})" if missing else "yes")
    console.print(extras)
    if lost:
        add = escape(f"pip install 'fedspan[{','.join(lost)}]'")  # or rich would read the brackets as markup
        console.print(f"To add what is missing, or some of it: {add}", soft_wrap=True, highlight=False)
    else:
        console.print("Nothing is missing.")


def _list_core() -> dict[str, str]:
    names = ("numpy", "scipy", "scikit-learn", "safetensors")
    pools = [p for p in threadpoolctl.threadpool_info() if p["user_api"] == "blas"]
    blas = {f"{p['internal_api']} {p['version']}, {format_count(p['num_threads'], 'thread')}" for p in pools}
    return {
        "fedspan": __version__,
        "python": f"{platform.python_version()} on {platform.system()} {platform.machine()}",
        **{name: version(name) for name in names},
        "BLAS": "; ".join(sorted(blas)) or "unknown",
        "cores": f"{count_cores()} for this process",
    }


def _list_missing(extra: str) -> list[str]:
    """List the packages of an extra that are not installed."""
    missing = []
    for line in requires("fedspan") or ():
        name = re.match(r"[\w.-]+", line)
        if name and re.search(rf"""extra == ['"]{extra}['"]""", line):
            try:
                version(name[0])
            except PackageNotFoundError:
                missing.append(name[0])
    return missing
