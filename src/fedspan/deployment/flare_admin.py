"""A researcher's side of NVIDIA FLARE: connect with a kit, submit a job, watch it, bring its results back."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nvflare.fuel.flare_api.api_spec import CommandError, InternalError, JobNotRunning, NoConnection, NoReply
from nvflare.fuel.flare_api.flare_api import Session, new_secure_session

from fedspan.deployment.flare import TOPIC, job_folder
from fedspan.deployment.kit import expired, role
from fedspan.deployment.server_job import Order
from fedspan.errors import ClientError, FedspanError, InputError

_POLL = 0.5  # seconds
_CONNECT = 15.0  # seconds to reach the server
_START = 120.0  # seconds in which a submitted job must begin to run
_PATIENCE = 30.0  # seconds for an answer of the server's console; FLARE's own 5 are too few on a busy machine
_TRIES = 3
_LINGER = 5.0  # seconds after the end of a job's process in which its status should say so
_TERMINAL = "FINISHED"
_NOT_YET = (NoConnection, NoReply, CommandError, InternalError)  # its process is not up, or no longer


@contextmanager
def connected(kit: Path, timeout: float | None = None) -> Iterator[Session]:
    """A session with the server that a researcher's kit is for."""
    if role(kit) != "researcher":
        raise InputError(f"need a researcher's kit, {kit} is a {role(kit)}'s; give the one named after your address")
    expired(kit)
    name = json.loads((kit / "startup" / "fed_admin.json").read_text(encoding="utf-8"))["admin"]["username"]
    logging.getLogger("nvflare").setLevel(logging.CRITICAL)
    try:
        with _silently():
            session = new_secure_session(name, str(kit), timeout=_CONNECT if timeout is None else timeout)
            session.set_timeout(_PATIENCE)
            session.api.file_download_progress_timeout = _PATIENCE
    except Exception as error:
        raise ClientError(
            f"need the server of {kit}, it cannot be reached ({type(error).__name__}: {error}); is it running, and are "
            "its two ports open to this machine?"
        ) from None
    try:
        yield session
    finally:
        with contextlib.suppress(Exception), _silently():
            session.close()


def sites_of(session: Session) -> list[str]:
    """The sites that are connected now."""
    with _silently():
        return sorted(client.name for client in session.get_connected_client_list())


def submit(session: Session, orders: list[Order], sites: int) -> str:
    """The id of the job that carries those orders."""
    with tempfile.TemporaryDirectory() as folder, _silently():
        path = job_folder(Path(folder) / "job", f"fedspan-{orders[0].run[:8]}", orders, sites)
        return str(session.submit_job(str(path)))


def status(session: Session, job: str) -> str:
    return str(_answered(lambda: session.get_job_meta(job)).get("status", ""))


def _answered(ask: Callable[[], Any]) -> Any:
    """What the server's console says; a busy one is asked again."""
    for left in reversed(range(_TRIES)):
        try:
            with _silently():
                return ask()
        except (NoConnection, NoReply) as error:
            if not left:
                raise ClientError(f"the server does not answer ({error}); is it running?") from None
            time.sleep(_POLL)
    raise AssertionError


def watch(session: Session, job: str) -> Iterator[dict[str, Any]]:
    """The rows of the ledger as they come, until the job has ended, however it ended."""
    seen, since, heard, quiet = 0, time.monotonic(), False, 0.0
    while not (state := status(session, job)).startswith(_TERMINAL):
        rows: list[dict[str, Any]] = []
        try:
            with _silently():
                rows = json.loads(session.do_app_command(job, TOPIC, {"from": seen})["rows"])
            heard, quiet = True, 0.0
        except JobNotRunning:
            quiet += _POLL
        except _NOT_YET:
            quiet = 0.0
        seen += len(rows)
        yield from rows
        if heard and quiet > _LINGER:  # its process has ended, but FLARE waits 15 minutes for a site that has died
            with contextlib.suppress(Exception), _silently():
                session.abort_job(job)
            quiet = 0.0
        if state != "RUNNING" and not heard and time.monotonic() - since > _START:
            raise ClientError(
                f"the job was not begun within {_START:g} s (it is {state!r}); are all sites connected and idle?"
            )
        time.sleep(_POLL)


def fetch(session: Session, job: str, run: str, into: Path) -> dict[str, Any]:
    """Bring ledger and model of a run into a folder; how it ended is returned."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(_answered(lambda: session.download_job_result(job, folder)))
        found = next((path for path in place.rglob(run) if (path / "outcome.json").is_file()), None)
        if found is None:
            raise ClientError(
                f"the job ended without a result ({status(session, job)}): a site or the server stopped it; "
                "look at the servers' and the sites' log.txt, then resume the run"
            )
        for name in ("ledger.jsonl", "model.safetensors"):
            if (found / name).is_file():
                shutil.copyfile(found / name, into / name)
        outcome: dict[str, Any] = json.loads((found / "outcome.json").read_text(encoding="utf-8"))
        return outcome


def settled(outcome: dict[str, Any]) -> None:
    """Raise what a run ended with, if it was not its model."""
    if not outcome.get("done"):
        kind = InputError if outcome.get("input") else FedspanError
        raise kind(str(outcome.get("error")))


@contextmanager
def _silently() -> Iterator[None]:
    """FLARE prints to the terminal of whoever calls it."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield
