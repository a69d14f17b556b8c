"""The log of jobs beside their rows, whole: what replay compares, and what it writes under a job's lock."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, cast

from sqlalchemy import ColumnElement, Select, Table, and_, delete, func, insert, select, tuple_, union, update
from sqlalchemy.ext.asyncio import AsyncConnection

from bso.domain.errors import Rejected
from bso.service.records import LoggedEvent
from bso.service.serialization import first_revision
from bso.storage.connections import translated
from bso.storage.dialects import Dialect, Updates
from bso.storage.log_epochs import begin_epoch_after
from bso.storage.rows import EVENT_COLUMNS, Row, check_moments, event_row, logged_from
from bso.storage.tables import event, job, power_profile, trial

Deadlined = Callable[[], AbstractAsyncContextManager[None]]
_LOG_COLUMNS = tuple(event.c[name] for name in (*EVENT_COLUMNS, "recorded_at"))
_COMPARED = ("type", "payload", "command_id", "part")
_ROWS_AT_ONCE = 500


class LogConflict(Rejected):
    """A log already holds something else at the place of an event. ``job_id`` and ``seq`` name the event."""

    def __init__(self, message: str, *, job_id: str, seq: int) -> None:
        super().__init__(message)
        self.job_id = job_id
        self.seq = seq


class UnreadableRow(Rejected):
    """A row holds what its column cannot: it was written by hand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRows:
    """Everything that the tables hold of one job at one moment. ``last_logged_seq`` is 0 where the log is empty."""

    last_logged_seq: int
    job: Row | None
    trials: Sequence[Row]
    power_profiles: Sequence[Row]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowChanges:
    """Whole rows to write in the place of those with the same key, and the keys of rows to delete."""

    job: Row | None = None
    trials: Sequence[Row] = ()
    power_profiles: Sequence[Row] = ()
    gone_trials: Sequence[int] = ()
    gone_power_profiles: Sequence[tuple[int, str]] = field(default_factory=tuple)

    @property
    def count(self) -> int:
        """How many rows are written or deleted."""
        changed = (self.trials, self.power_profiles, self.gone_trials, self.gone_power_profiles)
        return (self.job is not None) + sum(map(len, changed))


class LockedJob:
    """One job in one transaction that holds its lock: nobody else decides on it meanwhile.

    Each step has a deadline of its own, StoreUnavailable after it: the whole may take as long as the log is.
    """

    def __init__(
        self, connection: AsyncConnection, dialect: Dialect, *, job_id: str, now: datetime, deadlined: Deadlined
    ) -> None:
        self._connection = connection
        self._dialect = dialect
        self._job_id = job_id
        self._deadlined = deadlined
        self._newest_epoch: int | None = None  # of what was appended
        self.now = now

    async def log_page(self, job_id: str, *, after_seq: int, limit: int) -> Sequence[LoggedEvent]:
        """A page of a job's log, in the order of seq, with what was appended in this transaction."""
        async with self._deadlined():
            return await log_page(self._connection, job_id, after_seq=after_seq, limit=limit)

    async def rows(self) -> JobRows:
        """What the tables hold of the job."""
        async with self._deadlined():
            return await job_rows(self._connection, self._job_id)

    async def append(self, events: Sequence[LoggedEvent]) -> int:
        """Append what the log lacks, as published; returns how many. Raises LogConflict.

        Events that come from elsewhere may lack the last ones of their epoch. What is recorded after the commit belongs
        to a later epoch, so that it does not share (log_epoch, seq) with those.
        """
        async with self._deadlined():
            appended = await append_missing(self._connection, events, published_at=self.now)
        if appended:
            self._newest_epoch = max(self._newest_epoch or 0, *(logged.new.log_epoch for logged in events))
        return appended

    async def write(self, changes: RowChanges) -> None:
        """Write and delete rows of the job, which has another revision then."""
        jobs = [{**row, "revision": first_revision(self.now)} for row in _one(changes.job)]
        for table, rows in ((job, jobs), (trial, changes.trials), (power_profile, changes.power_profiles)):
            upsert = self._dialect.upsert(table, Updates.of_whole_rows(table))
            for part in _parts(rows):
                async with self._deadlined():
                    with translated():
                        await self._connection.execute(upsert, [*map(dict, part)])
        await self._delete(trial, trial.c.trial_number, changes.gone_trials)
        keys = tuple_(power_profile.c.batch_size, power_profile.c.hardware_key)
        await self._delete(power_profile, keys, changes.gone_power_profiles)
        async with self._deadlined():
            with translated():
                raised = update(job).where(job.c.job_id == self._job_id).values(revision=job.c.revision + 1)
                await self._connection.execute(raised)

    async def commit(self) -> None:
        """Make it durable. The log's epoch, which all jobs share, is locked here only."""
        async with self._deadlined():
            with translated():
                if self._newest_epoch is not None:
                    await begin_epoch_after(self._connection, self._dialect, newest=self._newest_epoch)
                await self._connection.commit()

    async def _delete(self, table: Table, key: ColumnElement[Any], gone: Sequence[Any]) -> None:
        for part in _parts(gone):
            chosen = and_(table.c.job_id == self._job_id, key.in_(part))
            async with self._deadlined():
                with translated():
                    await self._connection.execute(delete(table).where(chosen))


def known_job_ids(*, after: str, limit: int) -> Select[Any]:
    """A page of the ids of all jobs of which any table holds anything, the log included."""
    each = [
        select(table.c.job_id).where(table.c.job_id > after).group_by(table.c.job_id).order_by(table.c.job_id)
        for table in (event, job, trial, power_profile)
    ]
    ids = union(*(select(one.limit(limit).subquery().c.job_id) for one in each)).subquery()
    return select(ids.c.job_id).order_by(ids.c.job_id).limit(limit)


async def log_page(connection: AsyncConnection, job_id: str, *, after_seq: int, limit: int) -> Sequence[LoggedEvent]:
    """A page of a job's log, in the order of seq."""
    asked = select(*_LOG_COLUMNS).where(event.c.job_id == job_id, event.c.seq > after_seq)
    return await _logged(connection, asked.order_by(event.c.seq).limit(limit))


async def job_rows(connection: AsyncConnection, job_id: str) -> JobRows:
    """What the tables hold of a job; at one moment only if the transaction is isolated that well.

    A value that is no moment comes as it stands: it differs from what the log says, and is written anew.
    """
    [last] = await _rows(connection, select(func.max(event.c.seq).label("seq")).where(event.c.job_id == job_id))
    found = await _rows(connection, select(job).where(job.c.job_id == job_id))
    profile_order = (power_profile.c.batch_size, power_profile.c.hardware_key)
    return JobRows(
        last_logged_seq=last["seq"] or 0,
        job=found[0] if found else None,
        trials=await _rows(connection, select(trial).where(trial.c.job_id == job_id).order_by(trial.c.trial_number)),
        power_profiles=await _rows(
            connection, select(power_profile).where(power_profile.c.job_id == job_id).order_by(*profile_order)
        ),
    )


async def append_missing(
    connection: AsyncConnection, events: Sequence[LoggedEvent], *, published_at: datetime | None
) -> int:
    """Append those events that the log lacks; returns how many. Raises LogConflict where it holds something else.

    Replies are not compared: an export of pruned events has none.
    """
    known = await _known(connection, events)
    for logged in events:
        _check_same(logged, known.get((logged.new.job_id, logged.new.seq)))
    missing = {(one.new.job_id, one.new.seq): one for one in events if (one.new.job_id, one.new.seq) not in known}
    for logged in events:  # the same event may stand in a page twice
        _check_same(logged, missing.get((logged.new.job_id, logged.new.seq)))
    await _check_commands(connection, missing.values())
    for part in _parts([*missing.values()]):
        rows = [
            {**event_row(logged.new), "recorded_at": logged.recorded_at, "published_at": published_at}
            for logged in part
        ]
        with translated():
            await connection.execute(insert(event), rows)
    return len(missing)


async def _known(connection: AsyncConnection, events: Sequence[LoggedEvent]) -> Mapping[tuple[str, int], LoggedEvent]:
    known: dict[tuple[str, int], LoggedEvent] = {}
    places: dict[str, list[int]] = {}
    for logged in events:
        places.setdefault(logged.new.job_id, []).append(logged.new.seq)
    for job_id, seqs in places.items():
        for part in _parts(seqs):
            asked = select(*_LOG_COLUMNS).where(event.c.job_id == job_id, event.c.seq.in_(part))
            for logged in await _logged(connection, asked):
                known[logged.new.job_id, logged.new.seq] = logged
    return known


async def _check_commands(connection: AsyncConnection, missing: Collection[LoggedEvent]) -> None:
    """A command is decided once: its events may not stand in a second place."""
    taken: dict[tuple[str, int], tuple[str, int]] = {}
    for part in _parts([*missing]):
        ids = sorted({logged.new.command_id for logged in part})
        columns = [event.c[name] for name in ("command_id", "part", "job_id", "seq")]
        for row in await _rows(connection, select(*columns).where(event.c.command_id.in_(ids))):
            taken[row["command_id"], row["part"]] = (row["job_id"], row["seq"])
    for logged in missing:
        new = logged.new
        place = taken.setdefault((new.command_id, new.part), (new.job_id, new.seq))
        if place != (new.job_id, new.seq):
            message = (
                f"event {new.seq} of job {new.job_id} is part {new.part} of command {new.command_id}, which is already "
                f"recorded as event {place[1]} of job {place[0]}"
            )
            raise LogConflict(message, job_id=new.job_id, seq=new.seq)


def _check_same(logged: LoggedEvent, known: LoggedEvent | None) -> None:
    if known is None or known is logged:
        return
    new = logged.new
    differing = [(name, getattr(known.new, name), getattr(new, name)) for name in _COMPARED]
    differing += [("recorded_at", known.recorded_at, logged.recorded_at)]
    for name, expected, came in differing:
        if expected != came:
            message = (
                f"event {new.seq} of job {new.job_id} is already recorded with another {name}: "
                f"there {_short(expected)}, here {_short(came)}"
            )
            raise LogConflict(message, job_id=new.job_id, seq=new.seq)


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 300 else f"{text[:297]}..."


def _one(row: Row | None) -> Sequence[Row]:
    return () if row is None else (row,)


def _parts(items: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for start in range(0, len(items), _ROWS_AT_ONCE):
        yield items[start : start + _ROWS_AT_ONCE]


async def _logged(connection: AsyncConnection, statement: Select[Any]) -> Sequence[LoggedEvent]:
    rows = await _rows(connection, statement)
    for row in rows:
        try:
            check_moments(row, "recorded_at")
        except ValueError as error:
            raise UnreadableRow(f"event {row['seq']} of job {row['job_id']} cannot be read: {error}") from error
    return [logged_from(row) for row in rows]


async def _rows(connection: AsyncConnection, statement: Select[Any]) -> Sequence[Row]:
    with translated():
        found = await connection.execute(statement)
    try:
        return cast(Sequence[Row], found.mappings().all())
    except ValueError as error:
        tables = ", ".join(str(table) for table in statement.get_final_froms())
        raise UnreadableRow(f"a row of table {tables} cannot be read: {error}") from error
