"""`fedspan run`: a job file, from here to its report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedspan.cli.progress import TerminalProgress, announce
from fedspan.jobs.model import Job


def run_command(
    job: Annotated[Path, typer.Argument(metavar="JOB.toml", help="The job file.", show_default=False)],
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="a.b=c", help="Override a key of the job file; may be repeated. Default: none."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="A new or empty run folder; default: runs/<job file>-<date-time>.")
    ] = None,
    transcript: Annotated[
        bool,
        typer.Option(
            "--transcript",
            help="Keep every message in the run folder, for `fedspan audit`. It then holds all that the clients "
            "released, from which their data may be worked out: keep it as safe as the data. Default: not kept.",
        ),
    ] = False,
    on: Annotated[
        Path | None,
        typer.Option(metavar="KIT", help="Run on the federation of this researcher's kit; default: in this process."),
    ] = None,
) -> None:
    """Run a job file (`fedspan new` writes one); leaves a run folder with model, ledger, checkpoint and report."""
    overrides = [*(set_ or ()), *(["run.transcript=true"] if transcript else [])]
    console = Console()
    announce(Job.load(job, overrides, on=on).run(out, TerminalProgress(console)), console)
