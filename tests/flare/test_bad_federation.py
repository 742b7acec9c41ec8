"""Wrong input on the way to a federation: one sentence each, with what to do."""

from __future__ import annotations

import datetime
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare", reason="needs fedspan[flare]")

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from world import PATIENCE, command, until

from fedspan.deployment import flare_admin
from fedspan.deployment.kit import init_site
from fedspan.deployment.local import is_listening, pids_of, start_kit
from typed import assert_refused, call

pytestmark = pytest.mark.xdist_group("flare")
JOB = '[job]\ntask = "pca"\nn_components = 2\nrandom_state = 0\n'


@pytest.fixture
def job(tmp_path: Path) -> Path:
    path = tmp_path / "job.toml"
    path.write_text(JOB, encoding="utf-8")
    return path


def test_a_mistyped_kit_is_not_a_kit(three: Any, first_job: Any, job: Path, tmp_path: Path) -> None:
    first_job.submit()  # it is at work while the tests of this file run
    assert_refused(call("run", job, "--on", tmp_path), 2, "is not a FLARE kit")
    assert_refused(call("run", job, "--on", three.kit("north")), 2, "is a site's kit. Give a researcher's")
    assert_refused(call("site", "init", three.researcher, "--data", "x.csv"), 2, "is a researcher's kit, not a site's")
    assert_refused(call("site", "init", three.kit("north"), "--data", "x.csv"), 2, "already exists", "--replace")


def test_a_port_that_is_taken_and_a_server_that_is_not_there(
    strangers: Any, job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flare_admin, "_CONNECT", 2.0)  # nobody will answer, however long it waits
    assert_refused(call("run", job, "--on", strangers.researcher), 1, "cannot be reached", "Is it running")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", strangers.port))
        taken.listen()
        assert_refused(call("site", "start", strangers.kit("localhost")), 2, f"Port {strangers.port} is in use")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_a_kit_that_is_stopped_leaves_no_process_behind(strangers: Any, number: int) -> None:
    kit = strangers.kit("localhost")
    words = command("site", "start", kit)
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, preexec_fn=heed_interrupts) as process:
        try:
            until(lambda: process.poll() is not None or is_listening(strangers.port))
            assert process.poll() is None
            process.send_signal(number)
            until(lambda: process.poll() is not None or is_impatience_ignored(process.pid))
            assert process.poll() is None, "it takes FLARE a second or more to end"
            process.send_signal(number)  # by somebody impatient
            assert process.wait(PATIENCE) == 0
        finally:
            process.kill()
    assert not is_listening(strangers.port)
    assert pids_of(kit, process) == []


def is_impatience_ignored(pid: int) -> bool:
    """Whether the process is about to end its kit, as /proc tells."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    ignored = int(status.partition("SigIgn:")[2].split()[0], 16)
    return bool(ignored >> (signal.SIGTERM - 1) & 1)


def heed_interrupts() -> None:
    """In the child: as from a terminal, whatever started these tests."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_a_kit_that_has_expired_is_refused_at_once(strangers: Any, job: Path, tmp_path: Path) -> None:
    site, researcher = (tmp_path / name for name in ("site", "researcher"))
    shutil.copytree(strangers.kit("west"), site)
    shutil.copytree(strangers.researcher, researcher)
    init_site(site, {"default": {"path": "x.csv", "columns": ["x"]}}, replace=True)
    key, now, day = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC), datetime.timedelta(1)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "west")])
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(1).not_valid_before(now - 9 * day).not_valid_after(now - 2 * day)
    old = builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)
    for kit in (site, researcher):
        (kit / "startup" / "client.crt").write_bytes(old)
    assert_refused(
        call("site", "start", site), 2, "client.crt of this kit expired on", "Ask the coordinator for a new kit"
    )
    assert_refused(call("run", job, "--on", researcher), 2, "client.crt of this kit expired on")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--sites", "north", "--researcher", "a@b.org"], "at least two sites"),
        (["--sites", "north,no rth", "--researcher", "a@b.org"], "letters, digits"),
        (["--sites", "north,south", "--researcher", "ada"], "e-mail address"),
    ],
)
def test_a_project_that_cannot_be(tmp_path: Path, words: list[str], says: str) -> None:
    assert_refused(call("federation", "new", tmp_path / "p.yml", "--server", "localhost", *words), 2, says)
    assert not (tmp_path / "p.yml").exists()


def test_a_project_file_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "p.yml").write_text("mine")
    words = ["--server", "localhost", "--sites", "north,south", "--researcher", "a@b.org"]
    assert_refused(
        call("federation", "new", tmp_path / "p.yml", *words), 2, "p.yml already exists; choose another path."
    )
    assert (tmp_path / "p.yml").read_text() == "mine"


def test_a_job_for_a_federation_names_no_files(three: Any, job: Path) -> None:
    job.write_text(JOB + '[data]\nclients = ["a.csv", "b.csv"]\n', encoding="utf-8")
    assert_refused(call("run", job, "--on", three.researcher), 2, "leave data.clients and data.views out")


def test_sites_with_other_columns_are_named_with_the_first_difference(first_job: Any) -> None:
    outcome = first_job.outcome("renamed")
    assert outcome["input"]
    assert "Feature 2 is 'lab2' at site 'east', but 'LAB2' at site 'south'" in outcome["error"]


def test_a_site_without_its_data_says_so_in_its_own_log_only(first_job: Any) -> None:
    outcome = first_job.outcome("gone")
    assert not outcome["input"]
    (code,) = re.findall(r"Site 'south' refused \[([0-9a-f]{8})\]", outcome["error"])
    assert "parquet" not in outcome["error"]
    log = first_job.log("south")
    assert f"refused [{code}]" in log
    assert "gone.parquet does not exist" in log


@pytest.mark.parametrize("name", ["my kit", "o'brien", "a#b", "a\tb"])
def test_a_kit_in_a_folder_that_flare_cannot_start_jobs_in(strangers: Any, tmp_path: Path, name: str) -> None:
    kit = tmp_path / name
    shutil.copytree(strangers.kit("west"), kit, symlinks=True)
    init_site(kit, {"default": {"path": "x.csv", "columns": ["x"]}}, replace=True)
    assert_refused(call("site", "start", kit), 2, "path contains spaces, quotes", "Move the kit")


def test_a_kit_starts_by_a_link_where_the_path_of_python_has_spaces(
    strangers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This very environment, seen through a folder with a space in its name: FLARE is given a path without one."""
    kit, seen, log = tmp_path / "kit", tmp_path / "a folder", tmp_path / "log"
    shutil.copytree(strangers.kit("localhost"), kit, symlinks=True)
    (kit / ".python").unlink(missing_ok=True)
    (kit / ".python" / "bin").mkdir(parents=True)  # as in the copy of a kit, if the link was followed
    seen.symlink_to(sys.prefix, target_is_directory=True)
    monkeypatch.setattr(sys, "executable", str(seen / "bin" / "python3"))
    (kit / "startup" / "sub_start.sh").write_text("#!/bin/sh\nexec python3 -c 'import sys; print(sys.executable)'\n")
    for _ in range(2):  # the second time the link is there
        log.unlink(missing_ok=True)
        assert start_kit(kit, log).wait(PATIENCE) == 0
        assert log.read_text() == f"{kit}/.python/bin/python3\n"
