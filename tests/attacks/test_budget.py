"""Attacks on a client's privacy budget: each succeeds when its defence is taken away, and fails when it is there."""

from __future__ import annotations

import contextlib
import errno
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedspan import FederatedPCA, RowDP
from fedspan.engines import InProcess
from fedspan.errors import PrivacyError
from fedspan.privacy import budget as module
from fedspan.privacy.accountant import gaussian_mu
from fedspan.privacy.budget import Budget, Cost

fork = multiprocessing.get_context("fork")
ONE = {"triangle": Cost(1 / gaussian_mu(1.0, 1e-6), 1.0, 1)}  # a run of ε = 1


def spend(budget: Budget, run: str) -> bool:
    """What a site does for one release; whether it may leave."""
    try:
        budget.reserve(run, ONE, "add-remove")
        budget.send(run, "triangle", "question")
        budget.confirm(run, "triangle", "question", "contents")
    except PrivacyError:
        return False
    return True


def race(path: Path, jobs: int = 3) -> int:
    """How many of several jobs, which begin at the same moment in processes of their own, may release something."""
    Budget.grant(path, 1.0001, 1e-6)
    barrier, granted = fork.Barrier(jobs), fork.Value("i", 0)

    def job(number: int) -> None:
        barrier.wait()
        with contextlib.suppress(Exception):
            if spend(Budget(path), f"run{number}"):
                with granted.get_lock():
                    granted.value += 1
        os._exit(0)

    processes = [fork.Process(target=job, args=(number,)) for number in range(jobs)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return int(granted.value)


def test_jobs_at_the_same_time_never_spend_the_same_epsilon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [race(tmp_path / f"{trial}.json") for trial in range(20)] == [1] * 20

    @contextlib.contextmanager
    def no_lock(self: Budget) -> Iterator[None]:
        yield

    write = module.write_whole

    def write_slowly(*given: Any) -> None:
        time.sleep(0.1 * (os.getpid() % 4))  # some jobs are slower than others between reading and writing
        write(*given)

    def read_unchecked(self: Budget) -> module.Account:
        return module._to_account(json.loads(self.path.read_text())["account"])

    monkeypatch.setattr(Budget, "_holding_lock", no_lock)
    monkeypatch.setattr(Budget, "_read", read_unchecked)  # the number of the change would show the race, too
    monkeypatch.setattr(module, "write_whole", write_slowly)
    assert max(race(tmp_path / f"open{trial}.json") for trial in range(5)) > 1, "without the lock it is spent twice"


def kill_at_random(path: Path, *, charge_first: bool, kills: int = 30) -> list[str]:
    """Runs that released something of which the budget knows nothing, after jobs were killed at random instants."""
    Budget.grant(path, 50.0, 1e-6)
    released, rng = path.with_suffix(".released"), random.Random(4)  # noqa: S311
    released.touch()

    def job(run: str) -> None:
        budget = Budget(path)
        if charge_first:
            spend(budget, run)
        with released.open("a") as file:  # the answer leaves
            file.write(run + "\n")
        if not charge_first:
            spend(budget, run)
        os._exit(0)

    for number in range(kills):
        process = fork.Process(target=job, args=(f"run{number}",))
        process.start()
        time.sleep(rng.random() * 0.05)
        os.kill(process.pid or 0, signal.SIGKILL)
        process.join()
    known = {entry.run for entry in Budget(path).account.runs if entry.sent.get("triangle")}
    return [run for run in released.read_text().split() if run not in known]


def test_a_job_that_is_killed_at_any_instant_leaves_its_release_counted(tmp_path: Path) -> None:
    assert kill_at_random(tmp_path / "good.json", charge_first=True) == []
    assert Budget(tmp_path / "good.json").spent >= 0, "and the files can be read"
    assert kill_at_random(tmp_path / "bad.json", charge_first=False, kills=60), "charging afterwards loses releases"


def test_a_crash_between_the_two_files_is_no_roll_back(tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    budget = Budget.grant(path, 5.0, 1e-6)
    serial = path.with_name("b.json.serial").read_bytes()
    spend(budget, "one")
    last = path.with_name("b.json.serial").read_text()
    path.with_name("b.json.serial").write_text(str(int(last) - 1))
    assert Budget(path).spent == pytest.approx(1.0, rel=1e-3)
    path.with_name("b.json.serial").write_bytes(serial)
    with pytest.raises(PrivacyError, match="an older copy was put back"):
        Budget(path)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_what_cannot_be_written_down_does_not_leave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """A full disk, a read-only one, a file of somebody else's: at any of the changes of a run."""
    rows = np.random.default_rng(0).normal(size=(500, 4))
    write, left = module.write_whole, []
    for allowed in range(7):  # the first so many changes succeed
        for name in ("ada", "bo"):
            Budget.grant(tmp_path / f"{allowed}" / f"{name}.json", 1.0001, 1e-6)
        count = [0]

        def fail_later(*given: Any, count: list[int] = count, allowed: int = allowed) -> None:
            count[0] += 1
            if count[0] > 2 * allowed:
                raise OSError(code, os.strerror(code))
            write(*given)

        transcript = tmp_path / f"transcript{allowed}"
        engine = InProcess({"ada": rows, "bo": rows}, transcript=transcript, threads=1)
        dp = RowDP(1.0, 1e-6, 2.0, budgets=tmp_path / f"{allowed}")
        with monkeypatch.context() as patch:
            patch.setattr(module, "write_whole", fail_later)
            with pytest.raises(PrivacyError, match="cannot be written"):
                FederatedPCA(1, privacy=dp, engine=engine, random_state=0).fit({"ada": rows, "bo": rows})
        answers = len(list(transcript.glob("*up*"))) if transcript.exists() else 0
        known = sum(
            len(sent)
            for name in ("ada", "bo")
            for entry in Budget(tmp_path / f"{allowed}" / f"{name}.json").account.runs
            for sent in entry.sent.values()
        )
        assert answers <= known, "every answer that left is written down"
        left.append(known)
    assert left[0] == 0
    assert max(left) > 0


_FULL = """
import resource, sys
import numpy as np
from fedspan import FederatedPCA, RowDP
from fedspan.errors import PrivacyError

rows = np.random.default_rng(0).normal(size=(500, 4))
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), hard))
asked = []
try:
    dp = RowDP(1.0, 1e-6, 2.0, budgets=sys.argv[1])
    FederatedPCA(1, privacy=dp, callback=lambda info: asked.append(info)).fit({"ada": rows, "bo": rows})
except PrivacyError as error:
    print(f"{len(asked)} rounds. {error}")
"""


@pytest.mark.skipif(os.name != "posix", reason="file sizes are limited by POSIX's setrlimit")
def test_no_room_for_the_budgets_own_file_stops_the_run(tmp_path: Path) -> None:
    """The operating system's own refusal, in the middle of a write: the file stays whole, and nothing has left."""
    for name in ("ada", "bo"):
        Budget.grant(tmp_path / f"{name}.json", 1.0001, 1e-6)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    done = subprocess.run(
        [sys.executable, "-c", _FULL, str(tmp_path), "250"], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout.startswith(
        "0 rounds. client 'ada': The privacy budget ada.json cannot be written (File too large)"
    ), done
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert Budget(tmp_path / "ada.json").spent == 0


def edit(path: Path) -> None:
    """Forget what was spent."""
    tree = json.loads(path.read_text())
    tree["account"]["runs"] = []
    path.write_text(json.dumps(tree))


def test_an_edited_budget_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "b.json"
    assert spend(Budget.grant(path, 1.0001, 1e-6), "one")
    edit(path)
    with pytest.raises(PrivacyError, match=r"The privacy budget b\.json cannot be trusted: it was edited"):
        Budget(path)
    with pytest.raises(PrivacyError, match="it was edited"):
        Budget.grant(path, 9.0, 1e-6)  # nor does a grant forget it
    monkeypatch.setattr(module.hmac, "compare_digest", lambda *_: True)
    assert spend(Budget(path), "two"), "without the seal ε = 1 is spent twice"


def test_an_older_copy_of_a_budget_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    budget = Budget.grant(path, 1.0001, 1e-6)
    shutil.copy(path, tmp_path / "backup")
    serial = path.with_name("b.json.serial")
    shutil.copy(serial, tmp_path / "backup.serial")
    assert spend(budget, "one")
    shutil.copy(tmp_path / "backup", path)
    with pytest.raises(PrivacyError, match="an older copy was put back"):
        Budget(path)
    shutil.copy(tmp_path / "backup.serial", serial)  # with the number of the change put back as well
    assert spend(Budget(path), "two"), "without it ε = 1 is spent twice"


def test_a_clock_that_was_set_back_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "b.json"
    later = (datetime.now(UTC) + timedelta(hours=5)).isoformat(timespec="seconds")
    with monkeypatch.context() as patch:
        patch.setattr(module, "_now", lambda: later)
        Budget.grant(path, 1.0, 1e-6)
    with pytest.raises(PrivacyError, match="clock was set back"):
        Budget(path)
    monkeypatch.setattr(module, "_BACK", timedelta(hours=6))
    Budget(path)  # some minutes, say by a change of time servers, do not matter


@pytest.mark.parametrize(
    "text", ["", "{}", "[1, 2]", "null", '{"version": 2, "account": {}, "seal": ""}', '{"version": 2, "seal": 3}']
)
def test_a_budget_that_cannot_be_read_stops_everything(tmp_path: Path, text: str) -> None:
    path = tmp_path / "b.json"
    path.write_text(text)
    with pytest.raises(PrivacyError, match="cannot be trusted"):
        Budget(path)


def test_a_budget_whose_key_is_gone_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    Budget.grant(path, 1.0, 1e-6)
    key = path.with_name("b.json.key")
    assert key.stat().st_mode & 0o077 == 0, "nobody else can read it"
    key.unlink()
    with pytest.raises(PrivacyError, match="its key was replaced"):
        Budget(path)


def test_a_budget_of_version_0_1_goes_on_when_it_is_granted_again(tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    z = 1 / gaussian_mu(1.0, 1e-6)
    old = {"epsilon": 2.0, "delta": 1e-6, "spent": [{"task": "gram", "noise": z, "sampled": 1.0, "when": "2026"}]}
    path.write_text(json.dumps(old))
    with pytest.raises(PrivacyError, match=r"written by version 0\.1"):
        Budget(path)
    assert Budget.grant(path, 2.0, 1e-6).spent == pytest.approx(1.0, rel=1e-6)


def test_reserved_is_spent_until_the_run_is_settled(tmp_path: Path) -> None:
    budget = Budget.grant(tmp_path / "b.json", 1.0001, 1e-6)
    budget.reserve("one", ONE, "add-remove")
    budget.reserve("one", ONE, "add-remove")  # the same run again, after a crash
    with pytest.raises(PrivacyError, match="reserved by runs that are not over"):
        budget.reserve("two", ONE, "add-remove")
    with pytest.raises(PrivacyError, match="another privacy plan"):
        budget.reserve("one", {"triangle": Cost(9.0, 1.0, 1)}, "add-remove")
    with pytest.raises(PrivacyError, match="was not reserved"):
        budget.send("two", "triangle", "q")
    budget.settle("one")  # nothing was sent
    budget.reserve("two", ONE, "add-remove")
    assert budget.send("two", "triangle", "q") is None
    assert budget.send("two", "triangle", "q") == "", "the same question is free"
    with pytest.raises(PrivacyError, match="would exceed the plan, which allows 1"):
        budget.send("two", "triangle", "another")
    assert budget.spent == pytest.approx(1.0, rel=1e-6)
