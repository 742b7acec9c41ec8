"""requirements.lock: what a site installs with --require-hashes: the tested versions, and nothing is missing."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / "requirements.lock"


def normalize(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def read_lock() -> dict[str, tuple[str, list[str]]]:
    """Version and digests of each package."""
    entries = re.split(r"\n(?=\S)", LOCK.read_text(encoding="utf-8").replace("\\\n", ""))
    found = {}
    for entry in entries:
        if not entry.startswith("#"):
            name, _, version = entry.split()[0].partition("==")
            found[name] = (version, re.findall(r"--hash=sha256:([0-9a-f]{64})(?:\s|$)", entry))
    return found


def test_every_package_is_pinned_to_the_tested_version_and_has_digests() -> None:
    tested = dict(
        line.split("==")
        for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").split("\n")
        if "==" in line and not line.startswith("#")
    )
    tested = {normalize(name): version for name, version in tested.items()}
    locked = read_lock()
    assert len(locked) > 30
    for name, (version, digests) in locked.items():
        assert digests, name
        assert tested.get(name, version) == version, name


def test_all_that_fedspan_asks_for_is_there() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = re.search(r"\(([\w,]+)\)", LOCK.read_text(encoding="utf-8"))
    assert extras
    asked = [*project["dependencies"]]
    for extra in extras[1].split(","):
        asked += project["optional-dependencies"][extra]
    locked = read_lock()
    for line in asked:
        assert normalize(re.split(r"[<>=!\[;]", line)[0].strip()) in locked, line


def ask_pip(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=580)


@pytest.mark.long
def test_pip_accepts_it_and_refuses_a_changed_digest(tmp_path: Path) -> None:
    if ask_pip("download", "--no-deps", "--quiet", "--dest", str(tmp_path), "idna").returncode:
        pytest.skip("no package index can be reached")
    dry = ["install", "--dry-run", "--ignore-installed", "--quiet", "--require-hashes", "-r"]
    accepted = ask_pip(*dry, str(LOCK))
    assert accepted.returncode == 0, accepted.stderr
    version, digests = read_lock()["idna"]
    changed = tmp_path / "changed.lock"
    changed.write_text(f"idna=={version} --hash=sha256:{'0' * 64}\n")
    refused = ask_pip(*dry, str(changed))
    assert refused.returncode != 0
    assert any(digest in refused.stderr for digest in digests)
