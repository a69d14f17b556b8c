"""The store over an SQL database: units of work, and reads that take no locks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar, cast

from sqlalchemy import Executable, Select, and_, delete, false, func, insert, literal, or_, select, text, update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from bso.domain.rights import Reader
from bso.domain.trial import Trial, TrialState
from bso.schema.errors import StateTooNew
from bso.service.errors import EventUnreadable, SchemaMissing, StoreLost, StoreUnavailable
from bso.service.records import (
    MOST_ACTIVE,
    ChangeSet,
    Expected,
    JobOverview,
    JobSummary,
    LapsedLease,
    LoggedEvent,
    PowerProfile,
    SchemaState,
    StoredEvent,
    StoredJob,
    UnpublishedPage,
)
from bso.storage.connections import (
    READS_ONLY,
    ConnectionLimits,
    connecting,
    create_engine,
    read_password_again,
    translated,
)
from bso.storage.dialects import dialect_named
from bso.storage.filesystems import require_local
from bso.storage.job_logs import JobRows, LockedJob, append_missing, job_rows, known_job_ids, log_page
from bso.storage.log_epochs import SqlLogEpochs
from bso.storage.mysql import MySqlUnitOfWork
from bso.storage.parked_jobs import SqlParkedJobs, is_parked
from bso.storage.readable_jobs import may_be_readable, readable_job_ids
from bso.storage.rows import (
    JOB_COLUMNS,
    Moment,
    Row,
    profile_from,
    readable_event,
    stored_event,
    stored_from,
    summary_from,
    trial_from,
)
from bso.storage.schema import schema_state, state_of_revision
from bso.storage.sqlite import SqliteStatement, SqliteUnitOfWork
from bso.storage.statement_text import CompiledStatements, StatementText
from bso.storage.statements import ACTIVE, published
from bso.storage.tables import event, job, metadata, power_profile, trial
from bso.storage.tokens import SqlTokens
from bso.storage.unit_of_work import SqlUnitOfWork
from bso.storage.urls import database_url, sqlite_path

_MOST_NAMED = 500  # jobs in one statement
_CLOSE_S = 2.0
_TLS_VERSION = {
    "mysql": "SHOW SESSION STATUS LIKE 'Ssl_version'",
    "postgresql": "SELECT version FROM pg_stat_ssl WHERE pid = pg_backend_pid()",
}
_DEFAULT_LIMITS = ConnectionLimits()
_SUMMARY = tuple(column for column in job.columns if column.name not in ("revision", "granted_to", "state"))
_Found = TypeVar("_Found")


def open_store(url: str, *, limits: ConnectionLimits = _DEFAULT_LIMITS, has_outbox: bool = True) -> SqlStore:
    """A store at an address such as ``mysql://user:password@host/bso``. Connects to nothing yet.

    Raises Misconfigured for an address that cannot work. The schema is made and upgraded by bso_migrations.
    """
    address = database_url(url)
    file = sqlite_path(address) if address.get_backend_name() == "sqlite" else None
    if file is not None:
        require_local(file)
    engine = create_engine(address, limits)
    read_password_again(engine, url)
    return SqlStore(engine, has_outbox=has_outbox, file=file)


class SqlStore:
    """Jobs, trials and events in an SQL database. ``has_outbox``: events wait until they are marked as published.

    ``file`` is that of an SQLite database, which is never made by opening it. ``engine`` is SQLAlchemy's, for SQL that
    no method here stands for; ``read_timeout_s`` is how long whatever is not a unit of work may take.
    """

    def __init__(
        self, engine: AsyncEngine, *, has_outbox: bool = True, read_timeout_s: float = 30.0, file: Path | None = None
    ) -> None:
        self.engine = engine
        self._dialect = dialect_named(engine.dialect.name)
        self._has_outbox = has_outbox
        self._texts = CompiledStatements(StatementText, engine.dialect)
        self._sqlite = CompiledStatements(SqliteStatement, engine.dialect)
        self.read_timeout_s = read_timeout_s
        self._file = file
        self._identity: tuple[int, int] | None = None  # of the file that the connections are open on
        self.parked_jobs = SqlParkedJobs(self._dialect, writing=self._writing, read=self._read)
        self.tokens = SqlTokens(self._dialect, writing=self._writing, read=self._read)
        self.log_epochs = SqlLogEpochs(self._dialect, writing=self._writing, read=self._read)

    @property
    def optimistic(self) -> SqlStore | None:
        """This store, if ``commit_if`` can be used: on MySQL and MariaDB."""
        return self if self._dialect.name == "mysql" else None

    async def commit_if(self, expected: Expected, changes: ChangeSet, *, above: int) -> Mapping[tuple[str, int], int]:
        """Save changes that were decided without reading anything, as MySqlUnitOfWork does."""
        async with self.unit_of_work() as uow:
            assert isinstance(uow, MySqlUnitOfWork)
            return await uow.commit_if(expected, changes, above=above)

    @asynccontextmanager
    async def unit_of_work(self) -> AsyncIterator[SqlUnitOfWork]:
        """Begin a transaction; leaving without commit rolls back. A cancelled one gives its connection up."""
        async with self._connection() as connection:
            uow = self._unit_of_work_on(connection)
            try:
                yield uow
            except (asyncio.CancelledError, StoreLost):  # its connection is given up
                raise
            except BaseException:
                await _roll_back(uow, connection)
                raise
            else:
                await _roll_back(uow, connection)

    async def jobs(
        self, *, after: str = "", limit: int | None = None, reader: Reader | None = None
    ) -> Sequence[JobSummary]:
        """Jobs by id, tombstones included: all, or a page of those after an id."""
        chosen = self._jobs_after(after, limit=limit, reader=reader).with_only_columns(*_SUMMARY)
        return [summary_from(row) for row in await self._read(chosen)]

    async def overviews(
        self, *, after: str = "", limit: int | None = None, reader: Reader | None = None
    ) -> Sequence[JobOverview]:
        """The jobs that ``jobs`` gives, each with its snapshot, its last and its active trials: in three statements."""
        chosen = self._jobs_after(after, limit=limit, reader=reader)
        rows = await self._read(chosen)
        if not rows:
            return []
        same = chosen.with_only_columns(job.c.job_id, job.c.last_trial_number).subquery()
        is_last = and_(trial.c.job_id == same.c.job_id, trial.c.trial_number == same.c.last_trial_number)
        found = await self._read(select(trial).join(same, is_last))
        last_trials = {row["job_id"]: trial_from(row) for row in found}
        active: dict[str, list[Trial]] = {}
        for start in range(0, len(rows), _MOST_NAMED):
            for one in await self._active_of([row["job_id"] for row in rows[start : start + _MOST_NAMED]]):
                active.setdefault(one["job_id"], []).append(trial_from(one))
        return [
            JobOverview(
                summary=summary_from(row),
                stored=stored_from(row),
                last_trial=last_trials.get(row["job_id"]),
                active=tuple(active.get(row["job_id"], ())[-MOST_ACTIVE:]),
            )
            for row in rows
        ]

    async def job(self, job_id: str) -> StoredJob | None:
        """A job's snapshot."""
        asked = and_(job.c.job_id == job_id, job.c.last_seq > 0)
        rows = await self._read(select(*(job.c[name] for name in JOB_COLUMNS)).where(asked))
        return stored_from(rows[0]) if rows else None

    async def summary(self, job_id: str) -> JobSummary | None:
        """What the row of a job says beside its snapshot, which may be damaged."""
        asked = and_(job.c.job_id == job_id, job.c.last_seq > 0)
        rows = await self._read(select(*_SUMMARY).where(asked))
        return summary_from(rows[0]) if rows else None

    async def active_trials(self, job_id: str) -> Sequence[Trial]:
        """The trials of a job that have not ended, in order of their numbers."""
        return [trial_from(row) for row in await self._active_of([job_id])]

    async def trials(self, job_id: str, *, after: int = 0, limit: int | None = None) -> Sequence[Trial]:
        """The trials of a job after a number, in order of their numbers: all, or a page of them."""
        wanted = and_(trial.c.job_id == job_id, trial.c.trial_number > after)
        rows = await self._read(select(trial).where(wanted).order_by(trial.c.trial_number).limit(limit))
        return [trial_from(row) for row in rows]

    async def power_profiles(self, job_id: str) -> Sequence[PowerProfile]:
        """What was measured of a job's batch sizes."""
        order = (power_profile.c.batch_size, power_profile.c.hardware_key)
        rows = await self._read(select(power_profile).where(power_profile.c.job_id == job_id).order_by(*order))
        return [profile_from(row) for row in rows]

    async def history(
        self, job_id: str | None = None, *, after: int = 0, before: datetime | None = None, limit: int = 1000
    ) -> Sequence[StoredEvent]:
        """A page of events by event_id: those after event_id ``after``, recorded before ``before``, of one job or all.

        The events of one job come by seq, and after the seq of ``after`` where that is one of them: within a job
        event_ids rise with seq, save where older events were imported later. Between jobs a lower event_id may become
        visible after a higher one. Raises EventUnreadable, which has those before it.
        """
        statement = select(event).where(event.c.event_id > after).order_by(event.c.event_id).limit(limit)
        if job_id is not None:
            # Where ``after`` is an event of this job, its seq leads straight to the page.
            previous = select(event.c.seq).where(event.c.event_id == after, event.c.job_id == job_id).scalar_subquery()
            # Event_ids do not rise with seq where older events were imported later.
            statement = select(event).where(event.c.job_id == job_id).order_by(event.c.seq).limit(limit)
            statement = statement.where(event.c.seq > func.coalesce(previous, 0))
            statement = statement.where(or_(previous.is_not(None), event.c.event_id > after))
        if before is not None:
            statement = statement.where(event.c.recorded_at < before)
        found: list[StoredEvent] = []
        for row in await self._read(statement):
            try:
                found.append(stored_event(row))
            except StateTooNew as error:
                raise EventUnreadable(str(error), event_id=row["event_id"], before=found) from error
        return found

    async def last_event_id(self, job_id: str | None = None) -> int:
        """The highest event_id in the log of a job or of all; 0 if there is none."""
        order = event.c.event_id if job_id is None else event.c.seq  # either has an index that ends there
        statement = select(event.c.event_id).order_by(order.desc()).limit(1)
        rows = await self._read(statement if job_id is None else statement.where(event.c.job_id == job_id))
        return int(rows[0]["event_id"]) if rows else 0

    async def last_event_ids(self, job_ids: Sequence[str], *, reader: Reader | None = None) -> Mapping[str, int]:
        """The event_id of the last event of each of these jobs that there are; 0 where that was pruned."""
        is_last = and_(event.c.job_id == job.c.job_id, event.c.seq == job.c.last_seq)
        joined = select(job.c.job_id, func.coalesce(event.c.event_id, 0).label("event_id")).outerjoin(event, is_last)
        wanted = joined.where(job.c.job_id.in_(job_ids), job.c.last_seq > 0)
        rows = await self._read(wanted if reader is None else wanted.where(may_be_readable(reader)))
        return {row["job_id"]: int(row["event_id"]) for row in rows}

    async def lapsed_leases(
        self, *, job_id: str | None = None, without: Collection[str] = (), limit: int = 100
    ) -> Sequence[LapsedLease]:
        """Active trials whose lease is over by the database's clock, the oldest first."""
        columns = (trial.c.job_id, trial.c.trial_number, trial.c.trial_id, trial.c.state, trial.c.lease_expires_at)
        lapsed = and_(trial.c.lease_expires_at <= self._dialect.clock(), trial.c.state.in_(ACTIVE))
        wanted = and_(lapsed, ~is_parked(trial.c.job_id), trial.c.job_id.not_in(sorted(without)))
        statement = select(*columns).where(wanted).order_by(trial.c.lease_expires_at).limit(limit)
        if job_id is not None:
            statement = statement.where(trial.c.job_id == job_id)
        return [LapsedLease(**{**row, "state": TrialState(row["state"])}) for row in await self._read(statement)]

    async def unpublished(self, *, older_than_s: float, after: int = 0, limit: int = 500) -> UnpublishedPage:
        """A page of the events that nobody marked as published, by event_id: those after event_id ``after``."""
        now = (await self._read(select(self._dialect.clock().label("now"))))[0]["now"]
        until = literal(now - timedelta(seconds=older_than_s), Moment())
        waiting = and_(event.c.published_at.is_(None), event.c.recorded_at <= until, event.c.event_id > after)
        rows = await self._read(select(event).where(waiting).order_by(event.c.event_id).limit(limit))
        events = [found for row in rows if (found := readable_event(row)) is not None]
        next_after = rows[-1]["event_id"] if len(rows) == limit else None
        return UnpublishedPage(events=events, unreadable=len(rows) - len(events), next_after=next_after)

    async def mark_published(self, event_ids: Collection[int]) -> None:
        """Say that these events have reached the broker."""
        if not event_ids:
            return
        async with self._writing() as connection:
            await connection.execute(*published(self._dialect, event_ids))

    async def job_ids(self, *, after: str = "", limit: int = 1000) -> Sequence[str]:
        """A page of the ids of all jobs of which any table holds anything, the log included."""
        return [row["job_id"] for row in await self._read(known_job_ids(after=after, limit=limit))]

    async def log_page(self, job_id: str, *, after_seq: int = 0, limit: int = 1000) -> Sequence[LoggedEvent]:
        """A page of a job's log with its replies, in the order of seq."""
        async with self._deadlined(), self._connection(**READS_ONLY) as connection:
            return await log_page(connection, job_id, after_seq=after_seq, limit=limit)

    async def job_rows(self, job_id: str) -> JobRows:
        """What the tables hold of a job at one moment, without a lock."""
        options = READS_ONLY | dict(self._dialect.at_one_moment)
        async with self._deadlined(), self._connection(**options) as connection:
            return await job_rows(connection, job_id)

    async def append_log(self, events: Sequence[LoggedEvent]) -> int:
        """Append what the log lacks of any jobs, and nothing to other tables; returns how many. Raises LogConflict."""
        async with self._deadlined(), self._connection() as connection:
            appended = await append_missing(connection, events, published_at=None)
            with translated():
                await connection.commit()
            return appended

    @asynccontextmanager
    async def locked_job(self, job_id: str) -> AsyncIterator[LockedJob]:
        """Lock a job, which need not exist yet, until the end of the block; what was not committed is undone."""
        async with self._connection() as connection:
            uow = SqlUnitOfWork(connection, self._dialect, has_outbox=self._has_outbox)
            try:
                async with self._deadlined():
                    await uow.lock([job_id], creating=[job_id])
                    now = (await uow.recollect(())).now
                yield LockedJob(connection, self._dialect, job_id=job_id, now=now, deadlined=self._deadlined)
            except StoreUnavailable:
                await _give_up(connection)  # a rollback would wait for the server, too
                raise

    async def ping(self) -> None:
        """Return if the database answers, else raise Retryable or Misconfigured."""
        await self._read(select(literal(1).label("one")))

    async def tls_version(self) -> str | None:
        """The version of TLS that a connection has, as the server says; None: it is not encrypted. Not for SQLite."""

        async def look(connection: AsyncConnection) -> str | None:
            found = (await connection.execute(text(_TLS_VERSION[self._dialect.name]))).first()
            return None if found is None else found[-1] or None

        return await self._looked(look)

    async def schema_state(self) -> SchemaState:
        """Which schema the database has."""
        try:
            return await self._looked(schema_state)
        except SchemaMissing:
            return state_of_revision(None)

    async def close(self) -> None:
        """Close all connections."""
        await self.engine.dispose()

    def _unit_of_work_on(self, connection: AsyncConnection) -> SqlUnitOfWork:
        if self._dialect.name == "mysql":
            return MySqlUnitOfWork.on(connection, self._texts, has_outbox=self._has_outbox)
        if self._dialect.name == "sqlite":
            return SqliteUnitOfWork.on(connection, self._sqlite, has_outbox=self._has_outbox)
        from bso.storage.postgresql import PostgresUnitOfWork  # 0.1 s, and loaded already where it is used

        return PostgresUnitOfWork(connection, self._dialect, has_outbox=self._has_outbox)

    async def _active_of(self, job_ids: Sequence[str]) -> Sequence[Row]:
        """The rows of the trials of these jobs that have not ended."""
        wanted = and_(trial.c.job_id.in_(job_ids), trial.c.state.in_(ACTIVE))
        active = select(trial).where(wanted).order_by(trial.c.job_id, trial.c.trial_number)
        return await self._read(self._dialect.by_index(active, trial, "ix_trial_active"))

    def _jobs_after(self, job_id: str, *, limit: int | None, reader: Reader | None) -> Select[Any]:
        chosen = select(job).where(job.c.job_id > job_id, job.c.last_seq > 0)
        if reader is not None:
            readable = readable_job_ids(self._dialect, reader, after=job_id, limit=limit).subquery()
            chosen = select(job).join(readable, readable.c.job_id == job.c.job_id)
        return chosen.order_by(job.c.job_id).limit(limit)

    async def require_rights(self) -> None:
        """Return if the login may write the rows of all tables, as workers do. Nothing is written.

        Raises StorePrivilegeMissing, which names what it may not.
        """
        async with self._deadlined(), self._connection() as connection:
            with translated():
                for table in metadata.sorted_tables:
                    nothing, column = false(), next(iter(table.columns))
                    rows = select(table).where(nothing)
                    await connection.execute(insert(table).from_select(list(table.columns), rows))
                    await connection.execute(update(table).where(nothing).values({column: column}))
                    await connection.execute(delete(table).where(nothing))
                await connection.rollback()

    @asynccontextmanager
    async def _writing(self) -> AsyncIterator[AsyncConnection]:
        """A connection whose transaction is committed at the end of the block."""
        async with self._deadlined(), self._connection() as connection:
            with translated():
                yield connection
                await connection.commit()

    async def _read(self, statement: Executable) -> Sequence[Row]:
        async def rows(connection: AsyncConnection) -> Sequence[Row]:
            with translated():
                return cast(Sequence[Row], (await connection.execute(statement)).mappings().all())

        return await self._looked(rows)

    async def _looked(self, look: Callable[[AsyncConnection], Awaitable[_Found]]) -> _Found:
        """What a look finds; a second one, where a connection turns out to have been lost since it was used."""
        async with self._deadlined():
            try:
                return await self._looked_once(look)
            except StoreLost:
                return await self._looked_once(look)

    async def _looked_once(self, look: Callable[[AsyncConnection], Awaitable[_Found]]) -> _Found:
        async with self._connection(**READS_ONLY) as connection:
            return await look(connection)

    @asynccontextmanager
    async def _deadlined(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self.read_timeout_s):
                yield
        except TimeoutError as error:
            raise StoreUnavailable(f"the database did not answer within {self.read_timeout_s:g} s") from error

    async def _check_file(self, file: Path) -> None:
        """Forget connections to a file that was deleted, and replaced: what they wrote would be lost."""
        identity = _identity(file)
        if identity is None:  # connecting would make an empty one
            raise SchemaMissing(f"{file} does not exist: run `bso migrate`, or correct the address")
        if self._identity not in (None, identity):
            await self.engine.dispose()
        self._identity = identity

    @asynccontextmanager
    async def _connection(self, **options: Any) -> AsyncIterator[AsyncConnection]:
        if self._file is not None:
            await self._check_file(self._file)
        connection = self.engine.connect()
        with connecting():
            await connection.start()
        try:
            if options:
                await connection.execution_options(**options)
            yield connection
        except (asyncio.CancelledError, StoreLost):
            # Its statement may still be running, and a rollback would wait for it: give the connection up.
            await _give_up(connection)
            raise
        finally:
            with translated():
                await connection.close()


def _identity(file: Path) -> tuple[int, int] | None:
    with suppress(FileNotFoundError):
        found = file.stat()
        return found.st_dev, found.st_ino
    return None


async def _roll_back(uow: SqlUnitOfWork, connection: AsyncConnection) -> None:
    """Undo what was not committed; a connection on which that fails serves nobody else."""
    try:
        await uow.roll_back()
    except BaseException:
        await _give_up(connection)
        raise


async def _give_up(connection: AsyncConnection) -> None:
    if connection.closed or connection.invalidated:
        return
    with suppress(TimeoutError, OSError, SQLAlchemyError):
        async with asyncio.timeout(_CLOSE_S):
            await connection.invalidate()
