"""The example of three hospitals does what it says, and leaves no process behind."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

pytest.importorskip("nvflare", reason="needs fedspan[flare]")
pytest.importorskip("pyarrow", reason="needs fedspan[data]")
SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "three-hospitals" / "run.py"


def mentioning(folder: Path) -> list[int]:
    """The processes whose command line names something in that folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                if os.fsencode(folder) in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
    return found


@pytest.mark.long
@pytest.mark.xdist_group("flare")
def test_killed_resumed_and_the_same_to_the_bit(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--out", str(out)], capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "kill -9" in done.stdout
    assert "equals it to the bit" in done.stdout
    assert done.stdout.rstrip().endswith(f"report: {out / 'run' / 'report.html'}")
    assert "resumed after round" in (out / "run" / "ledger.jsonl").read_text()
    assert (out / "run" / "report.html").stat().st_size > 10_000
    assert mentioning(out) == []


def test_a_folder_in_use_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("kept")
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--out", str(tmp_path)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 1
    assert "choose a new or empty folder" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
