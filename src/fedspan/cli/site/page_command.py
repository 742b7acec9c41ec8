"""`fedspan site ui`: the page of a site."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedspan.web.local_server import LocalServer
from fedspan.web.site_pages import SitePages

pages = typer.Typer(add_completion=False)


@pages.command("ui")
def open_site_page(
    kit: Annotated[Path, typer.Argument(metavar="KIT", help="The site's kit.")],
    port: Annotated[int, typer.Option(help="The port on this machine; default: 0, any that is free.")] = 0,
    link: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the link to this file, which only you can read; default: print it."),
    ] = None,
) -> None:
    """Serve a page for your browser: what waits for approval, what runs, the budget, the rules, and the book.

    It works on this machine only, and for whoever has the link. It does nothing that `fedspan site` cannot do.
    """
    LocalServer(SitePages(kit), port).serve(link, typer.echo)
