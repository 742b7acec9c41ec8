"""`fedspan run`: from a job file to a report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedspan.cli.progress import TerminalProgress, announce, announce_json
from fedspan.jobs.model import Job


def run_command(
    job: Annotated[Path, typer.Argument(metavar="JOB.toml", help="The job file.", show_default=False)],
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="a.b=c",
            help="Override a key of the job file, as in job.tol=1e-9; may be repeated. Default: none.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="A new or empty run folder; default: runs/<job file>-<date-time>.")
    ] = None,
    transcript: Annotated[
        bool,
        typer.Option(
            "--transcript",
            help="Keep every message in the run folder, for `fedspan audit`. The messages hold all that the clients "
            "released, and their data may be worked out from it: protect them like the data. Default: not kept.",
        ),
    ] = False,
    on: Annotated[
        Path | None,
        typer.Option(metavar="KIT", help="Run on a federation, with this researcher's kit; default: in this process."),
    ] = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", help="Print only warnings and errors; default: progress and where things are.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print only the outcome, as a line of JSON; default: text.")
    ] = False,
) -> None:
    """Run a job file, and leave a run folder with model, ledger, checkpoint and report.

    `fedspan new` writes a job file to start from.
    """
    overrides = [*(set_ or ()), *(["run.transcript=true"] if transcript else [])]
    console = Console(quiet=quiet or as_json)
    run = Job.load(job, overrides, on=on).run(out, TerminalProgress(console))
    if as_json:
        announce_json(run)
    else:
        announce(run, console)
