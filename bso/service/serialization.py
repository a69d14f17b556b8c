"""Jobs and events as the text that a store keeps, and back."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
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
    LogEpoch,
    LoggedEvent,
    NewEvent,
    PowerProfile,
    Recollection,
    StoredJob,
    TrialKey,
)

MOST_GRANTED = 500
"""How many characters a list of logins may have that a job is granted to."""
UNNAMED = "*"
_TRIALS = "trials"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownJob:
    """A job as it was decoded or committed: with its active trials, if it has a revision; ``text`` is its snapshot."""

    job: Job
    text: str
    revision: int | None = None
    log_epoch: int | None = None

    def is_current(self, stored: StoredJob, log_epoch: LogEpoch | None) -> bool:
        """Whether the store holds this very job."""
        place = (stored.revision, stored.last_seq, None if log_epoch is None else log_epoch.number)
        return (self.revision, self.job.last_seq, self.log_epoch) == place


class KnownJobs:
    """The jobs that were decoded or committed last, so that they need not be read again.

    A job whose revision and log epoch a store still has is taken with its active trials. Another one is taken without
    them if its snapshot has the same text. Several batches use this at once: each takes what it knows at its beginning.
    """

    def __init__(self, *, capacity: int = 1024) -> None:
        self._capacity = capacity
        self._known: OrderedDict[str, KnownJob] = OrderedDict()

    def of(self, job_ids: Iterable[str]) -> Mapping[str, KnownJob]:
        """Those of these jobs that are known."""
        found = {job_id: self._known[job_id] for job_id in job_ids if job_id in self._known}
        for job_id in found:
            self._known.move_to_end(job_id)
        return found

    def read(self, stored: StoredJob, known: KnownJob | None) -> Job:
        """The job without its trials. Raises StateTooNew, or MalformedMessage where its text is damaged."""
        if known is None or known.text != stored.state:
            known = KnownJob(job=read_snapshot(stored), text=stored.state)
            self._remember(known)
        return replace(known.job, trials={}, last_seq=stored.last_seq)

    def keep(self, job: Job, *, text: str, revision: int, log_epoch: LogEpoch | None) -> None:
        """Remember a job as it was committed, unless a later batch was faster; ``text``: its snapshot."""
        epoch = None if log_epoch is None else log_epoch.number
        before = self._known.get(job.job_id)
        if before is not None and before.log_epoch == epoch and (before.revision or 0) > revision:
            return
        active = {number: trial for number, trial in job.trials.items() if trial.is_active}
        self._remember(KnownJob(job=replace(job, trials=active), text=text, revision=revision, log_epoch=epoch))

    def forget(self, job_ids: Iterable[str]) -> None:
        """Trust no revision of these jobs: what becomes of a transaction is not known before its end."""
        for job_id in job_ids:
            known = self._known.get(job_id)
            if known is not None:
                self._known[job_id] = replace(known, revision=None)

    def _remember(self, known: KnownJob) -> None:
        self._known[known.job.job_id] = known
        self._known.move_to_end(known.job.job_id)
        if len(self._known) > self._capacity:
            self._known.popitem(last=False)


def read_snapshot(stored: StoredJob) -> Job:
    """The job without its trials. Raises StateTooNew, or MalformedMessage where the text is damaged."""
    try:
        state = from_json(stored.state)
    except (ValueError, TypeError) as error:
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
        granted_to=logins_granted(job.grants),
        is_deleted=job.is_deleted,
        last_trial_number=job.last_trial_number,
    )


def logins_granted(grants: Iterable[str]) -> str:
    """The logins that a job is granted to: a JSON list, in which each is found by its JSON; empty: none.

    UNNAMED where the list would be too long for its column: only the state says then who they are.
    """
    if not grants:
        return ""
    names = dump(sorted(grants)).decode()
    return names if len(names) <= MOST_GRANTED else UNNAMED


def is_among(login: str, granted_to: str) -> bool:
    """Whether a login may be among those that a job is granted to."""
    return granted_to == UNNAMED or dump(login).decode() in granted_to


def is_same_state(one: Job, other: Job) -> bool:
    """Whether two jobs have the same snapshot; cheap where decide has kept what it did not change."""
    return replace(one, trials={}, last_seq=0) == replace(other, trials={}, last_seq=0)


def changed_jobs(
    before: Mapping[str, Job],
    after: Mapping[str, Job],
    *,
    revisions: Mapping[str, int],
    with_trials: Container[str],
    now: datetime,
) -> tuple[JobChange, ...]:
    """What to save of jobs, in the order of their ids; ``revisions`` are those before.

    Of the jobs ``with_trials`` at least a trial has changed. The revision of a new job is the time, so that it is
    higher than any that a job of the same id had before it was deleted.
    """
    changes: list[JobChange] = []
    for job_id, job in sorted(after.items()):
        known = before.get(job_id)
        has_snapshot = known is None or not is_same_state(job, known)
        has_events = known is None or job.last_seq != known.last_seq
        if has_snapshot or has_events or job_id in with_trials:
            changes.append(
                JobChange(
                    job_id=job_id,
                    last_seq=job.last_seq,
                    revision=revisions[job_id] + 1 if job_id in revisions else first_revision(now),
                    snapshot=snapshot_of(job) if has_snapshot else None,
                    has_events=has_events,
                )
            )
    return tuple(changes)


def first_revision(now: datetime) -> int:
    """The revision of a job that begins now: microseconds since 1970, so that changes of an earlier one are fewer."""
    return (now - _EPOCH) // timedelta(microseconds=1)


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
