"""Where a kit lives: a copy of it on a second machine must not run, because two processes would answer as one site."""

from __future__ import annotations

import json
import socket
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path

from fedspan._files import make_private_folder, write_whole
from fedspan._foreign import parse_json
from fedspan.core.checkpoint import build
from fedspan.errors import CheckpointError, InputError

_MACHINE = (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id"))


@dataclass(frozen=True)
class KitPlace:
    """The machine, as a digest of its id, and the folder."""

    machine: str
    folder: str


def find_place(kit: Path) -> KitPlace:
    """Where a kit is now. A machine without an id, as in a container, is known by its host name."""
    name = socket.gethostname()
    for path in _MACHINE:
        try:
            name = path.read_text(encoding="utf-8").strip() or name
            break
        except OSError:
            continue
    return KitPlace(sha256(f"fedspan {name}".encode()).hexdigest()[:32], str(kit.resolve()))


def bind_kit(kit: Path) -> None:
    """Write down that this kit runs here from now on."""
    make_private_folder(kit / "fedspan")
    write_whole(kit / "fedspan" / "place.json", json.dumps(asdict(find_place(kit))))


def check_place(kit: Path, *, moved: bool = False) -> None:
    """Refuse a copy of a kit that runs elsewhere; bind one that runs nowhere yet. `moved`: the other is gone."""
    path, here = kit / "fedspan" / "place.json", find_place(kit)
    if moved or not path.exists():
        bind_kit(kit)
        return
    try:
        bound = build(KitPlace, parse_json(path.read_bytes()))
    except (OSError, ValueError, CheckpointError):
        bound = KitPlace("", "")
    if bound == here:
        return
    if bound.machine == here.machine and not (Path(bound.folder) / "startup").is_dir():
        bind_kit(kit)  # the folder was renamed
        return
    where = f"in {bound.folder} on this machine" if bound.machine == here.machine else "on another machine"
    raise InputError(
        f"This kit belongs {where}, and this is a copy: two processes with one key would answer as one site. If it was "
        f"moved, and the other one will not run again: fedspan site start {kit} --moved. For a second site, ask the "
        "coordinator for an invitation of its own."
    )
