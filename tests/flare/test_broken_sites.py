"""Sites and servers that fail in the middle of a run, on a real federation with secure sums."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("nvflare", reason="needs fedspan[flare]")
sys.path.insert(0, str(Path(__file__).parent))

from world import exchanges, log_of, misbehave, until

from fedspan import FederatedPCA
from fedspan.deployment.kit import init_site
from fedspan.ledger import Ledger

ROUNDS = 25
SERVER = "localhost"


@pytest.fixture
def healed(three: Any) -> Iterator[Any]:
    """The federation, whose sites behave again when the test is over, and which is whole again."""
    yield three
    for site in three.sites:
        misbehave(three, site)
    for name in (SERVER, *three.sites):
        if three.processes[name].poll() is not None:
            three.start(name)
    three.wait_for(three.sites)


@pytest.fixture(scope="module")
def undisturbed(hospital_rows: dict[str, np.ndarray]) -> FederatedPCA:
    model = FederatedPCA(2, solver="ssi", tol=0, max_rounds=ROUNDS, random_state=4, secure=True)
    return model.fit(hospital_rows)


def job(folder: Path, timeout: float = 60.0, **more: Any) -> Path:
    path = folder / "job.toml"
    keys = {"task": "pca", "n_components": 2, "solver": "ssi", "tol": 0.0, "max_rounds": ROUNDS, "random_state": 4}
    lines = [f"{key} = {json.dumps(value)}" for key, value in (keys | more.pop("job", {})).items()]
    run = {"timeout": timeout, **more}
    path.write_text("\n".join(["[job]", *lines, "[run]", *(f"{key} = {value}" for key, value in run.items())]) + "\n")
    return path


def fedspan(*words: Any) -> list[str]:
    return [sys.executable, "-m", "fedspan.cli.main", *map(str, words)]


def ran(*words: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(fedspan(*words), capture_output=True, text=True, timeout=300, check=False)


def same(place: Path, undisturbed: FederatedPCA) -> None:
    model = FederatedPCA.load(place / "model.safetensors")
    for name in ("components_", "explained_variance_", "mean_"):
        np.testing.assert_array_equal(getattr(model, name), getattr(undisturbed, name))
    assert (place / "report.html").exists()


def test_nonsense_is_refused_and_asked_for_again(healed: Any, tmp_path: Path, undisturbed: FederatedPCA) -> None:
    """Wrong names, shapes, dtypes, NaN, no message at all, text, an exception: each once, then an honest answer."""
    kinds = ["names", "shape", "dtype", "nan", "garbage", "text", "raise"]
    plans = [{"what": what, "task": "multiply", "round": 2 + i, "times": 1} for i, what in enumerate(kinds)]
    misbehave(healed, "north", *plans)
    done = ran("run", job(tmp_path), "--on", healed.researcher, "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    left = json.loads((healed.kit("north") / "mischief.json").read_text())
    assert [plan["times"] for plan in left] == [0] * len(kinds)  # all of it was tried
    same(tmp_path / "run", undisturbed)
    assert all(event.secure for event in exchanges(Ledger.read(tmp_path / "run" / "ledger.jsonl")))


def test_a_site_that_keeps_failing_is_named_and_the_run_goes_on_when_it_is_mended(
    healed: Any, tmp_path: Path, undisturbed: FederatedPCA
) -> None:
    misbehave(healed, "south", {"what": "raise", "task": "multiply", "round": 5})
    done = ran("run", job(tmp_path), "--on", healed.researcher, "--out", tmp_path / "run")
    assert done.returncode == 1
    assert "'south'" in done.stderr
    assert "fedspan resume" in done.stderr
    assert "Traceback" not in done.stderr
    misbehave(healed, "south")
    again = ran("resume", tmp_path / "run")
    assert again.returncode == 0, again.stderr
    same(tmp_path / "run", undisturbed)


@pytest.mark.long
def test_a_reply_of_a_gigabyte_is_refused(healed: Any, tmp_path: Path, undisturbed: FederatedPCA) -> None:
    misbehave(healed, "north", {"what": "huge", "task": "multiply", "round": 3, "times": 1})
    done = ran("run", job(tmp_path, timeout=240), "--on", healed.researcher, "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    same(tmp_path / "run", undisturbed)


KILLED = [
    ("the server's job", SERVER, True),
    pytest.param("a client's job", "north", True, marks=pytest.mark.long),
    pytest.param("a site", "north", False, marks=pytest.mark.long),
    pytest.param("the server", SERVER, False, marks=pytest.mark.long),
]


@pytest.mark.parametrize(("what", "who", "job_only"), KILLED)
def test_after_kill_9_a_resumed_run_ends_as_an_undisturbed_one(
    healed: Any, tmp_path: Path, undisturbed: FederatedPCA, what: str, who: str, job_only: bool
) -> None:
    misbehave(healed, "east", {"what": "sleep", "seconds": 0.2})  # so that there is a middle
    before = set((healed.kit(SERVER) / "fedspan" / "runs").glob("*"))
    words = fedspan("run", job(tmp_path, timeout=15), "--on", healed.researcher, "--out", tmp_path / "run")
    with subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:

        def far_enough() -> bool:
            new = set((healed.kit(SERVER) / "fedspan" / "runs").glob("*")) - before
            ledgers = [folder / "ledger.jsonl" for folder in new if (folder / "ledger.jsonl").exists()]
            return any(ledger.read_text().count('"event":"round"') >= 5 for ledger in ledgers)

        try:
            until(far_enough, 120)
            healed.kill(who, job_only=job_only)
            _, said = running.communicate(timeout=240)
        finally:
            running.kill()  # if it hangs: nothing is left behind
    assert running.returncode == 1, said
    assert "fedspan resume" in said
    if not job_only:
        healed.start(who)
    healed.wait_for(healed.sites)
    misbehave(healed, "east")
    again = ran("resume", tmp_path / "run")
    assert again.returncode == 0, again.stderr + log_of(healed, SERVER)[-2000:]
    same(tmp_path / "run", undisturbed)
    notes = Ledger.read(tmp_path / "run" / "ledger.jsonl").notes
    assert any("resumed after round" in note for note in notes)


def test_a_straggler_does_not_hold_a_run_that_can_do_without(healed: Any, tmp_path: Path) -> None:
    """FedPower goes on with two of three; whoever was late once is not waited for."""
    for site in healed.sites:  # each reply by itself: the sites' own decision
        table = {"default": {"path": str(healed.folder.parent / f"{site}.parquet")}}
        init_site(healed.kit(site), table, replace=True, secure=False)
    late = {"what": "sleep", "seconds": 30}
    misbehave(healed, "south", *({**late, "task": task} for task in ("iterate_aligned", "multiply")))
    path = job(tmp_path, timeout=4, min_clients=2, job={"solver": "fedpower", "max_rounds": 8, "local_steps": 2})
    path.write_text(path.read_text() + "[secure]\nenabled = false\n")
    done = ran("run", path, "--on", healed.researcher, "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    ledger = Ledger.read(tmp_path / "run" / "ledger.jsonl")
    assert sum("south" in event.missing for event in exchanges(ledger)) >= 8
    assert ledger.seconds < 30  # one time-out of 4 s, not one in each round
