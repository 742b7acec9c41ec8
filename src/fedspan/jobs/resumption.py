"""Go on with a run that was cut off."""

from __future__ import annotations

import os
from pathlib import Path

from fedspan.jobs._federated import run_on_federation
from fedspan.jobs.finished import Run
from fedspan.jobs.folder import RunFolder
from fedspan.jobs.model import Job
from fedspan.jobs.runner import load_run, rewrite_report, run_in_process
from fedspan.jobs.watching import Progress


def resume(path: str | os.PathLike[str], progress: Progress | None = None) -> Run:
    """Go on with the run in a folder, from its last complete round.

    A run that is complete is only read; its report is written if it is missing.

    Parameters:
        path: The run folder.
        progress: Who is told what happens; None: nobody.
    """
    folder = RunFolder.find(Path(path))
    job = Job.load(folder.job)
    if folder.model.exists():
        if not folder.report.exists():  # cut off between the two
            rewrite_report(folder, job)
        return load_run(folder, job)
    execute = run_on_federation if folder.federation.exists() else run_in_process
    return execute(folder, job, progress, new=False)
