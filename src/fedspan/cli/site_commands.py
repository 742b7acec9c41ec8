"""`fedspan site`: a site's part in a federation on NVIDIA FLARE."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated

import typer

from fedspan.deployment.kit import check_certificates, init_site, role, server_port
from fedspan.deployment.local import end_kit, is_listening, start_kit
from fedspan.deployment.policy import Policy
from fedspan.deployment.site_service import open_site_table
from fedspan.errors import ClientError, InputError

site = typer.Typer(add_completion=False, no_args_is_help=True)  # the list of commands in main.py has its help


@site.command("init")
def write_policy(
    kit: Annotated[Path, typer.Argument(metavar="KIT", help="The site's kit.")],
    data: Annotated[
        list[str],
        typer.Option(help="A file or database address that jobs may use, or NAME=ADDRESS; may be repeated."),
    ],
    columns: Annotated[
        str | None, typer.Option(help="The columns that jobs may use, separated by commas; default: all.")
    ] = None,
    id: Annotated[str | None, typer.Option(help="The column that holds ids; default: none.")] = None,
    label: Annotated[str | None, typer.Option(help="The column that holds labels; default: none.")] = None,
    algorithms: Annotated[
        str | None, typer.Option(help="The algorithms allowed, separated by commas; default: all.")
    ] = None,
    secure: Annotated[bool, typer.Option(help="Accept only runs with secure sums, or any run.")] = True,
    others: Annotated[int, typer.Option(help="The least number of other sites in a secure sum.")] = 2,
    epsilon: Annotated[
        float | None, typer.Option(help="The budget of all runs together; default: runs need no noise.")
    ] = None,
    delta: Annotated[float | None, typer.Option(help="The delta that goes with epsilon; default: none.")] = None,
    row_norm: Annotated[
        float | None, typer.Option(help="The largest row norm that a job may set; default: any.")
    ] = None,
    sizes: Annotated[bool, typer.Option(help="Tell others how many rows there are, or not.")] = True,
    names: Annotated[bool, typer.Option(help="Tell others the names of the columns, or not.")] = True,
    secret: Annotated[str, typer.Option(help="A text that all sites know and the server does not; it hides ids.")] = "",
    replace: Annotated[bool, typer.Option("--replace", help="Replace an existing policy; default: refuse.")] = False,
) -> None:
    """Write the site's policy (local/fedspan.toml): what jobs may do here. Close what a FLARE kit leaves open."""
    own = {"columns": columns.split(",") if columns else None, "id": id, "label": label, "secret": secret or None}
    given = {key: value for key, value in own.items() if value is not None}
    tables = {}
    for text in data:
        name, _, address = text.partition("=") if "=" in text.split("/")[0] else ("default", "", text)
        address = address if "://" in address else str(Path(address).absolute())
        tables[name] = {"path": address, **given}
    init_site(
        kit,
        tables,
        replace=replace,
        secure=secure,
        others=others,
        epsilon=epsilon,
        delta=delta,
        row_norm=row_norm,
        rows=sizes,
        names=names,
        **({"algorithms": algorithms.split(",")} if algorithms else {}),
    )
    typer.echo(f"wrote {kit / 'local' / 'fedspan.toml'}; look it over, then: fedspan site check {kit}")


@site.command("check")
def check_site(kit: Annotated[Path, typer.Argument(metavar="KIT", help="The site's kit.")]) -> None:
    """Read the site's policy and data as a job would, and say what jobs may do. Nothing is sent."""
    policy = Policy.read(kit)
    check_certificates(kit)
    for name, table in policy.tables.items():
        rows = open_site_table(table, {}, in_batches=True)
        typer.echo(f"table {name}: {rows.X.shape[0]} rows, {rows.X.shape[1]} columns")
    sums = f"secure sums with {policy.others} other sites or more" if policy.secure else "any, also without secure sums"
    typer.echo(f"runs: {sums}; algorithms: {', '.join(policy.algorithms)}")
    budget = (
        f"epsilon {policy.epsilon:g} at delta {policy.delta:g} over all runs" if policy.epsilon else "not asked for"
    )
    typer.echo(f"noise: {budget}")


@site.command("start")
def start_site(
    kit: Annotated[Path, typer.Argument(metavar="KIT", help="The kit of a site, or of the server.")],
) -> None:
    """Run the process of a site or of the server until it is stopped (by Ctrl-C or a service manager)."""
    check_certificates(kit)
    if role(kit) == "site":
        Policy.read(kit)
    elif is_listening(server_port(kit)):
        port = server_port(kit)
        raise InputError(f"Port {port} is in use on this machine; stop what listens there, or choose another port.")
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
        raise ClientError(f"The process ended with code {code}; see {log}.")
