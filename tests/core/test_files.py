"""Files are there whole, or not at all."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from fedspan._files import write_whole


@pytest.mark.parametrize("data", ["", "words: ü\n", b"", b"\x00\xff" * 1000])
def test_what_is_written_is_read(tmp_path: Path, data: bytes | str) -> None:
    write_whole(tmp_path / "file", data)
    assert (tmp_path / "file").read_bytes() == (data.encode() if isinstance(data, str) else data)
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("step", ["fsync", "replace", "chmod"])
@pytest.mark.parametrize("failure", [OSError("disk full"), KeyboardInterrupt()], ids=["error", "interrupt"])
def test_a_failure_midway_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, failure: BaseException
) -> None:
    path = tmp_path / "file"
    write_whole(path, "old")

    def fail(*_: Any) -> None:
        raise failure

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(type(failure)):
        write_whole(path, "new" * 10_000)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def test_the_file_is_complete_before_it_takes_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is renamed must already hold all bytes: a crash right after the rename finds them there."""
    seen, rename = [], os.replace

    def look(source: Any, target: Any) -> None:
        seen.append(Path(source).read_bytes())
        assert Path(source).parent == Path(target).parent  # a rename across file systems would be a copy
        rename(source, target)

    monkeypatch.setattr(os, "replace", look)
    write_whole(tmp_path / "file", b"all" * 5000)
    assert seen == [b"all" * 5000]
