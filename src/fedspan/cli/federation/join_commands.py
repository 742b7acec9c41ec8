"""`fedspan site join | renew`: a site, the server or a researcher becomes a member, with a key that stays here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedspan.deployment.kit import role
from fedspan.deployment.membership.fingerprints import same_fingerprint
from fedspan.deployment.membership.invitation import read_invitation
from fedspan.deployment.membership.joining import finish_joining, install_renewal, request_membership
from fedspan.errors import InputError

joining = typer.Typer(add_completion=False)


@joining.command("join")
def join_command(
    invitation: Annotated[
        Path | None, typer.Argument(metavar="INVITATION", help="The file that the coordinator sent; default: none.")
    ] = None,
    finish: Annotated[
        Path | None, typer.Option(metavar="SIGNED", help="Make the kit from what came back; default: make a request.")
    ] = None,
    fingerprint: Annotated[
        str | None,
        typer.Option(help="The invitation's fingerprint, as the coordinator read it out; default: it is shown."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="With --finish: the kit; default: named after the member.")
    ] = None,
) -> None:
    """Take part in a federation: make a key here, and a request to send. When it is approved, make the kit.

    The key never leaves this machine. Type both commands in the same folder.
    """
    here = Path.cwd()
    if (invitation is None) == (finish is None):
        raise InputError("Give either the invitation, or --finish with the file that the coordinator sent back.")
    if finish is not None:
        kit = finish_joining(finish, here, out)
        typer.echo(f"the kit of this {role(kit)} is {kit}; its key was made here and is nowhere else")
        follow = {"site": f"fedspan site init {kit} --data …", "server": f"fedspan site start {kit}"}
        typer.echo(f"next: {follow.get(role(kit), f'fedspan run job.toml --on {kit}')}")
        return
    if invitation is None:
        return
    told = read_invitation(invitation)
    if fingerprint is not None and not same_fingerprint(fingerprint, told.print):
        raise InputError(
            f"The coordinator read out {fingerprint}, but the fingerprint of this invitation is {told.print}. It is "
            "not the coordinator's; nothing was made."
        )
    told, key, place = request_membership(invitation, here)
    typer.echo(f"invitation of {told.name!r} to {told.federation!r}, server {told.server}:{told.port}")
    typer.echo(f"fingerprint of the invitation: {told.print}  (compare it with what the coordinator reads out)")
    typer.echo(f"fingerprint of your key:       {key}  (read it out to the coordinator)")
    typer.echo(f"wrote {place}; send it to the coordinator. It holds no secret; the key stays in {told.name}.keys")
    typer.echo(f"when {told.name}.signed.zip comes back: fedspan site join --finish {told.name}.signed.zip")


@joining.command("renew")
def renew_kit(
    kit: Annotated[Path, typer.Argument(metavar="KIT", help="The kit of a site, a researcher or the server.")],
    certificate: Annotated[Path, typer.Argument(metavar="CERTIFICATE", help="What the coordinator sent.")],
) -> None:
    """Install a renewed certificate. It holds no secret, and fits only the key that is in the kit."""
    until = install_renewal(kit, certificate)
    typer.echo(f"valid until {until}; start {kit} again for it to count")
