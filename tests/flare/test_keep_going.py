"""Runs that survive by themselves: each accident in the middle of `fedspan run --keep-going`, on real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("nvflare", reason="needs fedspan[flare]")

import first_job as job
from tunnel import Tunnel
from world import PATIENCE, SERVER, command, misbehave, until

from fedspan import FederatedPCA, Ledger

pytestmark = pytest.mark.xdist_group("flare")
TIMEOUT = 8.0  # seconds in which a site must answer
NOISE = "[privacy]\nepsilon = 6.0\ndelta = 1e-4\nrow_norm = 30.0\n"
JOB = """
[job]
task = "pca"
n_components = 2
solver = "ssi"
tol = 0.0
max_rounds = 10
random_state = 4
[run]
timeout = {timeout}
"""


@pytest.fixture(scope="module")
def undisturbed(hospital_rows: dict[str, np.ndarray]) -> FederatedPCA:
    return FederatedPCA(**job.PCA, secure=True).fit(hospital_rows)


def assert_same(place: Path, undisturbed: FederatedPCA) -> None:
    model = FederatedPCA.load(place / "model.safetensors")
    for name in ("components_", "explained_variance_", "mean_"):
        np.testing.assert_array_equal(getattr(model, name), getattr(undisturbed, name))


class Accidents:
    """What can happen to a federation, and what its people do then."""

    def __init__(self, made: Any, tunnel: Tunnel) -> None:
        self.made, self.tunnel = made, tunnel

    def kill_site(self) -> None:
        self.made.kill("north")
        time.sleep(3.0)
        self.made.start("north")

    def kill_job_of_site(self) -> None:
        self.made.kill("north", job_only=True)

    def kill_job_of_server(self) -> None:
        self.made.kill(SERVER, job_only=True)

    def kill_server(self) -> None:
        self.made.kill(SERVER)
        time.sleep(3.0)
        self.made.start(SERVER)

    def cut_network(self) -> None:
        self.tunnel.cut()
        time.sleep(60.0)
        self.tunnel.mend()

    def freeze_site(self) -> None:
        pids = self.made.pids("north")
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(30.0)
        for pid in pids:
            os.kill(pid, signal.SIGCONT)

    def kill_two(self) -> None:
        self.kill_job_of_server()
        time.sleep(1.0)
        self.kill_site()


ACCIDENTS = [
    "kill_job_of_server",
    *(
        pytest.param(name, marks=pytest.mark.long)
        for name in ("kill_site", "kill_job_of_site", "kill_server", "cut_network", "freeze_site", "kill_two")
    ),
]


@contextmanager
def running(made: Any, words: list[str]) -> Iterator[tuple[subprocess.Popen[str], Callable[[], bool]]]:
    """A command that runs a job, and whether the job has done six rounds."""
    runs = made.kit(SERVER) / "fedspan" / "runs"
    before = set(runs.glob("*"))
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:

        def in_the_middle() -> bool:
            assert process.poll() is None, process.stdout and process.stdout.read()
            ledgers = [folder / "ledger.jsonl" for folder in set(runs.glob("*")) - before]
            texts = [path.read_text(encoding="utf-8") for path in ledgers if path.exists()]
            return any(text.count('"event":"round"') >= 6 for text in texts)  # round 0 is the first

        try:
            yield process, in_the_middle
        finally:
            process.kill()  # if it hangs: nothing is left behind


@pytest.fixture
def held(healed: Any, tmp_path: Path) -> Path:
    """As long as this file is there, east does not answer in round 6: so there is a middle of the run."""
    file = tmp_path / "hold"
    file.touch()
    misbehave(healed, "east", {"what": "hold", "round": 6, "while": str(file)})
    return file


@pytest.mark.parametrize("accident", ACCIDENTS)
def test_a_run_that_is_to_keep_going_survives(
    healed: Any, tunnel: Tunnel, held: Path, tmp_path: Path, undisturbed: FederatedPCA, accident: str
) -> None:
    path, place = tmp_path / "job.toml", tmp_path / "run"
    path.write_text(JOB.format(timeout=TIMEOUT), encoding="utf-8")
    words = command("run", path, "--on", healed.researcher, "--out", place, "--keep-going", "20m")
    with running(healed, words) as (process, in_the_middle):
        until(in_the_middle)
        done = threading.Thread(target=getattr(Accidents(healed, tunnel), accident))
        done.start()
        time.sleep(0.5)
        held.unlink()
        said, _ = process.communicate(timeout=PATIENCE)
        done.join()
    print(said)
    assert process.returncode == 0, said
    assert_same(place, undisturbed)
    assert (place / "report.html").exists()


def test_a_run_goes_on_when_its_researchers_machine_has_died(
    healed: Any, held: Path, tmp_path: Path, undisturbed: FederatedPCA
) -> None:
    """The federation does not need that machine; whoever resumes the run there watches it to its end."""
    path, place = tmp_path / "job.toml", tmp_path / "run"
    path.write_text(JOB.format(timeout=PATIENCE), encoding="utf-8")
    words = command("run", path, "--on", healed.researcher, "--out", place, "--keep-going", "20m")
    with running(healed, words) as (process, in_the_middle):
        until(in_the_middle)
        process.kill()
        process.wait()
    held.unlink()
    said = subprocess.run(
        command("resume", place, "--keep-going", "20m"), capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert said.returncode == 0, said.stdout + said.stderr
    assert_same(place, undisturbed)


@pytest.mark.long
@pytest.mark.parametrize("accident", ["kill_job_of_site", "kill_server"])
def test_a_private_run_that_survives_costs_what_an_undisturbed_one_costs(
    healed: Any, tunnel: Tunnel, held: Path, tmp_path: Path, accident: str
) -> None:
    path, place = tmp_path / "job.toml", tmp_path / "run"
    path.write_text(JOB.format(timeout=TIMEOUT) + NOISE, encoding="utf-8")
    words = command("run", path, "--on", healed.researcher, "--out", place, "--keep-going", "20m")
    with running(healed, words) as (process, in_the_middle):
        until(in_the_middle)
        done = threading.Thread(target=getattr(Accidents(healed, tunnel), accident))
        done.start()
        time.sleep(0.5)
        held.unlink()
        said, _ = process.communicate(timeout=PATIENCE)
        done.join()
    print(said)
    assert process.returncode == 0, said
    ledger = Ledger.read(place / "ledger.jsonl")
    assert any("resumed after round" in note for note in ledger.notes)
    assert 5.9 < ledger.epsilon(1e-4) <= 6.0 + 1e-6
