"""What was known when a trial began, from the log alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from bso.domain.decide import describe_job
from bso.domain.events import TrialStarted
from bso.domain.job import Job
from bso.domain.log import RecordedEvent
from bso.domain.replies import KindDescription
from bso.domain.trial import TrialState
from bso.replay.folding import Folding


@dataclass(frozen=True, slots=True, kw_only=True)
class Hindsight:
    """``known``: what was known on the trial's hardware kind just before; None: nothing.

    ``running`` are the batch sizes of the job's other running trials, on whatever hardware, in order of their numbers.
    """

    started: TrialStarted
    hardware: str
    running: tuple[int, ...]
    known: KindDescription | None


async def before_trial(job_id: str, trial_number: int, log: AsyncIterator[RecordedEvent]) -> Hindsight | None:
    """Fold a job's log up to the beginning of a trial; None: the log does not tell of it. Raises LogBroken."""
    folding = Folding(job_id)
    async for recorded in log:
        event = recorded.event
        if isinstance(event, TrialStarted) and event.trial_number == trial_number:
            folding.require_whole()
            return _hindsight(folding.job, event)
        folding.add(recorded)
    return None


def _hindsight(job: Job, started: TrialStarted) -> Hindsight:
    kinds = {kind.hardware_key: kind for kind in describe_job(job).kinds} if job.is_registered else {}
    return Hindsight(
        started=started,
        hardware=started.hardware.describe(),
        running=tuple(trial.batch_size for trial in job.active_trials() if trial.state is TrialState.RUNNING),
        known=kinds.get(started.hardware.key),
    )
