"""Fixed groups: which sites may be summed together with a table of this site, over all runs.

Two sums over different sets of sites show their difference. So a site remembers, for each of its tables, the groups of
the first run that it answered, and every later run must bring the same groups, some of them, or those and new groups of
sites that were in none. Then every sum, of any run, is over whole groups, and so is every difference of sums. Runs with
noise are free: there a difference is paid for.

A table is known again by its place, whatever links and dots lead there, and by its name: if a kit is moved, or the
password in an address is another one, it is still the same table, as long as its administrator does not say otherwise.

    {"tables": {"<digest>": {"table": "default", "groups": [["a", "b", "c"]]}}, "forgotten": [{"table": …, "when": …}]}
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import TypedDict

from fedspan._files import make_private_folder, write_whole
from fedspan.core.checkpoint import build
from fedspan.errors import CheckpointError, PrivacyError
from fedspan.secure.opening import Groups

try:
    import fcntl
except ImportError:  # a system without it has no lock
    fcntl = None  # type: ignore[assignment]


class _Entry(TypedDict):
    """One table: its name, and its groups."""

    table: str
    groups: list[list[str]]


class _Forgotten(TypedDict):
    """That an administrator let a table begin anew, and what was forgotten."""

    table: str
    groups: list[list[str]]
    when: str


class _File(TypedDict):
    """The file's contents."""

    tables: dict[str, _Entry]
    forgotten: list[_Forgotten]


def extend_groups(known: Groups | None, asked: Groups, me: str) -> Groups | None:
    """The groups to remember if a run with these may be answered; None if it may not."""
    new = {frozenset(group) for group in asked}
    members = [name for group in asked for name in group]
    if me not in members or len(members) != len(set(members)):
        return None
    if known is None:
        return asked
    old = {frozenset(group) for group in known}
    seen = {name for group in old for name in group}
    fits = (old <= new or new <= old) and all(group in old or not group & seen for group in new)
    return tuple(sorted(tuple(sorted(group)) for group in old | new)) if fits else None


class Rosters:
    """The file of one site."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def check(self, table: str, address: str, groups: Groups, me: str) -> None:
        """Refuse a run whose groups do not fit those of earlier runs on that table."""
        self._extend(self._read(), table, address, groups, me)

    def record(self, table: str, address: str, groups: Groups, me: str) -> None:
        """The same, and remember the groups: before the first masked answer leaves."""
        with self._locked():
            tree = self._read()
            entries = self._extend(tree, table, address, groups, me)
            if any(tree["tables"].get(digest) != entry for digest, entry in entries.items()):
                tree["tables"] |= entries
                self._write(tree)

    def forget(self, table: str, address: str) -> Groups | None:
        """Let a table begin anew: an administrator's act, of which the file keeps a note. What was known, if any."""
        with self._locked():
            tree = self._read()
            known = _find_entries(tree, table, address)
            if not known:
                return None
            when = datetime.now(UTC).isoformat(timespec="seconds")
            for digest, entry in known.items():
                del tree["tables"][digest]
                tree["forgotten"].append({"table": table, "groups": entry["groups"], "when": when})
            self._write(tree)
        groups = {tuple(group) for entry in known.values() for group in entry["groups"]}
        return tuple(sorted(groups))

    def _extend(self, tree: _File, table: str, address: str, groups: Groups, me: str) -> dict[str, _Entry]:
        """What is known of the table with these groups, by digests of its places; refused if they do not fit."""
        known = _find_entries(tree, table, address)
        out = {}
        for digest in {_digest_address(address), *known}:
            entry = known.get(digest)
            old = None if entry is None else tuple(tuple(group) for group in entry["groups"])
            extended = extend_groups(old, groups, me)
            if extended is None:
                told = "; ".join(", ".join(group) for group in old or ())
                raise PrivacyError(
                    f"Table {table!r} was summed with these groups of sites before: {told}. A run must bring the same "
                    "groups, some of them, or new groups of other sites, because sums over other sets would show "
                    "single sites by their differences. Run it with those sites; or this site's administrator may "
                    "start afresh with: fedspan site forget"
                )
            name = table if entry is None else entry["table"]
            out[digest] = _Entry(table=name, groups=[list(group) for group in extended])
        return out

    @contextmanager
    def _locked(self) -> Iterator[None]:
        make_private_folder(self.path.parent)
        with self.path.with_suffix(".lock").open("wb") as file:
            if fcntl:
                fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _read(self) -> _File:
        try:
            return build(_File, json.loads(self.path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return {"tables": {}, "forgotten": []}
        except (OSError, ValueError, CheckpointError):
            raise PrivacyError(
                f"{self.path.name} of this site cannot be read, so nobody knows which sums were taken. Its "
                "administrator must restore it."
            ) from None

    def _write(self, tree: _File) -> None:
        write_whole(self.path, json.dumps(tree, indent=1))
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _find_entries(tree: _File, table: str, address: str) -> dict[str, _Entry]:
    """What is known of a table: by its place, or by its name."""
    place = _digest_address(address)
    return {digest: entry for digest, entry in tree["tables"].items() if digest == place or entry["table"] == table}


def _digest_address(address: str) -> str:
    """Names a table by where it is, so that a second name for it changes nothing; the address may hold a password."""
    place = address if "://" in address else os.path.realpath(address)
    return blake2b(place.encode(), digest_size=16).hexdigest()
