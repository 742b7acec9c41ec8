"""Sites and servers that fail in the middle of a run, on a real federation; tests/deployment has more over loopback."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import typed

pytest.importorskip("nvflare", reason="needs fedspan[flare]")

import first_job as job
import rogue
from orders import exchanges
from world import PATIENCE, SERVER, call, command, log_of, misbehave, until

from fedspan import FederatedPCA
from fedspan.core.ledger import Ledger

pytestmark = pytest.mark.xdist_group("flare")


@pytest.fixture(scope="module")
def undisturbed(hospital_rows: dict[str, np.ndarray]) -> FederatedPCA:
    return FederatedPCA(**job.PCA, secure=True).fit(hospital_rows)


def write_job(path: Path, timeout: float) -> Path:
    """The job of which `undisturbed` is the model: three sites have secure sums by default."""
    lines = [f"{key} = {json.dumps(value)}" for key, value in {"task": "pca", **job.PCA}.items()]
    path.write_text("\n".join(["[job]", *lines, "[run]", f"timeout = {timeout}\n"]), encoding="utf-8")
    return path


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    return write_job(tmp_path / "job.toml", PATIENCE)


def assert_same(place: Path, undisturbed: FederatedPCA) -> None:
    model = FederatedPCA.load(place / "model.safetensors")
    for name in ("components_", "explained_variance_", "mean_"):
        np.testing.assert_array_equal(getattr(model, name), getattr(undisturbed, name))


def test_nonsense_is_refused_and_asked_for_again(first_job: Any, undisturbed: FederatedPCA) -> None:
    """Wrong names, shapes, dtypes, NaN, no message at all, text, an exception: each once, then an honest answer."""
    place = first_job.place("nonsense")
    assert [plan["times"] for plan in first_job.plans] == [0] * len(rogue.KINDS)  # all of it was tried
    assert_same(place, undisturbed)
    assert all(event.secure for event in exchanges(Ledger.read(place / "ledger.jsonl")))


def test_a_straggler_does_not_hold_a_run_that_can_do_without(first_job: Any) -> None:
    """FedPower goes on with two of three; each answer of south takes longer than the server waits."""
    events = exchanges(Ledger.read(first_job.place("straggler") / "ledger.jsonl"))
    late = [event for event in events if event.task == "iterate_aligned"]
    assert [event.missing for event in late] == [("south",)] * job.FEDPOWER["max_rounds"]
    assert late[0].failures["south"].startswith(f"did not answer within {job.PATIENCE:g} s")


@pytest.mark.long
def test_a_site_that_keeps_failing_is_named_and_the_run_goes_on_when_it_is_mended(
    healed: Any, job_file: Path, undisturbed: FederatedPCA
) -> None:
    misbehave(healed, "south", {"what": "raise", "task": "multiply", "round": 5})
    place = job_file.parent / "run"
    done = call("run", job_file, "--on", healed.researcher, "--out", place)
    assert done.returncode == 1
    assert "'south'" in done.stderr
    assert "fedspan resume" in done.stderr
    assert "Traceback" not in done.stderr
    misbehave(healed, "south")
    again = call("resume", place)
    assert again.returncode == 0, again.stderr
    assert_same(place, undisturbed)
    assert (place / "report.html").exists()


@pytest.mark.long
def test_a_reply_of_a_gigabyte_is_refused(healed: Any, job_file: Path, undisturbed: FederatedPCA) -> None:
    misbehave(healed, "north", {"what": "huge", "task": "multiply", "round": 3, "times": 1})
    done = call("run", job_file, "--on", healed.researcher, "--out", job_file.parent / "run")
    assert done.returncode == 0, done.stderr
    assert_same(job_file.parent / "run", undisturbed)


@pytest.fixture
def held(healed: Any, tmp_path: Path) -> Iterator[Path]:
    """As long as this file is there, east does not answer in round 6: so there is a middle of the run."""
    file = tmp_path / "hold"
    file.touch()
    misbehave(healed, "east", {"what": "hold", "round": 6, "while": str(file)})
    yield file
    file.unlink(missing_ok=True)


KILLED = [
    ("the server's job", SERVER, True),
    pytest.param("a client's job", "north", True, marks=pytest.mark.long),
    pytest.param("a site", "north", False, marks=pytest.mark.long),
    pytest.param("the server", SERVER, False, marks=pytest.mark.long),
]


@pytest.mark.parametrize(("what", "who", "job_only"), KILLED)
def test_after_kill_9_a_resumed_run_ends_as_an_undisturbed_one(
    healed: Any, held: Path, job_file: Path, undisturbed: FederatedPCA, what: str, who: str, job_only: bool
) -> None:
    runs, place = healed.kit(SERVER) / "fedspan" / "runs", job_file.parent / "run"
    if who != SERVER:
        write_job(job_file, 20.0)  # each question to a dead site takes so long
    before = set(runs.glob("*"))
    words = command("run", job_file, "--on", healed.researcher, "--out", place)
    with subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:

        def in_the_middle() -> bool:
            assert running.poll() is None
            ledgers = [folder / "ledger.jsonl" for folder in set(runs.glob("*")) - before]
            texts = [path.read_text(encoding="utf-8") for path in ledgers if path.exists()]
            return any(text.count('"event":"round"') >= 6 for text in texts)  # round 0 is the first

        try:
            until(in_the_middle)
            healed.kill(who, job_only=job_only)
            held.unlink()
            _, said = running.communicate(timeout=PATIENCE)
        finally:
            running.kill()  # if it hangs: nothing is left behind
    assert running.returncode == 1, said
    assert "fedspan resume" in said
    if not job_only:
        healed.start(who)
        healed.wait_for(healed.sites)
    again = typed.call("resume", place)
    assert again.exit_code == 0, again.stderr + log_of(healed, SERVER)[-2000:]
    assert_same(place, undisturbed)
    assert (place / "report.html").exists()
    notes = Ledger.read(place / "ledger.jsonl").notes
    assert any("resumed after round" in note for note in notes)
