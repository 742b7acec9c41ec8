"""One run in one run folder, from wherever it stands to its model and its report."""

from __future__ import annotations

import platform
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from fedspan._files import write_whole
from fedspan._version import __version__
from fedspan.core.callbacks import chain
from fedspan.core.checkpoint import Checkpoint
from fedspan.core.ledger import Ledger, Note
from fedspan.engines.inprocess import InProcess
from fedspan.errors import FedspanError, InputError
from fedspan.jobs._scores import WatchedEngine, keep_scores, load_scores
from fedspan.jobs._stop import NOTICE, Stop
from fedspan.jobs.field.genotype_keys import write_genotype_results
from fedspan.jobs.finished import Run
from fedspan.jobs.folder import RunFolder, received_nothing
from fedspan.jobs.tasks import TASKS, AnyModel, rounds_limit, tolerance
from fedspan.jobs.watching import Outlook, Progress, Silence
from fedspan.reports.report import render_report
from fedspan.reports.saved_files import list_saved_files

if TYPE_CHECKING:
    from fedspan.jobs.model import Job


def run_in_process(folder: RunFolder, job: Job, progress: Progress | None, *, new: bool) -> Run:
    """Fit, save the model, write the report.

    A `new` folder is taken back if the run fails before anything is sent; one that is resumed is as it was.
    """
    with folder.lock():
        before = folder.ledger.read_bytes() if folder.ledger.exists() else None
        ledger = Ledger(folder.ledger)
        questions = ledger.questions
        try:
            model = _fit(folder, job, progress, ledger)
            model.save(folder.model)
            update_report(folder, job, ledger, model)
        except KeyboardInterrupt:
            where = f"after round {ledger.rounds}" if ledger.rounds else "before the first round was over"
            raise FedspanError(f"Stopped {where}; go on with: {folder.command('resume')}") from None
        except Exception as error:
            ledger.close()
            if new and received_nothing(ledger, private=bool(job.privacy)):
                folder.undo()
            elif not new and ledger.questions == questions:
                _restore(folder, before)
            elif isinstance(error, InputError):
                reason = str(error)
                if not reason.endswith((".", "?", "!")):
                    reason += "."
                raise type(error)(
                    f"{reason} The ledger in {folder.path} says what was sent before; to go on: "
                    f"{folder.command('resume')}"
                ) from None
            raise
        finally:
            ledger.close()
    return Run(folder, model, ledger)


def load_run(folder: RunFolder, job: Job) -> Run:
    """Read a complete run from its folder."""
    if not folder.model.exists():
        raise InputError(f"The run in {folder.path} has no model yet; complete it with: {folder.command('resume')}")
    if not folder.ledger.exists():
        raise InputError(f"The ledger of the run, {folder.ledger}, is missing; restore it.")
    return Run(folder, TASKS[job.task].estimator.load(folder.model), Ledger.read(folder.ledger))


def rewrite_report(folder: RunFolder, job: Job, *, with_rows: bool = True) -> None:
    """Write the report of a complete run again, from its files alone."""
    with folder.lock():
        run = load_run(folder, job)
        update_report(folder, job, run.ledger, run.model, with_rows=with_rows)


def update_report(folder: RunFolder, job: Job, ledger: Ledger, model: AnyModel, *, with_rows: bool = True) -> None:
    """Replace report.html."""
    write_whole(folder.report, render_report(model, ledger, job.facts(folder), load_scores(folder.scores), with_rows))


def save_figures(report: Path, folder: Path) -> int:
    """Write the figures and tables of a report as files of their own, and say how many there are."""
    files = list_saved_files(report.read_text(encoding="utf-8"), with_png=True)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            write_whole(folder / name, data, public=True)
    except OSError as error:
        raise InputError(f"Cannot write to {folder}: {error.strerror}; choose another folder.") from None
    return len(files)


def _fit(folder: RunFolder, job: Job, progress: Progress | None, ledger: Ledger) -> AnyModel:
    """Fit the job's model; its warnings are shown at once (before a budget is spent), and noted in the ledger."""
    if job.timeout is not None or job.table is not None:
        key = "data.table" if job.timeout is None else "run.timeout"
        raise InputError(f"{key} is for federations, but all clients are in this process; remove it, or add --on.")
    shown = progress or Silence()
    ledger.add(Note(f"{datetime.now():%Y-%m-%d %H:%M:%S}, {_versions()}"))
    task = TASKS[job.task]
    checkpoint = Checkpoint(folder.checkpoint, job.checkpoint_every)
    engine = WatchedEngine(partial(InProcess, transcript=folder.transcript) if job.transcript else InProcess)
    model = task.estimator(**job.options(), checkpoint=checkpoint, engine=engine)
    ready = job.prepare(ledger, engine)
    given, named = task.arguments(ready)
    with _pass_on_warnings(progress) as warned:
        stop = Stop(checkpoint, quiet=shown.shows_notice)
        outlook = Outlook(
            ledger,
            rounds_limit(model),
            tolerance(model),
            task.watch,
            (job.privacy["epsilon"], job.privacy["delta"]) if job.privacy else None,
            lambda: NOTICE if stop.asked else "",
        )
        with stop, shown.follow(outlook) as follow:
            model.set_params(callback=chain(follow, stop))
            model.fit(*given, **{**named, **job.answer_options(), "ledger": ledger})
    for text in warned:
        ledger.add(Note(f"warning: {text}"))
    if ready.prepared is not None:
        write_genotype_results(folder.genotypes, model, ready.prepared)
    keep_scores(folder.scores, ready, model, engine.data)
    return model


@contextmanager
def _pass_on_warnings(progress: Progress | None) -> Iterator[list[str]]:
    """Show each warning once, as it comes: by `progress`, or if there is none, as Python shows warnings."""
    warned: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        show = warnings.showwarning

        def pass_on(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            if str(message) in warned:
                return
            if progress is None:
                show(message, category, filename, lineno, file, line)
            if issubclass(category, UserWarning):
                warned.append(str(message))
                (progress or Silence()).warn(str(message))

        warnings.showwarning = pass_on
        yield warned


def _versions() -> str:
    """Name what computed this."""
    packages = ", ".join(f"{name} {version(name)}" for name in ("numpy", "scipy", "scikit-learn"))
    return f"fedspan {__version__}, {packages}, Python {platform.python_version()}"


def _restore(folder: RunFolder, before: bytes | None) -> None:
    """Take a refused resumption out of the ledger: it is no part of the run."""
    if before is None:
        folder.ledger.unlink()
    else:
        write_whole(folder.ledger, before)
