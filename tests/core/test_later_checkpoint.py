"""A checkpoint that is written behind the run's back is the same file, at most one write late, and never silent."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from threading import Event

import numpy as np
import pytest

from fedspan.core import checkpoint
from fedspan.core.checkpoint import Checkpoint
from fedspan.core.snapshot import HubSnapshot, SessionSnapshot
from fedspan.deployment.later_checkpoint import LaterCheckpoint

RUN = {"seed": 1}
NOTHING = SessionSnapshot(HubSnapshot(), {})


@dataclass(frozen=True)
class State:
    Z: np.ndarray


def test_it_is_the_same_file(tmp_path: Path) -> None:
    now, later = Checkpoint(tmp_path / "now"), LaterCheckpoint(tmp_path / "later")
    for round in range(1, 4):
        for kind in (now, later):
            kind.save(RUN, round, State(np.full(5, float(round))), NOTHING)
    later.settle()
    assert later.path.read_bytes() == now.path.read_bytes()
    saved = later.load(RUN, State)
    assert saved is not None
    assert saved[0] == 3


def test_the_run_goes_on_while_it_is_written_and_waits_before_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, go = checkpoint.write_whole, Event()
    monkeypatch.setattr(checkpoint, "write_whole", lambda *given, **more: go.wait(60) and write(*given, **more))
    later = LaterCheckpoint(tmp_path)
    later.save(RUN, 1, State(np.ones(2)), NOTHING)
    assert not later.path.exists()  # and yet the call has returned
    go.set()
    later.save(RUN, 2, State(np.ones(2)), NOTHING)
    assert later.path.exists()  # that of round 1 or 2: the first was waited for
    later.settle()


def test_a_write_that_failed_stops_the_run(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file, not a folder")
    later = LaterCheckpoint(tmp_path / "taken")
    later.save(RUN, 1, State(np.ones(2)), NOTHING)
    with pytest.raises(OSError, match="taken"):
        later.save(RUN, 2, State(np.ones(2)), NOTHING)
