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
from fedspan.deployment.run_request import RunRequest
from fedspan.deployment.server_job import Outcome, read_outcome
from fedspan.errors import ClientError, FedspanError, InputError, MissingExtraError

T = TypeVar("T")
_POLL = 0.5  # seconds
_CONNECT = 15.0  # seconds to reach the server
_START = 120.0  # seconds in which a submitted job must begin to run
_PATIENCE = 30.0  # seconds for an answer of the server's console; FLARE's own 5 are too few on a busy machine
_TRIES = 3
_LINGER = 5.0  # seconds after the end of a job's process in which its status should say so
_LAUNCH = 60.0  # seconds in which a job that is said to run must have a process
_ABORT = 60.0  # seconds in which a job ends that the server has promised to abort
_MUTE = 300.0  # seconds in which the process of a job must say something
_TERMINAL = "FINISHED"


class _ConnectedSite(Protocol):
    name: str
    last_connect_time: float | None


class AdminSession(Protocol):
    """What is used of a FLARE session."""

    def submit_job(self, path: str) -> str: ...
    def get_job_meta(self, job: str) -> Mapping[str, object]: ...
    def get_connected_client_list(self) -> Sequence[_ConnectedSite]: ...
    def check_status(self, target: str, names: list[str] | None = None) -> Mapping[str, object]: ...
    def report_resources(self, target: str, names: list[str] | None = None) -> Mapping[str, object]: ...
    def do_app_command(self, job: str, topic: str, data: Mapping[str, int]) -> Mapping[str, str]: ...
    def download_job_result(self, job: str, folder: str) -> str: ...
    def abort_job(self, job: str) -> object: ...
    def disable_client(self, name: str) -> object: ...
    def enable_client(self, name: str) -> object: ...
    def set_timeout(self, seconds: float) -> None: ...
    def close(self) -> None: ...


class JobLost(ClientError):
    """The server lists a job as running, but has no process for it: it was killed, and started again."""


@cache
def _flare_library() -> Any:
    """What is needed of the optional package."""
    try:
        from nvflare.fuel.flare_api import api_spec
        from nvflare.fuel.flare_api.flare_api import new_secure_session
    except ImportError:
        raise MissingExtraError("Running on a federation", "flare") from None
    return SimpleNamespace(
        new_secure_session=new_secure_session,
        JobNotRunning=api_spec.JobNotRunning,
        JobNotFound=api_spec.JobNotFound,
        InternalError=api_spec.InternalError,
        AuthorizationError=api_spec.AuthorizationError,
        InvalidTarget=(api_spec.InvalidTarget, api_spec.NoClientsAvailable),
        silent=(api_spec.NoConnection, api_spec.NoReply),
        expired=(api_spec.SessionClosed, api_spec.AuthenticationError),  # the server was started again
        # the job's process is not up, or no longer
        not_up=(api_spec.NoConnection, api_spec.NoReply, api_spec.CommandError, api_spec.InternalError),
    )


_kept: dict[Path, AdminSession | None] = {}  # the sessions that are open as long as somebody keeps them


@contextmanager
def keep_session(kit: Path) -> Iterator[None]:
    """Within, `connect` opens one session with this kit and uses it again: opening one takes a second or two."""
    place = kit.resolve()
    if place in _kept:
        yield
        return
    _kept[place] = None
    try:
        yield
    finally:
        _close_session(_kept.pop(place))


@contextmanager
def connect(kit: Path, timeout: float | None = None) -> Iterator[AdminSession]:
    """A session with the server that a researcher's or coordinator's kit is for."""
    place = kit.resolve()
    session = _kept.get(place) or _open_session(kit, timeout)
    if place in _kept:
        _kept[place] = session
    try:
        yield session
    except BaseException:  # perhaps the session is of no use any more
        if place in _kept:
            _kept[place] = None
            _close_session(session)
        raise
    finally:
        if place not in _kept:
            _close_session(session)


def _open_session(kit: Path, timeout: float | None) -> AdminSession:
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
            f"The server of {kit} cannot be reached ({type(error).__name__}: {error}). Is it running, and is its port "
            "open to this machine?"
        ) from None
    return session


def _close_session(session: AdminSession | None) -> None:
    if session is not None:
        with contextlib.suppress(Exception), _silence():
            session.close()


def list_sites(session: AdminSession) -> list[str]:
    """The sites that are connected according to the server, which notices a death only after ten minutes."""
    return sorted(_ask(lambda: [client.name for client in session.get_connected_client_list()]))


def find_last_signs(session: AdminSession) -> dict[str, float]:
    """When the server last heard of each site, in seconds since 1970."""
    clients = _ask(session.get_connected_client_list)
    return {client.name: float(client.last_connect_time or 0.0) for client in clients}


def find_site_jobs(session: AdminSession, site: str, patience: float) -> list[str] | None:
    """The jobs that a site carries out now, as it says itself within `patience` seconds; None: it does not answer."""
    library = _flare_library()
    session.set_timeout(patience)
    try:
        with _silence():
            lines = session.check_status("client", [site]).get("client_status")
    except (*library.silent, *library.InvalidTarget):
        return None
    except library.expired as error:
        raise _explain_expired(error) from None
    finally:
        session.set_timeout(_PATIENCE)
    own = [line for line in lines if isinstance(line, dict)] if isinstance(lines, list) else []
    if not own or any(line.get("status") in ("no_reply", "error") for line in own):
        return None
    return [str(line["job_id"]) for line in own if line.get("job_id")]


def find_site_facts(session: AdminSession, site: str, patience: float) -> Mapping[str, object]:
    """What a site says of itself; nothing if it does not answer, or is of a version that says nothing."""
    library = _flare_library()
    session.set_timeout(patience)
    try:
        with _silence():
            told = session.report_resources("client", [site]).get(site)
        facts = parse_json(str(told))
    except (*library.silent, *library.InvalidTarget, library.AuthorizationError, library.InternalError, ValueError):
        return {}
    except library.expired as error:
        raise _explain_expired(error) from None
    finally:
        session.set_timeout(_PATIENCE)
    return facts if isinstance(facts, dict) else {}


def submit(session: AdminSession, kit: Path, requests: Sequence[RunRequest], sites: Sequence[str]) -> str:
    """The id of the job that carries those requests to those sites, signed with the key of the researcher's kit."""
    signed = sign_order(kit, requests, sites).to_json()
    with tempfile.TemporaryDirectory() as folder:
        path = write_job(Path(folder) / "job", f"fedspan-{requests[0].run[:8]}", requests, sites, signed)
        return send_job(session, path)


def send_job(session: AdminSession, path: Path) -> str:
    """The id that the server gives to the job in a folder."""
    return _ask(lambda: str(session.submit_job(str(path))), tries=1)


def abort(session: AdminSession, job: str) -> None:
    """Take a job back, if it is still there."""
    with contextlib.suppress(_flare_library().InternalError, *_flare_library().silent), _silence():
        session.abort_job(job)


def change_site(session: AdminSession, site: str, *, enabled: bool) -> None:
    """Cut a site off from the server, now and when it comes again, or let it in again. Needs a coordinator's kit."""
    library = _flare_library()
    try:
        _ask(lambda: session.enable_client(site) if enabled else session.disable_client(site))
    except library.AuthorizationError:
        raise InputError(
            "The server does not let this kit remove sites. At the server: fedspan federation upgrade KIT, and start "
            "it again."
        ) from None


def read_meta(session: AdminSession, job: str) -> Mapping[str, object]:
    """What the server says of a job."""
    return _ask(lambda: session.get_job_meta(job))


def read_status(session: AdminSession, job: str) -> str:
    return str(read_meta(session, job).get("status", ""))


def is_over(session: AdminSession, job: str) -> bool:
    """Whether a job has ended, or is unknown to the server."""
    try:
        return read_status(session, job).startswith(_TERMINAL)
    except _flare_library().JobNotFound:
        return True


def _ask(question: Callable[[], T], tries: int = _TRIES) -> T:
    """What the server's console says; a busy one is asked again."""
    library = _flare_library()
    for left in reversed(range(tries)):
        try:
            with _silence():
                return question()
        except library.silent as error:
            if not left:
                raise ClientError(f"The server does not answer ({error}). Is it running?") from None
            time.sleep(_POLL)
        except library.expired as error:
            raise _explain_expired(error) from None
        except library.AuthorizationError as error:
            raise InputError(f"The server does not allow this to the owner of the kit: {error}") from None
    raise AssertionError


def _explain_expired(error: Exception) -> ClientError:
    return ClientError(f"The server has ended the session ({printable(str(error))}). It was probably started again.")


class _Signs:
    """Whether a job that is watched is alive, from what its process and the server say of it."""

    def __init__(self, session: AdminSession, job: str, *, begun: bool) -> None:
        self.session, self.job = session, job
        self.heard = begun
        self.since = time.monotonic()
        self.gone: float | None = None  # since when the server says that there is no process
        self.mute: float | None = None  # since when the process does not answer
        self.ends: float | None = None  # until when an aborted job must have ended

    def note_answer(self) -> None:
        """The job's process has answered."""
        self.heard, self.gone, self.mute = True, None, None

    def note_waiting(self) -> None:
        """The job waits for a site that has said so."""
        self.since = time.monotonic()

    def note_gone(self) -> None:
        """The server says that the job is not running."""
        self.mute, self.gone = None, self.gone or time.monotonic()

    def note_mute(self) -> None:
        """The job's process does not answer, or not yet."""
        self.gone, self.mute = None, self.mute or time.monotonic()

    def check(self, state: str) -> None:
        """Raise what is known of the job, if it will not come to an end by itself."""
        now = time.monotonic()
        if state != "RUNNING":
            if not self.heard and now - self.since > _START:
                raise ClientError(
                    f"The job did not start within {_START:g} s (its status is {state!r}). Which sites are there, and "
                    "what they are busy with: fedspan federation status KIT"
                )
            return
        if self.mute is not None and now - self.mute > _MUTE:
            raise ClientError(f"The server's process for the job has not answered for {_MUTE:g} s. Is it frozen?")
        if self.ends is not None and now > self.ends:
            raise JobLost(
                "The server lists the job as running, but has no process for it: it was probably killed and started "
                "again."
            )
        if self.ends is None and self.gone is not None and now - self.gone > (_LINGER if self.heard else _LAUNCH):
            # Its process has ended, but FLARE waits 15 minutes for a site that has died.
            self.ends = now + (_ABORT if self._abort() else 0.0)

    def _abort(self) -> bool:
        """Whether the server takes back the job; one that was started again since does not know it."""
        library = _flare_library()
        try:
            with _silence():
                self.session.abort_job(self.job)
        except library.InternalError:
            return False
        except library.silent:
            return True  # nobody knows yet
        return True


def watch(
    session: AdminSession, job: str, say: Callable[[str], object] = lambda words: None, *, begun: bool = False
) -> Iterator[dict[str, object]]:
    """The rows of the ledger as they come, until the job has ended, however it ended.

    What the sites say while it waits in the queue is told by `say`; if one refuses it there, that is raised. `begun`:
    the job was seen running before. One that nobody carries out any more raises `JobLost`.
    """
    library = _flare_library()
    signs, seen, said = _Signs(session, job, begun=begun), 0, ""
    while not (state := str((meta := read_meta(session, job)).get("status", ""))).startswith(_TERMINAL):
        rows: list[dict[str, object]] = []
        try:
            with _silence():
                said = session.do_app_command(job, TOPIC, {"from": seen})["rows"]
            rows = _parse_rows(said)
            signs.note_answer()
        except library.JobNotRunning:
            signs.note_gone()
        except library.not_up:
            signs.note_mute()
        except library.expired as error:
            raise _explain_expired(error) from None
        seen += len(rows)
        yield from rows
        waiting = find_waiting(meta) if state == "SUBMITTED" else ""
        if waiting:
            signs.note_waiting()
            if waiting != said:
                say(waiting)
        said = waiting
        signs.check(state)
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
        kind = InputError if outcome.get("input") else ClientError if outcome.get("again") else FedspanError
        raise kind(printable(str(outcome.get("error"))))


@contextmanager
def _silence() -> Iterator[None]:
    """FLARE prints to the terminal of whoever calls it."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield
