"""A kit runs in one place; its copies do not."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path

import pytest

from fedspan.deployment.operations import kit_place
from fedspan.deployment.operations.kit_place import check_place
from fedspan.errors import InputError


@pytest.fixture
def kit(tmp_path: Path) -> Path:
    (tmp_path / "north" / "startup").mkdir(parents=True)
    check_place(tmp_path / "north")
    return tmp_path / "north"


def test_a_copy_on_this_machine_does_not_run_and_the_kit_itself_does(kit: Path) -> None:
    copy = shutil.copytree(kit, kit.parent / "copy")
    with pytest.raises(InputError, match="a copy: two processes with one key would answer as one site"):
        check_place(copy)
    check_place(kit)


def test_a_copy_on_another_machine_does_not_run(kit: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kit_place, "_MACHINE", ())
    monkeypatch.setattr(socket, "gethostname", lambda: "another")
    with pytest.raises(InputError, match=r"belongs on another machine.*--moved"):
        check_place(kit)
    check_place(kit, moved=True)
    check_place(kit)
    monkeypatch.setattr(socket, "gethostname", lambda: "the first")
    with pytest.raises(InputError, match="on another machine"):
        check_place(kit)  # where it was before: it was moved away


def test_a_folder_that_was_renamed_is_no_copy(kit: Path) -> None:
    check_place(kit.rename(kit.parent / "new-name"))


def test_a_damaged_note_lets_no_copy_run(kit: Path) -> None:
    (kit / "fedspan" / "place.json").write_text("{")
    with pytest.raises(InputError, match="--moved"):
        check_place(kit)
