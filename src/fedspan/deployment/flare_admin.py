"""A researcher's side of NVIDIA FLARE: connect with a kit, submit a job, watch it, bring its results back."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol, TypeVar

from fedspan._files import write_whole
from fedspan._foreign import parse_json, printable
from fedspan.deployment.approval.signed_order import sign_order
from fedspan.deployment.approval.waiting import check_not_refused, find_waiting
from fedspan.deployment.flare_job import TOPIC, write_job
from fedspan.deployment.kit import check_certificates, role
from fedspan.deployment.server_job import Outcome, RunRequest, read_outcome
from fedspan.errors import ClientError, FedspanError, InputError, MissingExtraError

T = TypeVar("T")
_POLL = 0.5  # seconds
_CONNECT = 15.0  # seconds to reach the server
_START = 120.0  # seconds in which a submitted job must begin to run
_PATIENCE = 30.0  # seconds for an answer of the server's console; FLARE's own 5 are too few on a busy machine
_TRIES = 3
_LINGER = 5.0  # seconds after the end of a job's process in which its status should say so
_TERMINAL = "FINISHED"


class _ConnectedSite(Protocol):
    name: str


class AdminSession(Protocol):
    """What is used of a FLARE session."""

    def submit_job(self, path: str) -> str: ...
    def get_job_meta(self, job: str) -> Mapping[str, object]: ...
    def get_connected_client_list(self) -> Sequence[_ConnectedSite]: ...
    def do_app_command(self, job: str, topic: str, data: Mapping[str, int]) -> Mapping[str, str]: ...
    def download_job_result(self, job: str, folder: str) -> str: ...
    def abort_job(self, job: str) -> object: ...
    def close(self) -> None: ...


@cache
def _flare_library() -> Any:
    """What is needed of the optional package."""
    try:
        from nvflare.fuel.flare_api.api_spec import CommandError, InternalError, JobNotRunning, NoConnection, NoReply
        from nvflare.fuel.flare_api.flare_api import new_secure_session
    except ImportError:
        raise MissingExtraError("Running on a federation", "flare") from None
    return SimpleNamespace(
        new_secure_session=new_secure_session,
        JobNotRunning=JobNotRunning,
        silent=(NoConnection, NoReply),
        not_up=(NoConnection, NoReply, CommandError, InternalError),  # the job's process is not up, or no longer
    )


@contextmanager
def connect(kit: Path, timeout: float | None = None) -> Iterator[AdminSession]:
    """A session with the server that a researcher's kit is for."""
    library = _flare_library()
    if role(kit) != "researcher":
        raise InputError(f"{kit} is a {role(kit)}'s kit. Give a researcher's: the one named after your e-mail address.")
    check_certificates(kit)
    name = json.loads((kit / "startup" / "fed_admin.json").read_text(encoding="utf-8"))["admin"]["username"]
    logging.getLogger("nvflare").setLevel(logging.CRITICAL)
    try:
        with _silence():
            session = library.new_secure_session(name, str(kit), timeout=_CONNECT if timeout is None else timeout)
            session.set_timeout(_PATIENCE)
            session.api.file_download_progress_timeout = _PATIENCE
    except Exception as error:
        raise ClientError(
            f"The server of {kit} cannot be reached ({type(error).__name__}: {error}). Is it running, and are its two "
            "ports open to this machine?"
        ) from None
    try:
        yield session
    finally:
        with contextlib.suppress(Exception), _silence():
            session.close()


def list_sites(session: AdminSession) -> list[str]:
    """The sites that are connected now."""
    with _silence():
        return sorted(client.name for client in session.get_connected_client_list())


def submit(session: AdminSession, kit: Path, requests: Sequence[RunRequest], sites: Sequence[str]) -> str:
    """The id of the job that carries those requests, signed with the key of the researcher's kit."""
    signed = sign_order(kit, requests, sites).to_json()
    with tempfile.TemporaryDirectory() as folder, _silence():
        path = write_job(Path(folder) / "job", f"fedspan-{requests[0].run[:8]}", requests, sites, signed)
        return str(session.submit_job(str(path)))


def read_meta(session: AdminSession, job: str) -> Mapping[str, object]:
    """What the server says of a job."""
    return _ask(lambda: session.get_job_meta(job))


def read_status(session: AdminSession, job: str) -> str:
    return str(read_meta(session, job).get("status", ""))


def _ask(question: Callable[[], T]) -> T:
    """What the server's console says; a busy one is asked again."""
    for left in reversed(range(_TRIES)):
        try:
            with _silence():
                return question()
        except _flare_library().silent as error:
            if not left:
                raise ClientError(f"The server does not answer ({error}). Is it running?") from None
            time.sleep(_POLL)
    raise AssertionError


def watch(
    session: AdminSession, job: str, say: Callable[[str], object] = lambda words: None
) -> Iterator[dict[str, object]]:
    """The rows of the ledger as they come, until the job has ended, however it ended.

    What the sites say while it waits in the queue is told by `say`. A refusal there ends the job, and is raised.
    """
    library = _flare_library()
    seen, since, heard, quiet, said = 0, time.monotonic(), False, 0.0, ""
    while not (state := str((meta := read_meta(session, job)).get("status", ""))).startswith(_TERMINAL):
        rows: list[dict[str, object]] = []
        try:
            with _silence():
                said = session.do_app_command(job, TOPIC, {"from": seen})["rows"]
            rows = _parse_rows(said)
            heard, quiet = True, 0.0
        except library.JobNotRunning:
            quiet += _POLL
        except library.not_up:
            quiet = 0.0
        seen += len(rows)
        yield from rows
        if heard and quiet > _LINGER:  # its process has ended, but FLARE waits 15 minutes for a site that has died
            with contextlib.suppress(Exception), _silence():
                session.abort_job(job)
            quiet = 0.0
        waiting = "" if heard or state != "SUBMITTED" else find_waiting(meta)
        if waiting:
            since = time.monotonic()
            if waiting != said:
                say(waiting)
        said = waiting
        if state != "RUNNING" and not heard and time.monotonic() - since > _START:
            raise ClientError(
                f"The job did not start within {_START:g} s (its status is {state!r}). Are all sites there and idle?"
            )
        time.sleep(_POLL)
    check_not_refused(meta)


def _parse_rows(text: str) -> list[dict[str, object]]:
    """The lines of a ledger that the server sent."""
    try:
        rows = parse_json(text, constants=True)
    except (ValueError, TypeError):
        rows = None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ClientError("The server must send lines of its ledger, but sent something else. Is its version the same?")
    return rows


def fetch(session: AdminSession, job: str, run: str, into: Path) -> Outcome:
    """Bring ledger and model of a run into a folder; how it ended is returned."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(_ask(lambda: session.download_job_result(job, folder)))
        found = next((path for path in place.rglob(run) if (path / "outcome.json").is_file()), None)
        if found is None:
            raise ClientError(
                f"The job ended without a result ({read_status(session, job)}): a site or the server stopped it. Look "
                "at log.txt of the server and of the sites, then resume the run."
            )
        for name in ("ledger.jsonl", "model.safetensors"):
            if (found / name).is_file():
                write_whole(into / name, (found / name).read_bytes())
        return read_outcome(found)


def check_settled(outcome: Outcome) -> None:
    """Raise what a run ended with, if it was not its model."""
    if not outcome["done"]:
        kind = InputError if outcome.get("input") else FedspanError
        raise kind(printable(str(outcome.get("error"))))


@contextmanager
def _silence() -> Iterator[None]:
    """FLARE prints to the terminal of whoever calls it."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield
