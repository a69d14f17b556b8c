"""Stops that their trainings may not know of, and how one that never arrived is taken back.

The reply to a report may be lost. A training that goes on without it and says later how it ended was never stopped:
what its stop has taught is unlearnt before its result is learnt.
"""

from __future__ import annotations

from bso.domain.frozen_values import replace
from bso.domain.job import Job, Recurrence, UnacknowledgedStop
from bso.domain.knowledge_updates import with_memory_limits_of
from bso.domain.trial import Trial

_MOST = 16
"""So many stops are remembered; a training says that it knows of its stop at once."""


def with_stop(before: Job, after: Job, trial: Trial) -> Job:
    """The job ``after`` a training was stopped, with what was known ``before``."""
    number = trial.version_number
    stop = UnacknowledgedStop(
        version_number=number, knowledge=before.knowledge_of(trial), memories=before.versions[number].memories
    )
    stops = {**after.unacknowledged_stops, trial.trial_number: stop}
    return replace(after, unacknowledged_stops={kept: stops[kept] for kept in sorted(stops)[-_MOST:]})


def without_stop(job: Job, trial_number: int) -> Job:
    """The job when a training is known to have been stopped, or not to have been."""
    left = {number: stop for number, stop in job.unacknowledged_stops.items() if number != trial_number}
    return replace(job, unacknowledged_stops=left)


def with_other_result(job: Job, version_number: int) -> Job:
    """The job when something else is learnt of a version: what its stops have taught cannot be taken out any more."""
    stops = job.unacknowledged_stops
    if all(stop.version_number != version_number or stop.knowledge is None for stop in stops.values()):
        return job
    kept = {
        number: replace(stop, knowledge=None, memories=None) if stop.version_number == version_number else stop
        for number, stop in stops.items()
    }
    return replace(job, unacknowledged_stops=kept)


def withdrawn(job: Job, trial: Trial) -> Job:
    """The job without what the stop of a trial has taught, and without the failed attempt of its recurrence.

    What was probed meanwhile stays, memory above all. What its policy remembers of running trials, and of probed epoch
    costs, stays, too: it puts that back itself.
    """
    stop = job.unacknowledged_stops[trial.trial_number]
    job = without_stop(job, trial.trial_number)
    recurrence = job.recurrences.get(trial.recurrence_id)
    if recurrence is not None:
        job = replace(job, recurrences={**job.recurrences, trial.recurrence_id: _unfailed(recurrence, trial)})
    if stop.knowledge is None or stop.memories is None:
        return job
    version = job.versions[stop.version_number]
    known = with_memory_limits_of(version.knowledge[stop.knowledge.hardware.key], stop.knowledge)
    return job.with_version(replace(version, memories=stop.memories)).with_knowledge(stop.version_number, known)


def _unfailed(recurrence: Recurrence, trial: Trial) -> Recurrence:
    return replace(recurrence, aborts=max(0, recurrence.aborts - 1), failed=recurrence.failed - {trial.batch_size})
