"""Another user of the same machine looks for what fedspan wrote: budgets, messages, checkpoints, passwords, keys.

Modes are read, not tried, so that the tests mean the same for root; each runs under a closed and under an open umask.
"""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import fedspan
from fedspan import _files
from fedspan._files import close_tree, make_private_folder, require_private, write_whole
from fedspan.cli.main import app
from fedspan.core.checkpoint import Checkpoint
from fedspan.core.ledger import Ledger, Note
from fedspan.core.snapshot import HubSnapshot, SessionSnapshot
from fedspan.deployment import local
from fedspan.deployment.policy import Policy, read_secret_file, write_secret
from fedspan.deployment.site_rules.asked_questions import QuestionsOnDisk
from fedspan.deployment.site_rules.verified_rules import AskedOnDisk
from fedspan.engines.questions import AskedOnce
from fedspan.engines.transcript import Transcript
from fedspan.errors import InputError
from fedspan.privacy.budget import Budget

pytestmark = pytest.mark.skipif(os.name != "posix", reason="modes are those of POSIX")


@pytest.fixture(params=[0o000, 0o022, 0o077], ids=["umask-000", "umask-022", "umask-077"], autouse=True)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def find_open(folder: Path) -> list[str]:
    """What in a folder others may read: those files whose own mode allows it, and that no closed folder hides."""
    if not mode(folder) & 0o011:
        return []
    found = []
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            found += find_open(path)
        elif mode(path) & 0o044:
            found.append(str(path))
    return found


def open_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The defence is off: files and folders are made as any program makes them."""
    monkeypatch.setattr(_files, "_PRIVATE_FILE", 0o666)
    monkeypatch.setattr(_files, "_PRIVATE_FOLDER", 0o777)
    monkeypatch.setattr(os, "chmod", lambda *_, **__: None)
    monkeypatch.setattr(Path, "chmod", lambda *_, **__: None)


def write_all(folder: Path) -> None:
    """One of each kind of file that a run, a site and a server leave."""
    Budget.grant(folder / "kit" / "fedspan" / "budget.json", 1.0, 1e-6)
    snapshot = SessionSnapshot(HubSnapshot(), {})
    Checkpoint(folder / "run" / "checkpoint").save({"seed": 1}, 1, {"x": np.zeros(2)}, snapshot)
    ledger = Ledger(folder / "run" / "ledger.jsonl")
    ledger.add(Note("handshake: 5 features"))
    ledger.close()
    message = fedspan.channel.wire.Message("task", 1, 1, {"x": np.zeros(2)})
    Transcript(folder / "run" / "transcript").record_up("ada", message)


def test_what_a_run_and_a_site_write_is_their_owners_alone(
    tmp_path: Path, umask: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    top = tmp_path / "top"
    top.mkdir(0o755)
    top.chmod(0o755)
    write_all(top)
    assert find_open(top) == []
    assert {mode(path) for path in top.rglob("*") if path.is_file()} == {0o600}
    assert {mode(path) for path in top.rglob("*") if path.is_dir()} == {0o700}

    naive = tmp_path / "naive"
    naive.mkdir()
    naive.chmod(0o755)
    open_up(monkeypatch)
    write_all(naive)
    assert len(find_open(naive)) == (5 if umask != 0o077 else 0)  # a careful umask is no defence that we can count on


def test_files_that_were_open_are_closed_when_they_grow(tmp_path: Path) -> None:
    """A run of an older version is resumed."""
    path = tmp_path / "ledger.jsonl"
    path.write_text("")
    path.chmod(0o644)
    Ledger(path).close()
    assert mode(path) == 0o600


def test_what_a_user_asks_for_by_its_path_has_the_mode_that_the_user_expects(tmp_path: Path, umask: int) -> None:
    X = np.random.default_rng(0).normal(size=(20, 4))
    model = fedspan.FederatedPCA(2, random_state=0).fit([X[:10], X[10:]])
    model.save(tmp_path / "model.safetensors")
    model.report(tmp_path / "report.html")
    model.ledger_.save(tmp_path / "ledger.jsonl")
    (tmp_path / "usual").touch()
    assert {mode(path) for path in tmp_path.iterdir()} == {0o666 & ~umask}


def test_a_run_folder_is_closed(tmp_path: Path, umask: int, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o755)
    rows = "\n".join(f"{a},{b},{a + b}" for a, b in np.random.default_rng(1).normal(size=(20, 2)))
    for name in "ab":
        (tmp_path / f"{name}.csv").write_text(f"x,y,z\n{rows}\n")
        (tmp_path / f"{name}.csv").chmod(0o600)
    job = tmp_path / "job.toml"
    job.write_text('[job]\ntask = "pca"\n[data]\nclients = ["a.csv", "b.csv"]\n[run]\ntranscript = true\n')
    job.chmod(0o600)
    command = ["run", str(job), "--out"]
    result = CliRunner().invoke(app, [*command, str(tmp_path / "new" / "run")])
    assert result.exit_code == 0, result.output
    there = tmp_path / "there"
    there.mkdir()
    there.chmod(0o755)
    assert CliRunner().invoke(app, [*command, str(there)]).exit_code == 0
    assert mode(there) == 0o755  # the folder was there, and is its owner's to close
    assert find_open(tmp_path) == [str(there / "model.safetensors")][: umask != 0o077]
    if umask != 0o077:
        open_up(monkeypatch)
        assert CliRunner().invoke(app, [*command, str(tmp_path / "naive")]).exit_code == 0
        assert any("naive" in path and "message-" in path for path in find_open(tmp_path))


ADDRESS = "postgresql://reader:hush@db/lab?table=rows"
POLICY = """
[tables.default]
path = {path}
columns = ["age"]
"""


def test_a_policy_with_a_password_that_others_may_read_is_refused(tmp_path: Path) -> None:
    kit = tmp_path / "the kit"
    (kit / "local").mkdir(parents=True)
    file = kit / "local" / "fedspan.toml"
    file.write_text(POLICY.format(path=f'"{ADDRESS}"'))
    for open_mode in (0o644, 0o640, 0o604, 0o660):
        file.chmod(open_mode)
        with pytest.raises(InputError, match=f"mode is {open_mode:o}") as refused:
            Policy.read(kit)
        assert "hush" not in str(refused.value)
    words = shlex.split(str(refused.value).partition("Close it with: ")[2])
    assert words == ["chmod", "600", str(file)]
    os.chmod(words[2], int(words[1], 8))
    assert Policy.read(kit).tables["default"].path.endswith(ADDRESS)


def test_without_the_check_a_readable_password_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "local").mkdir()
    file = tmp_path / "local" / "fedspan.toml"
    file.write_text(POLICY.format(path=f'"{ADDRESS}"'))
    file.chmod(0o644)
    monkeypatch.setattr("fedspan.deployment.policy.require_private", lambda path: None)
    assert "hush" in Policy.read(tmp_path).tables["default"].path


def test_a_secret_for_ids_that_others_may_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "secret"
    write_secret(file)
    assert len(read_secret_file(file)) == 64
    file.chmod(0o644)
    with pytest.raises(InputError, match="mode is 644"):
        read_secret_file(file)
    monkeypatch.setattr("fedspan.deployment.policy.require_private", lambda path: None)
    assert len(read_secret_file(file)) == 64


def test_a_policy_without_secrets_may_be_read_by_others(tmp_path: Path) -> None:
    (tmp_path / "local").mkdir()
    file = tmp_path / "local" / "fedspan.toml"
    file.write_text(POLICY.format(path='"rows.csv"'))
    file.chmod(0o644)
    assert Policy.read(tmp_path).tables


def provision(folder: Path, umask: int, monkeypatch: pytest.MonkeyPatch) -> str:
    """`fedspan federation provision`, with a stand-in for nvflare that writes a root key as nvflare does."""
    tool = folder / "bin" / "nvflare"
    tool.parent.mkdir()
    tool.write_text(
        "#!/bin/sh\n"
        'mkdir -p "$5/p/prod_00/north/startup" "$5/p/state"\n'
        'echo "{}" > "$5/p/prod_00/north/startup/fed_client.json"\n'
        'echo KEY > "$5/p/prod_00/north/startup/client.key"\n'
        'echo KEY > "$5/p/state/cert.json"\n'
        '[ -n "$OPEN" ] && chmod -R a+rX "$5" || true\n'
    )
    tool.chmod(0o755)
    monkeypatch.setattr(local.sys, "executable", str(folder / "bin" / "python"))
    (folder / "p.yml").write_text("{}")
    (folder / "kits").mkdir(exist_ok=True)
    (folder / "kits").chmod(0o755)
    result = CliRunner().invoke(app, ["federation", "provision", str(folder / "p.yml"), "--out", str(folder / "kits")])
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("opened", ["", "1"])
def test_the_root_key_is_closed_and_named(
    tmp_path: Path, umask: int, opened: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPEN", opened)
    said = provision(tmp_path, umask, monkeypatch)
    key = tmp_path / "kits" / "p" / "state" / "cert.json"
    assert f"the root key is in {key}; anyone who has it can create a site: keep it offline" in said
    assert mode(key) == 0o600
    assert {mode(folder) for folder in (key.parent, key.parent.parent)} == {0o700}
    assert find_open(tmp_path / "kits") == []


def test_without_closing_others_may_read_the_root_key(
    tmp_path: Path, umask: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPEN", "1")
    monkeypatch.setattr(local, "close_tree", lambda path: None)
    provision(tmp_path, umask, monkeypatch)
    assert str(tmp_path / "kits" / "p" / "state" / "cert.json") in find_open(tmp_path / "kits")


def test_a_tree_is_closed_without_taking_what_its_owner_may_do(tmp_path: Path) -> None:
    script, outside = tmp_path / "kit" / "start.sh", tmp_path / "outside"
    script.parent.mkdir()
    script.write_text("")
    script.chmod(0o755)
    outside.write_text("")
    outside.chmod(0o644)
    (tmp_path / "kit" / "link").symlink_to(outside)
    close_tree(tmp_path / "kit")
    assert [mode(path) for path in (script, script.parent, outside)] == [0o700, mode(script.parent), 0o644]
    assert not mode(script.parent) & 0o077


def test_the_folder_is_written_down_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a power failure a file is there only if the folder's list of names was synced after the rename."""
    seen: list[str] = []
    sync, rename = os.fsync, os.replace

    def note_sync(handle: int) -> None:
        seen.append("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file")
        sync(handle)

    def note_rename(source: Any, target: Any) -> None:
        seen.append("rename")
        rename(source, target)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(os, "replace", note_rename)
    write_whole(tmp_path / "file", "data")
    assert seen == ["file", "rename", "folder"]


def test_a_folder_that_exists_is_left_as_it_is(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    make_private_folder(tmp_path)
    assert mode(tmp_path) == 0o755
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        make_private_folder(tmp_path / "file")


def test_a_private_file_is_accepted(tmp_path: Path) -> None:
    write_whole(tmp_path / "file", "secret")
    require_private(tmp_path / "file")


def test_what_was_asked_is_on_disk_before_it_is_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a power failure lets a server ask another question in its place; and the file's name must be there, too."""
    synced: list[tuple[int, int]] = []
    real = os.fsync

    def sync(handle: int) -> None:
        found = os.fstat(handle)
        synced.append((found.st_dev, found.st_ino))
        real(handle)

    def is_synced(path: Path) -> bool:
        return (path.stat().st_dev, path.stat().st_ino) in synced

    monkeypatch.setattr(os, "fsync", sync)
    QuestionsOnDisk(tmp_path / "plain").add(AskedOnce(0, "count", bytes(32)))
    (tmp_path / "verified").mkdir()
    assert AskedOnDisk(tmp_path / "verified").note(bytes(32), bytes(32))
    for path in (tmp_path / "plain" / "asked", tmp_path / "verified" / "questions"):
        assert is_synced(path)
        assert is_synced(path.parent)
