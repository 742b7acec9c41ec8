"""`fedspan federation found | invite | approve | remove | …`: who belongs to a federation. For its coordinator."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from fedspan.deployment.membership.delivery import deliver_removals
from fedspan.deployment.membership.fingerprints import same_fingerprint
from fedspan.deployment.membership.invitation import MemberKind
from fedspan.deployment.membership.register import Profile, Register, days_left, found_federation, invite_coordinator
from fedspan.deployment.membership.upgrade import upgrade_kit, upgrade_project
from fedspan.errors import ClientError, InputError

members = typer.Typer(add_completion=False)
Offline = Annotated[bool, typer.Option("--offline", help="Only note it here; default: tell server and sites now.")]
Folder = Annotated[Path, typer.Option(help="The coordinator's folder, which `fedspan federation found` made.")]
_DEFAULT_FOLDER = Path("federation")
Days = Annotated[int, typer.Option(min=1, help="For how many days the certificate is valid.")]


@members.command("found")
def found_command(
    server: Annotated[str, typer.Option(help="The host name under which sites and researchers reach the server.")],
    coordinator: Annotated[str, typer.Option(help="Your e-mail address: the name in your own certificate.")],
    name: Annotated[str, typer.Option(help="The federation's name.")] = "study",
    port: Annotated[int, typer.Option(help="The server's one port, for sites and researchers; it can be 443.")] = 8002,
    driver: Annotated[
        str, typer.Option(help="What the connections look like: grpc (goes through https_proxy) or http (websockets).")
    ] = "grpc",
    days: Annotated[int, typer.Option(min=1, help="For how many days the root certificate is valid.")] = 3650,
    folder: Folder = _DEFAULT_FOLDER,
) -> None:
    """Found a federation: make the root key and your own kit, here. All other keys are made where they are used."""
    register = found_federation(folder, Profile(name, server, port, driver), coordinator, days=days)
    typer.echo(f"root certificate: {register.read().root}")
    typer.echo(f"the root key is in {register.root}; whoever has it can create a member: keep it offline")
    typer.echo(f"your own kit: {register.find_coordinator()}")
    typer.echo(f"next: fedspan federation invite {server} --server{_show_folder(folder)}; then sites and researchers")


@members.command("invite")
def invite_command(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A site's name, or a researcher's e-mail address.")],
    server: Annotated[bool, typer.Option("--server", help="It is the server; default: a site or researcher.")] = False,
    coordinator: Annotated[
        bool, typer.Option("--coordinator", help="Another coordinator, whose kit is made here; default: no.")
    ] = False,
    days: Annotated[float, typer.Option(help="For how many days the invitation can be answered.")] = 14,
    replace: Annotated[
        bool, typer.Option("--replace", help="Make an earlier invitation invalid that was not answered; default: no.")
    ] = False,
    folder: Folder = _DEFAULT_FOLDER,
) -> None:
    """Invite a site, a researcher or the server: write a file to send. It holds no secret."""
    if coordinator:
        typer.echo(f"your own kit: {invite_coordinator(Register(folder), name, days=365)}")
        return
    _invite(name, "server" if server else "researcher" if "@" in name else "site", days, replace, folder)


@members.command("add-researcher")
def add_researcher(
    email: Annotated[str, typer.Argument(metavar="EMAIL", help="The researcher's e-mail address.")],
    days: Annotated[float, typer.Option(help="For how many days the invitation can be answered.")] = 14,
    folder: Folder = _DEFAULT_FOLDER,
) -> None:
    """Invite a researcher. Sites decide themselves whose jobs they run: fedspan site researchers KIT."""
    _invite(email, "researcher", days, False, folder)


def _invite(name: str, kind: MemberKind, days: float, replace: bool, folder: Path) -> None:
    invitation, place = Register(folder).invite(name, kind, days=days, replace_old=replace)
    typer.echo(f"wrote {place}, valid until {invitation.expires[:10]}")
    typer.echo(f"fingerprint of the invitation: {invitation.print}")
    typer.echo(
        f"send the file to {name}; there: fedspan site join {place.name}. Tell its fingerprint over the telephone, "
        "so that they know that it is yours"
    )


@members.command("approve")
def approve_command(
    request: Annotated[Path, typer.Argument(metavar="REQUEST", help="The request that came back.")],
    fingerprint: Annotated[
        str | None,
        typer.Option(help="The key's fingerprint, as its owner read it out to you; default: you are asked."),
    ] = None,
    days: Days = 365,
    folder: Folder = _DEFAULT_FOLDER,
) -> None:
    """Sign the certificate of somebody who was invited, once both have compared the fingerprint of the key."""
    register = Register(folder)
    read = register.read_checked(request)
    name, own = read.invitation.name, read.public_print
    typer.echo(f"request of {read.invitation.kind} {name!r}; fingerprint of its key: {own}")
    if fingerprint is None:
        if not sys.stdin.isatty():
            raise InputError(
                f"Ask {name!r} over the telephone for the fingerprint that `fedspan site join` showed, and give it: "
                "--fingerprint …"
            )
        if not typer.confirm(f"Does {name!r} read out the same fingerprint over the telephone?"):
            raise InputError("Not approved. If the fingerprints differ, somebody else has written the request.")
    elif not same_fingerprint(fingerprint, own):
        raise InputError(
            f"The fingerprint that was read out is {fingerprint}, that of the request is {own}. They differ: somebody "
            "else has written this request. It is not approved."
        )
    place = register.approve(read, days=days)
    typer.echo(f"wrote {place}, valid until {register.find_member(name).until}; it holds no secret")
    typer.echo(f"send it to {name}; there: fedspan site join --finish {place.name}")


@members.command("members")
def list_members(folder: Folder = _DEFAULT_FOLDER) -> None:
    """List who was invited and who is a member, with the fingerprints of keys and the days that are left."""
    register = Register(folder)
    issued = register.read()
    for name, member in sorted(issued.members.items()):
        left = f"{days_left(member.until)} days left" if member.until else "never finished"
        typer.echo(f"{name:<30} {member.kind:<11} {member.state:<8} {left:<15} {member.key}")
    for place in sorted((folder / "invitations").glob("*.invitation.json")):
        name = place.name.removesuffix(".invitation.json")
        if name not in issued.members:
            typer.echo(f"{name:<30} {'':<11} invited")


@members.command("renew")
def renew_command(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The member.")],
    days: Days = 365,
    folder: Folder = _DEFAULT_FOLDER,
) -> None:
    """Sign a certificate for the same key that lasts longer. Its owner installs it, and starts the kit again."""
    place, until = Register(folder).renew(name, days=days)
    typer.echo(f"wrote {place}, valid until {until}; it holds no secret")
    typer.echo(f"send it to {name}; there: fedspan site renew KIT {place.name}, then start the kit again")


@members.command("remove")
def remove_command(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The site or the researcher.")],
    folder: Folder = _DEFAULT_FOLDER,
    offline: Offline = False,
) -> None:
    """Remove a member at once: the server cuts off a site, and all sites refuse what the name has signed."""
    _change(name, "removed", folder, offline)


@members.command("remove-researcher")
def remove_researcher(
    email: Annotated[str, typer.Argument(metavar="EMAIL", help="The researcher's e-mail address.")],
    folder: Folder = _DEFAULT_FOLDER,
    offline: Offline = False,
) -> None:
    """Remove a researcher at once: sites refuse all that he or she has signed, also in runs that are under way."""
    _change(email, "removed", folder, offline)


@members.command("restore")
def restore_command(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The site or the researcher.")],
    folder: Folder = _DEFAULT_FOLDER,
    offline: Offline = False,
) -> None:
    """Take back a member that was removed. A site's process has ended meanwhile: it has to be started again."""
    _change(name, "member", folder, offline)


def _change(name: str, state: str, folder: Path, offline: bool) -> None:
    register = Register(folder)
    kind = register.find_member(name).kind
    if kind in ("server", "coordinator"):
        raise InputError(f"{name!r} is the {kind} of this federation, which cannot be removed by the sites.")
    removals = register.change_state(name, state)
    typer.echo(f"{name} is {'removed' if state == 'removed' else 'a member again'}")
    again = f"fedspan federation {'remove' if state == 'removed' else 'restore'} {name}{_show_folder(folder)}"
    if offline:
        typer.echo(f"nobody was told; to tell server and sites: {again}")
        return
    site = name if kind == "site" else None
    try:
        told = deliver_removals(register.find_coordinator(), removals, site, gone=state == "removed")
    except ClientError as error:
        raise ClientError(f"{error} Nobody was told of it yet; when the server runs again: {again}") from None
    if told.noted:
        typer.echo(f"noted by {', '.join(told.noted)}")
    if told.missing:
        typer.echo(f"not yet noted by {', '.join(told.missing)}, which do not answer; when they are there: {again}")


def _show_folder(folder: Path) -> str:
    return "" if folder == _DEFAULT_FOLDER else f" --folder {shlex.quote(str(folder))}"


@members.command("upgrade")
def upgrade_command(
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="A kit; or, at the coordinator, the folder that holds all kits.")
    ],
    coordinator: Annotated[
        str | None, typer.Option(help="For the folder of all kits: your e-mail address; default: none.")
    ] = None,
    folder: Folder = _DEFAULT_FOLDER,
) -> None:
    """Bring a kit of an earlier version up to date; or found a federation from kits that `provision` made."""
    if (path / "startup").is_dir():
        for line in upgrade_kit(path):
            typer.echo(line)
        return
    if coordinator is None:
        raise InputError(f"{path} is not a kit. If it holds the kits of a federation, add --coordinator YOUR-E-MAIL.")
    names = upgrade_project(path, folder, coordinator)
    typer.echo(f"{folder} knows {', '.join(names)}; their kits stay as they are, and can be renewed and removed now")
    typer.echo("at the server: fedspan federation upgrade KIT, and start it again")
