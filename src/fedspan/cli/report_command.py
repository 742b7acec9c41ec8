"""`fedspan report` and `fedspan runs`: look at runs again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fedspan._foreign import printable
from fedspan.jobs.folder import RunFolder, list_runs
from fedspan.jobs.model import Job
from fedspan.jobs.runner import rewrite_report, save_figures


def report_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A run folder.", show_default=False)],
    without_rows: Annotated[
        bool,
        typer.Option(
            "--without-rows", help="Draw no single rows, so that the page can be shared; default: they are drawn."
        ),
    ] = False,
    figures: Annotated[
        Path | None,
        typer.Option(
            "--figures",
            metavar="FOLDER",
            help="Also write every figure (SVG and PNG) and table (CSV) of the report to this folder; default: none.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Write the report of a run again, from the files in its run folder."""
    place = RunFolder.find(folder)
    rewrite_report(place, Job.load(place.job), with_rows=not without_rows)
    typer.echo(f"report: {place.report}")
    if figures is not None:
        many = save_figures(place.report, figures)
        typer.echo(f"{many} figures and tables: {printable(str(figures))}")


def runs_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where run folders are.")] = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON; default: a table.")] = False,
) -> None:
    """List the run folders in a folder, with task, date and result, the latest first."""
    found = list_runs(folder)
    if as_json:
        typer.echo(json.dumps([run.to_dict() for run in found], ensure_ascii=False))
        return
    if not found:
        typer.echo(f"There are no run folders in {printable(str(folder))}.")
    for run in found:
        typer.echo(f"{run.changed:%Y-%m-%d %H:%M}  {run.task:19}  {run.result:12}  {printable(str(run.path))}")
