"""The names that a federation has removed: a list that the coordinator's root key signed, and that sites obey.

Each list is whole and has a number, so that nobody can bring an older one in which a name was still good. A site keeps
the newest in `fedspan/removed.json` of its kit, and refuses whatever those names have signed: jobs of a researcher, and
keys of a site in verified runs.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from fedspan._files import make_private_folder, write_whole
from fedspan._foreign import parse_json
from fedspan.core.checkpoint import build
from fedspan.deployment.membership.signing import is_signed_by_root, sign_by_root
from fedspan.errors import CheckpointError, InputError, PolicyRefusal, ProtocolError

REMOVAL_NOTICE = "removed"  # a list among what a job requires of each site: the way it travels
REMOVALS_TAKEN = "refused: this site has noted who was removed"  # how a site says so
_SIGNED_AS = b"fedspan removals\n"
_MOST_REMOVALS = 1_000_000  # characters


@dataclass(frozen=True)
class Removals:
    """Who was removed, as of one number."""

    federation: str
    number: int
    names: tuple[str, ...]

    @property
    def signed_text(self) -> bytes:
        return _SIGNED_AS + json.dumps(asdict(self), sort_keys=True).encode()


def sign_removals(root: Path, federation: str, number: int, names: Sequence[str]) -> dict[str, object]:
    """A signed list, as it travels."""
    removals = Removals(federation, number, tuple(sorted(names)))
    return {**asdict(removals), "signature": sign_by_root(root, removals.signed_text)}


def read_removed(kit: Path) -> Removals | None:
    """The list that a site has; None if it has none. One that is not the root's is not overlooked."""
    path = kit / "fedspan" / "removed.json"
    try:
        tree = parse_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        tree = None
    try:
        return _verify_removals(kit, tree)
    except PolicyRefusal:
        raise InputError(f"{path} is damaged, so nothing runs here. Ask the coordinator for the list again.") from None


def take_removals(kit: Path, tree: object) -> Removals | None:
    """Keep a list that came, if the root signed it and none is newer; None if it is the one that is kept already.

    Whoever has seen a list can send it again and again: that must fill no disk.
    """
    removals, own = _verify_removals(kit, tree), read_removed(kit)
    if removals == own:
        return None
    if own is not None and removals.number < own.number:
        raise PolicyRefusal(f"refused: the list of removed names is number {removals.number}, this site has a newer.")
    make_private_folder(kit / "fedspan")
    write_whole(kit / "fedspan" / "removed.json", json.dumps(tree))
    return removals


def check_not_removed(kit: Path, name: str) -> None:
    """Refuse what somebody signed who was removed from the federation."""
    removals = read_removed(kit)
    if removals is not None and name in removals.names:
        raise ProtocolError(f"{name!r} was removed from this federation by its coordinator.")


def _verify_removals(kit: Path, tree: object) -> Removals:
    signature = tree.get("signature") if isinstance(tree, dict) else None
    if not isinstance(tree, dict) or not isinstance(signature, str) or len(json.dumps(tree)) > _MOST_REMOVALS:
        raise PolicyRefusal("refused: the list of removed names cannot be read.")
    try:
        removals = build(Removals, {key: value for key, value in tree.items() if key != "signature"})
    except CheckpointError:
        raise PolicyRefusal("refused: the list of removed names cannot be read.") from None
    root = (kit / "startup" / "rootCA.pem").read_bytes()
    if not is_signed_by_root(root, removals.signed_text, signature):
        raise PolicyRefusal("refused: the list of removed names is not signed by this federation's coordinator.")
    return removals
