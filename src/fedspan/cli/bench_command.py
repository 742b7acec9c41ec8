"""`fedspan bench`: the papers' tables and figures beside ours. The benchmarks are in a checkout, not in the package."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fedspan.errors import InputError


def bench_command(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME", help="A benchmark such as faps/table4, a group such as faps, or all; default: list them."
        ),
    ] = None,
    full: Annotated[
        bool,
        typer.Option(
            "--full/--quick", help="Use the paper's sizes where the machine allows; default: quick.", show_default=False
        ),
    ] = False,
    data: Annotated[
        Path | None,
        typer.Option(help="The folder of the data sets; default: FEDSPAN_DATA, or shared/data beside the repository."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The folder for results; default: docs/results of the checkout.")
    ] = None,
    scoreboard: Annotated[
        bool, typer.Option("--scoreboard", help="Write docs/scoreboard.md from the results; default: do not.")
    ] = False,
) -> None:
    """Run the benchmarks: the papers' tables and figures, and comparisons with other packages.

    The benchmarks are in a checkout of the repository, not in the installed package.
    """
    command, console = import_benchmarks("command"), Console()
    if name is not None:
        command.run_benchmarks(name, "full" if full else "quick", data, out, console)
    elif not scoreboard:
        command.list_benchmarks(console)
    if scoreboard:
        command.write_scoreboard(console)


def import_benchmarks(name: str = "harness", root: Path | None = None) -> Any:
    """Import a module of `benchmarks`, of the checkout that this package runs from and of no other."""
    folder = (root or Path(__file__).resolve().parents[3]) / "benchmarks"
    if not (folder / "harness.py").is_file():
        raise InputError(
            "The benchmarks are only in a checkout of fedspan's repository, not in an installed package. Clone it, run "
            "pip install -e '.[dev]' in it, and run fedspan bench again."
        )
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    return import_module(name)
