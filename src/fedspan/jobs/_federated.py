"""A job on a federation: submitted with a researcher's kit, watched, and its model, ledger and report brought back."""

from __future__ import annotations

import json
import secrets
import time
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, NotRequired, TypedDict

import numpy as np

from fedspan._files import write_whole
from fedspan._foreign import parse_json
from fedspan.core.checkpoint import build
from fedspan.core.ledger import Event, Ledger, Note, RoundEnd, event_from
from fedspan.core.run import Info
from fedspan.deployment import flare_admin
from fedspan.deployment.flare_admin import AdminSession
from fedspan.deployment.operations.federation_status import name_absent, survey_sites
from fedspan.deployment.run_request import FEDERATED_ESTIMATORS, RunRequest
from fedspan.errors import ClientError, FedspanError, InputError, SiteRefusal
from fedspan.jobs.finished import Run
from fedspan.jobs.folder import RunFolder, received_nothing
from fedspan.jobs.runner import update_report
from fedspan.jobs.tasks import TASKS, rounds_limit, tolerance
from fedspan.jobs.watching import Outlook, Progress, Silence

if TYPE_CHECKING:
    from fedspan.jobs.model import Job


_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0  # seconds between two looks at who is there
_FIRST_BREAK, _LONGEST_BREAK = 5.0, 300.0  # seconds before a run is tried again that got nowhere the last time


def find_sites(kit: Path) -> list[str]:
    """List the sites that are connected now."""
    with flare_admin.connect(kit) as session:
        sites = flare_admin.list_sites(session)
    if len(sites) < 2:
        found = f"only {sites[0]!r}" if sites else "none"
        raise ClientError(
            f"A federation needs at least two connected sites, but {found} is connected. Start the others."
        )
    return sites


def start_on_federation(
    folder: RunFolder, job: Job, kit: Path, progress: Progress | None, keep_going: float = 0.0
) -> Run:
    """Note in the run folder where its run is, then submit it."""
    _write_place(folder, {"kit": str(kit.resolve()), "run": secrets.token_hex(16)})
    return run_on_federation(folder, job, progress, new=True, keep_going=keep_going)


def run_on_federation(
    folder: RunFolder, job: Job, progress: Progress | None, *, new: bool, keep_going: float = 0.0
) -> Run:
    """Submit the run, or submit it again: the server and the sites go on from where they were.

    A `new` folder is taken back if the input is wrong and no exchange was completed. Later it is kept, because only it
    knows the run to resume. With `keep_going`, what a dead site, server or network cuts off is tried again for so many
    seconds.
    """
    place = _read_place(folder.federation)
    kit = Path(place["kit"])
    submission = _Submission(folder, job, build_request(job, place["run"]), progress or Silence())
    with folder.lock(), flare_admin.keep_session(kit):
        try:
            submission.persist(kit, keep_going)
        except FedspanError as error:
            submission.diary.add(Note(f"ended: {error}"))
            if new and isinstance(error, InputError) and not submission.resumable:
                folder.undo()
                raise
            wait = " --keep-going 24h" if isinstance(error, AbsentSites) else ""
            said = str(error).removesuffix(".")
            raise type(error)(f"{said}. To go on: {folder.command('resume')}{wait}") from None
        submission.diary.close()
        folder.watched.unlink(missing_ok=True)
        model = TASKS[job.task].estimator.load(folder.model)
        ledger = Ledger.read(folder.ledger)
        model.ledger_ = ledger
        update_report(folder, job, ledger, model)
    return Run(folder, model, ledger)


class AbsentSites(ClientError):
    """Sites that a run needs do not answer."""


class _Place(TypedDict):
    """Where a run is, if not here: the researcher's kit, the run's name on the server, and the last job for it."""

    kit: str
    run: str
    job: NotRequired[str]


def _read_place(path: Path) -> _Place:
    try:
        return build(_Place, parse_json(path.read_bytes()))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} does not say where the run is: {error} Restore it from a copy.") from None


def _write_place(folder: RunFolder, place: _Place) -> None:
    write_whole(folder.federation, json.dumps(place))


def build_request(job: Job, run: str) -> RunRequest:
    """Say what the federation is asked for; a job file says nothing of where its data is."""
    task = TASKS[job.task]
    if task.estimator.__name__ not in FEDERATED_ESTIMATORS:
        raise InputError(
            f"Task {job.task!r} runs in one process so far: the sites of a federation do not offer what it needs. "
            "Leave --on out, and name the tables in [data]."
        )
    if "budgets" in job.privacy or job.privacy.get("simulate"):
        raise InputError(
            "privacy.budgets and privacy.simulate are for runs in one process; in a federation leave them out."
        )
    if job.held_out or job.transcript:
        raise InputError(
            "data.held_out and transcripts are for runs in one process; in a federation the sites' own files name "
            "held-out rows."
        )
    request = RunRequest(
        run,
        task.estimator.__name__,
        dict(job.parameters),
        table={"name": job.table, "preparation": asdict(job.preparation)},
        privacy=dict(job.privacy),
        secure=dict(job.secure) or None,
        sums="secure" in task.protected_by and task.sums_by_default,
        min_clients=job.min_clients,
        checkpoint_every=job.checkpoint_every,
        timeout=60.0 if job.timeout is None else float(job.timeout),
        match=job.match,
    )
    return request if job.retries is None else replace(request, retries=job.retries)


class _Submission:
    """A run on the federation, from its submission until its results are in the run folder."""

    def __init__(self, folder: RunFolder, job: Job, request: RunRequest, progress: Progress) -> None:
        self.folder, self.job, self.request, self.progress = folder, job, request, progress
        self.resumable = False  # whether the server may have a run to go on with
        self.rounds = 0  # the last round that was seen
        self.diary = self._begin_diary(())

    def _begin_diary(self, said: Iterable[Event]) -> Ledger:
        """A ledger of what is seen of the run from here, while its own is at the server: for `fedspan ui`."""
        self.folder.watched.unlink(missing_ok=True)
        diary = Ledger(self.folder.watched)
        for event in said:
            diary.add(event)
        return diary

    def _say(self, text: str) -> None:
        """Tell whoever watches."""
        self.diary.add(Note(text))
        self.progress.say(text)

    def persist(self, kit: Path, seconds: float) -> None:
        """Carry it out; if a site, the server or the network fails, wait until all are there, and go on.

        It ends with the model, or with what waiting does not mend: wrong input, a refusal, Ctrl-C, the end of the
        time.
        """
        end, pause = time.monotonic() + seconds, 0.0
        while True:
            before = self.rounds
            try:
                self.carry_out(kit)
                return
            except SiteRefusal:
                raise
            except ClientError as error:
                if time.monotonic() >= end:
                    raise
                pause = 0.0 if self.rounds > before else min(_LONGEST_BREAK, 2 * pause or _FIRST_BREAK)
                self._say(f"interrupted: {error}")
            self._wait_for_sites(kit, end)
            time.sleep(max(0.0, min(pause, end - time.monotonic())))
            self._say(f"all sites answer; going on{' after round ' + str(self.rounds) if self.rounds else ''}")

    def _wait_for_sites(self, kit: Path, end: float) -> None:
        """Wait until the server and all sites of the run answer; say whom it waits for."""
        told, pause = "", _FIRST_PAUSE
        while (absent := self._find_absent(kit)) and time.monotonic() < end:
            if absent != told:
                told = absent
                self._say(f"waiting: {absent}")
            time.sleep(max(0.0, min(pause, end - time.monotonic())))
            pause = min(_LONGEST_PAUSE, 1.5 * pause)
        if absent:
            raise ClientError(f"Waited in vain: {absent}.")

    def _find_absent(self, kit: Path) -> str:
        """Who does not answer now, in words."""
        try:
            with flare_admin.connect(kit) as session:
                return name_absent(survey_sites(session, list(self.job.clients)))
        except ClientError as error:
            return str(error).removesuffix(".")

    def carry_out(self, kit: Path) -> None:
        """Submit, watch, and fetch the results; raise what the run ended with, if it was not its model."""
        with flare_admin.connect(kit) as session:
            try:
                number = self._rejoin(session) or self._submit(session)
                outcome = flare_admin.fetch(session, number, self.request.run, self.folder.path)
            except AbsentSites:
                raise
            except ClientError as error:
                raise type(error)(f"{error}{self._name_causes(session)}") from None
        if self.folder.ledger.exists():
            self.resumable = not received_nothing(Ledger.read(self.folder.ledger), private=bool(self.job.privacy))
        flare_admin.check_settled(outcome)

    def _rejoin(self, session: AdminSession) -> str | None:
        """Watch the job of this run that the federation is still at work on: this machine was off meanwhile, say."""
        number = _read_place(self.folder.federation).get("job")
        if number is None or flare_admin.is_over(session, number):
            return None
        self.resumable = True
        self._say(f"the federation is still at work on it: job {number}")
        try:
            self._follow(session, number, begun=True)
        except flare_admin.JobLost:
            return None
        return number

    def _submit(self, session: AdminSession) -> str:
        """Submit it as a new job, if all its sites are there, and watch that."""
        found = survey_sites(session, list(self.job.clients))
        if absent := name_absent(found):
            raise AbsentSites(f"All sites of the run are needed, but {absent}.")
        before = _read_place(self.folder.federation).get("job")
        for site in found:
            others = [number[:8] for number in site.jobs if number != before]
            if others:
                self._say(f"site {site.name!r} is also busy with job {', '.join(others)}")
        self.resumable = True
        place = _read_place(self.folder.federation)
        number = flare_admin.submit(session, Path(place["kit"]), [self.request], sorted(self.job.clients))
        _write_place(self.folder, {**place, "job": number})
        self._say(f"submitted to {', '.join(self.job.clients)}: job {number}")
        self._follow(session, number, begun=False)
        return number

    def _name_causes(self, session: AdminSession) -> str:
        """A sentence about the sites that do not answer now, which may be why a run has ended."""
        try:
            absent = name_absent(survey_sites(session, list(self.job.clients)))
        except ClientError:
            return " The server does not answer now."
        return f" Now {absent}." if absent else ""

    def _follow(self, session: AdminSession, number: str, *, begun: bool) -> None:
        """Watch a job to its end; Ctrl-C ends it."""
        try:
            self._show(flare_admin.watch(session, number, self._say, begun=begun))
        except KeyboardInterrupt:
            session.abort_job(number)
            raise FedspanError("Stopped.") from None

    def _show(self, rows: Iterable[Mapping[str, object]]) -> None:
        """Show the rounds as the server reports them."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            task = TASKS[self.job.task]
            model = task.estimator(**self.job.options())
        self.diary.close()  # the server tells its ledger from the beginning
        self.diary = self._begin_diary([event for event in self.diary.events if isinstance(event, Note)])
        ledger, shown = Ledger(), self.rounds
        with self.progress.follow(Outlook(ledger, rounds_limit(model), tolerance(model), task.watch)) as follow:
            for row in rows:
                try:
                    event = event_from(row)
                except ValueError as error:
                    raise ClientError(f"The server sent a line that is not of a ledger: {error}") from None
                ledger.add(event)
                self.diary.add(event)
                if isinstance(event, RoundEnd) and event.round > 0:
                    self.rounds = max(self.rounds, event.round)
                    if event.round > shown:
                        follow(Info(event.round, np.empty(0), event.metrics, ledger))
