"""A job's log folded one event after another, in the memory that its trials take and no more."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from bso.domain.errors import BsoError, Rejected
from bso.domain.events import JobDeleted, JobSnapshotted, PowerProfiled
from bso.domain.evolve import evolve
from bso.domain.frozen_values import replace
from bso.domain.job import Job
from bso.domain.log import RecordedEvent
from bso.domain.trial import Trial
from bso.service.records import LoggedEvent, PowerProfile
from bso.service.serialization import job_from_snapshot

PAGE = 1000


class LogBroken(Rejected):
    """A log cannot be folded: something of it is missing, or cannot be read."""


class LogPages(Protocol):
    """Where a job's log is read from."""

    async def log_page(self, job_id: str, *, after_seq: int, limit: int) -> Sequence[LoggedEvent]:
        """A page of a job's log, in the order of seq."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedProfile:
    """What was measured of a batch size last, and when that was recorded."""

    profile: PowerProfile
    recorded_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class InnerSnapshot:
    """A job_snapshotted event in the middle of a log, and what the events before it say."""

    seq: int
    folded: Job
    snapshot: Job


class Folding:
    """What the events so far say. Folding begins at the first event, or anew at a snapshot that follows a gap.

    ``trials_before`` and ``profiles_before`` say what is older than the log: trials up to that number may have ended,
    and power profiles may have been measured, before the log begins.
    """

    def __init__(self, job_id: str) -> None:
        self.job = Job(job_id=job_id)
        self.last_seq = 0
        self.events = 0
        self.trials_before = 0
        self.profiles_before: datetime | None = None
        self.created_at: datetime | None = None
        self.changed_at: datetime | None = None
        self.inner_snapshots: list[InnerSnapshot] = []
        self._ended: dict[int, Trial] = {}
        self._profiles: dict[tuple[int, str], RecordedProfile] = {}
        self._gap: tuple[int, int] | None = None

    @property
    def trials(self) -> dict[int, Trial]:
        """Every trial of the log, by number, without leases."""
        return {**self._ended, **self.job.trials}

    @property
    def profiles(self) -> dict[tuple[int, str], RecordedProfile]:
        """The latest power profiles, by batch size and key of the hardware kind."""
        return dict(self._profiles)

    def add(self, recorded: RecordedEvent) -> None:
        """Fold one event, of a higher seq than all before. Raises LogBroken."""
        if recorded.seq != self.last_seq + 1:
            self._gap = (self.last_seq, recorded.seq)
        self.last_seq = recorded.seq
        self.changed_at = recorded.recorded_at
        self.events += 1
        event = recorded.event
        if isinstance(event, JobSnapshotted):
            self._meet_snapshot(recorded)
        if self._gap is not None:
            return
        if recorded.seq == 1:
            self.created_at = recorded.recorded_at
        if not isinstance(event, JobSnapshotted):
            self._evolve(recorded)

    def require_whole(self) -> None:
        """Return if the log could be folded to its end, else raise LogBroken."""
        if self._gap is None:
            return
        before, after = self._gap
        where = f"begins at event {after}" if before == 0 else f"has a gap between the events {before} and {after}"
        raise LogBroken(f"the log of job {self.job.job_id} {where}, and no snapshot follows")

    def _evolve(self, recorded: RecordedEvent) -> None:
        event, job = recorded.event, self.job
        number = getattr(event, "trial_number", None)
        if number in self._ended:  # a result that comes late
            job = job.with_trial(self._ended[number])
        try:
            job = evolve(job, event)
        except (LookupError, ValueError, TypeError) as error:
            what = f"event {recorded.seq} of job {job.job_id} does not follow from those before it"
            raise LogBroken(f"{what}: {type(event).__name__} is about something unknown ({error})") from error
        self.job = self._without_ended(job) if number in job.trials else job
        if isinstance(event, PowerProfiled):
            profile = PowerProfile(
                job_id=job.job_id,
                batch_size=event.batch_size,
                hardware=event.hardware,
                measurements=event.measurements,
            )
            kept = RecordedProfile(profile=profile, recorded_at=recorded.recorded_at)
            self._profiles[event.batch_size, event.hardware.key] = kept
        elif isinstance(event, JobDeleted):
            self._profiles.clear()
            self.profiles_before = None

    def _meet_snapshot(self, recorded: RecordedEvent) -> None:
        try:
            snapshot = job_from_snapshot(recorded)
        except BsoError as error:
            raise LogBroken(f"the snapshot in event {recorded.seq} cannot be read: {error}") from error
        if self._gap is None:
            self.job = replace(self.job, last_seq=recorded.seq)
            self._compare(recorded.seq, snapshot)
            return
        self._gap = None
        self._ended = {}
        self._profiles = {}
        self.job = self._without_ended(snapshot)
        self.trials_before = snapshot.last_trial_number
        self.profiles_before = recorded.recorded_at

    def _compare(self, seq: int, snapshot: Job) -> None:
        known = {number: self.trials.get(number) for number in {*snapshot.trials, *self.job.trials}}
        folded = replace(self.job, trials={number: trial for number, trial in known.items() if trial is not None})
        self.inner_snapshots.append(InnerSnapshot(seq=seq, folded=folded, snapshot=snapshot))

    def _without_ended(self, job: Job) -> Job:
        self._ended.update({number: trial for number, trial in job.trials.items() if not trial.is_active})
        return job.without_ended_trials()


async def pages_of(log: LogPages, job_id: str, *, after_seq: int = 0) -> AsyncIterator[Sequence[LoggedEvent]]:
    """A job's log, page by page."""
    while page := await log.log_page(job_id, after_seq=after_seq, limit=PAGE):
        yield page
        after_seq = page[-1].new.seq
