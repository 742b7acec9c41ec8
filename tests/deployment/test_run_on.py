"""`fedspan run --on` and `fedspan resume`, with a federation over loopback in place of FLARE."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rogue
from typer.testing import CliRunner

pytest.importorskip("nvflare", reason="needs fedspan[flare]")

from fedspan import FederatedPCA
from fedspan.cli.main import app
from fedspan.core.ledger import Ledger
from fedspan.deployment.flare_admin import settled
from fedspan.deployment.loopback import Call, Deliver, LoopbackFederation
from fedspan.deployment.server_job import Order
from fedspan.jobs import federated as on

ROUNDS = 8
JOB = f'[job]\ntask = "pca"\nn_components = 2\nsolver = "ssi"\ntol = 0.0\nmax_rounds = {ROUNDS}\nrandom_state = 4\n'


class LoopbackAdmin:
    """What the command line uses of `flare_admin`, for a federation in this process."""

    def __init__(self, federation: LoopbackFederation) -> None:
        self.federation = federation
        self.jobs: dict[str, tuple[Order, dict[str, Any]]] = {}
        self.settled = settled

    @contextmanager
    def connected(self, kit: Path) -> Iterator[LoopbackAdmin]:
        yield self

    def sites_of(self, session: Any) -> list[str]:
        return sorted(self.federation.sites)

    def submit(self, session: Any, orders: list[Order], sites: int) -> str:
        (order,) = orders
        self.jobs[order.run] = (order, self.federation.carry_out(order))
        return order.run

    def watch(self, session: Any, job: str) -> Iterator[dict[str, Any]]:
        yield from Ledger.read(self.federation.place(self.jobs[job][0]) / "ledger.jsonl").rows()

    def fetch(self, session: Any, job: str, run: str, into: Path) -> dict[str, Any]:
        order, outcome = self.jobs[job]
        for name in ("ledger.jsonl", "model.safetensors"):
            if (self.federation.place(order) / name).exists():
                shutil.copyfile(self.federation.place(order) / name, into / name)
        return outcome


@pytest.fixture
def three(make_three: Callable[..., LoopbackFederation], monkeypatch: pytest.MonkeyPatch) -> LoopbackFederation:
    made = make_three()
    admin = LoopbackAdmin(made)
    monkeypatch.setattr(on, "_admin", lambda: admin)
    return made


@pytest.fixture
def job(tmp_path: Path) -> Path:
    path = tmp_path / "job.toml"
    path.write_text(JOB, encoding="utf-8")
    return path


def call(*words: Any) -> Any:
    return CliRunner().invoke(app, [str(word) for word in words])


def run_on(three: LoopbackFederation, job: Path) -> Any:
    return call("run", job, "--on", three.folder, "--out", job.parent / "run")


def assert_refused(done: Any, code: int, *words: str) -> None:
    assert done.exit_code == code, done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    for word in words:
        assert word in done.stderr


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


def test_sites_with_other_columns_are_named_with_the_first_difference(three: LoopbackFederation, job: Path) -> None:
    table = job.parent / "south.csv"
    table.write_text(table.read_text(encoding="utf-8").replace("lab2", "LAB2"), encoding="utf-8")
    assert_refused(run_on(three, job), 2, "need feature 2 to be 'lab2' as at site 'east', got 'LAB2' (site 'south')")
    assert not (job.parent / "run").exists()


def test_a_site_without_its_data_says_so(
    three: LoopbackFederation, job: Path, caplog: pytest.LogCaptureFixture
) -> None:
    edit(three.sites["south"], "south.csv", "gone.csv")
    assert_refused(run_on(three, job), 2, "site 'south' refused", "gone.csv is not there")
    assert "gone.csv is not there" in caplog.text  # the site's own log has it, too
    assert not (job.parent / "run").exists()


def test_a_job_that_a_site_does_not_want_is_refused_with_its_reason(
    three: LoopbackFederation, job: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job.write_text(JOB + "[secure]\nenabled = false\n", encoding="utf-8")
    assert_refused(run_on(three, job), 2, "secure sums only are accepted here")
    assert "secure sums only are accepted here" in caplog.text
    edit(three.sites["north"], '"ssi", ', "")
    job.write_text(JOB, encoding="utf-8")
    assert_refused(run_on(three, job), 2, "'north'", "'ssi' is not allowed here")


def test_a_job_for_a_federation_names_no_files(three: LoopbackFederation, job: Path) -> None:
    job.write_text(JOB + '[data]\nclients = ["a.csv", "b.csv"]\n', encoding="utf-8")
    assert_refused(run_on(three, job), 2, "leave data.clients and data.views out")


def test_one_site_is_no_federation_and_a_site_that_left_is_missed(three: LoopbackFederation, job: Path) -> None:
    everybody = dict(three.sites)
    three.sites = {"north": everybody["north"]}
    assert_refused(run_on(three, job), 1, "at least two sites", "got north")
    three.sites = everybody

    def fail(call: Call, deliver: Deliver) -> Any:
        raise ConnectionError("cut off")

    three.tamper = fail
    assert_refused(run_on(three, job), 1, "cut off")
    three.sites, three.tamper = {name: everybody[name] for name in ("east", "north")}, None
    assert_refused(call("resume", job.parent / "run"), 1, "need site 'south', it is not connected")
    three.sites = everybody
    assert call("resume", job.parent / "run").exit_code == 0


def test_a_site_that_keeps_failing_is_named_and_resume_goes_on(
    three: LoopbackFederation, job: Path, hospital_rows: dict[str, np.ndarray]
) -> None:
    plans = [{"what": "raise", "task": "multiply", "round": 5}]

    def fail(call: Call, deliver: Deliver) -> Any:
        if call.site != "south" or call.method != "exchange":
            return deliver(call)
        return rogue.answer(plans, call.arguments[0], lambda: deliver(call))

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
