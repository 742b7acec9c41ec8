"""A job on a federation: submitted with a researcher's kit, watched, and its model, ledger and report brought back."""

from __future__ import annotations

import json
import secrets
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from fedspan._files import write_whole
from fedspan.cli.progress import Progress, say
from fedspan.core.ledger import Ledger, RoundEnd, event_from
from fedspan.core.run import Info
from fedspan.deployment.server_job import Order
from fedspan.errors import ClientError, FedspanError, InputError, MissingExtraError
from fedspan.jobs.folder import RunFolder
from fedspan.jobs.model import Job, parse, read
from fedspan.jobs.runner import command, write_report
from fedspan.jobs.tasks import TASKS, estimator, rounds_of


def load_on(path: Path, overrides: Sequence[str], kit: Path) -> Job:
    """The job in a file, for the sites that are connected now: they stand in the place of files."""
    tree = read(path, overrides)
    data = tree.setdefault("data", {})
    if isinstance(data, dict) and ("clients" in data or "views" in data):
        raise InputError("the sites say themselves where their data is; leave data.clients and data.views out")
    task = tree.get("job", {}).get("task")
    if isinstance(data, dict) and task in TASKS:
        data[TASKS[task].over] = {site: f"flare://{site}" for site in _connected_sites(kit)}
    return parse(tree, path.resolve().parent)


def _connected_sites(kit: Path) -> list[str]:
    with _admin().connected(kit) as session:
        sites = _admin().sites_of(session)
    if len(sites) < 2:
        raise ClientError(f"need at least two sites that are connected, got {', '.join(sites) or 'none'}; start them")
    return [str(site) for site in sites]


def order_of(job: Job, run: str) -> Order:
    """What the federation is asked for; a job file says nothing of where its data is."""
    task = TASKS[job.task]
    if "budgets" in job.privacy or job.privacy.get("simulate"):
        raise InputError("privacy.budgets and privacy.simulate are for one process; in a federation leave them out")
    if job.held_out or job.transcript:
        raise InputError("data.held_out and transcripts are for one process; the sites' own files name held-out rows")
    table = {"name": job.table, "preparation": asdict(job.preparation)}
    return Order(
        run, task.estimator, dict(job.parameters), table=table, privacy=dict(job.privacy),
        secure=dict(job.secure) or None, sums="secure" in task.protected_by, min_clients=job.min_clients,
        checkpoint_every=job.checkpoint_every,
        timeout=60.0 if job.timeout is None else float(job.timeout),
    )  # fmt: skip


def begin(folder: RunFolder, kit: Path) -> None:
    """Note in the run folder where its run is."""
    place = {"kit": str(kit.resolve()), "run": secrets.token_hex(16)}
    write_whole(folder.federation, json.dumps(place))


def execute(folder: RunFolder, job: Job, console: Console, *, new: bool) -> Any:
    """Submit the run, or submit it again: the server and the sites go on from where they were."""
    place = json.loads(folder.federation.read_text(encoding="utf-8"))
    order, kit, admin = order_of(job, place["run"]), Path(place["kit"]), _admin()
    with folder.locked():
        try:
            with admin.connected(kit) as session:
                sites = admin.sites_of(session)
                missing = [name for name in job.clients if name not in sites]
                if missing:
                    raise ClientError(f"need site {missing[0]!r}, it is not connected; start it, then resume")
                number = admin.submit(session, [order], len(job.clients))
                say(console, f"submitted to {', '.join(sites)}: job {number}")
                ledger = Ledger()
                try:
                    _follow(admin.watch(session, number), job, console, ledger)
                except KeyboardInterrupt:
                    session.abort_job(number)
                    raise FedspanError(f"stopped; go on with: {command('resume', folder)}") from None
                outcome = admin.fetch(session, number, order.run, folder.path)
            admin.settled(outcome)
        except FedspanError as error:
            if new and isinstance(error, InputError) and not isinstance(error, ClientError):
                folder.undo()
                raise
            text = str(error)
            if "fedspan resume" not in text:
                text += f"; to go on: {command('resume', folder)}"
            raise type(error)(text) from None
        model = estimator(job.task).load(folder.model)
        model.ledger_ = Ledger.read(folder.ledger)
        write_report(folder, model.ledger_, model)
    return model


def _follow(rows: Any, job: Job, console: Console, ledger: Ledger) -> None:
    """Show the rounds as they are told."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = estimator(job.task)(**job.options())
    tol = getattr(model, "tol", 0.0)
    with Progress(console, ledger, rounds_of(model), tol, TASKS[job.task].watch) as progress:
        for row in rows:
            event = event_from(row)
            ledger.add(event)
            if isinstance(event, RoundEnd) and event.round > 0:
                progress(Info(event.round, None, event.metrics, ledger))  # type: ignore[arg-type]


def _admin() -> Any:
    try:
        from fedspan.deployment import flare_admin
    except ImportError:
        raise MissingExtraError("running on a federation", "flare") from None
    return flare_admin
