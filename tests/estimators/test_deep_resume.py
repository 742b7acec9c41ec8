"""A deep run in its own process, killed with SIGKILL: what goes on from there ends in the same file, byte by byte."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from torch import nn

from fedspan import DeepFederatedGCCA, Ledger

OFTEN = pytest.param([2, 7, 13, 20, 28], marks=pytest.mark.long)


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 2))


def fit(folder: Path, rounds: int) -> None:
    """The run, from its checkpoint if there is one."""
    rng = np.random.default_rng(0)
    Z = rng.normal(size=(300, 2))
    views = [np.tanh(Z @ rng.normal(size=(2, 4))) + 0.1 * rng.normal(size=(300, 4)) for _ in range(3)]
    options = {"bits": 3, "rounds": rounds, "batch_size": 100, "random_state": 1}
    model = DeepFederatedGCCA([network] * 3, checkpoint=folder / "checkpoint", **options)
    model.fit(views, ledger=Ledger(folder / "ledger.jsonl")).save(folder / "model.safetensors")


def rounds_done(folder: Path) -> int:
    ledger = folder / "ledger.jsonl"
    return ledger.read_text().count('"event":"round"') - 1 if ledger.exists() else -1  # the opening is one more


def kill_after(folder: Path, rounds: int, of: int) -> None:
    process = subprocess.Popen([sys.executable, __file__, str(folder), str(of)], stderr=subprocess.PIPE, text=True)
    patience = time.monotonic() + 100
    while rounds_done(folder) < rounds:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < patience
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert not (folder / "model.safetensors").exists()


@pytest.mark.parametrize("kills", [[3], OFTEN], ids=["once", "often"])
def test_kill_9_then_resume_is_the_same_to_the_byte(tmp_path: Path, kills: list[int]) -> None:
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
    fit(Path(sys.argv[1]), int(sys.argv[2]))
