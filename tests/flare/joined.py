"""A federation whose members joined by invitation, on one port: every key was made in its owner's folder."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedspan.deployment.local import LocalFederation, find_free_ports
from typed import call

BOSS, ADA, BOB = "boss@coord.example.org", "ada@uni.example.org", "bob@uni.example.org"
SERVER = "localhost"


@contextmanager
def inside(folder: Path) -> Iterator[None]:
    """Commands are typed in this folder."""
    before = Path.cwd()
    folder.mkdir(exist_ok=True)
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def told(text: str, label: str) -> str:
    """What stands after a label in what a command printed."""
    (line,) = [line for line in text.splitlines() if label in line]
    return line.split(label)[1].split()[0]


def ask(*words: Any) -> str:
    """What a command printed that must succeed."""
    done = call(*words)
    assert done.exit_code == 0, done.output
    return done.stdout


class JoinedFederation(LocalFederation):
    """Folders side by side: the coordinator's in `coordinator`, a member's in one of its name."""

    def __init__(self, folder: Path, sites: Sequence[str], *, driver: str = "grpc", **environment: str) -> None:
        self.folder, self.sites, self.environment, self.own, self.processes = folder, list(sites), environment, {}, {}
        self.port = self.admin_port = find_free_ports()
        self.register = folder / "coordinator"
        folder.mkdir(parents=True, exist_ok=True)
        place = ("--folder", self.register)
        ask(
            "federation",
            "found",
            "--server",
            SERVER,
            "--coordinator",
            BOSS,
            "--port",
            self.port,
            "--driver",
            driver,
            *place,
        )
        self.join(SERVER, "--server")
        for site in sites:
            self.join(site)
        self.join(ADA)

    def kit(self, name: str) -> Path:
        return self.register / "kits" / name if name == BOSS else self.folder / name / name

    @property
    def researcher(self) -> Path:
        return self.kit(ADA)

    def join(self, name: str, *options: str) -> None:
        """Invite, request, approve, finish: what three people do, with what they read out to each other."""
        said = ask("federation", "invite", name, "--folder", self.register, *options)
        invitation = self.register / "invitations" / f"{name}.invitation.json"
        with inside(self.folder / name):
            own = ask("site", "join", invitation, "--fingerprint", told(said, "fingerprint of the invitation: "))
            request = self.folder / name / f"{name}.request.json"
            key = told(own, "fingerprint of your key:")
            ask("federation", "approve", request, "--fingerprint", key, "--folder", self.register, "--days", 60)
            ask("site", "join", "--finish", self.register / "signed" / f"{name}.signed.zip")
