"""Units of work on MySQL and MariaDB: a batch takes two requests, to lock and read, and to write and commit.

    1   SELECT the free jobs FOR UPDATE SKIP LOCKED; SELECT clock, epoch of the log, earlier replies, active trials
    2   INSERT events; SELECT their ids; INSERT trials, jobs ... ON DUPLICATE KEY UPDATE; COMMIT

One that was decided without reading takes the second alone, behind a SELECT ... FOR UPDATE SKIP LOCKED that fails where
the jobs are not as they were expected.

The server takes several statements in one request; asyncmy asks for that (MULTI_STATEMENTS) whenever it connects. It
stops at the first one that fails: then nothing is committed, and the error is raised as if the statement had been sent
alone. All other statements are SQLAlchemy's to execute, on the same connection and in the same transaction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

from sqlalchemy import Executable
from sqlalchemy.ext.asyncio import AsyncConnection
from typing_extensions import override

from bso.service.errors import CommandTaken, EventIdsReused, NotAsExpected, SequenceTaken, StoreLost
from bso.service.records import ChangeSet, Expected
from bso.storage import statements
from bso.storage.connections import opened, translated
from bso.storage.dialects import dialect_named
from bso.storage.packets import packet_limit
from bso.storage.rows import Row
from bso.storage.statement_text import CompiledStatements, StatementText
from bso.storage.unit_of_work import SqlUnitOfWork

COMMIT = "COMMIT"
_MOST_BYTES = 1_000_000  # in one request
_EVENT_IDS = f"SELECT LAST_INSERT_ID(), @@auto_increment_increment, {statements.MOST} + (LAST_INSERT_ID() <= %d)"
"""The id of the first event of an insertion, and how far the next ones lie apart. It fails if that id is not above a
number."""

_NONE_KNOWN = [("", -1)]

_Fetched = Sequence[Sequence[Any]]
_Texts = CompiledStatements[StatementText]


class Requests:
    """The driver's connection under one of SQLAlchemy's, over which several statements go at once."""

    def __init__(self, driver: Any, *, packet_limit: int) -> None:
        self._driver = driver
        self.packet_limit = packet_limit
        self.most_bytes = min(_MOST_BYTES, packet_limit // 2)
        self._is_in_transaction = False

    async def send(self, texts: Sequence[str]) -> list[_Fetched]:
        """Execute statements and fetch the rows of each; in several requests where one would be too large."""
        found: list[_Fetched] = []
        with translated():
            requests = _packed([text.encode() for text in texts], self.most_bytes)
            self._is_in_transaction = True
            cursor = self._driver.cursor()
            for request in requests:
                await cursor.execute(b";".join(request))
                found.append(await cursor.fetchall())
                for _ in request[1:]:
                    if not await cursor.nextset():  # which raises what that statement has met
                        raise StoreLost("the database answered fewer statements than it was sent")
                    found.append(await cursor.fetchall())
        self._is_in_transaction = texts[-1] != COMMIT
        return found

    def committed(self) -> None:
        """Note that SQLAlchemy has committed what was sent."""
        self._is_in_transaction = False

    async def roll_back(self) -> None:
        """Undo what was sent and not committed."""
        if self._is_in_transaction:
            with translated():
                await self._driver.rollback()
            self._is_in_transaction = False


def _packed(texts: Sequence[bytes], most_bytes: int) -> list[list[bytes]]:
    requests: list[list[bytes]] = [[]]
    size = 0
    for text in texts:
        if requests[-1] and size + len(text) > most_bytes:
            requests.append([])
            size = 0
        requests[-1].append(text)
        size += len(text) + 1
    return requests


class MySqlUnitOfWork(SqlUnitOfWork):
    """A unit of work whose frequent statements go past SQLAlchemy's execution."""

    def __init__(self, connection: AsyncConnection, requests: Requests, texts: _Texts, *, has_outbox: bool) -> None:
        super().__init__(connection, dialect_named("mysql"), has_outbox=has_outbox)
        self._requests = requests
        self._texts = texts

    @classmethod
    def on(cls, connection: AsyncConnection, texts: _Texts, *, has_outbox: bool) -> Self:
        """Begin one on a connection that is open."""
        pooled = opened(connection)
        requests = Requests(pooled.driver_connection, packet_limit=packet_limit(pooled))
        return cls(connection, requests, texts, has_outbox=has_outbox)

    @override
    async def roll_back(self) -> None:
        await self._requests.roll_back()

    async def commit_if(self, expected: Expected, changes: ChangeSet, *, above: int) -> Mapping[tuple[str, int], int]:
        """Save changes that were decided without reading, and make them durable, in one request if they fit in one.

        Raises NotAsExpected, and nothing is durable, where the store does not hold what is ``expected``, a command was
        decided before, or an event_id is not above ``above``.
        """
        check = self._texts[statements.jobs_as_expected(self._dialect)].with_values(
            {
                "job_ids": sorted(expected.revisions),
                "revisions": sorted(expected.revisions.items()),
                "count": len(expected.revisions),
                "epoch": expected.log_epoch.number,
                "looked_at": expected.log_epoch.looked_at,
                "since": expected.now - expected.tolerance,
                "until": expected.now + expected.tolerance,
            }
        )
        assert not changes.unprofiled, "a deletion is sent by itself, and would not wait for the check"
        counts, texts = self._appended(changes, above=above)
        try:
            found = await self._requests.send([check, *texts, *await self._other_writes(changes), COMMIT])
        except (EventIdsReused, SequenceTaken, CommandTaken) as error:
            raise NotAsExpected(str(error)) from error
        return _event_ids(changes, counts, found[2::2])

    @override
    async def commit(self, changes: ChangeSet | None = None, *, above: int = 0) -> Mapping[tuple[str, int], int]:
        counts: Sequence[int] = []
        texts: list[str] = []
        if changes is not None:
            await self._release_places(change.job_id for change in changes.jobs)
            counts, texts = self._appended(changes, above=above)
            texts += await self._other_writes(changes)
        if self._connection.in_transaction():  # SQLAlchemy has executed some statement, and commits
            found = await self._requests.send(texts) if texts else []
            await self._end()
            self._requests.committed()
        else:
            found = await self._requests.send([*texts, COMMIT])
        return _event_ids(changes, counts, found[1::2])

    def _appended(self, changes: ChangeSet, *, above: int) -> tuple[Sequence[int], list[str]]:
        """How many events each insertion has, and the insertions, each with the question for its event_ids."""
        appending = list(self._insertions(statements.APPEND_EVENTS, self._event_rows(changes)))
        texts = [text for insertion, _ in appending for text in (insertion, _EVENT_IDS % above)]
        return [count for _, count in appending], texts

    async def _other_writes(self, changes: ChangeSet) -> list[str]:
        texts: list[str] = []
        for statement, rows in self._writes(changes):
            if rows is None:
                await self._run(statement)
            else:
                texts += [insertion for insertion, _ in self._insertions(statement, rows)]
        return texts

    def _insertions(self, statement: Executable, rows: Sequence[Row]) -> Iterator[tuple[str, int]]:
        limits = {"most_bytes": self._requests.most_bytes, "packet_limit": self._requests.packet_limit}
        return self._texts[statement].with_rows(rows, **limits)

    @override
    async def _lock_and_recollect(
        self, job_ids: Sequence[str], command_ids: Sequence[str], known: Sequence[tuple[str, int]]
    ) -> tuple[Sequence[Row], Sequence[Row]]:
        jobs = self._texts[statements.free_jobs(self._dialect)]
        recollection = self._texts[statements.recollection_of_changed(self._dialect)]
        locking = {"job_ids": job_ids, "known": known or _NONE_KNOWN}
        texts = [jobs.with_values(locking), recollection.with_values({**locking, "command_ids": command_ids})]
        locked, recollected = await self._requests.send(texts)
        return jobs.read(locked), recollection.read(recollected)

    @override
    async def _rows(self, statement: Executable, parameters: Mapping[str, Any] | None = None) -> Sequence[Row]:
        if parameters is None:
            return await super()._rows(statement)
        text = self._texts[statement]
        [fetched] = await self._requests.send([text.with_values(parameters)])
        return text.read(fetched)


def _event_ids(
    changes: ChangeSet | None, counts: Sequence[int], found: Sequence[_Fetched]
) -> Mapping[tuple[str, int], int]:
    """The ids of the events: those of one insertion lie evenly apart, whatever other sessions insert meanwhile.

    https://dev.mysql.com/doc/refman/9.0/en/innodb-auto-increment-handling.html, "simple inserts".
    """
    given = [
        first + number * step
        for count, [[first, step, _]] in zip(counts, found, strict=False)
        for number in range(count)
    ]
    events = () if changes is None else changes.events
    return {(event.job_id, event.seq): event_id for event, event_id in zip(events, given, strict=True)}
