"""What was known when a trial began, from the log alone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

from bso.domain.decide import describe_job
from bso.domain.events import TrialStarted
from bso.domain.log import RecordedEvent
from bso.domain.replies import KindDescription
from bso.domain.tally import Tally, tallies
from bso.domain.trial import TrialState
from bso.replay.fold import Folding


@dataclass(frozen=True, slots=True, kw_only=True)
class Hindsight:
    """``known``: what was known on the trial's hardware kind just before; None: nothing.

    ``running`` are the batch sizes of the job's other running trials, on whatever hardware, in order of their numbers.
    ``tallies``: what the trials on that hardware kind had come to, by batch size; None: the log begins after some.
    """

    started: TrialStarted
    hardware: str
    running: tuple[int, ...]
    policy: str
    known: KindDescription | None
    tallies: Mapping[int, Tally] | None


async def before_trial(job_id: str, trial_number: int, log: AsyncIterator[RecordedEvent]) -> Hindsight | None:
    """Fold a job's log up to the beginning of a trial; None: the log does not have it. Raises LogBroken."""
    folding = Folding(job_id)
    async for recorded in log:
        event = recorded.event
        if isinstance(event, TrialStarted) and event.trial_number == trial_number:
            folding.require_whole()
            return _hindsight(folding, event)
        folding.add(recorded)
    return None


def _hindsight(folding: Folding, started: TrialStarted) -> Hindsight:
    job, key = folding.job, started.hardware.key
    kinds = {kind.hardware_key: kind for kind in describe_job(job).kinds} if job.is_registered else {}
    known = kinds.get(key)
    counted = None
    if known is not None and not folding.trials_before:
        counted = tallies(folding.trials.values(), job.spec, version_number=job.current_version, hardware_key=key)
    return Hindsight(
        started=started,
        hardware=started.hardware.describe(),
        running=tuple(trial.batch_size for trial in job.active_trials() if trial.state is TrialState.RUNNING),
        policy=job.spec.policy if job.is_registered else "",
        known=known,
        tallies=counted,
    )
