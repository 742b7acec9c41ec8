"""`fedspan run`: from a job file to a report."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedspan.cli.durations import read_duration
from fedspan.cli.progress import TerminalProgress, announce, announce_json
from fedspan.deployment.flare_admin import keep_session
from fedspan.errors import InputError
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
    keep_going: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="On a federation: if a site, the server or the network fails, wait and go on, for up to this time: "
            "30m, 24h, 7d. Default: stop, to be resumed by hand.",
        ),
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
    seconds = read_duration("--keep-going", keep_going)
    if seconds and on is None:
        raise InputError("--keep-going is for runs on a federation; add --on KIT, or leave it out.")
    console = Console(quiet=quiet or as_json)
    with nullcontext() if on is None else keep_session(on):
        run = Job.load(job, overrides, on=on).run(out, TerminalProgress(console), keep_going=seconds)
    if as_json:
        announce_json(run)
    else:
        announce(run, console)
