"""`fedspan resume`: continue an interrupted run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedspan.cli.progress import TerminalProgress, announce
from fedspan.jobs.folder import RunFolder
from fedspan.jobs.resumption import resume


def resume_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A run folder.", show_default=False)],
) -> None:
    """Continue an interrupted run from its last complete round."""
    console = Console()
    complete = RunFolder.find(folder).model.exists()
    run = resume(folder, TerminalProgress(console))
    if complete:
        typer.echo(f"nothing to do: the run is complete, its model is {run.folder.model}")
    else:
        announce(run, console)
