"""`fedspan resume`: continue an interrupted run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedspan.cli.durations import read_duration
from fedspan.cli.progress import TerminalProgress, announce
from fedspan.jobs.folder import RunFolder
from fedspan.jobs.resumption import resume


def resume_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A run folder.", show_default=False)],
    keep_going: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="On a federation: if a site, the server or the network fails, wait and go on, for up to this time: "
            "30m, 24h, 7d. Default: stop, to be resumed by hand.",
        ),
    ] = None,
) -> None:
    """Continue an interrupted run from its last complete round."""
    console = Console()
    complete = RunFolder.find(folder).model.exists()
    run = resume(folder, TerminalProgress(console), keep_going=read_duration("--keep-going", keep_going))
    if complete:
        typer.echo(f"nothing to do: the run is complete, its model is {run.folder.model}")
    else:
        announce(run, console)
