"""`fedspan ui`: the page of a researcher."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedspan.web.local_server import LocalServer
from fedspan.web.run_pages import RunPages


def ui_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where run folders are.")] = Path("runs"),
    port: Annotated[int, typer.Option(help="The port on this machine; default: 0, any that is free.")] = 0,
    link: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the link to this file, which only you can read; default: print it."),
    ] = None,
) -> None:
    """Serve a page for your browser: your runs, the progress of those that are at work, and their reports.

    It works on this machine only, and for whoever has the link. It changes nothing.
    """
    LocalServer(RunPages(folder), port).serve(link, typer.echo)
