"""`fedspan federation status`: who is there now, from the sites' own mouths."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from fedspan._foreign import printable
from fedspan.cli.durations import read_duration
from fedspan.deployment.flare_admin import connect, keep_session
from fedspan.deployment.operations.federation_status import SiteStatus, name_absent, survey_sites
from fedspan.deployment.operations.site_facts import count_days
from fedspan.errors import ClientError

federation_status = typer.Typer(add_completion=False)
_ENDS_SOON = 30  # days: a certificate that ends so soon is pointed out
_PAUSE = 2.0  # seconds between two looks with --watch
_LOOK_AGAIN_AFTER = 1.0  # seconds between two looks with --wait-for


@federation_status.command("status")
def show_status(
    kit: Annotated[Path, typer.Argument(metavar="KIT", help="A researcher's or a coordinator's kit.")],
    watch: Annotated[
        bool, typer.Option("--watch", help="Ask again every two seconds, until Ctrl-C; default: once.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a line of JSON; default: text.")] = False,
    wait_for: Annotated[
        str,
        typer.Option(metavar="SITES", help="Wait until these sites answer, as in north,south; default: do not wait."),
    ] = "",
    within: Annotated[str, typer.Option(metavar="TIME", help="How long to wait for them: 30s, 10m, 24h.")] = "2m",
) -> None:
    """Show who is there, by asking every site: busy with which job, version, days that its certificate is valid.

    Exit code 1 if the server or a site does not answer.
    """
    wanted = [name.strip() for name in wait_for.split(",") if name.strip()]
    if wanted:
        _await_sites(kit, wanted, read_duration("--within", within))
    with keep_session(kit):
        complete = _show_once(kit, as_json)
        while watch:
            time.sleep(_PAUSE)
            if not as_json:
                typer.echo(f"-- {datetime.now():%H:%M:%S}")
            complete = _show_once(kit, as_json)
    if not complete:
        raise typer.Exit(1)


def _await_sites(kit: Path, names: list[str], patience: float) -> None:
    """Look again and again until the sites answer; a server that is just starting is waited for, too."""
    end = time.monotonic() + patience
    while True:
        try:
            with connect(kit) as session:
                absent = name_absent(survey_sites(session, names))
            if not absent:
                return
        except ClientError as error:
            absent = str(error).removesuffix(".")
        if time.monotonic() >= end:
            raise ClientError(f"Not all sites were there in time: {absent}.")
        time.sleep(_LOOK_AGAIN_AFTER)


def _show_once(kit: Path, as_json: bool) -> bool:
    """Whether the server and all sites answer."""
    try:
        with connect(kit) as session:
            found = survey_sites(session, facts=True)
    except ClientError as error:
        typer.echo(json.dumps({"server": str(error), "sites": []}) if as_json else printable(f"server: {error}"))
        return False
    if as_json:
        typer.echo(json.dumps({"server": "answers", "sites": [asdict(one) for one in found]}))
    else:
        typer.echo("server: answers")
        for one in found:
            typer.echo(printable(f"{one.name:<20} {_describe_line(one)}"))
        if not found:
            typer.echo("no site is connected")
        own = count_days(kit / "startup" / "client.crt")
        typer.echo(f"this kit's certificate: {own} days left")
    return bool(found) and all(one.answers for one in found)


def _describe_line(one: SiteStatus) -> str:
    words = [one.describe()]
    if one.fedspan:
        words.append(f"fedspan {one.fedspan}")
    if one.days is not None:
        words.append(f"certificate {one.days} days left" + (": renew it" if one.days <= _ENDS_SOON else ""))
    return "; ".join(words)
