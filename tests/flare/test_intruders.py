"""Who must not get in, at the doors of a real federation: connections, kits and jobs."""

from __future__ import annotations

import json
import socket
import ssl
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare", reason="needs fedspan[flare]")
sys.path.insert(0, str(Path(__file__).parent))

from world import environment, log_of, new_run

from fedspan.deployment.kit import init_site
from fedspan.deployment.local import LocalFederation, start_kit
from fedspan.deployment.order import Order
from fedspan.engines import flare_admin
from fedspan.engines.flare import job_folder
from fedspan.errors import ClientError

ORDER = {"estimator": "FederatedPCA", "parameters": {"n_components": 2, "solver": "gram", "random_state": 0}}


def heard(port: int, root: Path, certificate: tuple[Path, Path] | None) -> bool:
    """Whether the server answers a connection with that certificate, or without one."""
    context = ssl.create_default_context(cafile=str(root))
    context.check_hostname = False
    if certificate:
        context.load_cert_chain(*map(str, certificate))
    context.set_alpn_protocols(["h2"])
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=30) as plain, context.wrap_socket(plain) as secure:
            secure.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0")
            return bool(secure.recv(64))  # the server's settings, or the end
    except (ssl.SSLError, ConnectionError):
        return False


def test_without_a_certificate_of_the_federation_nobody_is_heard(three: Any, tmp_path: Path) -> None:
    own = three.kit("north") / "startup"
    foreign = LocalFederation(tmp_path / "other", ["north", "south"]).kit("north") / "startup"
    assert heard(three.port, own / "rootCA.pem", (own / "client.crt", own / "client.key"))
    assert not heard(three.port, own / "rootCA.pem", None)
    assert not heard(three.port, own / "rootCA.pem", (foreign / "client.crt", foreign / "client.key"))


def test_a_site_and_a_researcher_with_a_foreign_kit_do_not_get_in(three: Any, tmp_path: Path) -> None:
    other = LocalFederation(tmp_path / "other", ["west", "south"], port=three.port)  # made by somebody else
    rows = three.folder.parent / "north.parquet"
    init_site(other.kit("west"), {"default": {"path": str(rows)}}, replace=False)
    process = start_kit(other.kit("west"), tmp_path / "west.log", **environment())
    try:
        with (
            pytest.raises(ClientError, match="cannot be reached"),
            flare_admin.connected(other.researcher, timeout=8.0),
        ):
            pass
        time.sleep(5)
        with flare_admin.connected(three.researcher) as session:
            assert "west" not in flare_admin.sites_of(session)
    finally:
        process.kill()
        process.wait()


def submitted(three: Any, folder: Path) -> str:
    """How a job ends that was put together by hand."""
    with flare_admin.connected(three.researcher) as session:
        job = str(session.submit_job(str(folder)))
        for _ in flare_admin.watch(session, job):
            pass
        return flare_admin.status(session, job)


def ordinary(folder: Path) -> Path:
    return job_folder(folder, "by-hand", [Order(new_run(), **ORDER)], 3)


def test_a_job_with_code_in_it_is_refused(three: Any, tmp_path: Path) -> None:
    folder = ordinary(tmp_path / "job")
    (folder / "app" / "custom").mkdir()
    (folder / "app" / "custom" / "steal.py").write_text("import os\nos.system('true')\n")
    try:
        ended = submitted(three, folder)
    except Exception as error:
        ended = str(error)
    assert "COMPLETED" not in ended
    assert "byoc" in (log_of(three, "localhost") + log_of(three, "north") + ended).lower()
    assert not list(three.kit("north").rglob("steal.py"))


def test_a_job_that_names_another_class_is_refused_at_the_site(three: Any, tmp_path: Path) -> None:
    folder = ordinary(tmp_path / "job")
    config = folder / "app" / "config" / "config_fed_client.json"
    tree = json.loads(config.read_text())
    tree["components"].append({"id": "x", "path": "nvflare.app_common.np.np_trainer.NPTrainer", "args": {}})
    config.write_text(json.dumps(tree))
    try:
        ended = submitted(three, folder)
    except Exception as error:
        ended = str(error)
    assert "COMPLETED" not in ended
    assert "not in allow_list" in "".join(log_of(three, name) for name in ("localhost", *three.sites))


def test_a_job_that_a_site_does_not_want_is_refused_with_its_reason(three: Any, tmp_path: Path) -> None:
    """The researcher sees why, and the site's log has it."""
    run = new_run()
    order = Order(run, **{**ORDER, "secure": {"enabled": False}})
    with flare_admin.connected(three.researcher) as session:
        job = flare_admin.submit(session, [order], 3)
        for _ in flare_admin.watch(session, job):
            pass
        outcome = flare_admin.fetch(session, job, run, tmp_path)
    assert not outcome["done"]
    assert "secure sums only are accepted here" in outcome["error"]
    assert "secure sums only are accepted here" in log_of(three, "north")
