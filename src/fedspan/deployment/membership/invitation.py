"""An invitation: what the coordinator sends to somebody who is to take part, and what comes back as a request.

Neither holds a secret. The invitation names the federation, the server's address and the fingerprint of the root
certificate, so that whoever accepts it recognises the certificates that come later. The request carries the whole
invitation again, and FLARE's request for a certificate, in which the public key is.
"""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from io import BytesIO
from pathlib import Path
from typing import Literal
from zipfile import BadZipFile, ZipFile

from fedspan._foreign import parse_json, printable
from fedspan.core.checkpoint import build
from fedspan.deployment.membership.fingerprints import fingerprint, fingerprint_key
from fedspan.errors import CheckpointError, InputError

MemberKind = Literal["site", "server", "researcher", "coordinator"]
MEMBER_KINDS: tuple[MemberKind, ...] = ("site", "server", "researcher", "coordinator")
FLARE_DRIVERS = ("grpc", "http")
_LARGEST_REQUEST = 1 << 20  # bytes of a request: a real one has 3 kB
_FLARE_KIND: dict[str, tuple[str, str | None]] = {
    "site": ("client", None),
    "server": ("server", None),
    "researcher": ("admin", "lead"),
    "coordinator": ("admin", "org_admin"),
}


@dataclass(frozen=True)
class Invitation:
    """Who is invited to what. `root` is the fingerprint of the root certificate, as FLARE writes it."""

    federation: str
    name: str
    kind: str
    server: str
    port: int
    driver: str
    root: str
    expires: str
    nonce: str

    @property
    def text(self) -> str:
        return json.dumps(asdict(self), indent=1, sort_keys=True) + "\n"

    @property
    def print(self) -> str:
        """Its fingerprint."""
        return fingerprint(self.text.encode())

    @property
    def organisation(self) -> str:
        name = self.name.split("@")[-1]
        return "".join(letter if letter.isalnum() and letter.isascii() else "_" for letter in name)

    def check_current(self) -> None:
        """Refuse an invitation that has expired."""
        ends = datetime.fromisoformat(self.expires)
        if datetime.now(UTC) > ends:
            raise InputError(
                f"The invitation of {self.name!r} expired on {ends:%Y-%m-%d}. Ask the coordinator for a new one: "
                f"fedspan federation invite {self.name}. (If that date is not past, this machine's clock is wrong.)"
            )

    def describe_participant(self) -> str:
        """The participant as FLARE's commands read it (YAML, of which JSON is a part)."""
        kind, role = _FLARE_KIND[self.kind]
        person = {"name": self.name, "type": kind, "org": self.organisation, **({"role": role} if role else {})}
        return json.dumps({"name": self.federation, "participants": [person]}) + "\n"


def expires_in(days: float) -> str:
    """The moment so many days from now, to the second."""
    return (datetime.now(UTC) + timedelta(days=days)).isoformat(timespec="seconds")


def read_invitation(path: Path) -> Invitation:
    """The invitation in a file, if it is one and has not expired."""
    invitation = _parse_invitation(_read_file(path, "invitation"), path)
    invitation.check_current()
    return invitation


@dataclass(frozen=True)
class JoinRequest:
    """A request to take part: the invitation that it answers, and FLARE's request for a certificate."""

    invitation: Invitation
    archive: bytes

    @property
    def public_print(self) -> str:
        """The fingerprint of the public key that a certificate is asked for."""
        return fingerprint_key(self._read_member(f"{self.invitation.name}.csr"))

    def check_names(self) -> None:
        """Refuse a request whose parts are about somebody else than the invitation."""
        told = parse_json(self._read_member("request.json"))
        kind, role = _FLARE_KIND[self.invitation.kind]
        wanted = {"name": self.invitation.name, "project": self.invitation.federation}
        if not isinstance(told, dict) or any(told.get(key) != value for key, value in wanted.items()):
            raise InputError("The request asks for another name or another federation than its invitation.")
        if told.get("cert_type") != (role or kind) or told.get("org") != self.invitation.organisation:
            raise InputError("The request asks for another kind of certificate than its invitation.")

    def to_text(self) -> str:
        tree = {"invitation": asdict(self.invitation), "request": base64.b64encode(self.archive).decode("ascii")}
        return json.dumps(tree, indent=1) + "\n"

    def _read_member(self, name: str) -> bytes:
        try:
            with ZipFile(BytesIO(self.archive)) as archive:
                if archive.getinfo(name).file_size > _LARGEST_REQUEST:
                    raise InputError(f"{name} in the request is too large.")
                return archive.read(name)
        except (BadZipFile, KeyError, ValueError, OSError):
            raise InputError(f"The request is damaged: {name} cannot be read. Ask for it to be sent again.") from None


def read_request(path: Path) -> JoinRequest:
    """The request in a file."""
    tree = _read_file(path, "request")
    try:
        archive = base64.b64decode(str(tree["request"]), validate=True)
        invitation = _parse_invitation(tree["invitation"], path)
    except (KeyError, TypeError, binascii.Error, ValueError):
        raise InputError(f"{path} is not a request to join; it is written by: fedspan site join INVITATION") from None
    return JoinRequest(invitation, archive)


def _read_file(path: Path, what: str) -> dict[str, object]:
    try:
        if path.stat().st_size > _LARGEST_REQUEST:
            raise InputError(f"{path} is too large for a file with an {what}.")
        tree = parse_json(path.read_bytes())
    except OSError as error:
        raise InputError(f"Cannot read {path}: {error.strerror}.") from None
    except ValueError:
        tree = None
    if not isinstance(tree, dict):
        raise InputError(f"{path} holds no {what}. Give the file as it was sent.")
    return tree


def _parse_invitation(tree: object, path: Path) -> Invitation:
    try:
        found = build(Invitation, tree)
        expires = datetime.fromisoformat(found.expires)
    except (CheckpointError, ValueError) as error:
        raise InputError(f"{path} holds no invitation: {printable(str(error))}") from None
    if expires.tzinfo is None or found.kind not in MEMBER_KINDS or found.driver not in FLARE_DRIVERS:
        raise InputError(f"{path} holds an invitation of a kind that this version does not know.")
    check_member_name(found.name, found.kind)
    return found


def check_member_name(name: str, kind: str) -> None:
    """Refuse names that FLARE, a certificate or a path could take amiss."""
    plain = name.replace("-", "").replace("_", "")
    if kind in ("researcher", "coordinator"):
        user, _, domain = name.partition("@")
        if not user or "." not in domain or not all(c.isascii() and (c.isalnum() or c in "-_.@") for c in name):
            raise InputError(f"A {kind} is named by an e-mail address, but is {name!r}.")
    elif kind == "site" and not (plain.isalnum() and name.isascii()):
        raise InputError(f"A site's name consists of letters, digits, - and _, but is {name!r}.")
    elif kind == "server" and not (plain.replace(".", "").isalnum() and name.isascii()):
        raise InputError(f"The server is named by its host name, but is {name!r}.")
    if not name[0].isalnum() or len(name) > 64:
        raise InputError(f"A name begins with a letter or digit and has at most 64 characters; {name!r} does not.")
