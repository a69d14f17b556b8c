"""Jobs and events as the text that a store keeps, and back."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic_core import from_json

from bso.domain.events import EpochReported, Event, JobDeleted, JobSnapshotted, PowerProfiled
from bso.domain.frozen_values import replace
from bso.domain.job import Job
from bso.domain.log import FIRST_EPOCH, RecordedEvent
from bso.domain.replies import Reply
from bso.domain.trial import EpochReport, Trial
from bso.schema.codec import dump, event_from, event_payload, job_from_state, reply_payload, state_of
from bso.schema.envelope import validated
from bso.schema.errors import MalformedMessage, StateTooNew
from bso.service.records import (
    JobChange,
    JobSnapshot,
    LoggedEvent,
    NewEvent,
    PowerProfile,
    Recollection,
    StoredJob,
    TrialKey,
)

_TRIALS = "trials"


class SnapshotReader:
    """Decodes snapshots and remembers the last ones, by their exact text: nothing can be stale."""

    def __init__(self, *, capacity: int = 1024) -> None:
        self._capacity = capacity
        self._known: OrderedDict[str, tuple[str, Job]] = OrderedDict()

    def keep(self, job: Job, state: str) -> None:
        """Remember a job whose snapshot is this text, so that the same stored text need not be decoded."""
        self._known[job.job_id] = (state, replace(job, trials={}))
        self._known.move_to_end(job.job_id)

    def read(self, stored: StoredJob) -> Job:
        """The job without its trials. Raises StateTooNew, or MalformedMessage where the text is damaged."""
        text, job = self._known.get(stored.job_id, ("", None))
        if job is None or text != stored.state:
            job = read_snapshot(stored)
            self._known[stored.job_id] = (stored.state, job)
        self._known.move_to_end(stored.job_id)
        if len(self._known) > self._capacity:
            self._known.popitem(last=False)
        return replace(job, last_seq=stored.last_seq)


def read_snapshot(stored: StoredJob) -> Job:
    """The job without its trials. Raises StateTooNew, or MalformedMessage where the text is damaged."""
    try:
        state = from_json(stored.state)
    except ValueError as error:
        raise MalformedMessage(f"the stored state of job {stored.job_id} is not JSON: {error}") from error
    if not isinstance(state, dict):
        raise MalformedMessage(f"the stored state of job {stored.job_id} is not a JSON object")
    return job_from_state(stored.job_id, stored.last_seq, state)


def snapshot_of(job: Job) -> JobSnapshot:
    """What is stored of a job beside its trials."""
    version = job.versions.get(job.current_version)
    return JobSnapshot(
        state=state_of(job),
        spec=dump(version.spec).decode() if version else "null",
        version_number=job.current_version,
        version=version.spec.version if version else "",
        policy=version.spec.policy if version else "",
        owner=job.owner,
        is_deleted=job.is_deleted,
        last_trial_number=job.last_trial_number,
    )


def is_same_state(one: Job, other: Job) -> bool:
    """Whether two jobs have the same snapshot; cheap where decide has kept what it did not change."""
    return replace(one, trials={}, last_seq=0) == replace(other, trials={}, last_seq=0)


def changed_jobs(before: Mapping[str, Job], after: Mapping[str, Job]) -> tuple[JobChange, ...]:
    """What to save of jobs, in the order of their ids."""
    changes: list[JobChange] = []
    for job_id, job in sorted(after.items()):
        known = before.get(job_id)
        if known is None or not is_same_state(job, known):
            changes.append(JobChange(job_id=job_id, last_seq=job.last_seq, snapshot=snapshot_of(job)))
        elif job.last_seq != known.last_seq:
            changes.append(JobChange(job_id=job_id, last_seq=job.last_seq))
    return tuple(changes)


def changed_trials(before: Mapping[TrialKey, Trial], after: Mapping[str, Job]) -> dict[TrialKey, Trial]:
    """The trials of jobs that are new or different, in the order of their keys."""
    changed: dict[TrialKey, Trial] = {}
    for job_id, job in sorted(after.items()):
        for number, trial in sorted(job.trials.items()):
            known = before.get((job_id, number))
            if trial is not known and trial != known:
                changed[job_id, number] = trial
    return changed


def changed_profiles(events: Mapping[str, Sequence[Event]]) -> tuple[tuple[str, ...], tuple[PowerProfile, ...]]:
    """The jobs that events, by job, have deleted, and the latest power profiles that came after that."""
    deleted: set[str] = set()
    latest: dict[tuple[str, int, str], PowerProfile] = {}
    for job_id, event in ((one, event) for one in sorted(events) for event in events[one]):
        if isinstance(event, JobDeleted):
            deleted.add(job_id)
            latest = {key: profile for key, profile in latest.items() if key[0] != job_id}
        elif isinstance(event, PowerProfiled):
            latest[job_id, event.batch_size, event.hardware.key] = PowerProfile(
                job_id=job_id, batch_size=event.batch_size, hardware=event.hardware, measurements=event.measurements
            )
    return tuple(sorted(deleted)), tuple(latest[key] for key in sorted(latest))


def snapshot_event(job: Job) -> JobSnapshotted:
    """The event that lets a log begin here: the job with the trials that are loaded, but without leases.

    Later events may be about each active trial, and about ended ones that may still report late.
    """
    trials = [replace(job.trials[number], lease_expires_at=None) for number in sorted(job.trials)]
    state: dict[str, Any] = from_json(state_of(job))
    return JobSnapshotted(state={**state, _TRIALS: from_json(dump(trials))})


def job_from_snapshot(recorded: RecordedEvent) -> Job:
    """The job that a job_snapshotted event holds, as it stood just after it. Raises StateTooNew, MalformedMessage."""
    assert isinstance(recorded.event, JobSnapshotted)
    state = dict(recorded.event.state)
    trials: tuple[Trial, ...] = validated(tuple[Trial, ...], state.pop(_TRIALS, ()), "trials of a snapshot")
    job = job_from_state(recorded.job_id, recorded.seq, state)
    return replace(job, trials={trial.trial_number: trial for trial in trials})


def recorded_after(
    last_seq: int, events: Sequence[Event], *, job_id: str, command_id: str, memory: Recollection
) -> tuple[RecordedEvent, ...]:
    """The events of a command as the log takes them after ``last_seq``, when and in whose epoch the store remembers."""
    log_epoch = FIRST_EPOCH if memory.log_epoch is None else memory.log_epoch.number
    return tuple(
        RecordedEvent(
            job_id=job_id,
            seq=last_seq + 1 + part,
            recorded_at=memory.now,
            command_id=command_id,
            part=part,
            event=event,
            log_epoch=log_epoch,
        )
        for part, event in enumerate(events)
    )


def row_of(recorded: RecordedEvent, reply: Reply) -> NewEvent:
    """An event as a row; the first of a command carries the command's reply."""
    if recorded.part:
        return row_without_reply(recorded)
    reply_type, reply_text = reply_payload(reply)
    return replace(row_without_reply(recorded), reply_type=reply_type, reply=reply_text)


def row_without_reply(recorded: RecordedEvent) -> NewEvent:
    """An event as a row that answers nobody."""
    event_type, payload = event_payload(recorded.event)
    return NewEvent(
        job_id=recorded.job_id,
        seq=recorded.seq,
        type=event_type,
        payload=payload,
        trial_number=getattr(recorded.event, "trial_number", None),
        epoch=recorded.event.epoch if isinstance(recorded.event, EpochReported) else None,
        command_id=recorded.command_id,
        part=recorded.part,
        log_epoch=recorded.log_epoch,
    )


def recorded_from(logged: LoggedEvent) -> RecordedEvent:
    """An event from its row. Raises StateTooNew where this release cannot read it."""
    row = logged.new
    try:
        event = event_from(row.type, from_json(row.payload))
    except (MalformedMessage, ValueError) as error:
        raise StateTooNew(f"event {row.seq} of job {row.job_id} cannot be read by this release: {error}") from error
    return RecordedEvent(
        job_id=row.job_id,
        seq=row.seq,
        recorded_at=logged.recorded_at,
        command_id=row.command_id,
        part=row.part,
        event=event,
        log_epoch=row.log_epoch,
    )


def epoch_report_of(event_type: str, payload: str) -> EpochReport:
    """The report in the row of an epoch_reported event. Raises StateTooNew where this release cannot read it."""
    try:
        event = event_from(event_type, from_json(payload))
    except (MalformedMessage, ValueError) as error:
        raise StateTooNew(f"a recorded epoch cannot be read by this release: {error}") from error
    if not isinstance(event, EpochReported):
        raise StateTooNew(f"a recorded epoch cannot be read by this release: it stands in a {event_type} event")
    return event.report
