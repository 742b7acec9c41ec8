"""Rows against peers: how the scoreboard shows them, and the one peer that is written here."""

from __future__ import annotations

import json
import shutil
import sys
from math import exp
from typing import Any

import pytest

from fedspan.cli.bench_command import import_benchmarks


@pytest.fixture
def board() -> Any:
    return import_benchmarks("scoreboard")


def test_a_changed_peer_changes_its_row_but_no_papers_share(board, tmp_path) -> None:
    harness = import_benchmarks()
    copy = tmp_path / "results"
    shutil.copytree(harness.RESULTS, copy)
    before = board.page(copy)
    path = harness.latest_path(harness.find("peers/gcca"), copy)
    record = json.loads(path.read_text(encoding="utf-8"))
    row = next(row for row in record["rows"] if row["what"] == "cca-zoo GCCA: processor seconds")
    row["against"] = row["ours"] / 50
    path.write_text(json.dumps(record), encoding="utf-8")
    after = board.page(copy)
    line = next(line for line in after.splitlines() if line.startswith("| cca-zoo GCCA: processor seconds"))
    assert line.endswith("| 50 | behind |")
    share = [next(line for line in page.splitlines() if line.startswith("| all |")) for page in (before, after)]
    assert share[0] == share[1]
    assert "## Peers" in after


def test_the_least_noise_of_analyze_gauss_is_private_and_below_the_papers(monkeypatch) -> None:
    """By the privacy loss itself, N(Δ²/2σ², Δ²/σ²), with numbers: E[max(0, 1 - e^(ε - loss))] = δ."""
    import numpy as np

    harness = import_benchmarks()
    monkeypatch.setattr(sys, "path", [str(harness.HERE / "peers"), *sys.path])
    module = harness._load(harness.find("peers/dp_pca"))
    for epsilon in (0.1, 1.0):
        s = module.tight(epsilon)
        assert s < module.classical(epsilon)
        t = np.linspace(-12, 12, 400_001)
        loss = 0.5 / s**2 + t / s
        chance = np.exp(-t * t / 2) / np.sqrt(2 * np.pi)
        delta = np.sum(np.maximum(0, 1 - exp(epsilon) * np.exp(-loss)) * chance) * (t[1] - t[0])
        assert delta == pytest.approx(module.DELTA, rel=1e-3)


def test_an_environment_that_cannot_be_made_is_a_reason_to_skip(monkeypatch, tmp_path) -> None:
    harness = import_benchmarks()
    monkeypatch.setattr(sys, "path", [str(harness.HERE / "peers"), *sys.path])
    environment = import_benchmarks("environment")
    (tmp_path / "cache").write_text("a file in the place of the folder", encoding="utf-8")
    monkeypatch.setenv("FEDSPAN_PEERS", str(tmp_path / "cache"))
    with pytest.raises(harness.SkippedError, match="cannot be made here"):
        environment.python()


def test_a_peer_that_fails_is_told_with_its_own_message(monkeypatch) -> None:
    harness = import_benchmarks()
    monkeypatch.setattr(sys, "path", [str(harness.HERE / "peers"), *sys.path])
    environment = import_benchmarks("environment")
    monkeypatch.setattr(environment, "python", lambda requirements: sys.executable)
    with pytest.raises(harness.SkippedError, match="no such peer fails: KeyError: 'no such peer'"):
        environment.call("pca", "no such peer", [])
