"""FLARE's own commands for keys and certificates, called so that nothing is left in anybody's home folder."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from fedspan._foreign import printable
from fedspan.errors import FedspanError, MissingExtraError

_LONGEST_COMPLAINT = 400  # characters of what the command said


def call_flare(*words: str | Path) -> str:
    """What `nvflare WORDS` printed; what it complained of is raised."""
    tool = Path(sys.executable).with_name("nvflare")
    if not tool.exists():
        raise MissingExtraError("A federation", "flare")
    with tempfile.TemporaryDirectory() as home:
        environment = {**os.environ, "HOME": home, "NVFLARE_TELEMETRY": "off"}
        done = subprocess.run(  # noqa: S603
            [str(tool), *(str(word) for word in words)],
            capture_output=True,
            text=True,
            check=False,
            umask=0o077,
            env=environment,
        )
    if done.returncode:
        said = " ".join((done.stdout + done.stderr).split())
        raise FedspanError(f"nvflare {' '.join(map(str, words[:2]))} failed: {printable(said[-_LONGEST_COMPLAINT:])}")
    return done.stdout
