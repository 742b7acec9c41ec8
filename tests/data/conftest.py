"""A real PostgreSQL server for a session of tests, and the command line."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fedspan.cli.main import app


@pytest.fixture
def fedspan() -> Callable[..., Any]:
    """The command in this process: result.exit_code, result.stdout, result.stderr."""
    return lambda *words: CliRunner().invoke(app, [str(word) for word in words])


def _binaries() -> Path | None:
    """Where initdb and postgres are: on the path, or where Debian puts them."""
    found = [Path(p).parent for p in [shutil.which("initdb")] if p]
    found += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((folder for folder in found if (folder / "initdb").exists() and (folder / "pg_ctl").exists()), None)


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The address of an empty database on a server of its own: loopback, a free port, a temporary folder."""
    binaries = _binaries()
    if binaries is None:
        pytest.skip("PostgreSQL is not installed (Debian: apt-get install postgresql)")
    user: list[str] = []
    folder = Path(tempfile.mkdtemp(prefix="fedspan-pg-"))
    if os.getuid() == 0:  # the server refuses to run as root
        name = next((n for n in ("postgres", "nobody") if _known(n)), None)
        if name is None or not shutil.which("runuser"):
            pytest.skip("PostgreSQL does not run as root, and there is no other user to run it")
        user = ["runuser", "-u", name, "--"]
        shutil.chown(folder, name)
    data, log = folder / "data", folder / "log"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def do(*words: object) -> None:
        done = subprocess.run([*user, *map(str, words)], cwd=folder, capture_output=True, text=True, timeout=180)
        said = log.read_text() if log.exists() else ""
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{said}"

    try:
        do(binaries / "initdb", "-D", data, "-U", "tester", "-A", "trust", "-E", "UTF8", "--no-sync")
        options = f"-c listen_addresses=127.0.0.1 -p {port} -k {folder} -c fsync=off"
        do(binaries / "pg_ctl", "-D", data, "-l", log, "-w", "-t", "150", "-o", options, "start")
        try:
            yield f"postgresql://tester@127.0.0.1:{port}/postgres"
        finally:
            do(binaries / "pg_ctl", "-D", data, "-m", "immediate", "-w", "stop")  # by the pid in its own folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _known(user: str) -> bool:
    with contextlib.suppress(KeyError):
        return bool(pwd.getpwnam(user))
    return False
