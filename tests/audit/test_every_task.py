"""An audit says something honest about every run that can keep a transcript: any task, with and without protection."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_world import write_jobs
from html_checker import Checker

import fedspan as library
from fedspan.audit.findings import AuditResult
from fedspan.core.ledger import Ledger, Started
from fedspan.jobs.tasks import TASKS

Fedspan = Callable[..., Any]
NOISE = ["privacy.epsilon=4", "privacy.delta=1e-3", "privacy.row_norm=5", "privacy.simulate=true"]
RAW = "job.standardize=false"  # exact means are not private
SECURE = ["secure.enabled=true"]
NO_ATTACK = "No attack has been run on this transcript: there is none yet for the messages of"
RANDOM = "what each client sent looks like random bytes"
BOUND = "the best possible attack is right in at most"
RUNS = [
    ("pca", [], "is known to the server"),
    ("svd", [], "the server received its second-moment matrix itself"),
    ("gcca", [], "Which columns a client has: of the variance of"),
    ("gcca", [], "Whom an entity is like: of its 5 nearest neighbours"),
    ("gcca", SECURE, RANDOM),
    ("vertical-svd", [], "5 nearest neighbours in what the server holds: right for"),
    ("vertical-pca", SECURE, "Whom an entity is like"),
    ("deep-gcca", SECURE, "Whom an entity is like"),
    ("gcca", ["job.solver=cutemaxvar"], f"{NO_ATTACK} cutemaxvar (task gcca)"),
    ("personalized", [], f"{NO_ATTACK} auto (task personalized)"),
    ("classifier", [], f"{NO_ATTACK} local ssca (task classifier)"),
    ("classifier", ["job.hidden=0"], f"{NO_ATTACK} newton (task classifier)"),
    ("classifier", ["job.cost_limit=0.4"], f"{NO_ATTACK} ssca (task classifier)"),
    ("vertical-classifier", [], "Features of rows: the server knows all weights"),
    ("vertical-classifier", SECURE, "Features of rows: the server knows all weights"),
    ("regressor", [], f"{NO_ATTACK} newton (task regressor)"),
    ("regressor", SECURE, RANDOM),
    ("vertical-regressor", [], f"{NO_ATTACK} verticallinear (task vertical-regressor)"),
    ("vertical-regressor", SECURE, RANDOM),
    ("pca", SECURE, RANDOM),
    ("svd", SECURE, RANDOM),
    ("personalized", [*SECURE, "job.collect=false"], RANDOM),
    ("classifier", SECURE, RANDOM),
    ("vertical-classifier", SECURE, RANDOM),
    ("pca", NOISE, BOUND),
    ("svd", NOISE, BOUND),
    ("classifier", [*NOISE, RAW], "No attack has been run on the noisy answers of this method yet"),
    ("classifier", [*NOISE, RAW], BOUND),
    ("pca", [*NOISE, *SECURE], BOUND),
    ("classifier", [*NOISE, RAW, *SECURE], RANDOM),
]


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_jobs(tmp_path)
    path = tmp_path / "classifier.toml"
    path.write_text(path.read_text().replace("cost_limit = 0.4\n", "").replace("rounds = 40", "rounds = 4"))
    path = tmp_path / "vertical-classifier.toml"
    path.write_text(path.read_text().replace("rounds = 30", "rounds = 4"))
    path = tmp_path / "pca.toml"
    path.write_text(path.read_text().replace("n_components = 2", "n_components = 5"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "fsync", lambda _: None)
    return tmp_path


def test_all_tasks_are_audited_here() -> None:
    assert {task for task, _, _ in RUNS} == set(TASKS)


@pytest.mark.parametrize(("task", "sets", "says"), RUNS)
def test_every_run_can_be_audited(jobs: Path, fedspan: Fedspan, task: str, sets: list[str], says: str) -> None:
    words = [word for text in sets for word in ("--set", text)]
    solver = ["--set", "job.solver=krylov"] if (task, sets) == ("pca", []) else []
    ran = fedspan("run", f"{task}.toml", "--transcript", *words, *solver, "--out", "run")
    assert ran.exit_code == 0, ran.output
    result = fedspan("audit", "run")
    assert result.exit_code == 0, result.output
    assert says in " ".join(result.stdout.split())
    assert "DOES NOT LOOK RANDOM" not in result.stdout
    assert "not declared" not in result.stdout, "what left is declared by the client that ran"
    page = (jobs / "run" / "audit.html").read_text()
    assert Checker(page).open == []
    assert says in " ".join(page.split())


def test_from_python_the_audit_is_a_typed_result(jobs: Path, fedspan: Fedspan) -> None:
    assert fedspan("run", "svd.toml", "--transcript", "--set", "job.solver=gram", "--out", "run").exit_code == 0
    result = library.audit(jobs / "run", clients=2)
    assert isinstance(result, AuditResult)
    assert result.page == jobs / "run" / "audit.html"
    assert result.page.is_file()
    assert [(e.client, e.whole, e.least < 1e-12) for e in result.evidence] == [
        ("north", True, True),
        ("south", True, True),
    ]
    assert result.released["gram"].answers == {"north": 1, "south": 1, "west": 1}
    assert result.row_test is not None
    assert result.row_test.client == "north"
    assert {test.task for test in result.row_test.arrays} == {"gram", "settle"}
    assert '<a href="audit.html">' in (jobs / "run" / "report.html").read_text()
    for wrong in (0, 2.5, "2"):
        with pytest.raises(library.InputError, match=f"clients must be an integer of at least 1, but is {wrong!r}"):
            library.audit(jobs / "run", clients=wrong)  # type: ignore[arg-type]
    with pytest.raises(library.InputError, match="'nowhere' is not a run folder"):
        library.audit("nowhere")


def test_a_ledger_of_version_0_1_is_listed_and_not_attacked(jobs: Path, fedspan: Fedspan) -> None:
    assert fedspan("run", "pca.toml", "--transcript", "--out", "run").exit_code == 0
    path = jobs / "run" / "ledger.jsonl"
    ledger = Ledger.read(path)
    ledger.events = [event for event in ledger.events if not isinstance(event, Started)]
    ledger.save(path)
    result = library.audit(jobs / "run")
    assert result.evidence == []
    assert "does not say which solver ran" in result.notes[0]
