"""A job on a federation: submitted with a researcher's kit, watched, and its model, ledger and report brought back."""

from __future__ import annotations

import json
import secrets
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

import numpy as np

from fedspan._files import write_whole
from fedspan._foreign import parse_json
from fedspan.core.checkpoint import build
from fedspan.core.ledger import Ledger, RoundEnd, event_from
from fedspan.core.run import Info
from fedspan.deployment import flare_admin
from fedspan.deployment.server_job import RunRequest
from fedspan.errors import ClientError, FedspanError, InputError
from fedspan.jobs.finished import Run
from fedspan.jobs.folder import RunFolder, received_nothing
from fedspan.jobs.runner import update_report
from fedspan.jobs.tasks import TASKS, rounds_limit, tolerance
from fedspan.jobs.watching import Outlook, Progress, Silence

if TYPE_CHECKING:
    from fedspan.jobs.model import Job


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


def start_on_federation(folder: RunFolder, job: Job, kit: Path, progress: Progress | None) -> Run:
    """Note in the run folder where its run is, then submit it."""
    place = {"kit": str(kit.resolve()), "run": secrets.token_hex(16)}
    write_whole(folder.federation, json.dumps(place))
    return run_on_federation(folder, job, progress, new=True)


def run_on_federation(folder: RunFolder, job: Job, progress: Progress | None, *, new: bool) -> Run:
    """Submit the run, or submit it again: the server and the sites go on from where they were.

    A `new` folder is taken back if the input is wrong and no exchange was completed. Later it is kept, because only it
    knows the run to resume.
    """
    place = _read_place(folder.federation)
    submission = _Submission(folder, job, build_request(job, place["run"]), progress or Silence())
    with folder.lock():
        try:
            submission.carry_out(Path(place["kit"]))
        except FedspanError as error:
            if new and isinstance(error, InputError) and not submission.resumable:
                folder.undo()
                raise
            raise type(error)(f"{str(error).removesuffix('.')}. To go on: {folder.command('resume')}") from None
        model = TASKS[job.task].estimator.load(folder.model)
        ledger = Ledger.read(folder.ledger)
        model.ledger_ = ledger
        update_report(folder, job, ledger, model)
    return Run(folder, model, ledger)


class _Place(TypedDict):
    """Where a run is, if not here: the researcher's kit, and the run's name on the server."""

    kit: str
    run: str


def _read_place(path: Path) -> _Place:
    try:
        return build(_Place, parse_json(path.read_bytes()))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} does not say where the run is: {error} Restore it from a copy.") from None


def build_request(job: Job, run: str) -> RunRequest:
    """Say what the federation is asked for; a job file says nothing of where its data is."""
    task = TASKS[job.task]
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
    """One job on the federation, from its submission until its results are in the run folder."""

    def __init__(self, folder: RunFolder, job: Job, request: RunRequest, progress: Progress) -> None:
        self.folder, self.job, self.request, self.progress = folder, job, request, progress
        self.resumable = False  # whether the server may have a run to go on with

    def carry_out(self, kit: Path) -> None:
        """Submit, watch, and fetch the results; raise what the run ended with, if it was not its model."""
        with flare_admin.connect(kit) as session:
            sites = flare_admin.list_sites(session)
            missing = [name for name in self.job.clients if name not in sites]
            if missing:
                raise ClientError(f"Site {missing[0]!r} is not connected; start it.")
            self.resumable = True
            number = flare_admin.submit(session, kit, [self.request], sorted(self.job.clients))
            self.progress.say(f"submitted to {', '.join(sites)}: job {number}")
            try:
                self._follow(flare_admin.watch(session, number, self.progress.say))
            except KeyboardInterrupt:
                session.abort_job(number)
                raise FedspanError("Stopped.") from None
            outcome = flare_admin.fetch(session, number, self.request.run, self.folder.path)
        if self.folder.ledger.exists():
            self.resumable = not received_nothing(Ledger.read(self.folder.ledger), private=bool(self.job.privacy))
        flare_admin.check_settled(outcome)

    def _follow(self, rows: Iterable[Mapping[str, object]]) -> None:
        """Show the rounds as the server reports them."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            task = TASKS[self.job.task]
            model = task.estimator(**self.job.options())
        ledger = Ledger()
        with self.progress.follow(Outlook(ledger, rounds_limit(model), tolerance(model), task.watch)) as follow:
            for row in rows:
                try:
                    event = event_from(row)
                except ValueError as error:
                    raise ClientError(f"The server sent a line that is not of a ledger: {error}") from None
                ledger.add(event)
                if isinstance(event, RoundEnd) and event.round > 0:
                    follow(Info(event.round, np.empty(0), event.metrics, ledger))
