"""A deep run in its own process, killed with SIGKILL: what goes on from there ends in the same file, byte by byte."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from torch import nn

from fedspan import DeepFederatedGCCA, Ledger
from fedspan.core.run import Info

pytestmark = pytest.mark.xdist_group("torch")  # whose parts for optimisers take seconds to import

OFTEN = pytest.param([2, 7, 13, 20, 28], marks=pytest.mark.long)


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 2))


def fit(folder: Path, rounds: int, callback: Callable[[Info], None] | None = None) -> None:
    """The run, from its checkpoint if there is one."""
    rng = np.random.default_rng(0)
    Z = rng.normal(size=(300, 2))
    views = [np.tanh(Z @ rng.normal(size=(2, 4))) + 0.1 * rng.normal(size=(300, 4)) for _ in range(3)]
    options = {"bits": 3, "rounds": rounds, "batch_size": 100, "random_state": 1}
    model = DeepFederatedGCCA([network] * 3, checkpoint=folder / "checkpoint", callback=callback, **options)
    model.fit(views, ledger=Ledger(folder / "ledger.jsonl")).save(folder / "model.safetensors")


def kill_after(folder: Path, rounds: int, of: int) -> None:
    """It kills itself, so that it is dead before it is done however busy the machine is."""
    words = [sys.executable, __file__, str(folder), str(rounds), str(of)]
    done = subprocess.run(words, stderr=subprocess.PIPE, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert not (folder / "model.safetensors").exists()


def fit_until_killed(folder: Path, rounds: int, of: int) -> None:
    """SIGKILL comes from another thread, a moment after that round: somewhere in the next ones."""

    def soon(info: Info) -> None:
        if info.round == rounds:
            threading.Timer(0.002, os.kill, (os.getpid(), signal.SIGKILL)).start()
        elif info.round == of:
            time.sleep(60)  # no further: it is on its way

    fit(folder, of, soon)


@pytest.mark.parametrize("kills", [[3], OFTEN], ids=["once", "often"])
def test_kill_9_then_resume_is_the_same_to_the_byte(tmp_path: Path, kills: list[int]) -> None:
    """The rounds before the kill are in the checkpoint to the bit; those after it are the same operations."""
    whole, killed, rounds = tmp_path / "whole", tmp_path / "killed", kills[-1] + 12
    for folder in (whole, killed):
        folder.mkdir()
    for at in kills:
        kill_after(killed, at, rounds)
    fit(killed, rounds)
    assert (killed / "ledger.jsonl").read_text().count("resumed after round") == len(kills)
    fit(whole, rounds)
    assert (whole / "model.safetensors").read_bytes() == (killed / "model.safetensors").read_bytes()


if __name__ == "__main__":
    fit_until_killed(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
