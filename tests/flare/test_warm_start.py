"""Jobs that are forks of a warm process: quicker, the same bits, and none survives the process that forked it."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("nvflare", reason="needs fedspan[flare]")

from world import PATIENCE, SERVER, command, federation, misbehave, until

from fedspan import FederatedPCA
from fedspan.deployment.operations.warm_start import switch_warm
from typed import call

pytestmark = [pytest.mark.xdist_group("flare"), pytest.mark.long]
JOB = '[job]\ntask = "pca"\nn_components = 2\nsolver = "ssi"\ntol = 0.0\nmax_rounds = 8\nrandom_state = 4\n'


@pytest.fixture(scope="module")
def rows() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    return {site: rng.normal(size=(40, 5)) * [5.0, 4.0, 3.0, 2.0, 1.0] for site in ("north", "south")}


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory, rows: dict[str, np.ndarray]) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("warm")
    for site, X in rows.items():
        np.save(folder / f"{site}.npy", X)
    tables = {site: {"default": {"path": str(folder / f"{site}.npy"), "features": 5}} for site in rows}
    made = federation(folder / "federation", tables, secure=False)
    for name in (SERVER, *made.sites):
        switch_warm(made.kit(name), on=True)
    with made:
        yield made


@pytest.fixture
def job(tmp_path: Path) -> Path:
    path = tmp_path / "job.toml"
    path.write_text(JOB, encoding="utf-8")
    return path


def read_words(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return []


def find_parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    except OSError:
        return 0


def warm_processes(made: Any, name: str) -> tuple[list[int], list[int]]:
    """The warm process of a kit, and the jobs that it has forked."""
    own = [pid for pid in made.pids(name) if "fedspan.deployment.operations.warm_process" in read_words(pid)]
    parents = [pid for pid in own if find_parent(pid) == made.processes[name].pid or find_parent(pid) not in own]
    return parents, [pid for pid in own if pid not in parents]


def assert_model(place: Path, rows: dict[str, np.ndarray]) -> None:
    model = FederatedPCA.load(place / "model.safetensors")
    here = FederatedPCA(2, solver="ssi", tol=0.0, max_rounds=8, random_state=4).fit(rows)
    np.testing.assert_array_equal(model.components_, here.components_)


def test_jobs_are_forked_and_give_the_same_bits(warm: Any, job: Path, rows: dict[str, np.ndarray]) -> None:
    hold = job.parent / "hold"
    hold.touch()
    misbehave(warm, "north", {"what": "hold", "round": 3, "while": str(hold)})
    words = command("run", job, "--on", warm.researcher, "--out", job.parent / "run")
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            until(lambda: all(warm_processes(warm, name)[1] for name in (SERVER, *warm.sites)))
        finally:
            hold.unlink()
        process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    assert_model(job.parent / "run", rows)
    until(lambda: not any(warm_processes(warm, name)[1] for name in (SERVER, *warm.sites)))  # and they end


def test_a_warm_process_that_is_killed_takes_its_jobs_with_it_and_a_new_one_comes(
    warm: Any, job: Path, rows: dict[str, np.ndarray]
) -> None:
    hold = job.parent / "hold"
    hold.touch()
    misbehave(warm, "north", {"what": "hold", "round": 3, "while": str(hold)})
    place = job.parent / "run"
    words = command("run", job, "--on", warm.researcher, "--out", place, "--keep-going", "20m")
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            until(lambda: warm_processes(warm, "north")[1])
            (parent,), forks = warm_processes(warm, "north")
            os.kill(parent, signal.SIGKILL)
            until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in forks))
        finally:
            misbehave(warm, "north")
            hold.unlink()
        said, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, said
    assert_model(place, rows)
    (again,), _ = warm_processes(warm, "north")
    assert again != parent
    assert call("run", job, "--on", warm.researcher, "--out", job.parent / "next").exit_code == 0
