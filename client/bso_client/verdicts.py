"""The client's own verdict on a training while the optimizer is out of reach: the same rule, with the last bound."""

from __future__ import annotations

from datetime import UTC, datetime

from bso.domain.job import Job, JobVersion
from bso.domain.policy import Verdict
from bso.domain.stopping import judge_progress
from bso.domain.trial import Trial
from bso_client.progress import Progress

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def judge_alone(progress: Progress) -> Verdict:
    """Whether the training goes on after its latest report: target, max_epochs, NaN twice, the last bound heard."""
    trial = Trial(
        trial_number=progress.trial_number or 0,
        trial_id=progress.trial_id or "",
        version_number=1,
        recurrence_id=progress.recurrence_id or "",
        attempt=progress.attempt,
        batch_size=progress.batch_size,
        hardware=progress.hardware,
        reason=progress.reason,
        is_unbounded=progress.is_last_attempt,
        started_at=_EPOCH,
        epoch=progress.epoch,
        profiled=progress.profiled,
        metric=progress.metric,
        nonfinite_metrics_in_a_row=progress.nonfinite_metrics_in_a_row,
        cost=progress.cost,
    )
    job = Job(job_id="alone", current_version=1, versions={1: JobVersion(version_number=1, spec=progress.spec, seed=0)})
    return judge_progress(job, trial, progress.bound)
