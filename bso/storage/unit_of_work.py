"""One transaction against an SQL database: the statements of the hot path, in Core."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from hashlib import sha256
from itertools import groupby
from typing import Any, cast

from sqlalchemy import Delete, Executable, Insert, and_, delete, select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from bso.domain.trial import EpochReport, Trial
from bso.service.errors import EventIdsReused
from bso.service.records import (
    ChangeSet,
    JobChange,
    JobOnKind,
    LogEpoch,
    PowerProfile,
    Recollection,
    RecordedReply,
    StoredJob,
    TrialKey,
    TriedLocks,
)
from bso.service.serialization import epoch_report_of
from bso.storage import statements
from bso.storage.connections import translated
from bso.storage.dialects import Dialect, Updates
from bso.storage.rows import Row, event_row, profile_from, profile_row, trial_from, trial_row
from bso.storage.tables import event, job, parked_job, power_profile, trial

_NO_UPDATE = Updates(replaced=("job_id",))
_TRIAL_UPDATES = Updates.of_whole_rows(trial)
_PROFILE_UPDATES = Updates(replaced=("measurements", "recorded_at"))
_SNAPSHOT_COLUMNS = (
    "owner",
    "granted_to",
    "is_deleted",
    "version_number",
    "version",
    "policy",
    "last_trial_number",
    "spec",
    "state",
)
_JOB_UPDATES = Updates(
    replaced=("last_seq", "revision"), kept_if_null=(*_SNAPSHOT_COLUMNS, "changed_at"), first_stays=("created_at",)
)


class SqlUnitOfWork:
    """One transaction on one connection. The code that opened the connection rolls back if there was no commit."""

    def __init__(self, connection: AsyncConnection, dialect: Dialect, *, has_outbox: bool) -> None:
        self._connection = connection
        self._dialect = dialect
        self._has_outbox = has_outbox
        self._placeholders: set[str] = set()

    async def lock(self, job_ids: Collection[str], *, creating: Collection[str]) -> Mapping[str, StoredJob]:
        """Lock jobs in the order of their ids; those to be created by a row that stands for them.

        Inserting that row is the lock: looking first and inserting then would deadlock two creators.
        """
        found: dict[str, StoredJob] = {}
        for is_created, group in groupby(sorted(job_ids), key=lambda job_id: job_id in creating):
            ids = list(group)
            if is_created:
                await self._hold_places(ids)
            for row in await self._locked(ids):
                found[row["job_id"]] = _stored(row)
        return self._without_placeholders(found)

    async def try_lock(
        self,
        job_ids: Collection[str],
        *,
        creating: Collection[str],
        command_ids: Collection[str],
        known: Mapping[str, int],
    ) -> TriedLocks:
        """Lock the jobs that are free, and places for those to be created; READ COMMITTED locks no gaps in between.

        The memory is read in the same round trip, after the lock. Where places are created it would be too early.
        """
        locked, recollected = await self._lock_and_recollect(
            sorted(job_ids), sorted(command_ids), sorted(known.items())
        )
        memory: Recollection | None = recollection_from(recollected)
        found = {row["job_id"]: _stored(row) for row in locked}
        missing = sorted(set(job_ids) - found.keys())
        held = await self.jobs(missing) if missing else {}
        busy = {job_id: stored.last_seq for job_id, stored in held.items()}
        places = [job_id for job_id in missing if job_id in creating and job_id not in busy]
        if places:
            memory = None
            await self._hold_places(places)
            found |= {row["job_id"]: _stored(row) for row in await self._locked(places)}
        return TriedLocks(jobs=self._without_placeholders(found), busy=busy, memory=memory)

    async def _lock_and_recollect(
        self, job_ids: Sequence[str], command_ids: Sequence[str], known: Sequence[tuple[str, int]]
    ) -> tuple[Sequence[Row], Sequence[Row]]:
        """The rows of the free jobs, locked now, and those of what the store remembers after that."""
        locked = await self._rows(statements.free_jobs(self._dialect), {"job_ids": job_ids, "known": known})
        kept = set(known)
        read = [row["job_id"] for row in locked if (row["job_id"], row["revision"]) not in kept]
        asked = {"command_ids": command_ids, "job_ids": read}
        return locked, await self._rows(statements.recollection(self._dialect), asked)

    async def orphans(self, job_ids: Collection[str]) -> Collection[str]:
        """Those of these jobs that have a log and no row: the row was lost."""
        return {row["job_id"] for row in await self._rows(statements.ORPHANS, {"job_ids": sorted(job_ids)})}

    def _without_placeholders(self, found: Mapping[str, StoredJob]) -> Mapping[str, StoredJob]:
        self._placeholders = {job_id for job_id, stored in found.items() if not stored.last_seq}
        return {job_id: stored for job_id, stored in found.items() if job_id not in self._placeholders}

    async def recollect(self, command_ids: Collection[str], *, active_of: Collection[str] = ()) -> Recollection:
        """What these commands were answered, all active trials of the jobs ``active_of``, and the database's clock."""
        asked = {"command_ids": sorted(command_ids), "job_ids": sorted(active_of)}
        return recollection_from(await self._rows(statements.recollection(self._dialect), asked))

    async def trials(self, keys: Collection[TrialKey]) -> Mapping[TrialKey, Trial]:
        """These trials, as far as they exist."""
        chosen = tuple_(trial.c.job_id, trial.c.trial_number).in_(sorted(keys))
        return _by_key(await self._rows(self._dialect.by_index(select(trial).where(chosen), trial, "PRIMARY")))

    async def jobs(self, job_ids: Collection[str]) -> Mapping[str, StoredJob]:
        """These jobs as far as they exist, each as it was last committed: READ COMMITTED takes no lock for a read."""
        rows = await self._rows(statements.jobs(self._dialect), {"job_ids": sorted(job_ids)})
        return {row["job_id"]: _stored(row) for row in rows if row["last_seq"]}

    async def count_jobs(self, owner: str) -> int:
        """How many jobs a login owns, deleted ones included, as last committed.

        A row that stands for the login is the lock: who counts after the commit sees what was added. It is taken after
        those of jobs, and its id is none that a job can have.
        """
        place = f"~{sha256(owner.encode()).hexdigest()}"
        await self._hold_places([place])
        self._placeholders.add(place)
        [row] = await self._rows(statements.JOBS_OWNED, {"owner": owner})
        return int(row["jobs_owned"])

    async def epoch_report(self, key: TrialKey, epoch: float) -> EpochReport | None:
        """What the log holds first for exactly this epoch of a trial."""
        job_id, number = key
        asked = and_(event.c.job_id == job_id, event.c.trial_number == number, event.c.epoch == epoch)
        rows = await self._rows(select(event.c.type, event.c.payload).where(asked).order_by(event.c.seq).limit(1))
        if not rows:
            return None
        return epoch_report_of(rows[0]["type"], rows[0]["payload"])

    async def power_profiles(self, kinds: Collection[JobOnKind]) -> Sequence[PowerProfile]:
        """What was measured of the batch sizes of these jobs, each on the hardware kind with this key."""
        chosen = {"job_ids": sorted({one[0] for one in kinds}), "hardware_keys": sorted({one[1] for one in kinds})}
        rows = await self._rows(statements.power_profiles(self._dialect), chosen)
        return [profile_from(row) for row in rows if (row["job_id"], row["hardware_key"]) in kinds]

    async def commit(self, changes: ChangeSet | None = None, *, above: int = 0) -> Mapping[tuple[str, int], int]:
        """Save changes, if any, and make everything durable; returns the event_id of each new event by (job_id, seq).

        Raises EventIdsReused, and nothing is durable, where one is not above ``above``. If this raises StoreLost, the
        outcome is unknown.
        """
        event_ids: Mapping[tuple[str, int], int] = {}
        if changes is not None:
            event_ids = await self._write(changes)
            await self._release_places(change.job_id for change in changes.jobs)
        if any(event_id <= above for event_id in event_ids.values()):
            raise EventIdsReused
        await self._end()
        return event_ids

    async def _end(self) -> None:
        with translated():
            await self._connection.commit()

    async def roll_back(self) -> None:
        """Undo what was not committed, and what SQLAlchemy does not undo when it closes the connection."""

    async def _write(self, changes: ChangeSet) -> Mapping[tuple[str, int], int]:
        """Write changes; returns the event_id of each new event."""
        for statement, rows in self._writes(changes):
            await self._run(statement, rows)
        return await self._append(self._event_rows(changes)) if changes.events else {}

    def _writes(self, changes: ChangeSet) -> list[tuple[Insert | Delete, Sequence[Row] | None]]:
        """What is to be written besides events, one statement per table."""
        writes: list[tuple[Insert | Delete, Sequence[Row] | None]] = []
        if changes.trials:
            rows = [trial_row(job_id, changed) for (job_id, _), changed in changes.trials.items()]
            writes.append((self._dialect.upsert(trial, _TRIAL_UPDATES), rows))
        if changes.jobs:
            rows = [_job_row(one, changes.now) for one in changes.jobs]
            writes.append((self._dialect.upsert(job, _JOB_UPDATES), rows))
        if changes.unprofiled:
            writes.append((delete(power_profile).where(power_profile.c.job_id.in_(changes.unprofiled)), None))
        if changes.power_profiles:
            rows = [{**profile_row(profile), "recorded_at": changes.now} for profile in changes.power_profiles]
            writes.append((self._dialect.upsert(power_profile, _PROFILE_UPDATES), rows))
        return writes

    async def forget_events(self, job_id: str, *, up_to_seq: int, before: datetime) -> int:
        """Delete a locked job's published events up to a seq, if recorded before a moment; returns their number."""
        old = and_(event.c.job_id == job_id, event.c.seq <= up_to_seq, event.c.recorded_at < before)
        with translated():
            result = await self._connection.execute(delete(event).where(old, event.c.published_at.is_not(None)))
        return result.rowcount

    async def forget_job(self, job_id: str) -> None:
        """Delete everything of a locked job."""
        for table in (event, trial, power_profile, parked_job, job):
            await self._run(delete(table).where(table.c.job_id == job_id))

    async def _hold_places(self, job_ids: Sequence[str]) -> None:
        rows = [{"job_id": job_id, "last_seq": 0, "revision": 0} for job_id in job_ids]
        await self._run(self._dialect.upsert(job, _NO_UPDATE), rows)

    async def _locked(self, job_ids: Sequence[str]) -> Sequence[Row]:
        return await self._rows(statements.locked_jobs(self._dialect), {"job_ids": job_ids})

    async def _release_places(self, saved: Iterable[str]) -> None:
        unused = self._placeholders - set(saved)
        if unused:
            await self._run(delete(job).where(job.c.job_id.in_(sorted(unused)), job.c.last_seq == 0))

    async def _append(self, rows: Sequence[Row]) -> Mapping[tuple[str, int], int]:
        await self._run(statements.APPEND_EVENTS, rows)
        command_ids = sorted({row["command_id"] for row in rows})
        found = await self._rows(statements.EVENT_IDS, {"command_ids": command_ids})
        return {(row["job_id"], row["seq"]): row["event_id"] for row in found}

    def _event_rows(self, changes: ChangeSet) -> Sequence[Row]:
        stamps = {"recorded_at": changes.now, "published_at": None if self._has_outbox else changes.now}
        return [{**event_row(new), **stamps} for new in changes.events]

    async def _rows(self, statement: Executable, parameters: Mapping[str, Any] | None = None) -> Sequence[Row]:
        with translated():
            result = await self._connection.execute(statement, parameters)
            return cast(Sequence[Row], result.mappings().all())

    async def _run(self, statement: Executable, parameters: Sequence[Row] | None = None) -> None:
        with translated():
            await self._connection.execute(statement, parameters)


def _stored(row: Row) -> StoredJob:
    return StoredJob(job_id=row["job_id"], last_seq=row["last_seq"], revision=row["revision"], state=row["state"])


def recollection_from(rows: Sequence[Row]) -> Recollection:
    """What the store remembers, from the rows of the query for it."""
    answers = {row["command_id"]: row for row in rows if row["reply"] is not None}
    trials = {(row["job_id"], row["trial_number"]): row for row in rows if row["job_id"] is not None}
    return Recollection(
        now=rows[0]["now"],
        replies={command_id: _reply_in(row) for command_id, row in answers.items()},
        active=_by_key(trials.values()),
        log_epoch=_epoch_in(rows[0]),
    )


def _epoch_in(row: Row) -> LogEpoch | None:
    if row["epoch_number"] is None:
        return None
    return LogEpoch(number=row["epoch_number"], looked_at=row["epoch_looked_at"], outdated_at=row["epoch_outdated_at"])


def _reply_in(row: Row) -> RecordedReply:
    return RecordedReply(
        command_id=row["command_id"],
        job_id=row["answered_job_id"],
        type=row["reply_type"],
        reply=row["reply"],
        trial_number=row["answered_trial_number"],
        epoch=row["answered_epoch"],
    )


def _by_key(rows: Iterable[Row]) -> Mapping[TrialKey, Trial]:
    return {(row["job_id"], row["trial_number"]): trial_from(row) for row in rows}


def _job_row(change: JobChange, now: datetime) -> dict[str, Any]:
    snapshot = change.snapshot
    stored = {name: getattr(snapshot, name) if snapshot is not None else None for name in _SNAPSHOT_COLUMNS}
    if snapshot is not None and snapshot.owner is None:
        stored["owner"] = ""  # NULL means: as it was
    return {
        **stored,
        "job_id": change.job_id,
        "last_seq": change.last_seq,
        "revision": change.revision,
        "created_at": now,
        "changed_at": now if change.has_events else None,  # NULL means: as it was
    }
