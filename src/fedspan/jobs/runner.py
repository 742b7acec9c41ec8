"""One run in one run folder, from wherever it stands to its model and its report."""

from __future__ import annotations

import platform
import shlex
import warnings
from datetime import datetime
from functools import partial
from importlib.metadata import version
from typing import Any

from rich.console import Console

from fedspan import __version__
from fedspan._files import write_whole
from fedspan.cli.progress import Progress, count, duration, say, size
from fedspan.core.callbacks import chain
from fedspan.core.checkpoint import Checkpoint
from fedspan.core.ledger import Ledger, Note
from fedspan.engines.inprocess import InProcess
from fedspan.errors import FedspanError, InputError
from fedspan.jobs.folder import RunFolder
from fedspan.jobs.model import Job, load
from fedspan.jobs.scores import Watched, keep_scores, load_scores
from fedspan.jobs.stop import NOTICE, Stop
from fedspan.jobs.tasks import TASKS, estimator, rounds_of
from fedspan.reports.report import outcome, render


def execute(folder: RunFolder, job: Job, console: Console, *, new: bool) -> Any:
    """Fit, save the model, write the report. Wrong input leaves things as they were: a `new` folder goes again."""
    with folder.locked():
        before = folder.ledger.read_bytes() if folder.ledger.exists() else None
        ledger = Ledger(folder.ledger)
        exchanges = ledger.exchanges
        try:
            model = _fit(folder, job, console, ledger)
            model.save(folder.model)
            write_report(folder, ledger, model)
        except KeyboardInterrupt:
            where = f"after round {ledger.rounds}" if ledger.rounds else "before the first round was over"
            raise FedspanError(f"stopped {where}; go on with: {command('resume', folder)}") from None
        except Exception as error:
            ledger.close()
            untouched = ledger.exchanges == exchanges
            if new and (untouched or (isinstance(error, InputError) and not folder.checkpoint.exists())):
                folder.undo()
            elif untouched:
                _restore(folder, before)
            raise
        finally:
            ledger.close()
    return model


def announce(folder: RunFolder, console: Console, model: Any) -> None:
    """How it ended, and where things are."""
    ledger = model.ledger_
    say(
        console,
        f"done: {count(model.n_rounds_, 'round')}, {outcome(model, ledger)}, {size(ledger.bytes_up)} up, "
        f"{size(ledger.bytes_down)} down, {duration(ledger.seconds)}",
    )
    say(console, f"model:  {folder.model}")
    say(console, f"report: {folder.report}")
    if folder.transcript.exists():
        attack = command("audit", folder)
        say(console, f"transcript: {folder.transcript}, all that the clients released; to attack it: {attack}")


def write_report(folder: RunFolder, ledger: Ledger, model: Any, with_rows: bool = True) -> None:
    """Replace report.html."""
    job, scores = folder.job.read_text(encoding="utf-8"), load_scores(folder.scores)
    write_whole(folder.report, render(job, ledger, model, scores, folder.path, with_rows))


def rewrite_report(folder: RunFolder, with_rows: bool = True) -> None:
    """The report of a complete run, from its files alone."""
    if not folder.model.exists():
        raise InputError(f"need a complete run, {folder.path} has no model yet; do: {command('resume', folder)}")
    if not folder.ledger.exists():
        raise InputError(f"need the ledger of the run, {folder.ledger} is not there; restore it")
    with folder.locked():
        ledger = Ledger.read(folder.ledger)
        write_report(folder, ledger, estimator(load(folder.job).task).load(folder.model), with_rows)


def command(name: str, folder: RunFolder) -> str:
    """A command line to copy."""
    return f"fedspan {name} {shlex.quote(str(folder.path))}"


def versions() -> str:
    """What computed this."""
    packages = ", ".join(f"{name} {version(name)}" for name in ("numpy", "scipy", "scikit-learn"))
    return f"fedspan {__version__}, {packages}, Python {platform.python_version()}"


def _fit(folder: RunFolder, job: Job, console: Console, ledger: Ledger) -> Any:
    """The fit itself. Its warnings become single lines at once (before a budget is spent), and notes of the ledger."""
    if job.timeout is not None or job.table is not None:
        key = "data.table" if job.timeout is None else "run.timeout"
        raise InputError(f"{key}: all clients are in this process; it is for federations, leave it out or add --on")
    ledger.add(Note(f"{datetime.now():%Y-%m-%d %H:%M:%S}, {versions()}"))
    checkpoint = Checkpoint(folder.checkpoint, job.checkpoint_every)
    model = estimator(job.task)(**job.options(), checkpoint=checkpoint)
    engine = Watched(partial(InProcess, transcript=folder.transcript) if job.transcript else InProcess)
    model.set_params(engine=engine)
    task = TASKS[job.task]
    given, options = task.arguments(job.prepared(ledger, engine))
    if job.min_clients is not None:
        options["min_clients"] = job.min_clients
    told: dict[str, None] = {}

    def tell(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
        if issubclass(category, UserWarning) and str(message) not in told:
            told[str(message)] = None
            say(Console(stderr=True), f"warning: {message}")

    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = tell
        stop = Stop(checkpoint, quiet=console.is_terminal)
        budget = (job.privacy["epsilon"], job.privacy["delta"]) if job.privacy else None
        progress = Progress(
            console, ledger, rounds_of(model), getattr(model, "tol", 0.0), task.watch, budget,
            lambda: NOTICE if stop.asked else "",
        )  # fmt: skip
        with stop, progress:
            model.set_params(callback=chain(progress, stop)).fit(*given, **options, ledger=ledger)
    for text in told:
        ledger.add(Note(f"warning: {text}"))
    keep_scores(folder.scores, job, model, engine.data)
    return model


def _restore(folder: RunFolder, before: bytes | None) -> None:
    """The ledger as it was: a refused resumption is no part of the run."""
    if before is None:
        folder.ledger.unlink()
    else:
        write_whole(folder.ledger, before)
