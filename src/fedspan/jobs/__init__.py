"""The job file: what it says, how it is run, and the folder that a run leaves.

run = fedspan.Job.load("job.toml").run("out")
run.model, run.ledger, run.report
run = fedspan.jobs.resume("out")
"""

from fedspan.jobs.finished import Run
from fedspan.jobs.folder import RunFolder
from fedspan.jobs.model import Job
from fedspan.jobs.resumption import resume
from fedspan.jobs.watching import Outlook, Progress

__all__ = ["Job", "Outlook", "Progress", "Run", "RunFolder", "resume"]
