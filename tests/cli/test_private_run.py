"""A private and secure run from its job file to its report, its ledger and the clients' budgets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_world import tree

from fedspan import Ledger
from fedspan.privacy.budget import Budget

Fedspan = Callable[..., Any]
JOB = """
[job]
task = "pca"
n_components = 2
[data]
clients = ["north.npy", "south.npy"]
[privacy]
epsilon = 2.0
delta = 1e-6
row_norm = 4.0
budgets = "budgets"
[secure]
enabled = true
"""


@pytest.fixture
def private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for seed, name in enumerate(["north", "south"]):
        X = np.random.default_rng(seed).normal(size=(20_000, 4)) * [2.0, 1.0, 0.5, 0.2]
        np.save(tmp_path / f"{name}.npy", X)
        Budget.grant(tmp_path / "budgets" / f"{name}.json", 2.5, 1e-6)
    (tmp_path / "job.toml").write_text(JOB)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_private_secure_job_says_what_it_gave_and_what_it_cost(private: Path, fedspan: Fedspan) -> None:
    result = fedspan("run", "job.toml", "--out", "out")
    assert result.exit_code == 0, result.output
    ledger = Ledger.read(private / "out" / "ledger.jsonl")
    assert 1.9 < ledger.epsilon(1e-6) <= 2.0 + 1e-5
    assert all(row["secure"] for row in ledger.rows() if row["event"] == "exchange")
    report = (private / "out" / "report.html").read_text()
    assert "differential privacy of single rows with epsilon 2 at delta 1e-06; secure aggregation" in report
    assert "of all clients together, and of none by itself, with noise: how many rows it has" in report
    assert "expected projection distance" in report
    assert "<dt>ε spent</dt><dd>2 of 2</dd>" in report
    assert "what the server saw of all clients together, with noise" in report
    assert "Its noise cannot be repeated" in report
    assert Budget(private / "budgets" / "north.json").spent == pytest.approx(2.0, rel=1e-3)


def test_a_second_run_that_would_exceed_a_budget_ends_with_2(private: Path, fedspan: Fedspan) -> None:
    assert fedspan("run", "job.toml", "--out", "out").exit_code == 0
    before = tree(private / "out")
    result = fedspan("run", "job.toml", "--out", "again")
    assert result.exit_code == 2, result.output
    assert "would exceed the privacy budget in north.json" in result.stderr
    assert not (private / "again" / "model.safetensors").exists()
    assert tree(private / "out") == before


def test_without_a_budget_file_nothing_is_sent(private: Path, fedspan: Fedspan) -> None:
    (private / "budgets" / "south.json").unlink()
    result = fedspan("run", "job.toml", "--out", "out")
    assert result.exit_code == 2
    assert "need a privacy budget" in result.stderr
    assert not (private / "out").exists()
    assert Budget(private / "budgets" / "north.json").spent == 0


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("privacy.epsilon=0", "need epsilon above 0"),
        ("privacy.delta=0.5", "need delta below 1 / 40000 rows"),
        ("job.solver=krylov", "cannot keep row-level privacy"),
        ("secure.threshold=3", "need a threshold from 2 to the 2 clients"),
        ("job.scale=true", "divide the columns by public ones"),
    ],
)
def test_wrong_protection_ends_with_2(private: Path, fedspan: Fedspan, change: str, says: str) -> None:
    before = tree(private)
    result = fedspan("run", "job.toml", "--out", "out", "--set", change)
    assert result.exit_code == 2, result.output
    assert says in " ".join(result.stderr.split())
    assert tree(private) == before


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (["secure.enabled=true"], "cannot be told from random bytes"),
        (["secure.enabled=false"], "client 'north': the second moments that the server holds are off by"),
    ],
)
def test_an_audit_of_a_protected_run_says_what_the_server_holds(
    private: Path, fedspan: Fedspan, change: list[str], says: str
) -> None:
    words = [word for item in change for word in ("--set", item)]
    assert fedspan("run", "job.toml", "--out", "out", "--transcript", *words).exit_code == 0
    result = fedspan("audit", "out")
    assert result.exit_code == 0, result.output
    text = " ".join(result.stdout.split())
    assert says in text
    assert "was a row there? nobody can tell better than with mu" in text
    assert "epsilon 2 at delta 1e-06" in text
    assert says in " ".join((private / "out" / "audit.html").read_text().replace("&#x27;", "'").split())


def test_an_audit_reads_the_packed_messages_of_secure_sums(private: Path, fedspan: Fedspan) -> None:
    job = (private / "job.toml").read_text().split("[privacy]")[0] + "[secure]\nenabled = true\n"
    (private / "packed.toml").write_text(job)
    words = ["--set", "job.solver=krylov", "--out", "packed", "--transcript"]
    assert fedspan("run", "packed.toml", *words).exit_code == 0
    result = fedspan("audit", "packed")
    assert result.exit_code == 0, result.output
    assert "cannot be told from random bytes" in " ".join(result.stdout.split())


def test_an_audit_sees_if_masks_were_missing(private: Path, fedspan: Fedspan) -> None:
    """The test for randomness can fail: it is shown answers of a run without masks as if they had been masked."""
    from fedspan.audit.protected import _randomness
    from fedspan.engines.transcript import Transcript

    assert fedspan("run", "job.toml", "--out", "out", "--transcript", "--set", "secure.enabled=false").exit_code == 0
    from fedspan import Channel

    assert "DIFFER" in _randomness(list(Transcript(private / "out" / "transcript").talks(Channel())))


def test_a_warning_comes_before_anything_is_sent(
    private: Path, fedspan: Fedspan, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os

    from fedspan.jobs import runner

    seen: list[str] = []
    monkeypatch.setattr(runner, "say", lambda console, text: seen.append(text))
    charge = Budget.charge

    def charged(self: Budget, *given: Any) -> None:
        seen.append("charged")
        charge(self, *given)

    monkeypatch.setattr(Budget, "charge", charged)
    monkeypatch.setattr(os, "fsync", lambda _: None)
    assert fedspan("run", "job.toml", "--out", "out", "--set", "privacy.epsilon=0.01").exit_code == 0
    assert seen[0].startswith("warning: expected projection distance")
    assert "charged" in seen
    assert "Numbers on this page carry that noise" in (private / "out" / "report.html").read_text()
