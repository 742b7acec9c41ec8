"""The server's queue: FLARE's own, but a job may wait for weeks, and its history does not grow with every look."""

from __future__ import annotations

from nvflare.apis.fl_context import FLContext
from nvflare.apis.job_def import Job, JobMetaKey
from nvflare.apis.job_scheduler_spec import DispatchInfo
from nvflare.app_common.job_schedulers.job_scheduler import (
    SCHEDULE_RESULT_BLOCK,
    SCHEDULE_RESULT_NO_RESOURCE,
    DefaultJobScheduler,
)

from fedspan.deployment.approval.waiting import find_refusal

_HISTORY = 20  # lines of a job's history
_INTERVAL = 1.0  # seconds between two looks
_COUNT = 100_000_000  # looks: more than in three years


class PatientScheduler(DefaultJobScheduler):  # type: ignore[misc]
    """Looks at each waiting job once a second, as long as it waits; takes one out of the queue that a site refused."""

    def __init__(self, max_jobs: int = 4) -> None:
        super().__init__(max_jobs, _COUNT, _INTERVAL, _INTERVAL)

    def _update_schedule_history(self, job: Job, result: str, fl_ctx: FLContext) -> None:
        super()._update_schedule_history(job, result, fl_ctx)
        history = job.meta.get(JobMetaKey.SCHEDULE_HISTORY.value) or []
        job.meta[JobMetaKey.SCHEDULE_HISTORY.value] = history[-_HISTORY:]

    def _try_job(self, job: Job, fl_ctx: FLContext) -> tuple[int, dict[str, DispatchInfo] | None, str]:
        code, dispatch, result = super()._try_job(job, fl_ctx)
        if code == SCHEDULE_RESULT_NO_RESOURCE and find_refusal(result):
            return SCHEDULE_RESULT_BLOCK, None, result
        return code, dispatch, result
