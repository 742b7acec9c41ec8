"""Audits of runs with secure sums or noise: what the server holds of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedspan import Channel
from fedspan.algorithms.spectral.noisy import PrivateClient
from fedspan.audit.protected import check_randomness
from fedspan.core.protocol import tasks_of
from fedspan.engines.transcript import Transcript

Fedspan = Callable[..., Any]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (["secure.enabled=true"], "looks like random bytes"),
        (
            ["secure.enabled=false"],
            "Client 'north': the second-moment matrix that the server holds has a relative",
        ),
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
    assert "Whether a given row was in the data: the best possible attack is right in at most" in text
    assert "ε = 2 at δ = 1e-06" in text
    assert says in " ".join((private / "out" / "audit.html").read_text().replace("&#x27;", "'").split())


def test_an_audit_reads_the_packed_messages_of_secure_sums(private: Path, fedspan: Fedspan) -> None:
    job = (private / "job.toml").read_text().split("[privacy]")[0] + "[secure]\nenabled = true\n"
    (private / "packed.toml").write_text(job)
    words = ["--set", "job.solver=krylov", "--out", "packed", "--transcript"]
    assert fedspan("run", "packed.toml", *words).exit_code == 0
    result = fedspan("audit", "packed")
    assert result.exit_code == 0, result.output
    assert "looks like random bytes" in " ".join(result.stdout.split())


def test_an_audit_sees_if_masks_were_missing(private: Path, fedspan: Fedspan) -> None:
    """The test for randomness can fail: it is shown answers of a run without masks as if they had been masked."""
    assert fedspan("run", "job.toml", "--out", "out", "--transcript", "--set", "secure.enabled=false").exit_code == 0
    talks = list(Transcript(private / "out" / "transcript").talks(Channel()))
    assert "DOES NOT LOOK RANDOM" in check_randomness(talks, tasks_of(PrivateClient))
