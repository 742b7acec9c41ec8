"""A private and secure run from its job file to its report, its ledger and the clients' budgets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_world import tree

from fedspan import InputError, Ledger
from fedspan.cli.progress import TerminalProgress
from fedspan.privacy.budget import Budget

Fedspan = Callable[..., Any]


def test_a_private_secure_job_says_what_it_gave_and_what_it_cost(private: Path, fedspan: Fedspan) -> None:
    result = fedspan("run", "job.toml", "--out", "out")
    assert result.exit_code == 0, result.output
    ledger = Ledger.read(private / "out" / "ledger.jsonl")
    assert 1.9 < ledger.epsilon(1e-6) <= 2.0 + 1e-5
    assert all(row["secure"] for row in ledger.rows() if row["event"] == "exchange")
    report = (private / "out" / "report.html").read_text()
    assert "Differential privacy of single rows with ε = 2 at δ = 1e-06; secure aggregation." in report
    assert "(summed over all clients, with noise; no single client&#x27;s values): its number of rows" in report
    assert "Expected projection distance: about" in report
    assert "<dt>ε spent</dt><dd>2 of 2</dd>" in report
    assert "what the server saw, summed over all clients, with noise" in report
    assert "The noise cannot be repeated" in report
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
    assert "There is no privacy budget south.json" in result.stderr
    assert not (private / "out").exists()
    assert Budget(private / "budgets" / "north.json").spent == 0


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("privacy.epsilon=0", "epsilon must be above 0"),
        ("privacy.epsilon=1e-9", "epsilon must be from 1e-06 to 50, but is 1e-09"),
        ("job.solver=krylov", "cannot keep row-level privacy"),
        ("secure.threshold=3", "threshold must be from 2 to the 2 clients"),
        ("job.scale=true", "Divide the columns by public numbers instead."),
    ],
)
def test_wrong_protection_ends_with_2(private: Path, fedspan: Fedspan, change: str, says: str) -> None:
    before = tree(private)
    result = fedspan("run", "job.toml", "--out", "out", "--set", change)
    assert result.exit_code == 2, result.output
    assert says in " ".join(result.stderr.split())
    assert tree(private) == before


def test_a_warning_comes_before_most_of_the_budget_is_spent(
    private: Path, fedspan: Fedspan, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os

    seen: list[str] = []

    def warn(self: TerminalProgress, text: str) -> None:
        if text.startswith("Expected projection distance"):  # other warnings may come from the noised counts
            seen.append("warned")

    monkeypatch.setattr(TerminalProgress, "warn", warn)
    send = Budget.send

    def charged(self: Budget, run: str, task: str, release: str) -> str | None:
        seen.append(task)
        return send(self, run, task, release)

    monkeypatch.setattr(Budget, "send", charged)
    monkeypatch.setattr(os, "fsync", lambda _: None)
    assert fedspan("run", "job.toml", "--out", "out", "--set", "privacy.epsilon=0.01").exit_code == 0
    warned = seen.index("warned")
    assert set(seen[:warned]) == {"census"}, "only noised counts"
    assert "triangle" in seen[warned:]
    assert "The numbers on this page include that noise" in (private / "out" / "report.html").read_text()


def test_a_private_run_that_fails_after_a_release_keeps_its_ledger(
    private: Path, fedspan: Fedspan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was released stays released: the ledger that says so is no waste, whatever ended the run."""

    def refuse(*_: object) -> None:
        raise InputError("the server's own options are wrong")

    monkeypatch.setattr("fedspan.algorithms.spectral.noisy.NoisyGram.round", refuse)
    result = fedspan("run", "job.toml", "--out", "out")
    assert result.exit_code == 2, result.output
    assert "the server's own options are wrong" in result.stderr
    assert "fedspan resume out" in result.stderr
    assert Ledger.read(private / "out" / "ledger.jsonl").exchanges > 0
    assert Budget(private / "budgets" / "north.json").spent > 0
