"""`fedspan report`: write the report of a run again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedspan.jobs.folder import RunFolder
from fedspan.jobs.model import Job
from fedspan.jobs.runner import rewrite_report


def report_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A run folder.", show_default=False)],
    without_rows: Annotated[
        bool,
        typer.Option(
            "--without-rows", help="Draw no single rows, so that the page can be shared; default: they are drawn."
        ),
    ] = False,
) -> None:
    """Write the report of a run again, from the files in its run folder."""
    place = RunFolder.find(folder)
    rewrite_report(place, Job.load(place.job), with_rows=not without_rows)
    typer.echo(f"report: {place.report}")
