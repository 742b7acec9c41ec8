"""Runs that were cut off: killed, stopped, damaged. What resumes gives the model of an undisturbed run, to the bit."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_world import check_refused, rows, spawn, tree
from threadpoolctl import threadpool_limits

from fedspan import FederatedPCA

Fedspan = Callable[..., Any]
ROUNDS = 100  # a run whose output nobody reads waits in its first 50
LONG = ["--set", "job.solver=ssi", "--set", "job.tol=0", "--set", f"job.max_rounds={ROUNDS}"]


def wait_for_rounds(process: subprocess.Popen[str], folder: Path, rounds: int) -> None:
    ledger, patience = folder / "ledger.jsonl", time.monotonic() + 60
    while not ledger.exists() or ledger.read_text().count('"event":"round"') <= rounds:  # the opening is one more
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < patience
        time.sleep(0.01)


@pytest.fixture
def big(world: Path) -> Path:
    """Clients with fewer rows than features, so that every round reads the rows."""
    for i, name in enumerate(("north", "south")):
        np.save(world / f"{name}.npy", np.random.default_rng(i).normal(size=(80, 200)))
    job = (world / "job.toml").read_text().replace(".csv", ".npy").replace("n_components = 2", "n_components = 4")
    (world / "job.toml").write_text(job)
    return world


@pytest.mark.parametrize("bits", [[], pytest.param(["--set", "job.bits=4"], marks=pytest.mark.long)])
def test_kill_9_then_resume_is_the_same_to_the_bit(big: Path, fedspan: Fedspan, bits: list[str]) -> None:
    """The rounds before the kill are in the checkpoint to the bit; those after it are the same operations."""
    process = spawn("run", "job.toml", *LONG, *bits, "--out", "killed", cwd=big)
    wait_for_rounds(process, big / "killed", 5)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert not (big / "killed" / "model.safetensors").exists()
    cut = (big / "killed" / "ledger.jsonl").read_bytes()

    result = fedspan("resume", "killed")
    assert result.exit_code == 0, result.output
    assert f"round {ROUNDS}/{ROUNDS}" in result.stdout
    assert f"round 1/{ROUNDS}" not in result.stdout
    ledger = (big / "killed" / "ledger.jsonl").read_bytes()
    assert ledger.startswith(cut[: cut.rindex(b"\n") + 1])
    assert b"resumed after round" in ledger

    assert fedspan("run", "job.toml", *LONG, *bits, "--out", "whole").exit_code == 0
    models = [(big / name / "model.safetensors").read_bytes() for name in ("killed", "whole")]
    assert models[0] == models[1]
    assert "resumed after round" in (big / "killed" / "report.html").read_text()


@pytest.mark.long
def test_killed_again_and_again_at_any_moment(big: Path, fedspan: Fedspan) -> None:
    many = [*LONG, "--set", "job.max_rounds=1000"]
    assert fedspan("run", "job.toml", *many, "--out", "whole").exit_code == 0
    words, kills, ledger = ["run", "job.toml", *many, "--out", "killed"], 0, big / "killed" / "ledger.jsonl"
    for delay in np.random.default_rng(5).uniform(0.0, 0.3, size=8):
        size = ledger.stat().st_size if ledger.exists() else 0
        process = spawn(*words, cwd=big, stdout=subprocess.DEVNULL)
        while process.poll() is None and not (ledger.exists() and ledger.stat().st_size != size):
            time.sleep(0.001)
        time.sleep(delay)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        kills += process.returncode == -signal.SIGKILL
        words = ["resume", "killed"]
    assert kills >= 2
    assert fedspan(*words).exit_code == 0
    assert (big / "killed" / "model.safetensors").read_bytes() == (big / "whole" / "model.safetensors").read_bytes()
    left = {p.name for p in (big / "killed").rglob("*")}
    assert left == {
        "job.toml",
        "ledger.jsonl",
        "checkpoint",
        "round.safetensors",
        "model.safetensors",
        "report.html",
        "scores.safetensors",
    }


def test_another_number_of_threads_gives_the_same_to_1e_12(
    big: Path, fedspan: Fedspan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of BLAS and of the engine, whose threads follow the cores."""
    for name, threads in (("many", 2), ("one", 1)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, threads=threads: set(range(threads)), raising=False)
        with threadpool_limits(threads, user_api="blas"):
            result = fedspan("run", "job.toml", "--set", "job.tol=1e-10", "--out", name)
        assert result.exit_code == 0, result.output
    many, one = (FederatedPCA.load(big / name / "model.safetensors") for name in ("many", "one"))
    np.testing.assert_allclose(one.components_, many.components_, rtol=0, atol=1e-12)
    np.testing.assert_allclose(one.explained_variance_, many.explained_variance_, rtol=1e-12)


@pytest.fixture
def unfinished(world: Path, fedspan: Fedspan) -> Path:
    """A run folder as a crash between the last round and the model leaves it."""
    assert fedspan("run", "job.toml", "--out", "run").exit_code == 0
    (world / "whole.safetensors").write_bytes((world / "run" / "model.safetensors").read_bytes())
    (world / "run" / "model.safetensors").unlink()
    return world / "run"


def test_only_the_model_is_missing(unfinished: Path, fedspan: Fedspan) -> None:
    (unfinished / "checkpoint" / ".round.safetensors.x1").write_text("half")
    with (unfinished / "ledger.jsonl").open("a") as ledger:
        ledger.write('{"event":"round","rou')  # cut short
    assert fedspan("resume", "run").exit_code == 0
    assert (unfinished / "model.safetensors").read_bytes() == (unfinished.parent / "whole.safetensors").read_bytes()
    assert [p.name for p in (unfinished / "checkpoint").iterdir()] == ["round.safetensors"]


def test_a_complete_run_has_nothing_to_resume(world: Path, fedspan: Fedspan) -> None:
    assert fedspan("run", "job.toml", "--out", "run").exit_code == 0
    before = tree(world)
    again = fedspan("resume", "run")
    assert again.exit_code == 0
    assert again.stdout == "nothing to do: the run is complete, its model is run/model.safetensors\n"
    assert tree(world) == before
    (world / "run" / "report.html").unlink()
    assert fedspan("resume", "run").exit_code == 0
    assert tree(world) == before


def corrupt(checkpoint: Path) -> None:
    data = bytearray(checkpoint.read_bytes())
    data[-3] ^= 1
    checkpoint.write_bytes(bytes(data))


def truncated(checkpoint: Path) -> None:
    checkpoint.write_bytes(checkpoint.read_bytes()[:50])


def foreign(checkpoint: Path) -> None:
    shutil.copy(checkpoint.parents[2] / "whole.safetensors", checkpoint)


def of_another_run(checkpoint: Path) -> None:
    job = checkpoint.parents[1] / "job.toml"
    job.write_text(job.read_text().replace("random_state = 7", "random_state = 8"))


def other_features(checkpoint: Path) -> None:
    for name in ("north", "south"):
        np.save(checkpoint.parents[2] / f"{name}.npy", rows(0, 20, 4))
    job = checkpoint.parents[1] / "job.toml"
    job.write_text(job.read_text().replace(".csv", ".npy"))


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (corrupt, "is damaged: its digest does not match"),
        (truncated, "Cannot read the checkpoint in"),
        (foreign, "must hold a fedspan checkpoint"),
        (of_another_run, "belongs to another run: seed is 8 here, but 7 in the checkpoint"),
        (other_features, "belongs to another run: features is 4 here, but 5 in the checkpoint"),
    ],
)
def test_a_wrong_checkpoint_is_refused_and_kept(
    unfinished: Path, fedspan: Fedspan, spoil: Callable[[Path], None], sentence: str
) -> None:
    spoil(unfinished / "checkpoint" / "round.safetensors")
    before = tree(unfinished)
    result = fedspan("resume", "run")
    check_refused(result, sentence)
    assert tree(unfinished) == before


@pytest.mark.parametrize("command", ["resume", "report"])
@pytest.mark.parametrize("folder", [".", "nowhere", "north.csv"])
def test_a_folder_that_is_no_run_folder(world: Path, fedspan: Fedspan, command: str, folder: str) -> None:
    """The world's own folder holds a job.toml too, but no run made it."""
    before = tree(world)
    result = fedspan(command, folder)
    assert result.exit_code == 2
    assert f"'{folder}' is not a run folder." in result.stderr
    assert tree(world) == before


def test_two_processes_in_one_folder(unfinished: Path, fedspan: Fedspan) -> None:
    import fcntl

    before = tree(unfinished)
    with (unfinished / "job.toml").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        result = fedspan("resume", "run")
    assert result.exit_code == 2
    assert "Another process is at work in run" in result.stderr
    assert tree(unfinished) == before
