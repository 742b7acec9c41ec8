"""`fedspan site service | warm`: how a kit is started with the machine, and how it starts jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedspan._files import write_whole
from fedspan.deployment.operations.service_files import write_unit
from fedspan.deployment.operations.warm_start import switch_warm

services = typer.Typer(add_completion=False)


@services.command("service")
def service_command(
    kit: Annotated[Path, typer.Argument(metavar="KIT", help="The kit of a site, or of the server.")],
    user: Annotated[str, typer.Option(help="The user who runs it; make one for it alone.")] = "fedspan",
    proxy: Annotated[
        str | None, typer.Option(metavar="URL", help="The proxy on the way to the server; default: none.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write the unit into this folder; default: print it.")
    ] = None,
) -> None:
    """Write a systemd unit that starts this kit with the machine, again after a crash, and closes all but the kit."""
    name, text = write_unit(kit, user, proxy=proxy)
    if out is None:
        typer.echo(text, nl=False)
        return
    write_whole(out / name, text, public=True)
    typer.echo(f"wrote {out / name}; next: chown -R {user} {kit.resolve()}; systemctl enable --now {name}")


@services.command("warm")
def warm_command(
    kit: Annotated[Path, typer.Argument(metavar="KIT", help="The kit of a site, or of the server.")],
    off: Annotated[bool, typer.Option("--off", help="Start jobs as FLARE does; default: from a warm process.")] = False,
) -> None:
    """Keep a process ready that has imported what jobs need: they start seconds earlier, for about 150 MB of memory."""
    changed = switch_warm(kit, on=not off)
    state = "started as FLARE does" if off else "forked from a warm process"
    typer.echo(f"jobs are {state}" + (f"; start {kit} again for it to count" if changed else ", as they were"))
