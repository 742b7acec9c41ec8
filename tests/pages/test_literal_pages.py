"""README, the quickstart and the federation page, typed as they stand in an empty environment.

The quick half is in the `conftest.py` of the repository, which carries out the examples of README and quickstart where
fedspan is installed already.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from literal_page import Reader, read_blocks

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("README.md", "docs/quickstart.md", "docs/federation.md")
INSTALLS = r"pip install|make demo"
COMMANDS = r"^(\$ )?(fedspan|pip|make|python3?|\.venv/bin/\S+|\. \.venv|mkdir|cd) "


def copy_repository(folder: Path) -> Path:
    """What a reader has cloned: the files that git knows, as they are now."""
    if not (ROOT / ".git").exists():
        pytest.skip("this is not a checkout")
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def find_plain_python() -> str:
    """The folder of a Python outside of any environment."""
    return str(Path(sys.base_prefix) / "bin")


def require_index(folder: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "-q", "--dest", str(folder), "idna"]
    if subprocess.run(command, capture_output=True, check=False, timeout=200).returncode:
        pytest.skip("no package index can be reached")


def find_busy_ports(*ports: int) -> list[int]:
    """Those on which somebody listens."""
    busy = []
    for port in ports:
        with socket.socket() as probe:
            busy += [port] if probe.connect_ex(("127.0.0.1", port)) == 0 else []
    return busy


def require_ports(*ports: int) -> None:
    if busy := find_busy_ports(*ports):
        pytest.skip(f"somebody listens on ports {busy} of this machine, which the page uses")


def look(page: str, folder: Path) -> None:
    """What the reader has in the end."""
    if page == "README.md":
        assert (folder / "demo-run" / "report.html").exists()
    elif page == "docs/quickstart.md":
        assert (folder / "patients-run" / "model.skops").exists()
        assert (folder / "secure-run" / "report.html").exists()
    else:
        assert (folder / "first-run" / "model.safetensors").exists()


@pytest.mark.long
@pytest.mark.xdist_group("flare")
@pytest.mark.parametrize("page", PAGES)
def test_typed_as_it_stands_in_an_empty_environment(page: str, tmp_path: Path) -> None:
    require_index(tmp_path)
    if "federation" in page:
        require_ports(8002, 8003)
    folder = copy_repository(tmp_path / "fedspan")
    path = os.pathsep.join([find_plain_python(), "/usr/bin", "/bin"])
    with Reader(folder, tmp_path / "home", path) as reader:
        typed = reader.follow((folder / page).read_text(encoding="utf-8"))
    assert typed
    look(page, folder if page == "README.md" else folder / "study")


@pytest.mark.long
@pytest.mark.xdist_group("flare")
def test_the_federation_where_fedspan_is_installed_already(tmp_path: Path) -> None:
    pytest.importorskip("nvflare", reason="needs fedspan[flare]")
    require_ports(8002, 8003)
    path = os.pathsep.join([str(Path(sys.executable).parent), "/usr/bin", "/bin"])
    folder = tmp_path / "study"
    folder.mkdir()
    with Reader(folder, tmp_path / "home", path) as reader:
        reader.follow((ROOT / "docs" / "federation.md").read_text(encoding="utf-8"), without=INSTALLS)
        said = (tmp_path / "home" / "typed.log").read_text(encoding="utf-8")
    look("docs/federation.md", folder)
    assert re.search(r"^north +idle", said, re.MULTILINE)
    assert not find_busy_ports(8002, 8003)  # it has ended


@pytest.mark.parametrize("page", PAGES)
def test_commands_are_in_blocks_that_are_typed_or_say_that_they_are_a_variant(page: str) -> None:
    for block in read_blocks((ROOT / page).read_text(encoding="utf-8")):
        if block.language not in ("sh", "python", "toml") and re.search(COMMANDS, block.text, re.MULTILINE):
            assert re.match(r"# ", block.text), f"{page}, line {block.line}: {block.text}"


def test_a_page_that_does_not_work_is_noticed(tmp_path: Path) -> None:
    """The reader itself: what fails stops it, with what was printed."""
    pages = {
        "```sh\necho before\nfalse\n```\n": "before",
        "```sh\ncd /\nnever-a-command\n```\n": "never-a-command",
        "```python\nx = 1\n```\ntext\n```python\nprint(y)\n```\n": "NameError",
    }
    path = os.pathsep.join([str(Path(sys.executable).parent), "/usr/bin", "/bin"])
    for i, (page, words) in enumerate(pages.items()):
        with (
            Reader(tmp_path, tmp_path / f"home{i}", path) as reader,
            pytest.raises(AssertionError, match=words),
        ):
            reader.follow(page)
    with Reader(tmp_path, tmp_path / "good", path) as reader:  # one terminal and one session, in order
        reader.follow(
            "```sh\nmkdir new\ncd new\nWORD=kept\n```\n```toml\n# a.toml\nx = 1\n```\n"
            "```python\nfrom pathlib import Path\ny = Path('a.toml').read_text()\n```\n```sh\necho $WORD > word\n```\n"
            "```python\nassert Path('word').read_text() == 'kept\\n'\nassert 'x = 1' in y\n```\n"
        )
