"""Write requirements.lock: every package that a site needs, with digests, for `pip install --require-hashes`.

The versions are those of constraints.txt, which are tested. A package has the digests of all its files for Linux in
that version, so that the lock holds on other processors and newer versions of Python, too, if they need the same ones.

    python .ci/lock.py
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements.lock"
EXTRAS = "flare,data,privacy,excel"
HEADER = f"""\
# What a site of a federation needs ({EXTRAS}), with the digests of the files; for Linux and Python 3.11.
# Made by `python .ci/lock.py` from constraints.txt. To install, with a wheel of fedspan made by `make wheel`:
#     pip install --require-hashes -r requirements.lock
#     pip install --no-deps fedspan-VERSION-py3-none-any.whl
"""


def run_pip(*words: str) -> str:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout  # noqa: S603


def resolve() -> dict[str, tuple[str, str]]:
    """The version of every package that pip would install, and the digest of the file that it would take."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        pins = ["--dry-run", "--ignore-installed", "--quiet", "--report", str(report), "-c", "constraints.txt"]
        run_pip("install", *pins, f".[{EXTRAS}]")
        packages = json.loads(report.read_text(encoding="utf-8"))["install"]
    found = {}
    for package in packages:
        about, source = package["metadata"], package["download_info"]
        if about["name"] != "fedspan":
            found[normalize(about["name"])] = (about["version"], source["archive_info"]["hashes"]["sha256"])
    return found


def normalize(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def find_index() -> str:
    """The index that pip asks."""
    settings = dict(line.split("=", 1) for line in run_pip("config", "list").splitlines())
    for place in (":env:.index-url", "global.index-url", "user.index-url"):
        if place in settings:
            return settings[place].strip("'\"")
    return "https://pypi.org/simple"


def list_digests(index: str, name: str, version: str) -> set[str]:
    """The digests of the files of that version, as the index lists them."""
    with urllib.request.urlopen(f"{index.rstrip('/')}/{name}/", timeout=60) as answer:  # noqa: S310 - pip's own index
        page = answer.read().decode()
    files = re.findall(r'#sha256=([0-9a-f]{64})"[^>]*>\s*([^<\s]+)\s*</a>', page)
    return {digest for digest, file in files if is_of_version(file, name, version) and is_for_linux(file)}


def is_for_linux(file: str) -> bool:
    return not file.endswith(".whl") or "linux" in file or file.endswith("-any.whl")


def is_of_version(file: str, name: str, version: str) -> bool:
    """Whether this is the wheel or the sdist of that version."""
    stem = file.removesuffix(".tar.gz").removesuffix(".zip")
    if file.endswith(".whl"):
        called, of = file.split("-")[:2]
    elif stem != file:
        called, _, of = stem.rpartition("-")
    else:
        return False
    return (normalize(called), of) == (name, version)


def main() -> None:
    index, lines = find_index(), [HEADER]
    for name, (version, taken) in sorted(resolve().items()):
        digests = sorted({taken, *list_digests(index, name, version)})
        lines.append(
            " \\\n".join([f"{name}=={version}", *(f"    --hash=sha256:{digest}" for digest in digests)]) + "\n"
        )
    LOCK.write_text("".join(lines), encoding="utf-8")
    print(f"{LOCK.name}: {len(lines) - 1} packages")


if __name__ == "__main__":
    main()
