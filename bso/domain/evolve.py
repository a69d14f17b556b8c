"""From events to state: evolve copies and adds, so folding a log gives the same job on every machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from bso.domain import events as happened
from bso.domain.events import Event
from bso.domain.frozen_values import replace
from bso.domain.job import Job, JobVersion, Recurrence
from bso.domain.knowledge import Knowledge, is_of_the_job
from bso.domain.knowledge_updates import (
    after_allowing,
    after_change_point,
    with_end_of_trial,
    without_memory_for,
)
from bso.domain.ledger import OTHER_SIZES, UNKNOWN
from bso.domain.policies import policy_named
from bso.domain.policy import Policy
from bso.domain.progress import progressed, squares_after
from bso.domain.stops import with_other_result, with_stop, withdrawn, without_stop
from bso.domain.trial import (
    EPOCHS_OF_SILENCE,
    FAILURES,
    LONGEST_SILENCE_S,
    OUT_OF_MEMORY,
    Outcome,
    Trial,
    TrialState,
    reason_code,
)


def evolve(job: Job, event: Event) -> Job:
    """The job after an event, which thereby takes the next number (``last_seq``).

    What all policies have in common comes first, then what the job's policy remembers. Raises PolicyMissing.
    """
    change = _EVOLUTIONS.get(type(event))
    after: Job = job if change is None else change(job, event)
    policy = _concerned(job, event)
    if policy is not None:
        after = policy.evolve(job, after, event)
    return replace(after, last_seq=job.last_seq + 1)


def apply(job: Job, events: Iterable[Event]) -> Job:
    """The job after several events. Raises PolicyMissing."""
    for event in events:
        job = evolve(job, event)
    return job


def fold(job_id: str, events: Iterable[Event]) -> Job:
    """The job that a whole log describes, with all its trials. Leases are not part of history."""
    return apply(Job(job_id=job_id), events)


def _registered(job: Job, event: happened.JobRegistered) -> Job:
    version = _new_version(event)
    return replace(
        job,
        owner=event.owner,
        hardware=event.hardware,
        job_id_prefix=event.job_id_prefix,
        grants={},
        is_deleted=False,
        current_version=event.version_number,
        versions={event.version_number: version},
    )


def _respecified(job: Job, event: happened.JobRespecified) -> Job:
    known = job.versions.get(event.version_number)
    version = _new_version(event) if known is None else replace(known, spec=event.spec, seed=event.seed)
    return replace(job.with_version(version), current_version=event.version_number)


def _new_version(event: happened.JobRegistered | happened.JobRespecified) -> JobVersion:
    version = JobVersion(version_number=event.version_number, spec=event.spec, seed=event.seed)
    if event.inherited is None:
        return version
    return replace(version, memories=event.inherited.memories, knowledge=event.inherited.knowledge)


def _recurrence_opened(job: Job, event: happened.RecurrenceOpened) -> Job:
    recurrence = Recurrence(recurrence_id=event.recurrence_id, recurrence_number=event.recurrence_number)
    return replace(
        job,
        last_recurrence_number=event.recurrence_number,
        recurrences={**job.recurrences, event.recurrence_id: recurrence},
    )


def _trial_started(job: Job, event: happened.TrialStarted) -> Job:
    trial = event.trial
    job = replace(job.with_trial(trial), last_trial_number=event.trial_number)
    version = job.versions[event.version_number]
    if event.learning_rate is not None:
        job = job.with_version(replace(version, learning_rate=event.learning_rate))
    return job.with_knowledge(event.version_number, job.knowledge_of(trial))


def _epoch_reported(job: Job, event: happened.EpochReported) -> Job:
    trial = job.trials[event.trial_number]
    if event.is_fill_in:
        return job.with_trial(replace(trial, reports=trial.reports + 1))
    after = replace(
        progressed(trial, event, cost=event.cost),
        cost_squares=squares_after(trial, epoch=event.epoch, cost=event.cost, is_profiling=event.is_profiling),
        bound=event.bound,
        silence_s=_silence_after(trial, event),
    )
    return job.with_trial(after) if trial.is_active else _entered(job, trial, after)


def _silence_after(trial: Trial, event: happened.EpochReported) -> float | None:
    if trial.silence_s is None:
        return None
    longest_s = EPOCHS_OF_SILENCE * (event.time_s - trial.time_s)
    return max(trial.silence_s, min(longest_s, LONGEST_SILENCE_S))


def _suspended(job: Job, event: happened.TrialSuspended) -> Job:
    return job.with_trial(replace(job.trials[event.trial_number], state=TrialState.SUSPENDED))


def _resumed(job: Job, event: happened.TrialResumed) -> Job:
    return job.with_trial(replace(job.trials[event.trial_number], state=TrialState.RUNNING))


def _trial_ended(job: Job, event: happened.TrialEnded) -> Job:
    trial = job.trials[event.trial_number]
    ended = replace(
        trial,
        state=TrialState.ENDED,
        lease_expires_at=None,
        outcome=event.outcome,
        outcome_reason=event.reason,
        cost=event.cost,
        time_s=event.time_s,
        energy_j=event.energy_j,
        bound=event.bound,
        is_over_bound=event.is_over_bound,
        ended_at=event.ended_at,
    )
    entered = _entered(job, trial, ended)
    if job.is_deleted:  # nothing is learnt any more
        return entered
    after = _with_result(entered, trial, event)
    return with_stop(job, after, trial) if event.is_stop else after


def _late_result(job: Job, event: happened.LateResult) -> Job:
    trial = job.trials[event.trial_number]
    ended = replace(
        trial,
        late_outcome=event.outcome,
        cost=event.cost,
        time_s=event.time_s,
        energy_j=event.energy_j,
        bound=event.bound,
        is_over_bound=event.is_over_bound,
    )
    return _with_result(_entered(job, trial, ended), trial, event)


def _entered(job: Job, before: Trial, ended: Trial) -> Job:
    """The job with a trial that has ended, and what it took in the ledger; ``before`` the event."""
    version = job.versions.get(ended.version_number)
    batch_size, default, change_points = ended.batch_size, UNKNOWN, 0
    if version is not None:
        known = version.knowledge_on(ended.hardware)
        default, change_points = version.spec.default_batch_size, known.change_points
        batch_size = batch_size if is_of_the_job(known, version.spec, batch_size) else OTHER_SIZES
    ledger = job.ledger.with_ended(
        before, ended, batch_size=batch_size, default_batch_size=default, change_points=change_points
    )
    return replace(job.with_trial(ended), ledger=ledger)


def _stop_acknowledged(job: Job, event: happened.StopAcknowledged) -> Job:
    return without_stop(job, event.trial_number)


def _stop_withdrawn(job: Job, event: happened.StopWithdrawn) -> Job:
    return withdrawn(job, job.trials[event.trial_number])


def _with_result(job: Job, trial: Trial, event: happened.TrialEnded | happened.LateResult) -> Job:
    job = with_other_result(job, trial.version_number)
    spec, known = job.spec_of(trial), job.knowledge_of(trial)
    excluded = policy_named(spec.policy).excluded(known)
    job = job.with_knowledge(trial.version_number, with_end_of_trial(known, spec, trial, event, excluded=excluded))
    recurrence = job.recurrences.get(trial.recurrence_id)
    if recurrence is None or event.outcome not in FAILURES:
        return job
    ceilings = dict(recurrence.out_of_memory_from)
    if event.outcome is Outcome.INFEASIBLE and reason_code(event.reason) == OUT_OF_MEMORY:
        ceilings[trial.hardware.key] = min(trial.batch_size, ceilings.get(trial.hardware.key, trial.batch_size))
    aborted = replace(
        recurrence,
        aborts=recurrence.aborts + 1,
        failed=recurrence.failed | {trial.batch_size},
        out_of_memory_from=ceilings,
    )
    return replace(job, recurrences={**job.recurrences, recurrence.recurrence_id: aborted})


def _change_point(job: Job, event: happened.ChangePoint) -> Job:
    return job.with_knowledge(event.version_number, after_change_point(_knowledge(job, event)))


def _attention_needed(job: Job, event: happened.AttentionNeeded) -> Job:
    return job.with_knowledge(event.version_number, replace(_knowledge(job, event), needs_attention=True))


def _recurrence_ended(job: Job, event: happened.RecurrenceEnded) -> Job:
    left = {name: open_ for name, open_ in job.recurrences.items() if name != event.recurrence_id}
    job = replace(job, recurrences=left)
    if event.version_number is None or event.hardware_key is None:
        return job
    knowledge = job.versions[event.version_number].knowledge[event.hardware_key]
    count = knowledge.recurrences_without_model + 1
    return job.with_knowledge(event.version_number, replace(knowledge, recurrences_without_model=count))


def _batch_size_allowed(job: Job, event: happened.BatchSizeAllowed) -> Job:
    job = with_other_result(job, job.current_version)
    for key in event.hardware_keys:
        knowledge = job.version.knowledge[key]
        job = job.with_knowledge(job.current_version, after_allowing(knowledge, event.batch_size))
    recurrences = {
        name: replace(
            recurrence,
            out_of_memory_from={
                key: ceiling
                for key, ceiling in recurrence.out_of_memory_from.items()
                if key not in event.hardware_keys or ceiling > event.batch_size
            },
        )
        for name, recurrence in job.recurrences.items()
    }
    return replace(job, recurrences=recurrences)


def _deleted(job: Job, _: happened.JobDeleted) -> Job:
    return replace(
        job,
        is_deleted=True,
        current_version=max(job.versions),
        versions={},
        recurrences={},
        unacknowledged_stops={},
        has_power_profiles=False,
    )


def _granted(job: Job, event: happened.JobGranted) -> Job:
    left = {login: right for login, right in job.grants.items() if login != event.login}
    return replace(job, grants=left if event.right is None else left | {event.login: event.right})


def _given(job: Job, event: happened.JobGiven) -> Job:
    return replace(job, owner=event.owner)


def _unchanged(job: Job, _: Event) -> Job:
    return job


def _power_profiled(job: Job, event: happened.PowerProfiled) -> Job:
    if job.is_registered:
        eta_knob = job.spec.eta_knob
        ledger = job.ledger.with_power(event.hardware, event.batch_size, event.measurements, eta_knob=eta_knob)
        job = replace(job, ledger=ledger)
    return job if job.has_power_profiles else replace(job, has_power_profiles=True)


def _epoch_costs_probed(job: Job, event: happened.EpochCostsProbed) -> Job:
    version = job.versions[event.version_number]
    known = version.knowledge[event.hardware_key]
    ledger = job.ledger.with_probing(
        known.hardware,
        month=event.month,
        version_number=event.version_number,
        change_points=known.change_points,
        batch_size=event.batch_size,
        default_batch_size=version.spec.default_batch_size,
        time_s=event.time_s,
        energy_j=event.energy_j,
    )
    job = replace(job, ledger=ledger)
    if not event.out_of_memory:
        return job
    return job.with_knowledge(event.version_number, without_memory_for(known, event.out_of_memory))


def _knowledge(job: Job, event: happened.ChangePoint | happened.AttentionNeeded) -> Knowledge:
    return job.versions[event.version_number].knowledge[event.hardware_key]


def _concerned(job: Job, event: Any) -> Policy | None:
    """The policy that may remember something of an event; None: it concerns none."""
    match event:
        case happened.TrialEnded() if job.is_deleted:
            return None
        case happened.EpochReported() | happened.TrialEnded() | happened.LateResult() | happened.StopWithdrawn():
            number = job.trials[event.trial_number].version_number
        case happened.TrialStarted() | happened.ChangePoint() | happened.EpochCostsProbed():
            number = event.version_number
        case happened.BatchSizeAllowed():
            number = job.current_version
        case _ if type(event) in _EVOLUTIONS:
            return None
        case _:  # an event of the policy's own
            number = event.version_number
    return policy_named(job.versions[number].spec.policy)


_EVOLUTIONS: dict[type, Callable[[Job, Any], Job]] = {
    happened.JobRegistered: _registered,
    happened.JobRespecified: _respecified,
    happened.RecurrenceOpened: _recurrence_opened,
    happened.TrialStarted: _trial_started,
    happened.EpochReported: _epoch_reported,
    happened.TrialSuspended: _suspended,
    happened.TrialResumed: _resumed,
    happened.TrialEnded: _trial_ended,
    happened.LateResult: _late_result,
    happened.StopAcknowledged: _stop_acknowledged,
    happened.StopWithdrawn: _stop_withdrawn,
    happened.ChangePoint: _change_point,
    happened.AttentionNeeded: _attention_needed,
    happened.RecurrenceEnded: _recurrence_ended,
    happened.BatchSizeAllowed: _batch_size_allowed,
    happened.PowerProfiled: _power_profiled,
    happened.EpochCostsProbed: _epoch_costs_probed,
    happened.JobGranted: _granted,
    happened.JobGiven: _given,
    happened.JobDeleted: _deleted,
    happened.JobSnapshotted: _unchanged,
}
