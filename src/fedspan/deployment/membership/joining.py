"""Take part in a federation: the key is made here and stays here; what is sent is a request, what comes is a kit.

fedspan site join north.invitation.json            # makes the key, writes north.request.json
fedspan site join --finish north.signed.zip        # makes the kit, once the coordinator has approved
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from fedspan._files import close_tree, make_private_folder, write_whole
from fedspan.deployment.kit import role, tighten
from fedspan.deployment.membership.fingerprints import fingerprint_key
from fedspan.deployment.membership.flare_tool import call_flare
from fedspan.deployment.membership.invitation import Invitation, JoinRequest, read_invitation
from fedspan.deployment.membership.signing import check_renewal
from fedspan.deployment.operations.kit_place import bind_kit
from fedspan.errors import FedspanError, InputError

_KEPT_INVITATION = "invitation.json"


def keys_folder(name: str, here: Path) -> Path:
    """Where the key of a member waits for its certificate."""
    return here / f"{name}.keys"


def request_membership(path: Path, here: Path) -> tuple[Invitation, str, Path]:
    """Make a key for an invitation; the invitation, the key's fingerprint, and the request to send back.

    Called again, it writes the request of the same key again.
    """
    invitation = read_invitation(path)
    keys = keys_folder(invitation.name, here)
    if not (keys / _KEPT_INVITATION).is_file():
        make_private_folder(keys)
        with tempfile.TemporaryDirectory(dir=keys) as folder:
            asks = Path(folder) / "participant.yaml"
            asks.write_text(invitation.describe_participant(), encoding="utf-8")
            call_flare("cert", "request", "-p", asks, "--out", keys / "flare", "--force")
        write_whole(keys / _KEPT_INVITATION, invitation.text)
        close_tree(keys)
    elif read_invitation(keys / _KEPT_INVITATION) != invitation:
        raise InputError(
            f"{keys} holds the key for another invitation of {invitation.name!r}. To begin anew, delete that folder: "
            "its key then counts for nothing any more."
        )
    request = JoinRequest(invitation, (keys / "flare" / f"{invitation.name}.request.zip").read_bytes())
    place = here / f"{invitation.name}.request.json"
    write_whole(place, request.to_text(), public=True)
    return invitation, request.public_print, place


def finish_joining(signed: Path, here: Path, out: Path | None) -> Path:
    """Make the kit from what the coordinator has signed and the key that waits here."""
    if not signed.is_file():
        raise InputError(f"There is no file {signed}; give the one that the coordinator sent back.")
    name = signed.name.split(".signed")[0]
    keys = keys_folder(name, here)
    if not (keys / _KEPT_INVITATION).is_file():
        raise InputError(
            f"There is no key for {name!r} in {keys}. Type this where you typed: fedspan site join INVITATION. A kit "
            "can be finished only where its key was made."
        )
    invitation = read_kept(keys / _KEPT_INVITATION)
    kit = out or here / name
    if kit.exists():
        raise InputError(f"{kit} already exists; choose another folder with --out.")
    with tempfile.TemporaryDirectory(dir=keys) as folder:
        try:
            call_flare(
                *("package", signed, "-w", folder, "--request-dir", keys / "flare", "--fingerprint", invitation.root)
            )
        except FedspanError as error:
            raise InputError(
                f"{signed} does not fit the key and the invitation that are here: it is for another request, or not "
                f"signed by the root certificate {invitation.root[:30]}… that the invitation names. ({error})"
            ) from None
        made = Path(folder) / invitation.federation / "prod_00" / name
        if not (made / "startup").is_dir():
            raise FedspanError(f"FLARE made no kit from {signed}. Ask the coordinator to sign the request again.")
        close_tree(made)
        shutil.move(made, kit)
    if role(kit) != "researcher":
        tighten(kit)
        bind_kit(kit)
    shutil.rmtree(keys)  # the kit has the key now, and one copy is enough
    return kit


def read_kept(path: Path) -> Invitation:
    """The invitation that was accepted here; it may have expired since."""
    try:
        return read_invitation(path)
    except InputError as error:
        if "expired" not in str(error):
            raise
        raise InputError(f"{error} The key that waits for it can be deleted: {path.parent}") from None


def install_renewal(kit: Path, certificate: Path) -> str:
    """Put a renewed certificate into a kit, if it is for the kit's own key; until when it is valid is returned."""
    name = "server.crt" if role(kit) == "server" else "client.crt"
    place = kit / "startup" / name
    try:
        new = certificate.read_bytes()
    except OSError as error:
        raise InputError(f"Cannot read {certificate}: {error.strerror}.") from None
    ends = check_renewal(place.read_bytes(), new, (kit / "startup" / "rootCA.pem").read_bytes())
    if fingerprint_key(place.read_bytes()) != fingerprint_key(new):
        raise InputError(f"{certificate} is for another key than this kit's. Ask the coordinator for this kit's own.")
    write_whole(place, new)
    return ends
