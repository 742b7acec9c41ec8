"""`fedspan federation` and `fedspan site`: set up a federation on NVIDIA FLARE, and a site's part in it."""

from __future__ import annotations

import shlex
import signal
from pathlib import Path
from typing import Annotated, Any

import typer

federation = typer.Typer(no_args_is_help=True, help="Set up a federation: its project file, and the kits to hand out.")
site = typer.Typer(no_args_is_help=True, help="A site's part in a federation: what jobs may do here; start it.")


@federation.command("new")
def new(
    path: Annotated[Path, typer.Argument(metavar="PROJECT.yml", help="The file to write; it must not be there yet.")],
    server: Annotated[str, typer.Option(help="The server's host name, as the sites reach it.")],
    sites: Annotated[str, typer.Option(help="The sites' names, separated by commas: north,south,east.")],
    researcher: Annotated[str, typer.Option(help="The e-mail address of who may submit jobs.")],
    port: Annotated[int, typer.Option(help="The server's port for sites; the next one is for researchers.")] = 8002,
    days: Annotated[int, typer.Option(help="How long the certificates are valid.")] = 360,
) -> None:
    """Write the project file of a federation; `fedspan federation provision` makes the kits from it."""
    from fedspan._files import write_whole
    from fedspan.deployment.kit import project_file
    from fedspan.errors import InputError

    names = [name.strip() for name in sites.split(",") if name.strip()]
    text = project_file(server, names, researcher, port=port, name=path.stem.replace(".", "-"), days=days)
    if path.exists():
        raise InputError(f"need a new file for the project, {path} is there already; give another name")
    write_whole(path, text)
    typer.echo(f"wrote {path}; next: fedspan federation provision {shlex.quote(str(path))} --out kits")


@federation.command("provision")
def provision(
    project: Annotated[Path, typer.Argument(metavar="PROJECT.yml", help="The project file.")],
    out: Annotated[Path, typer.Option(help="The folder for kits and keys: keep it secret.")] = Path("kits"),
) -> None:
    """Make the kits: one folder for the server, one for each site, one for each researcher, with their certificates."""
    from fedspan.deployment.kit import role, tighten
    from fedspan.deployment.local import provision as make
    from fedspan.errors import InputError

    if not project.is_file():
        raise InputError(f"need a project file, there is no {project}; write one with: fedspan federation new")
    kits = make(project, out)
    for kit in sorted(kits.iterdir()):
        if kit.is_dir() and (kit / "startup").is_dir():
            if role(kit) == "server":
                tighten(kit)
            typer.echo(f"{role(kit):<10} {kit}")
    typer.echo("hand each kit to its owner over a safe channel: it holds a private key")


@site.command("init")
def init(
    kit: Annotated[Path, typer.Argument(metavar="KIT", help="The site's kit.")],
    data: Annotated[
        list[str],
        typer.Option(help="A file or database address that jobs may use, or name=address; may be repeated."),
    ],
    columns: Annotated[str | None, typer.Option(help="The only columns that jobs may use; default: all.")] = None,
    id: Annotated[str | None, typer.Option(help="The column of ids; default: none.")] = None,
    label: Annotated[str | None, typer.Option(help="The column of labels; default: none.")] = None,
    algorithms: Annotated[str | None, typer.Option(help="The only algorithms allowed; default: all.")] = None,
    secure: Annotated[bool, typer.Option(help="Accept secure sums only, or any run.")] = True,
    others: Annotated[int, typer.Option(help="So many other sites at least in every secure sum.")] = 2,
    epsilon: Annotated[float | None, typer.Option(help="What all runs may spend; default: no noise asked.")] = None,
    delta: Annotated[float | None, typer.Option(help="The delta that goes with epsilon; default: none.")] = None,
    row_norm: Annotated[float | None, typer.Option(help="The largest norm of a row that counts; default: any.")] = None,
    sizes: Annotated[bool, typer.Option(help="Say how many rows there are, or not.")] = True,
    names: Annotated[bool, typer.Option(help="Say what the columns are called, or not.")] = True,
    secret: Annotated[str, typer.Option(help="A text that the sites share and the server has not; for ids.")] = "",
    replace: Annotated[bool, typer.Option("--replace", help="Replace what is there. Default: not.")] = False,
) -> None:
    """Write what jobs may do at this site (local/fedspan.toml), and close what the kit leaves open by default."""
    from fedspan.deployment.kit import init_site

    more: dict[str, Any] = {"columns": columns.split(",") if columns else None, "id": id, "label": label}
    more["secret"] = secret or None
    tables = {}
    for text in data:
        name, _, address = text.partition("=") if "=" in text.split("/")[0] else ("default", "", text)
        address = address if "://" in address else str(Path(address).absolute())
        tables[name] = {"path": address} | {key: value for key, value in more.items() if value is not None}
    rules: dict[str, Any] = {"algorithms": algorithms.split(",")} if algorithms else {}
    init_site(
        kit, tables, replace=replace, secure=secure, others=others, epsilon=epsilon, delta=delta, row_norm=row_norm,
        rows=sizes, names=names, **rules,
    )  # fmt: skip
    typer.echo(f"wrote {kit / 'local' / 'fedspan.toml'}; look it over, then: fedspan site check {kit}")


@site.command("check")
def check(kit: Annotated[Path, typer.Argument(metavar="KIT", help="The site's kit.")]) -> None:
    """Read the site's configuration and its data as a job would, and say what it would allow. Nothing is sent."""
    from fedspan.deployment.kit import expired
    from fedspan.deployment.policy import Policy
    from fedspan.deployment.site_service import opened

    policy = Policy.read(kit)
    expired(kit)
    for name, table in policy.tables.items():
        rows = opened(table, {}, in_batches=True)
        typer.echo(f"table {name}: {rows.X.shape[0]} rows, {rows.X.shape[1]} columns")
    sums = f"secure sums with {policy.others} other sites or more" if policy.secure else "any, also without secure sums"
    typer.echo(f"runs: {sums}; algorithms: {', '.join(policy.algorithms)}")
    budget = (
        f"epsilon {policy.epsilon:g} at delta {policy.delta:g} over all runs" if policy.epsilon else "not asked for"
    )
    typer.echo(f"noise: {budget}")


@site.command("start")
def start(kit: Annotated[Path, typer.Argument(metavar="KIT", help="The kit of a site, or of the server.")]) -> None:
    """Run the kit's process until it is stopped (Ctrl-C, or a service manager)."""
    from fedspan.deployment.kit import expired, role, server_port
    from fedspan.deployment.local import end_kit, listening, start_kit
    from fedspan.deployment.policy import Policy
    from fedspan.errors import ClientError, InputError

    expired(kit)
    if role(kit) == "site":
        Policy.read(kit)
    elif listening(server_port(kit)):
        raise InputError(f"port {server_port(kit)} is in use on this machine; stop what listens there, or take another")
    log = kit / "fedspan.log"
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a service manager's stop is a Ctrl-C
    process = start_kit(kit, log)
    try:
        typer.echo(f"started, process {process.pid}; it logs to {log}")
        code = process.wait()
    except KeyboardInterrupt:
        end_kit(kit, process)
        return
    if code:
        raise ClientError(f"the process ended with code {code}; see {log}")
