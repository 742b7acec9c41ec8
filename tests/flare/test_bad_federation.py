"""Wrong input on the way to a federation: one sentence each, with what to do."""

from __future__ import annotations

import datetime
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("nvflare", reason="needs fedspan[flare]")
sys.path.insert(0, str(Path(__file__).parent))

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from test_broken_sites import fedspan, ran
from world import log_of

from fedspan.deployment.kit import init_site
from fedspan.deployment.local import LocalFederation, listening, pids_of

JOB = '[job]\ntask = "pca"\nn_components = 2\nrandom_state = 0\n'


@pytest.fixture
def job(tmp_path: Path) -> Path:
    path = tmp_path / "job.toml"
    path.write_text(JOB)
    return path


@pytest.fixture
def south(three: Any) -> Iterator[Path]:
    """The configuration of one site, which is as before when the test is over."""
    path = three.kit("south") / "local" / "fedspan.toml"
    before = path.read_text()
    yield path
    path.write_text(before)


def refused(done: Any, code: int, *words: str) -> None:
    assert done.returncode == code, done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    for word in words:
        assert word in done.stderr


def test_sites_with_other_columns_are_named_with_the_first_difference(three: Any, south: Path, job: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = ["lab0", "lab1", "LAB2", "lab3", "lab4", "lab5"]
    pq.write_table(pa.table({name: np.arange(9.0) for name in names}), job.parent / "other.parquet")
    usual = str(three.folder.parent / "south.parquet")
    south.write_text(south.read_text().replace(usual, str(job.parent / "other.parquet")))
    done = ran("run", job, "--on", three.researcher, "--out", job.parent / "run")
    refused(done, 2, "need feature 2 to be 'lab2' as at site 'east', got 'LAB2' (site 'south')")
    assert not (job.parent / "run").exists()


def test_a_site_without_its_data_says_so(three: Any, south: Path, job: Path) -> None:
    south.write_text(south.read_text().replace("south.parquet", "gone.parquet"))
    done = ran("run", job, "--on", three.researcher, "--out", job.parent / "run")
    refused(done, 2, "site 'south' refused", "gone.parquet is not there")
    assert "gone.parquet is not there" in log_of(three, "south")


def test_a_job_for_a_federation_names_no_files(three: Any, job: Path) -> None:
    job.write_text(JOB + '[data]\nclients = ["a.csv", "b.csv"]\n')
    refused(ran("run", job, "--on", three.researcher), 2, "leave data.clients and data.views out")


def test_a_mistyped_kit_is_not_a_kit(three: Any, job: Path, tmp_path: Path) -> None:
    refused(ran("run", job, "--on", tmp_path), 2, "need a FLARE kit")
    refused(ran("run", job, "--on", three.kit("north")), 2, "need a researcher's kit", "is a site's")
    refused(ran("site", "init", three.researcher, "--data", "x.csv"), 2, "need a site's kit")
    refused(ran("site", "init", three.kit("north"), "--data", "x.csv"), 2, "is there already", "--replace")


def test_a_port_that_is_taken_and_a_server_that_is_not_there(job: Path, tmp_path: Path) -> None:
    nobody = LocalFederation(tmp_path / "nobody", ["north", "south"])
    refused(ran("run", job, "--on", nobody.researcher), 1, "cannot be reached", "is it running")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", nobody.port))
        taken.listen()
        refused(ran("site", "start", nobody.kit("localhost")), 2, f"port {nobody.port} is in use")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_a_kit_that_is_stopped_leaves_no_process_behind(tmp_path: Path, number: int) -> None:
    made = LocalFederation(tmp_path / "lone", ["north", "south"])
    command = fedspan("site", "start", made.kit("localhost"))
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, preexec_fn=heeds_interrupts) as process:
        end = time.monotonic() + 60
        while not listening(made.port):
            assert process.poll() is None
            assert time.monotonic() < end
            time.sleep(0.2)
        process.send_signal(number)
        assert process.wait(30) == 0
    assert not listening(made.port)
    assert pids_of(made.kit("localhost"), process) == []


def heeds_interrupts() -> None:
    """In the child: as from a terminal, whatever started these tests."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_a_kit_that_has_expired_is_refused_at_once(job: Path, tmp_path: Path) -> None:
    made = LocalFederation(tmp_path / "old", ["north", "south"])
    init_site(made.kit("north"), {"default": {"path": "x.csv"}}, replace=False)
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "north")])
    day = datetime.timedelta(days=1)
    old = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key()).serial_number(1)
        .not_valid_before(now - 9 * day).not_valid_after(now - 2 * day).sign(key, hashes.SHA256())
    )  # fmt: skip
    for kit in (made.kit("north"), made.researcher):
        from cryptography.hazmat.primitives.serialization import Encoding

        (kit / "startup" / "client.crt").write_bytes(old.public_bytes(Encoding.PEM))
    refused(ran("site", "start", made.kit("north")), 2, "client.crt expired on", "have a new kit made")
    refused(ran("run", job, "--on", made.researcher), 2, "client.crt expired on")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--sites", "north", "--researcher", "a@b.org"], "at least two sites"),
        (["--sites", "north,no rth", "--researcher", "a@b.org"], "letters, digits"),
        (["--sites", "north,south", "--researcher", "ada"], "e-mail address"),
    ],
)
def test_a_project_that_cannot_be(tmp_path: Path, words: list[str], says: str) -> None:
    refused(ran("federation", "new", tmp_path / "p.yml", "--server", "localhost", *words), 2, says)
    assert not (tmp_path / "p.yml").exists()


def test_a_project_file_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "p.yml").write_text("mine")
    words = ["--server", "localhost", "--sites", "north,south", "--researcher", "a@b.org"]
    refused(ran("federation", "new", tmp_path / "p.yml", *words), 2, "is there already")
    assert (tmp_path / "p.yml").read_text() == "mine"
    shutil.rmtree(tmp_path)
