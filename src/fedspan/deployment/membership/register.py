"""The coordinator's folder: the root key, who was invited, and which name has which key.

    federation/
      ca/              the root key and certificate; whoever has the key can make himself a member
      profile.json     the server's address, as FLARE's commands read it
      invitations/     what was sent out
      issued.json      for every name the fingerprint of its one key, until when its certificate is valid, its state
      certificates/    the certificates that were issued, from which they are renewed
      removed.json     the signed list of names that were removed
      kits/            the coordinator's own kit

`issued.json` never gives a name a second key: two keys for one name could answer as one site.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import cast
from zipfile import ZipFile

from fedspan._files import close_tree, make_private_folder, write_whole
from fedspan._foreign import parse_json
from fedspan.core.checkpoint import build
from fedspan.deployment.membership.fingerprints import fingerprint_key
from fedspan.deployment.membership.flare_tool import call_flare
from fedspan.deployment.membership.invitation import (
    FLARE_DRIVERS,
    Invitation,
    JoinRequest,
    MemberKind,
    check_member_name,
    expires_in,
    read_request,
)
from fedspan.deployment.membership.joining import finish_joining, request_membership
from fedspan.deployment.membership.removals import sign_removals
from fedspan.deployment.membership.signing import load_certificate, renew_certificate
from fedspan.errors import CheckpointError, InputError, suggest

_ISSUED = "issued.json"


@dataclass(frozen=True)
class Member:
    """One name of a federation: its kind, the fingerprint of its key, until when, and whether it is a member now."""

    kind: str
    key: str
    until: str
    state: str = "member"


@dataclass(frozen=True)
class Profile:
    """A federation: its name, and where its server is."""

    name: str
    server: str
    port: int
    driver: str = "grpc"
    admin_port: int | None = None  # of federations that were provisioned centrally; by default it is the same

    def to_flare(self) -> str:
        """As FLARE's commands read it."""
        server = {"host": self.server, "fed_learn_port": self.port, "admin_port": self.admin_port or self.port}
        tree = {"name": self.name, "scheme": self.driver, "connection_security": "mtls", "server": server}
        return json.dumps(tree, indent=1) + "\n"


@dataclass(frozen=True)
class Issued:
    """What `issued.json` holds."""

    profile: Profile
    root: str
    number: int = 0  # of the list of removed names
    members: dict[str, Member] = field(default_factory=dict)


class Register:
    """A coordinator's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.root = folder, folder / "ca"

    def read(self) -> Issued:
        """What is known of the members."""
        path = self.folder / _ISSUED
        if not path.is_file():
            raise InputError(
                f"{self.folder} is not the folder of a federation: it has no {_ISSUED}. Give it with --folder, or make "
                "one with: fedspan federation found"
            )
        try:
            return build(Issued, parse_json(path.read_bytes()), defaults=True)
        except (OSError, ValueError, CheckpointError) as error:
            raise InputError(f"{path} is damaged: {error} Restore it from a copy.") from None

    def write(self, issued: Issued) -> None:
        write_whole(self.folder / _ISSUED, json.dumps(asdict(issued), indent=1) + "\n")

    @property
    def removals(self) -> dict[str, object] | None:
        """The signed list of removed names; None if nobody was removed yet."""
        path = self.folder / "removed.json"
        return dict(parse_json(path.read_bytes())) if path.is_file() else None

    def find_coordinator(self) -> Path:
        """The coordinator's own kit, with which the server is told."""
        kits = sorted((self.folder / "kits").glob("*/startup"))
        if not kits:
            raise InputError(
                f"There is no coordinator's kit in {self.folder / 'kits'}; make one: fedspan federation invite "
                "you@example.org --coordinator"
            )
        return kits[0].parent

    def invite(self, name: str, kind: MemberKind, *, days: float, replace_old: bool = False) -> tuple[Invitation, Path]:
        """Write an invitation for a name that has no key yet."""
        check_member_name(name, kind)
        issued = self.read()
        member = issued.members.get(name)
        if member is not None:
            raise InputError(
                f"{name!r} has a key already (fingerprint {member.key}, {member.state}), and a name gets one key only. "
                f"A longer certificate for it: fedspan federation renew {name}. If the key is lost or stolen, remove "
                "the name and invite another."
            )
        if kind == "server" and name != issued.profile.server:
            raise InputError(f"The server of this federation is {issued.profile.server!r}, not {name!r}.")
        place = self.folder / "invitations" / f"{name}.invitation.json"
        if place.exists() and not replace_old:
            raise InputError(
                f"{name!r} was invited already: {place}. Send that file again, or write another with --replace, which "
                "makes the first one invalid."
            )
        profile = issued.profile
        invitation = Invitation(
            *(profile.name, name, kind, profile.server, profile.port, profile.driver, issued.root),
            expires=expires_in(days),
            nonce=secrets.token_hex(16),
        )
        make_private_folder(place.parent)
        write_whole(place, invitation.text)
        return invitation, place

    def read_checked(self, path: Path) -> JoinRequest:
        """A request that answers a current invitation of this federation, with the one key of its name."""
        request = read_request(path)
        invitation, name = request.invitation, request.invitation.name
        own = self.folder / "invitations" / f"{name}.invitation.json"
        if not own.is_file() or own.read_text(encoding="utf-8") != invitation.text:
            raise InputError(
                f"The request of {name!r} answers an invitation that is not this federation's, or was replaced since. "
                "Do not approve it; if you know who sent it, send your invitation again."
            )
        invitation.check_current()
        request.check_names()
        member = self.read().members.get(name)
        if member is not None and member.key != request.public_print:
            raise InputError(
                f"{name!r} has a certificate for another key, with the fingerprint {member.key}; this request has "
                f"{request.public_print}. Two keys could answer as one member, so it is refused. Ask who sent it."
            )
        return request

    def approve(self, request: JoinRequest, *, days: int) -> Path:
        """Sign the certificate of a request that was read by `read_checked`; the file to send back."""
        name = request.invitation.name
        issued = self.read()
        place = self.folder / "signed" / f"{name}.signed.zip"
        make_private_folder(place.parent)
        archive = place.with_suffix(".request")
        write_whole(archive, request.archive)
        member = Member(request.invitation.kind, request.public_print, until="", state="being approved")
        self.write(replace(issued, members={**issued.members, name: member}))  # before anything is signed
        profile = place.with_suffix(".profile")
        write_whole(profile, issued.profile.to_flare())
        options = ("-c", self.root, "--profile", profile, "--valid-days", str(days), "--out", place, "--force")
        call_flare("cert", "approve", archive, *options)
        archive.unlink()
        profile.unlink()
        with ZipFile(place) as signed:
            certificate = signed.read(f"{name}.crt")
        self._note(name, request.invitation.kind, certificate)
        return place

    def _note(self, name: str, kind: str, certificate: bytes, state: str = "member") -> Member:
        """Write down a certificate."""
        make_private_folder(self.folder / "certificates")
        write_whole(self.folder / "certificates" / f"{name}.crt", certificate)
        until = f"{load_certificate(certificate).not_valid_after_utc:%Y-%m-%d}"
        member, issued = Member(kind, fingerprint_key(certificate), until, state), self.read()
        self.write(replace(issued, members={**issued.members, name: member}))
        return member

    def find_member(self, name: str) -> Member:
        issued = self.read()
        if name not in issued.members:
            raise InputError(f"There is no member {name!r}. {suggest(name, issued.members)}")
        return issued.members[name]

    def renew(self, name: str, *, days: int) -> tuple[Path, str]:
        """A certificate of the same key that lasts longer: the file to send, and until when it is valid."""
        member = self.find_member(name)
        if member.state != "member":
            raise InputError(f"{name!r} is {member.state}. To take it back first: fedspan federation restore {name}")
        old = (self.folder / "certificates" / f"{name}.crt").read_bytes()
        new = renew_certificate(old, self.root, days)
        before, after = (load_certificate(pem).not_valid_after_utc for pem in (old, new))
        if after <= before:
            root = load_certificate((self.root / "rootCA.pem").read_bytes()).not_valid_after_utc
            raise InputError(
                f"The certificate of {name!r} lasts until {before:%Y-%m-%d} already, and this one would last until "
                f"{after:%Y-%m-%d}. Give more --days; none lasts longer than the root certificate, which ends on "
                f"{root:%Y-%m-%d} (then found a new federation)."
            )
        until = self._note(name, member.kind, new).until
        place = self.folder / "signed" / f"{name}.renewed.crt"
        make_private_folder(place.parent)
        write_whole(place, new, public=True)
        return place, until

    def change_state(self, name: str, state: str) -> dict[str, object]:
        """Remove a name, or take it back: a new list of removed names, signed, with the next number."""
        member, issued = self.find_member(name), self.read()
        members = {**issued.members, name: replace(member, state=state)}
        removed = [other for other, own in members.items() if own.state == "removed"]
        changed = member.state != state or self.removals is None
        number = issued.number + 1 if changed else issued.number
        tree = sign_removals(self.root, issued.profile.name, number, removed)
        self.write(replace(issued, number=number, members=members))
        write_whole(self.folder / "removed.json", json.dumps(tree, indent=1) + "\n")
        return tree

    def adopt(self, name: str, kind: MemberKind, certificate: bytes) -> None:
        """Write down a member whose kit was made before there was a register."""
        self._note(name, kind, certificate)


def found_federation(folder: Path, profile: Profile, coordinator: str, *, days: int) -> Register:
    """Make the folder of a federation: its root key, and the coordinator's own kit."""
    if folder.exists() and any(folder.iterdir()):
        raise InputError(f"{folder} already exists and is not empty; choose another with --folder.")
    check_member_name(profile.server, "server")
    check_member_name(coordinator, "coordinator")
    check_profile(profile)
    make_private_folder(folder)
    write_whole(folder / "profile.json", profile.to_flare())
    call_flare("cert", "init", "--profile", folder / "profile.json", "-o", folder / "ca", "--valid-days", str(days))
    register = Register(folder)
    return open_register(register, profile, coordinator, days=min(days, 365))


def open_register(register: Register, profile: Profile, coordinator: str, *, days: int) -> Register:
    """Begin `issued.json` beside a root key that is there, and make the coordinator's kit."""
    root = load_certificate((register.root / "rootCA.pem").read_bytes())
    register.write(Issued(profile, flare_fingerprint(root)))
    invite_coordinator(register, coordinator, days=days)
    close_tree(register.folder)
    return register


def invite_coordinator(register: Register, name: str, *, days: int) -> Path:
    """Make a coordinator's kit here, where the root key is."""
    _, invitation = register.invite(name, "coordinator", days=1)
    here = register.folder / "kits"
    make_private_folder(here)
    request_membership(invitation, here)
    place = here / f"{name}.request.json"
    signed = register.approve(register.read_checked(place), days=days)
    place.unlink()
    return finish_joining(signed, here, None)


def check_profile(profile: Profile) -> None:
    if not 1 <= profile.port <= 65535:
        raise InputError(f"A port is a number from 1 to 65535, not {profile.port}.")
    if profile.driver not in FLARE_DRIVERS:
        raise InputError(f"The driver is one of {', '.join(FLARE_DRIVERS)}, not {profile.driver!r}.")
    if not profile.name.replace("-", "").replace("_", "").isalnum() or not profile.name.isascii():
        raise InputError(f"A federation's name consists of letters, digits, - and _, but is {profile.name!r}.")


def flare_fingerprint(certificate: object) -> str:
    """The fingerprint of a certificate as FLARE's commands write it."""
    from cryptography import x509
    from cryptography.hazmat.primitives.hashes import SHA256

    own = cast(x509.Certificate, certificate).fingerprint(SHA256()).hex(":").upper()
    return f"SHA256:{own}"


def days_left(until: str) -> int:
    """How many days a certificate is still valid."""
    return (datetime.fromisoformat(until).replace(tzinfo=UTC) - datetime.now(UTC)).days
