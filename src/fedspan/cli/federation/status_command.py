"""`fedspan federation status`: which sites are there, and what they are busy with."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from fedspan._foreign import printable
from fedspan.cli.durations import read_duration
from fedspan.deployment import flare_admin
from fedspan.deployment.operations.federation_status import SiteStatus, name_absent, survey_sites
from fedspan.errors import ClientError

_LOOK_EVERY = 1.0  # seconds between two looks
status_commands = typer.Typer(add_completion=False)


@status_commands.command("status")
def show_federation_status(
    kit: Annotated[Path, typer.Argument(metavar="KIT", help="A researcher's kit.")],
    wait_for: Annotated[
        str,
        typer.Option(metavar="SITES", help="Wait until these sites answer, as in north,south; default: do not wait."),
    ] = "",
    within: Annotated[str, typer.Option(metavar="TIME", help="How long to wait for them: 30s, 10m, 24h.")] = "2m",
) -> None:
    """Show which sites are connected, and what each is busy with; or wait until all that are named answer."""
    wanted = [name.strip() for name in wait_for.split(",") if name.strip()] or None
    for site in (
        _wait_for_sites(kit, wanted, read_duration("--within", within)) if wanted else _look_at_sites(kit, None)
    ):
        typer.echo(printable(f"{site.name}: {site.describe()}"))


def _look_at_sites(kit: Path, names: list[str] | None) -> list[SiteStatus]:
    with flare_admin.connect(kit) as session:
        return survey_sites(session, names)


def _wait_for_sites(kit: Path, names: list[str] | None, patience: float) -> list[SiteStatus]:
    """Look again and again until the sites answer; a server that is just starting is waited for, too."""
    end = time.monotonic() + patience
    while True:
        try:
            found = _look_at_sites(kit, names)
            absent = name_absent(found)
            if not absent:
                return found
        except ClientError as error:
            absent = str(error)
        if time.monotonic() >= end:
            raise ClientError(f"Not all sites were there in time: {absent}.")
        time.sleep(_LOOK_EVERY)
