"""`fedspan federation`: set up a federation on NVIDIA FLARE."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from fedspan._files import write_whole
from fedspan.cli.federation.membership_commands import members
from fedspan.cli.federation.status_command import federation_status
from fedspan.deployment import local
from fedspan.deployment.kit import project_file, role, tighten
from fedspan.deployment.policy import write_secret
from fedspan.errors import InputError

federation = typer.Typer(add_completion=False, no_args_is_help=True)  # the list of commands in main.py has its help
federation.add_typer(members)
federation.add_typer(federation_status)


@federation.command("new")
def write_project(
    path: Annotated[Path, typer.Argument(metavar="PROJECT.yml", help="The file to write; it must not exist yet.")],
    server: Annotated[str, typer.Option(help="The host name under which the sites reach the server.")],
    sites: Annotated[str, typer.Option(help="The sites' names, separated by commas: north,south,east.")],
    researcher: Annotated[str, typer.Option(help="The e-mail address of the person who may submit jobs.")],
    port: Annotated[int, typer.Option(help="The server's port for sites; the next one is for the researcher.")] = 8002,
    days: Annotated[int, typer.Option(help="For how many days the certificates are valid.")] = 360,
) -> None:
    """Write the project file of a federation; `fedspan federation provision` makes the kits from it."""
    names = [name.strip() for name in sites.split(",") if name.strip()]
    text = project_file(server, names, researcher, port=port, name=path.stem.replace(".", "-"), days=days)
    if path.exists():
        raise InputError(f"{path} already exists; choose another path.")
    write_whole(path, text, public=True)
    typer.echo(f"wrote {path}; next: fedspan federation provision {shlex.quote(str(path))} --out kits")


@federation.command("provision")
def make_kits(
    project: Annotated[Path, typer.Argument(metavar="PROJECT.yml", help="The project file.")],
    out: Annotated[Path, typer.Option(help="The folder for the kits and their keys; keep it secret.")] = Path("kits"),
) -> None:
    """Make the kits: one folder for the server, one for each site, one for each researcher, with their certificates."""
    if not project.is_file():
        raise InputError(f"There is no project file {project}; write one with: fedspan federation new")
    kits = local.provision(project, out)
    for kit in sorted(kits.iterdir()):
        if kit.is_dir() and (kit / "startup").is_dir():
            if role(kit) == "server":
                tighten(kit)
            typer.echo(f"{role(kit):<10} {kit}")
    typer.echo("hand each kit to its owner over a secure channel: it contains a private key")
    typer.echo(
        f"the root key is in {local.find_root_key(kits)}; anyone who has it can create a site: keep it offline, apart "
        "from the server"
    )


@federation.command("secret")
def make_secret(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="The file to write; it must not exist yet.")],
) -> None:
    """Make the random secret under which sites digest ids; hand it to every site, and never to the server."""
    write_secret(path)
    typer.echo(
        f"wrote {path}; hand it to each site's administrator over a secure channel, never to the server or the "
        "researcher. At the site: fedspan site init KIT … --secret-file PATH"
    )
