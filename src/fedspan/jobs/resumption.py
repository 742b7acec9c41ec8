"""Go on with a run that was cut off."""

from __future__ import annotations

import os
from pathlib import Path

from fedspan.errors import InputError
from fedspan.jobs._federated import run_on_federation
from fedspan.jobs.finished import Run
from fedspan.jobs.folder import RunFolder
from fedspan.jobs.model import Job
from fedspan.jobs.runner import load_run, rewrite_report, run_in_process
from fedspan.jobs.watching import Progress


def resume(path: str | os.PathLike[str], progress: Progress | None = None, *, keep_going: float = 0.0) -> Run:
    """Go on with the run in a folder, from its last complete round.

    A run that is complete is only read; its report is written if it is missing.

    Parameters:
        path: The run folder.
        progress: Who is told what happens; None: nobody.
        keep_going: On a federation, for how many seconds to wait for sites, server and network to come back after a
            failure, and to go on.
    """
    folder = RunFolder.find(Path(path))
    job = Job.load(folder.job)
    if folder.model.exists():
        if not folder.report.exists():  # cut off between the two
            rewrite_report(folder, job)
        return load_run(folder, job)
    if folder.federation.exists():
        return run_on_federation(folder, job, progress, new=False, keep_going=keep_going)
    if keep_going:
        raise InputError("--keep-going is for runs on a federation, but this one is in a single process; leave it out.")
    return run_in_process(folder, job, progress, new=False)
