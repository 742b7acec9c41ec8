"""Who must not get in, at the doors of a real federation: connections, kits and jobs."""

from __future__ import annotations

import json
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare", reason="needs fedspan[flare]")

from orders import new_run
from world import SERVER, environment, log_of, until

from fedspan.deployment import flare_admin
from fedspan.deployment.approval.signed_order import sign_order
from fedspan.deployment.flare_job import write_job
from fedspan.deployment.kit import init_site
from fedspan.deployment.local import LocalFederation, end_kit, start_kit
from fedspan.deployment.server_job import RunRequest
from fedspan.errors import ClientError

pytestmark = pytest.mark.xdist_group("flare")
ORDER = {"estimator": "FederatedPCA", "parameters": {"n_components": 2, "solver": "gram", "random_state": 0}}


@pytest.fixture(scope="module")
def foreign(three: Any, tmp_path_factory: pytest.TempPathFactory) -> LocalFederation:
    """The kits of somebody else for the same address."""
    return LocalFederation(tmp_path_factory.mktemp("foreign"), ["west", "south"], port=three.port)


@pytest.fixture(scope="module", autouse=True)
def odd_job(three: Any, first_job: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A job that names a class which no site allows; it is at work while the tests of this file run."""
    first_job.finish()
    folder = make_ordinary_job(tmp_path_factory.mktemp("odd") / "job", three.researcher)
    config = folder / "app" / "config" / "config_fed_client.json"
    tree = json.loads(config.read_text(encoding="utf-8"))
    tree["components"].append({"id": "x", "path": "nvflare.app_common.np.np_trainer.NPTrainer", "args": {}})
    config.write_text(json.dumps(tree), encoding="utf-8")
    with flare_admin.connect(three.researcher) as session:
        return str(session.submit_job(str(folder)))


def await_end(session: Any, job: str) -> str:
    """The status with which a job ends."""
    for _ in flare_admin.watch(session, job):
        pass
    return flare_admin.read_status(session, job)


def is_heard(port: int, root: Path, certificate: tuple[Path, Path] | None) -> bool:
    """Whether the server answers a connection with that certificate, or without one."""
    context = ssl.create_default_context(cafile=str(root))
    context.check_hostname = False
    if certificate:
        context.load_cert_chain(*map(str, certificate))
    context.set_alpn_protocols(["h2"])
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=60) as plain, context.wrap_socket(plain) as secure:
            secure.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0")
            return bool(secure.recv(64))  # the server's settings, or the end
    except (ssl.SSLError, ConnectionError):
        return False


def test_without_a_certificate_of_the_federation_nobody_is_heard(three: Any, foreign: LocalFederation) -> None:
    own, other = three.kit("north") / "startup", foreign.kit("south") / "startup"
    assert is_heard(three.port, own / "rootCA.pem", (own / "client.crt", own / "client.key"))
    assert not is_heard(three.port, own / "rootCA.pem", None)
    assert not is_heard(three.port, own / "rootCA.pem", (other / "client.crt", other / "client.key"))


def test_a_site_and_a_researcher_with_a_foreign_kit_do_not_get_in(
    three: Any, foreign: LocalFederation, tmp_path: Path
) -> None:
    kit, log = foreign.kit("west"), tmp_path / "west.log"
    init_site(
        kit,
        {"default": {"path": str(three.folder.parent / "north.parquet"), "columns": ["lab0", "lab1"]}},
        replace=True,
    )
    process = start_kit(kit, log, **environment())
    try:
        with (
            pytest.raises(ClientError, match="cannot be reached"),
            flare_admin.connect(foreign.researcher, timeout=8.0),
        ):
            pass
        until(lambda: "CERTIFICATE_VERIFY_FAILED" in log.read_text(encoding="utf-8", errors="replace"))
        with flare_admin.connect(three.researcher) as session:
            assert set(flare_admin.list_sites(session)) == set(three.sites)
    finally:
        end_kit(kit, process, patience=0.0)


def make_ordinary_job(folder: Path, kit: Path) -> Path:
    """A job with an order that its researcher signed, so that sites' queues let it through."""
    requests, sites = [RunRequest(new_run(), **ORDER)], ["east", "north", "south"]
    return write_job(folder, "by-hand", requests, sites, sign_order(kit, requests, sites).to_json())


def test_a_job_with_code_in_it_is_refused(three: Any, tmp_path: Path) -> None:
    folder = make_ordinary_job(tmp_path / "job", three.researcher)
    (folder / "app" / "custom").mkdir()
    (folder / "app" / "custom" / "steal.py").write_text("import os\nos.system('true')\n")
    with flare_admin.connect(three.researcher) as session:
        try:
            ended = await_end(session, str(session.submit_job(str(folder))))
        except Exception as error:
            ended = str(error)
    assert "COMPLETED" not in ended
    assert "byoc" in (log_of(three, SERVER) + log_of(three, "north") + ended).lower()
    assert not list(three.kit("north").rglob("steal.py"))


def test_a_job_that_names_another_class_is_refused_at_the_site(three: Any, odd_job: str) -> None:
    with flare_admin.connect(three.researcher) as session:
        assert "COMPLETED" not in await_end(session, odd_job)
    assert "not in allow_list" in "".join(log_of(three, name) for name in (SERVER, *three.sites))


def test_a_job_that_a_site_does_not_want_is_refused_with_its_reason(first_job: Any) -> None:
    """The researcher sees why, and the site's log has it."""
    outcome = first_job.outcome("refused")
    assert not outcome["done"]
    assert "'north'" in outcome["error"]
    assert "'uda' is not allowed at this site" in outcome["error"]
    assert "'uda' is not allowed at this site" in first_job.log("north")
