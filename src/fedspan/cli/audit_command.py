"""`fedspan audit`: what a run gave away."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedspan.audit.auditor import audit
from fedspan.audit.site_auditor import audit_site
from fedspan.cli.progress import say


def audit_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A run folder.", show_default=False)],
    clients: Annotated[
        int, typer.Option(min=1, help="How many clients to attack: the first in the order of their names.")
    ] = 8,
    run: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="At a site: DIR is its kit, and this a run of its book; default: none."),
    ] = None,
) -> None:
    """Show what left each client in a run and what the server could work out from it, and write audit.html.

    The attacks need the messages, which `fedspan run JOB.toml --transcript` keeps. Errors are measured against the
    clients' data, if the files that the job names can be read here.

    At a site of a federation: `fedspan audit KIT --run RUN` shows what left this site, from its book and the messages
    that it kept ([keep] transcript_mb in its file).
    """
    console = Console()
    if run is not None:
        for part in audit_site(folder, run):
            for line in (f"part {part.part}:", *part.result.summarize(), f"audit: {part.result.page}", ""):
                say(console, line)
        return
    result = audit(folder, clients)
    for line in (*result.summarize(), f"audit: {result.page}"):
        say(console, line)
