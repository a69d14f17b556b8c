"""What a store keeps and gives back: plain values, JSON as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum

from bso.domain.commands import PowerMeasurement
from bso.domain.hardware import HardwareKind
from bso.domain.log import FIRST_EPOCH, RecordedEvent
from bso.domain.trial import Trial, TrialState

TrialKey = tuple[str, int]
"""job_id and trial_number."""

JobOnKind = tuple[str, str]
"""job_id and key of a hardware kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredJob:
    """A job as it is locked and loaded: its snapshot as JSON text, still undecoded.

    ``state`` is empty where the caller knows the job in this ``revision``.
    """

    job_id: str
    last_seq: int
    revision: int
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedLocks:
    """Jobs that were locked, and the last seq of those that another transaction holds. Unknown jobs are in neither.

    ``memory``: what was recollected in the same round trip; None where that cannot be.
    """

    jobs: Mapping[str, StoredJob]
    busy: Mapping[str, int] = field(default_factory=dict)
    memory: Recollection | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedJob:
    """A job whose commands cannot be decided for now, why, since when, and when it is tried again."""

    job_id: str
    reason: str
    parked_at: datetime
    retry_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class JobChange:
    """What to save of a job. Without ``snapshot`` its state is the same.

    Without ``has_events`` only its trials have changed. ``revision`` is raised whenever anything of a job changes, its
    trials included.
    """

    job_id: str
    last_seq: int
    revision: int
    snapshot: JobSnapshot | None = None
    has_events: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSnapshot:
    """The state of a job as JSON text, and beside it what people filter by.

    ``granted_to`` names the logins that the job is granted to, as ``logins_granted`` writes them.
    """

    state: str
    spec: str
    version_number: int
    version: str
    policy: str
    owner: str | None
    granted_to: str
    is_deleted: bool
    last_trial_number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSummary:
    """One line of a list of jobs. ``spec`` is JSON text."""

    job_id: str
    last_seq: int
    spec: str
    version_number: int
    version: str
    policy: str
    owner: str | None
    is_deleted: bool
    last_trial_number: int
    created_at: datetime
    changed_at: datetime


MOST_ACTIVE = 10
"""Active trials that a line about a job is made of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOverview:
    """A job with its snapshot and its last trial, None before the first: all that a line about it is made of.

    ``active``: its trials that have not ended, in order of their numbers, the last ten of them.
    """

    summary: JobSummary
    stored: StoredJob
    last_trial: Trial | None
    active: tuple[Trial, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NewEvent:
    """An event to append: JSON as text. The first of a command (part 0) carries the command's whole reply."""

    job_id: str
    seq: int
    type: str
    payload: str
    trial_number: int | None
    epoch: float | None
    command_id: str
    part: int
    reply_type: str | None = None
    reply: str | None = None
    log_epoch: int = FIRST_EPOCH


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedEvent:
    """A row of the log, whole: also with the reply, and with the moment at which it was recorded."""

    new: NewEvent
    recorded_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEvent:
    """An event as it stands in the store. ``event_id`` rises, but not in the order of commits."""

    event_id: int
    recorded: RecordedEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpublishedPage:
    """Some events that nobody marked as published, and how many beside them this release cannot read."""

    events: Sequence[StoredEvent]
    unreadable: int
    next_after: int | None  # the event_id after which the next page begins; None: this is the last


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEpoch:
    """The epoch of the log that the store is in. A log begins in the first one; restoring a backup begins another.

    ``number`` is the moment at which it began, in microseconds since 1970, so no epoch has the number of another, also
    where one backup is restored twice; the event_ids of an epoch are above its number. ``looked_at``: when somebody
    looked last; it grows with each look. ``outdated_at``: when somebody found that the store holds an older state than
    it did before.
    """

    number: int
    looked_at: datetime
    outdated_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What must hold in the store for changes to be recorded that were decided without reading it.

    The jobs are in these ``revisions``, and nobody else holds them; the log is in this epoch, and was looked at no
    earlier; the clock is off from ``now`` by no more than a ``tolerance``.
    """

    revisions: Mapping[str, int]
    log_epoch: LogEpoch
    now: datetime
    tolerance: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedReply:
    """The reply that a command got when it was decided: JSON as text.

    ``trial_number`` and ``epoch`` are those of the first event that it has recorded, where that has one.
    """

    command_id: str
    job_id: str
    type: str
    reply: str
    trial_number: int | None = None
    epoch: float | None = None


def reply_of(first: NewEvent) -> RecordedReply:
    """The reply to a command, which stands with the first of its events."""
    assert first.reply_type is not None
    assert first.reply is not None
    return RecordedReply(
        command_id=first.command_id,
        job_id=first.job_id,
        type=first.reply_type,
        reply=first.reply,
        trial_number=first.trial_number,
        epoch=first.epoch,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Recollection:
    """What the store remembers of a batch's commands and jobs, and its clock after the jobs were locked (UTC).

    ``replies`` are what commands were answered, by command_id; ``active`` are trials that have not ended.
    ``log_epoch`` is None where the store has lost it.
    """

    now: datetime
    replies: Mapping[str, RecordedReply]
    active: Mapping[TrialKey, Trial]
    log_epoch: LogEpoch | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerProfile:
    """The latest measurements of one batch size of a job on one hardware kind."""

    job_id: str
    batch_size: int
    hardware: HardwareKind
    measurements: tuple[PowerMeasurement, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeSet:
    """Everything that one unit of work saves, in one statement per field.

    All power profiles of the jobs in ``unprofiled`` are forgotten first.
    """

    now: datetime
    events: tuple[NewEvent, ...] = ()
    trials: Mapping[TrialKey, Trial] = field(default_factory=dict)
    jobs: tuple[JobChange, ...] = ()
    unprofiled: tuple[str, ...] = ()
    power_profiles: tuple[PowerProfile, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LapsedLease:
    """An active trial whose lease was over when the store looked."""

    job_id: str
    trial_number: int
    trial_id: str
    state: TrialState
    lease_expires_at: datetime


class SchemaStatus(Enum):
    """How a store's schema relates to this program."""

    CURRENT = "current"  # the very schema that this program expects
    MISSING = "missing"  # no schema at all: bso migrate
    OLDER = "older"  # bso migrate
    NEWER = "newer"  # a newer release migrated it: upgrade this program


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaState:
    """The schema revision that a store has, and the one that this program expects."""

    found: str | None
    expected: str
    status: SchemaStatus
