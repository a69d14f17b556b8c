"""What the engine needs: a store, and the rules. bso.storage has stores over SQL databases, bso.service.memory one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Protocol

from bso.domain.commands import Command
from bso.domain.decide import Context, Decision, Facts
from bso.domain.job import Job
from bso.domain.rights import Reader
from bso.domain.tokens import Token
from bso.domain.trial import EpochReport, Trial
from bso.service.records import (
    ChangeSet,
    Expected,
    JobOnKind,
    JobOverview,
    JobSummary,
    LapsedLease,
    LogEpoch,
    ParkedJob,
    PowerProfile,
    Recollection,
    SchemaState,
    StoredEvent,
    StoredJob,
    TrialKey,
    TriedLocks,
    UnpublishedPage,
)

Decide = Callable[[Job, Command, Facts, Context], Decision]
"""The rule that commands are decided by."""


class UnitOfWork(Protocol):
    """One transaction. Leaving it without ``commit`` undoes everything."""

    async def lock(self, job_ids: Collection[str], *, creating: Collection[str]) -> Mapping[str, StoredJob]:
        """Lock jobs in the order of their ids until the end of the transaction; unknown ones are missing.

        Those in ``creating`` are locked even where they do not exist yet: two creators wait for one another.
        """
        ...

    async def try_lock(
        self,
        job_ids: Collection[str],
        *,
        creating: Collection[str],
        command_ids: Collection[str],
        known: Mapping[str, int],
    ) -> TriedLocks:
        """Lock jobs as ``lock`` does, but wait for none that exists and that another transaction holds.

        Those that are still in the revision in which they are ``known`` come without their state. Where it costs
        nothing, ``recollect`` these commands and the active trials of all others as well.
        """
        ...

    async def orphans(self, job_ids: Collection[str]) -> Collection[str]:
        """Those of these jobs that have a log and no row: the row was lost."""
        ...

    async def recollect(self, command_ids: Collection[str], *, active_of: Collection[str] = ()) -> Recollection:
        """What these commands were answered, if they were, and all active trials of the jobs ``active_of``.

        After ``lock``, so that a rival has committed.
        """
        ...

    async def trials(self, keys: Collection[TrialKey]) -> Mapping[TrialKey, Trial]:
        """These trials, as far as they exist."""
        ...

    async def jobs(self, job_ids: Collection[str]) -> Mapping[str, StoredJob]:
        """These jobs as far as they exist, each as it was last committed; nobody waits for it, and it for nobody."""
        ...

    async def count_jobs(self, owner: str) -> int:
        """How many jobs a login owns, deleted ones included; no other transaction counts them until this one ends."""
        ...

    async def epoch_report(self, key: TrialKey, epoch: float) -> EpochReport | None:
        """What the log holds first for exactly this epoch of a trial."""
        ...

    async def power_profiles(self, kinds: Collection[JobOnKind]) -> Sequence[PowerProfile]:
        """What was measured of the batch sizes of these jobs, each on the hardware kind with this key."""
        ...

    async def forget_events(self, job_id: str, *, up_to_seq: int, before: datetime) -> int:
        """Delete a locked job's published events up to a seq, if recorded before a moment; returns their number."""
        ...

    async def forget_job(self, job_id: str) -> None:
        """Delete everything of a locked job."""
        ...

    async def commit(self, changes: ChangeSet | None = None, *, above: int = 0) -> Mapping[tuple[str, int], int]:
        """Save changes, if any, and make everything durable; returns the event_id of each new event by (job_id, seq).

        Raises EventIdsReused, and nothing is durable, where one is not above ``above``. If this raises StoreLost, the
        outcome is unknown.
        """
        ...


class UnitsOfWork(Protocol):
    """All that the engine sees of a store."""

    def unit_of_work(self) -> AbstractAsyncContextManager[UnitOfWork]:
        """Begin a transaction."""
        ...


class OptimisticStore(Protocol):
    """A store that records changes which were decided without reading it, if it holds what was expected."""

    async def commit_if(self, expected: Expected, changes: ChangeSet, *, above: int) -> Mapping[tuple[str, int], int]:
        """Save changes and make them durable; returns the event_id of each new event by (job_id, seq).

        Raises NotAsExpected, and nothing has happened, where the store does not hold what is ``expected``, a command
        was decided before, or an event_id is not above ``above``. If this raises StoreLost, the outcome is unknown.
        """
        ...


class ParkedJobs(Protocol):
    """The jobs whose commands cannot be decided for now, and those that have just recovered."""

    async def park(self, job_id: str, *, reason: str, pause_s: float) -> None:
        """Record that a job's commands cannot be decided for now. Raises what keeps the store from being written."""
        ...

    async def recover(self, job_ids: Collection[str]) -> None:
        """Record that commands of these jobs can be decided again."""
        ...

    async def forget_recovered(self, *, older_than_s: float) -> None:
        """Forget jobs that have recovered so long ago; until then their leases do not lapse."""
        ...

    async def all(self) -> Sequence[ParkedJob]:
        """Jobs whose commands cannot be decided for now, the longest parked first."""
        ...

    async def locked(self, job_ids: Collection[str]) -> Collection[str]:
        """Those of these jobs of whose trials somebody else holds rows: locking the job does not show that."""
        ...

    async def try_writing(self) -> None:
        """Write what decisions write, take it back, and find every table.

        Raises Retryable, Misconfigured: nothing can be recorded.
        """
        ...


class Tokens(Protocol):
    """The tokens with which clients of gateways show who they are. Of their secrets only digests are kept."""

    async def create(self, token: Token, digest: str) -> None:
        """Keep a new token."""
        ...

    async def all(self) -> Sequence[Token]:
        """All tokens, the oldest first."""
        ...

    async def find(self, token_id: str) -> tuple[Token, str] | None:
        """A token and its digest."""
        ...

    async def change(self, token: Token) -> None:
        """Keep when a token expires, or was revoked."""
        ...

    async def used(self, token_id: str) -> None:
        """Record that a token was used just now."""
        ...

    async def now(self) -> datetime:
        """The store's clock."""
        ...


class LogEpochs(Protocol):
    """The epoch of the log that the store is in."""

    async def current(self) -> LogEpoch | None:
        """The epoch; None where the store has lost it."""
        ...

    async def look(self, problem: Callable[[LogEpoch | None], str | None]) -> LogEpoch | None:
        """Read the epoch, and record that somebody looked, or, where ``problem`` finds one, that it is outdated.

        Returns what is recorded now. No other look comes in between. Where another transaction holds the epoch, it is
        only read.
        """
        ...

    async def begin(self) -> LogEpoch:
        """Begin another epoch. All event_ids from then on are higher than any that was ever given."""
        ...


class JobReads(Protocol):
    """What people see of jobs."""

    async def overviews(self, *, after: str = "", limit: int | None = None) -> Sequence[JobOverview]:
        """Jobs by id, tombstones included, each with its snapshot and its last trial: all, or a page of those after."""
        ...

    async def trials(self, job_id: str, *, after: int = 0, limit: int | None = None) -> Sequence[Trial]:
        """The trials of a job after a number, in order of their numbers: all, or a page of them."""
        ...

    async def power_profiles(self, job_id: str) -> Sequence[PowerProfile]:
        """What was measured of a job's batch sizes."""
        ...

    async def history(
        self, job_id: str | None = None, *, after: int = 0, before: datetime | None = None, limit: int = 1000
    ) -> Sequence[StoredEvent]:
        """A page of events by event_id: those after event_id ``after``, recorded before ``before``, of one job or all.

        Within a job event_ids rise with seq, save where older events were imported later: one job's events come by
        seq. Between jobs a lower event_id may become visible after a higher one. Raises EventUnreadable, which has the
        events before it.
        """
        ...


class Reads(JobReads, Protocol):
    """What is read without locks: for people, and for those who follow the log."""

    @property
    def parked_jobs(self) -> ParkedJobs:
        """The jobs whose commands cannot be decided for now."""
        ...

    @property
    def tokens(self) -> Tokens:
        """The tokens of gateways' clients."""
        ...

    @property
    def log_epochs(self) -> LogEpochs:
        """The epoch of the log."""
        ...

    async def lapsed_leases(
        self, *, job_id: str | None = None, without: Collection[str] = (), limit: int = 100
    ) -> Sequence[LapsedLease]:
        """Active trials whose lease is over by the store's clock, the oldest first.

        Without those of the jobs ``without``, of parked jobs, and of jobs that have just recovered.
        """
        ...

    async def unpublished(self, *, older_than_s: float, after: int = 0, limit: int = 500) -> UnpublishedPage:
        """A page of the events that nobody marked as published, by event_id: those after event_id ``after``."""
        ...

    async def schema_state(self) -> SchemaState:
        """Which schema the store has."""
        ...

    async def jobs(
        self, *, after: str = "", limit: int | None = None, reader: Reader | None = None
    ) -> Sequence[JobSummary]:
        """Jobs by id, tombstones included: all, or a page of those after an id.

        With ``reader`` those that it may read, and perhaps some that only the job's state shows not to be among them.
        """
        ...

    async def overviews(
        self, *, after: str = "", limit: int | None = None, reader: Reader | None = None
    ) -> Sequence[JobOverview]:
        """The jobs that ``jobs`` gives, each with its snapshot and its last trial."""
        ...

    async def job(self, job_id: str) -> StoredJob | None:
        """A job's snapshot."""
        ...

    async def summary(self, job_id: str) -> JobSummary | None:
        """What the row of a job says beside its snapshot, which may be damaged."""
        ...

    async def active_trials(self, job_id: str) -> Sequence[Trial]:
        """The trials of a job that have not ended, in order of their numbers."""
        ...

    async def last_event_id(self, job_id: str | None = None) -> int:
        """The highest event_id in the log of a job or of all; 0 if there is none."""
        ...

    async def last_event_ids(self, job_ids: Sequence[str], *, reader: Reader | None = None) -> Mapping[str, int]:
        """The event_id of the last event of each of these jobs that there are; 0 where that was pruned.

        With a ``reader`` only of those that it may be allowed to read; see ``jobs``.
        """
        ...


class Store(UnitsOfWork, Reads, Protocol):
    """A store: units of work, and reads that take no locks."""

    @property
    def optimistic(self) -> OptimisticStore | None:
        """The same store, if what was decided without reading it can be recorded."""
        ...

    async def mark_published(self, event_ids: Collection[int]) -> None:
        """Say that these events have reached the broker."""
        ...

    async def ping(self) -> None:
        """Return if the store answers, else raise Retryable or Misconfigured."""
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...
