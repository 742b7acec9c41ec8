"""`fedspan check`: everything that is wrong with a job's tables, before anything is sent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fedspan._files import write_whole
from fedspan._foreign import printable
from fedspan.deployment.policy import FILE
from fedspan.errors import InputError
from fedspan.jobs.checking.check import check_job
from fedspan.jobs.checking.fixed_job import replace_data
from fedspan.jobs.checking.site_report import check_at_site
from fedspan.jobs.model import Job


def check_command(
    job: Annotated[Path, typer.Argument(metavar="JOB.toml", help="The job file.", show_default=False)],
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="a.b=c", help="Override a key of the job file; may be repeated. Default: none."),
    ] = None,
    write: Annotated[
        Path | None,
        typer.Option(metavar="NEW.toml", help="Also write the job with all proposals to a new file; default: none."),
    ] = None,
    on: Annotated[
        Path | None,
        typer.Option(
            metavar="KIT",
            help="Check the tables of this site's kit for the job, at the site; default: the job's own files.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON; default: text.")] = False,
) -> None:
    """Read every table of a job once, and report everything that is wrong with them together.

    Proposes the lines to put into the job file, says what would leave each client, and ends with a verdict. Nothing is
    sent. Exit codes: 0 the job can run, 2 it cannot.
    """
    if on is not None:
        if not (on / "local" / FILE).is_file():
            raise InputError(
                f"{on} is not the kit of a site with a policy. Only a site sees what is in its tables: its "
                f"administrator runs `fedspan check {job} --on KIT` or `fedspan site check KIT --job {job}` there."
            )
        found = check_at_site(on, job)
        typer.echo(json.dumps(found.to_dict(), ensure_ascii=False) if as_json else printable(str(found), lines=True))
        raise typer.Exit(0 if found.ok else 2)
    loaded = Job.load(job, set_ or ())
    result = check_job(loaded, job.resolve().parent)
    typer.echo(json.dumps(result.to_dict(), ensure_ascii=False, default=str) if as_json else str(result))
    if write is not None and result.data is not None:
        if write.exists():
            raise InputError(f"{write} already exists; choose another path.")
        write_whole(write, replace_data(job.read_text(encoding="utf-8"), result.to_toml()))
        typer.echo(f"wrote {printable(str(write))}", err=True)
    if not result.ok:
        raise typer.Exit(2)
