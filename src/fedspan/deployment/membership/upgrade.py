"""Federations of earlier versions: their kits go on, and their coordinator gets a register of keys."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from fedspan._files import make_private_folder, write_whole
from fedspan._foreign import parse_json
from fedspan.deployment.kit import role, tighten, tighten_rights, update_class_list
from fedspan.deployment.membership.invitation import MemberKind
from fedspan.deployment.membership.register import Profile, Register, flare_fingerprint, open_register
from fedspan.deployment.membership.signing import load_certificate
from fedspan.errors import InputError


def upgrade_kit(kit: Path) -> list[str]:
    """Give a kit what this version has: its classes, its gate or queue, and a coordinator's rights at the server."""
    kind = role(kit)
    if kind == "researcher":
        return [f"{kit} is a researcher's kit; nothing in it has to change"]
    if (kit / "local" / "resources.json").is_file():
        tighten_rights(kit)
        update_class_list(kit)
    else:
        tighten(kit)
    more = "lets a coordinator remove sites" if kind == "server" else "can run the jobs of this version"
    return [f"{kit} {more} now; start it again"]


def upgrade_project(kits: Path, folder: Path, coordinator: str) -> list[str]:
    """Found a federation on the root key that made those kits; the names of their members."""
    state = next((place for place in (kits, *kits.parents, *kits.glob("*")) if _find_key(place).is_file()), None)
    if state is None:
        raise InputError(
            f"There is no root key near {kits}: `fedspan federation provision` wrote it to state/cert.json beside the "
            "kits. Bring it from where it is kept."
        )
    if folder.exists() and any(folder.iterdir()):
        raise InputError(f"{folder} already exists and is not empty; choose another with --folder.")
    made = sorted(path.parent for path in state.glob("prod_*/*/startup"))
    server = next((kit for kit in made if role(kit) == "server"), None)
    if server is None:
        raise InputError(f"There is no server's kit in {state}.")
    tree = parse_json((server / "startup" / "fed_server.json").read_bytes())["servers"][0]
    host, port = tree["service"]["target"].rsplit(":", 1)
    scheme = str(tree["service"].get("scheme", "grpc"))
    keys = parse_json(_find_key(state).read_bytes())
    register = Register(folder)
    make_private_folder(register.root)
    write_whole(register.root / "rootCA.key", str(keys["root_pri_key"]))
    write_whole(register.root / "rootCA.pem", str(keys["root_cert"]))
    root = load_certificate(str(keys["root_cert"]).encode())
    name = str(tree["name"])
    about = {"project": name, "created_at": "", "provision_version": "00"}
    about["rootCA_fingerprint"] = flare_fingerprint(root)
    write_whole(register.root / "ca.json", json.dumps(about))
    profile = Profile(name, host, int(port), scheme, admin_port=int(tree["admin_port"]))
    try:
        open_register(register, profile, coordinator, days=365)
    except BaseException:
        shutil.rmtree(folder)
        raise
    names = []
    for kit in made:
        kind: MemberKind = {"site": "site", "server": "server", "researcher": "researcher"}[role(kit)]  # type: ignore[assignment]
        file = "server.crt" if kind == "server" else "client.crt"
        register.adopt(kit.name, kind, (kit / "startup" / file).read_bytes())
        names.append(kit.name)
    return names


def _find_key(place: Path) -> Path:
    return place / "state" / "cert.json"
