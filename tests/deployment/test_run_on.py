"""`fedspan run --on` and `fedspan resume`, with a federation over loopback in place of FLARE."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rogue

from typed import assert_refused, call

pytest.importorskip("nvflare", reason="needs fedspan[flare]")

from fedspan import FederatedPCA, InputError, Job
from fedspan.channel import wire
from fedspan.core.ledger import Ledger
from fedspan.deployment.flare_admin import JobLost, check_settled
from fedspan.deployment.loopback_federation import LoopbackFederation
from fedspan.deployment.operations.federation_status import SiteStatus
from fedspan.deployment.server_job import RunRequest
from fedspan.engines.loopback import Call, Deliver
from fedspan.jobs import _federated
from fedspan.privacy.budget import Budget

ROUNDS = 8
JOB = f'[job]\ntask = "pca"\nn_components = 2\nsolver = "ssi"\ntol = 0.0\nmax_rounds = {ROUNDS}\nrandom_state = 4\n'


class LoopbackAdmin:
    """What the command line uses of `flare_admin`, for a federation in this process."""

    def __init__(self, federation: LoopbackFederation) -> None:
        self.federation = federation
        self.jobs: dict[str, tuple[RunRequest, dict[str, Any]]] = {}
        self.check_settled = check_settled
        self.JobLost = JobLost

    @contextmanager
    def connect(self, kit: Path) -> Iterator[LoopbackAdmin]:
        yield self

    @contextmanager
    def keep_session(self, kit: Path) -> Iterator[None]:
        yield

    def is_over(self, session: Any, job: str) -> bool:
        return True

    def list_sites(self, session: Any) -> list[str]:
        return sorted(self.federation.sites)

    def submit(self, session: Any, kit: Path, orders: list[RunRequest], sites: list[str]) -> str:
        (order,) = orders
        self.jobs[order.run] = (order, self.federation.carry_out(order))
        return order.run

    def survey(self, session: Any, names: Sequence[str] | None = None) -> list[SiteStatus]:
        there = self.federation.sites
        return [SiteStatus(name, answers=name in there) for name in sorted(names or there)]

    def watch(self, session: Any, job: str, say: Any = None, *, begun: bool = False) -> Iterator[dict[str, Any]]:
        yield from Ledger.read(self.federation.place(self.jobs[job][0]) / "ledger.jsonl").rows()

    def fetch(self, session: Any, job: str, run: str, into: Path) -> dict[str, Any]:
        order, outcome = self.jobs[job]
        for name in ("ledger.jsonl", "model.safetensors"):
            if (self.federation.place(order) / name).exists():
                shutil.copyfile(self.federation.place(order) / name, into / name)
        return outcome


def put_in_place(monkeypatch: pytest.MonkeyPatch, admin: LoopbackAdmin) -> None:
    monkeypatch.setattr(_federated, "flare_admin", admin)
    monkeypatch.setattr(_federated, "survey_sites", admin.survey)


@pytest.fixture
def three(make_three: Callable[..., LoopbackFederation], monkeypatch: pytest.MonkeyPatch) -> LoopbackFederation:
    made = make_three()
    put_in_place(monkeypatch, LoopbackAdmin(made))
    return made


@pytest.fixture
def job(tmp_path: Path) -> Path:
    path = tmp_path / "job.toml"
    path.write_text(JOB, encoding="utf-8")
    return path


def run_on(three: LoopbackFederation, job: Path) -> Any:
    return call("run", job, "--on", three.folder, "--out", job.parent / "run")


def edit(site: Path, old: str, new: str) -> None:
    path = site / "local" / "fedspan.toml"
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def test_a_job_leaves_its_model_its_ledger_and_its_report(
    three: LoopbackFederation, job: Path, hospital_rows: dict[str, np.ndarray]
) -> None:
    done = run_on(three, job)
    assert done.exit_code == 0, done.stderr
    place = job.parent / "run"
    model = FederatedPCA.load(place / "model.safetensors")
    here = FederatedPCA(2, solver="ssi", tol=0.0, max_rounds=ROUNDS, random_state=4, secure=True).fit(hospital_rows)
    np.testing.assert_array_equal(model.components_, here.components_)
    assert (place / "report.html").exists()
    assert Ledger.read(place / "ledger.jsonl").rounds == ROUNDS


def test_a_job_runs_on_a_federation_from_python(three: LoopbackFederation, job: Path) -> None:
    assert run_on(three, job).exit_code == 0
    run = Job.load(job, on=three.folder).run(job.parent / "python")
    assert run.report.exists()
    assert run.ledger.rounds == ROUNDS
    assert run.folder.model.read_bytes() == (job.parent / "run" / "model.safetensors").read_bytes()


def test_sites_with_other_columns_are_named_with_the_first_difference(three: LoopbackFederation, job: Path) -> None:
    edit(three.sites["south"], '"lab2"', '"LAB2"')
    assert_refused(run_on(three, job), 2, "Feature 2 is 'lab2' at site 'east', but 'LAB2' at site 'south'")
    assert not (job.parent / "run").exists()


def test_a_site_without_its_data_says_so_in_its_own_log_only(
    three: LoopbackFederation, job: Path, caplog: pytest.LogCaptureFixture
) -> None:
    edit(three.sites["south"], "south.csv", "gone.csv")
    done = run_on(three, job)
    assert_refused(done, 1, "Site 'south' refused [", "finds the reason in its log, by this code", "fedspan resume")
    assert "gone.csv" not in done.stderr
    (code,) = re.findall(r"refused \[([0-9a-f]{8})\]", done.stderr)
    assert f"refused [{code}]: " in caplog.text
    assert "gone.csv does not exist" in caplog.text


def test_a_job_that_a_site_does_not_want_is_refused_with_its_reason(
    three: LoopbackFederation, job: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job.write_text(JOB + "[secure]\nenabled = false\n", encoding="utf-8")
    assert_refused(run_on(three, job), 2, "accepts secure sums only")
    assert "accepts secure sums only" in caplog.text
    edit(three.sites["north"], '"ssi", ', "")
    job.write_text(JOB, encoding="utf-8")
    assert_refused(run_on(three, job), 2, "'north'", "'ssi' is not allowed at this site")


def test_a_job_for_a_federation_names_no_files(three: LoopbackFederation, job: Path) -> None:
    job.write_text(JOB + '[data]\nclients = ["a.csv", "b.csv"]\n', encoding="utf-8")
    assert_refused(run_on(three, job), 2, "leave data.clients and data.views out")


def test_one_site_is_no_federation_and_a_site_that_left_is_missed(three: LoopbackFederation, job: Path) -> None:
    everybody = dict(three.sites)
    three.sites = {"north": everybody["north"]}
    assert_refused(run_on(three, job), 1, "at least two connected sites", "only 'north' is connected")
    three.sites = everybody

    def fail(call: Call, deliver: Deliver) -> Any:
        raise ConnectionError("cut off")

    three.tamper = fail
    assert_refused(run_on(three, job), 1, "cut off")
    three.sites, three.tamper = {name: everybody[name] for name in ("east", "north")}, None
    assert_refused(call("resume", job.parent / "run"), 1, "site 'south' is not connected")
    three.sites = everybody
    assert call("resume", job.parent / "run").exit_code == 0


def test_a_site_that_keeps_failing_is_named_and_resume_goes_on(
    three: LoopbackFederation, job: Path, hospital_rows: dict[str, np.ndarray]
) -> None:
    plans = [{"what": "raise", "task": "multiply", "round": 5}]

    def fail(call: Call, deliver: Deliver) -> Any:
        if call.site != "south" or call.method != "exchange":
            return deliver(call)
        return rogue.answer(plans, call.message, lambda: deliver(call))

    three.tamper = fail
    assert_refused(run_on(three, job), 1, "'south'", "fedspan resume")
    three.tamper = None
    again = call("resume", job.parent / "run")
    assert again.exit_code == 0, again.stderr
    model = FederatedPCA.load(job.parent / "run" / "model.safetensors")
    here = FederatedPCA(2, solver="ssi", tol=0.0, max_rounds=ROUNDS, random_state=4, secure=True).fit(hospital_rows)
    np.testing.assert_array_equal(model.components_, here.components_)
    notes = Ledger.read(job.parent / "run" / "ledger.jsonl").notes
    assert any("resumed after round" in note for note in notes)


def refuse_from(round: int) -> Callable[[Call, Deliver], Any]:
    """From this round on, one site answers every question with a refusal, as if its input had turned out wrong."""

    def tamper(call: Call, deliver: Deliver) -> Any:
        if call.site == "south" and call.method == "exchange" and wire.decode(call.message).round >= round:
            return json.dumps({"error": "the table has changed", "input": True})
        return deliver(call)

    return tamper


def test_a_run_that_is_refused_after_seven_rounds_stays_and_can_be_resumed(
    three: LoopbackFederation, job: Path, hospital_rows: dict[str, np.ndarray]
) -> None:
    """Seven rounds were sent and, in a private run, paid for: only this folder knows the run to go on with."""
    three.tamper = refuse_from(8)
    assert_refused(run_on(three, job), 2, "the table has changed", "fedspan resume")
    assert Ledger.read(job.parent / "run" / "ledger.jsonl").rounds == 7
    three.tamper = None
    assert call("resume", job.parent / "run").exit_code == 0
    model = FederatedPCA.load(job.parent / "run" / "model.safetensors")
    here = FederatedPCA(2, solver="ssi", tol=0.0, max_rounds=ROUNDS, random_state=4, secure=True).fit(hospital_rows)
    np.testing.assert_array_equal(model.components_, here.components_)


def test_a_run_stays_if_one_site_refused_after_others_had_answered(
    make_three: Callable[..., LoopbackFederation], job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the others sent is in the ledger, and only this folder has it."""
    federation = make_three(secure=False)
    put_in_place(monkeypatch, LoopbackAdmin(federation))
    job.write_text(job.read_text(encoding="utf-8") + "[secure]\nenabled = false\n", encoding="utf-8")
    federation.tamper = refuse_from(0)
    assert_refused(run_on(federation, job), 2, "the table has changed", "fedspan resume")
    ledger = Ledger.read(job.parent / "run" / "ledger.jsonl")
    (exchange,) = [row for row in ledger.rows() if row["event"] == "exchange"]
    assert list(exchange["missing"]) == ["south"]
    assert ledger.bytes_up > 0
    federation.tamper = None
    assert call("resume", job.parent / "run").exit_code == 0


@pytest.mark.parametrize(("retries", "tries"), [(0, "in round 0 ("), (2, "in 3 tries")])
def test_a_job_file_says_how_often_a_site_is_asked(
    three: LoopbackFederation, job: Path, retries: int, tries: str
) -> None:
    def lose(call: Call, deliver: Deliver) -> Any:
        if call.site == "south" and call.method == "exchange":
            raise ConnectionError("gone")
        return deliver(call)

    job.write_text(job.read_text(encoding="utf-8") + f"[run]\nretries = {retries}\n", encoding="utf-8")
    three.tamper = lose
    assert_refused(run_on(three, job), 1, tries, "'south'")


def test_a_resumption_that_is_refused_before_anything_is_sent_keeps_the_run(
    three: LoopbackFederation, job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a new run may be taken back: this one has rounds behind it."""
    three.tamper = refuse_from(8)
    assert run_on(three, job).exit_code == 2

    def refuse(kit: Path) -> Any:
        raise InputError(f"{kit} is not a researcher's kit.")

    monkeypatch.setattr(_federated.flare_admin, "connect", refuse)
    assert_refused(call("resume", job.parent / "run"), 2, "is not a researcher's kit")
    assert (job.parent / "run" / "federation.json").exists()


def test_a_private_run_stays_although_no_exchange_was_completed(
    make_three: Callable[..., LoopbackFederation], job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other sites may have answered, and spent their budgets, before one refused."""
    federation = make_three(secure=False, epsilon=8.0, delta=1e-5, row_norm=20.0)
    put_in_place(monkeypatch, LoopbackAdmin(federation))
    for site in federation.sites.values():
        Budget.grant(site / "fedspan" / "budget.json", 8.0, 1e-5)
    job.write_text(
        '[job]\ntask = "pca"\nn_components = 1\nrandom_state = 4\n'
        "[secure]\nenabled = false\n[privacy]\nepsilon = 4.0\ndelta = 1e-5\nrow_norm = 20.0\n",
        encoding="utf-8",
    )
    federation.tamper = refuse_from(0)
    assert_refused(run_on(federation, job), 2, "the table has changed", "fedspan resume")
    assert (job.parent / "run" / "federation.json").exists()
    federation.tamper = None
    assert call("resume", job.parent / "run").exit_code == 0
