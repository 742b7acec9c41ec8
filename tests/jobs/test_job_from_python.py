"""Jobs from Python: `Job.load(path).run()` and `jobs.resume(path)` do what the commands do, and print nothing."""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_world import write_jobs

import fedspan as library
from fedspan import InputError, Job
from fedspan.core.ledger import Ledger, RoundEnd
from fedspan.core.run import Info
from fedspan.data.preparation import Preparation
from fedspan.engines import InProcess
from fedspan.engines.inprocess import Faults
from fedspan.errors import ClientError, FedspanError
from fedspan.estimators._options import classifier_methods, maxvar_solvers, personalized_methods, spectral_solvers
from fedspan.jobs import Outlook
from fedspan.jobs._federated import build_request
from fedspan.jobs.model import parse
from fedspan.jobs.tasks import TASKS, choices, rounds_limit, tolerance
from fedspan.privacy.request import RowDP


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_jobs(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


class Watcher:
    """Keeps all that it is told; stops a run after some rounds, if asked to."""

    shows_notice = True

    def __init__(self, stop_after: int | None = None) -> None:
        self.said: list[str] = []
        self.warned: list[str] = []
        self.rounds: list[int] = []
        self.outlook: Outlook | None = None
        self.stop_after = stop_after

    def say(self, text: str) -> None:
        self.said.append(text)

    def warn(self, text: str) -> None:
        self.warned.append(text)

    @contextlib.contextmanager
    def follow(self, outlook: Outlook) -> Iterator[Callable[[Info], None]]:
        self.outlook = outlook
        yield self._see

    def _see(self, info: Info) -> None:
        self.rounds.append(info.round)
        if info.round == self.stop_after:
            raise KeyboardInterrupt


@pytest.mark.parametrize("task", TASKS)
def test_a_job_runs_as_the_command_does(
    jobs: Path, fedspan: Any, task: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = Job.load(f"{task}.toml").run("python")
    assert capsys.readouterr() == ("", "")
    assert fedspan("run", f"{task}.toml", "--out", "command").exit_code == 0
    assert (jobs / "python" / "model.safetensors").read_bytes() == (jobs / "command" / "model.safetensors").read_bytes()
    assert isinstance(run.model, TASKS[task].estimator)
    assert run.folder.path == Path("python")
    assert run.report.read_text().startswith("<!doctype html>")
    rounds = [event.round for event in run.ledger.events if isinstance(event, RoundEnd)]
    assert 0 < max(rounds) <= rounds_limit(run.model)
    assert Ledger.read("python/ledger.jsonl").rounds == run.ledger.rounds == run.model.n_rounds_


def test_the_default_folder_is_named_after_the_job_file(jobs: Path) -> None:
    run = Job.load("pca.toml", ["job.solver=gram"]).run()
    assert run.folder.path.parent == Path("runs")
    assert run.folder.path.name.startswith("pca-20")


def test_whoever_watches_is_told_everything(jobs: Path) -> None:
    watcher = Watcher()
    overrides = ["job.solver=ssi", "job.tol=1e-12", "job.max_rounds=3"]
    Job.load("pca.toml", overrides).run("out", watcher)
    assert watcher.rounds == [1, 2, 3]
    assert watcher.outlook is not None
    assert (watcher.outlook.max_rounds, watcher.outlook.tol) == (3, 1e-12)
    assert watcher.outlook.metrics == {"objective": "objective"}
    (warned,) = watcher.warned
    assert f"warning: {warned}" in Ledger.read("out/ledger.jsonl").notes


def test_without_a_watcher_warnings_are_pythons_own(jobs: Path) -> None:
    job = Job.load("pca.toml", ["job.solver=ssi", "job.tol=1e-12", "job.max_rounds=3"])
    with pytest.warns(UserWarning, match="1e-12"):
        run = job.run("out")
    assert any(note.startswith("warning: ") for note in run.ledger.notes)


def test_a_run_that_was_cut_off_is_resumed_to_the_same_bits(jobs: Path) -> None:
    job = Job.load("pca.toml", ["job.solver=ssi", "job.tol=0", "job.max_rounds=9"])
    whole = job.run("whole")
    with pytest.raises(FedspanError, match="Stopped after round 4; go on with: fedspan resume cut"):
        job.run("cut", Watcher(stop_after=4))
    watcher = Watcher()
    run = library.jobs.resume("cut", watcher)
    assert watcher.rounds == [5, 6, 7, 8, 9]
    assert run.folder.model.read_bytes() == whole.folder.model.read_bytes()

    run.report.unlink()
    again = library.jobs.resume("cut")
    assert again.report.exists()
    np.testing.assert_array_equal(again.model.components_, run.model.components_)
    assert again.ledger.rounds == 9


def test_a_folder_that_is_no_run_folder_is_refused(jobs: Path) -> None:
    with pytest.raises(InputError, match="'nowhere' is not a run folder"):
        library.jobs.resume("nowhere")


def test_facts_for_reports_and_audits(jobs: Path) -> None:
    plain = Job.load("pca.toml").resolve()
    assert plain.facts().privacy is None
    assert not plain.facts().hides_rows
    assert (plain.facts().task, plain.facts().seed, plain.facts().job_text) == ("pca", 3, plain.to_toml())
    private = ["privacy.epsilon=2", "privacy.delta=1e-6", "privacy.row_norm=3", "secure.enabled=true"]
    facts = Job.load("pca.toml", private).facts()
    assert facts.privacy == RowDP(2.0, 1e-6, 3.0)
    assert facts.secure
    run = Job.load("pca.toml").run("out")
    assert Job.load(run.folder.job).facts(run.folder).job_text == run.folder.job.read_text()


def test_retries_reach_the_fit_the_federation_and_the_file(jobs: Path) -> None:
    tree = {"job": {"task": "pca"}, "data": {"clients": ["north.csv"]}, "run": {"retries": -1}}
    with pytest.raises(InputError, match=r"run\.retries.* at least 0"):
        parse(tree, jobs)
    job = Job("pca", {"n_components": 2}, {"north": "flare://north"}, min_clients=1, retries=0)
    assert job.answer_options() == {"min_clients": 1, "retries": 0}
    assert build_request(job, "a" * 32).retries == 0
    assert "retries = 0\n" in job.to_toml()


def test_the_choices_of_a_task_are_those_of_its_estimator() -> None:
    known = {
        "pca": ["auto", *spectral_solvers.SOLVERS],
        "svd": ["auto", *spectral_solvers.SOLVERS],
        "gcca": ["auto", *maxvar_solvers.MAXVAR_SOLVERS],
        "deep-gcca": [],
        "personalized": [*personalized_methods.METHODS],
        "classifier": [*classifier_methods.ROW_METHODS],
        "vertical-classifier": [*classifier_methods.VIEW_METHODS],
        "vertical-regressor": [],
        "regressor": ["auto", "newton", "lbfgs"],
        "vertical-pca": ["krylov"],
        "vertical-svd": ["krylov"],
    }
    assert {task: choices(task) for task in TASKS} == known


def test_classifiers_have_no_tolerance() -> None:
    assert tolerance(library.FederatedClassifier()) == 0.0
    assert tolerance(library.FederatedPCA(2, tol=1e-3)) == 1e-3


@pytest.mark.parametrize(("retries", "tries"), [(0, "in round 0 ("), (2, "in 3 tries")])
def test_retries_hold_for_the_agreement_on_columns_too(retries: int, tries: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n1,2\n,3\n4,1\n", encoding="utf-8")
    preparation = Preparation(missing="mean")
    job = Job("pca", {"n_components": 1}, {"a": tmp_path / "a.csv"}, preparation=preparation, retries=retries)
    with pytest.raises(ClientError, match=re.escape(tries)):
        job.prepare(engine=partial(InProcess, faults=Faults(lose_request=1.0)))


def test_a_task_that_no_federation_runs_is_refused_before_it_is_submitted(jobs: Path) -> None:
    text = Path("vertical-regressor.toml").read_text()
    Path("there.toml").write_text("\n".join(line for line in text.split("\n") if not line.startswith("views")))
    job = Job.load_for(Path("there.toml"), lambda: ["bank", "shop"])
    with pytest.raises(InputError, match="'vertical-regressor' runs in one process so far"):
        job.to_request()
