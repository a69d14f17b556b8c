"""How commands reach jobs: the store itself, or the optimizer with a command."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from bso.credentials import shown_address
from bso.domain.errors import Misconfigured
from bso.domain.quantities import seconds
from bso_cli.refusals import CommandRefused, RefusedForNow
from bso_cli.settings import Places
from bso_cli.terminal import print_notice

if TYPE_CHECKING:
    from bso.domain.commands import Command, Request
    from bso.domain.replies import Problem, Reply
    from bso.service.ports import JobReads
    from bso.service.queries import JobSavings, ShownJob
    from bso.service.records import JobOverview, ParkedJob, StoredEvent
    from bso.storage.store import SqlStore

R = TypeVar("R", bound="Reply")
T = TypeVar("T")

CALL_TIMEOUT_S = 15.0
_WHERE_TO_LOOK = "`bso jobs list` shows the jobs"
_SLOW_S = 2.0  # a wait that is longer than this is said


class NothingThere(Misconfigured):
    """The SQLite file does not exist yet."""


@asynccontextmanager
async def reading(url: str) -> AsyncIterator[SqlStore]:
    """An open store with the schema of this program. Raises NothingThere, Misconfigured, Retryable."""
    from bso.service.records import SchemaStatus
    from bso.storage import open_store
    from bso.storage.connections import PATIENT

    require_existing_file(url)
    has_outbox = not url.startswith("sqlite")  # nobody publishes an embedded job's events
    store = open_store(url, limits=PATIENT, has_outbox=has_outbox)
    try:
        with naming_file(url):
            schema = await store.schema_state()
            if schema.status in (SchemaStatus.MISSING, SchemaStatus.OLDER):
                raise Misconfigured(
                    f"the database {shown_address(url)} has schema {schema.found or '(none)'} and this program needs "
                    f"{schema.expected}: run `bso migrate` with BSO_DATABASE_URL set to its address"
                )
            yield store
    finally:
        await store.close()


@asynccontextmanager
async def writing(url: str) -> AsyncIterator[SqlStore]:
    """A store to write to: it must have exactly this program's schema."""
    from bso.service.readiness import require_schema

    try:
        async with reading(url) as store:
            await require_schema(store)
            yield store
    except NothingThere as error:
        what = f"the database {shown_address(url)} does not exist yet"
        raise Misconfigured(f"{what}: run `bso migrate` with BSO_DATABASE_URL set to its address") from error


@asynccontextmanager
async def seeing(places: Places) -> AsyncIterator[JobReads]:
    """The jobs of a database, or, where only a broker is known, those that its login may read."""
    if places.has_database:
        async with reading(places.database("bso")) as store:
            yield store
        return
    from bso_cli.broker_reads import asking

    async with asking(places.optimizer_url) as reads:
        yield reads


async def jobs_seen(places: Places) -> tuple[Sequence[JobOverview], Sequence[ParkedJob]]:
    """All jobs that can be seen from here, and those of them that are in trouble."""
    from bso.service.query_answers import readable_overviews

    if places.has_database:
        async with reading(places.database("bso")) as store:
            return await readable_overviews(store, after="", limit=None), await store.parked_jobs.all()
    from bso_cli.broker_reads import asking

    async with asking(places.optimizer_url) as reads:
        return await reads.jobs()


async def savings_seen(places: Places) -> tuple[Sequence[JobSavings], Sequence[str]]:
    """What all jobs saved that can be seen from here, and the job_ids of those that cannot be read."""
    from bso.service.query_answers import readable_overviews, savings_of

    if places.has_database:
        async with reading(places.database("bso")) as store:
            return savings_of(await readable_overviews(store, after="", limit=None))
    from bso_cli.broker_reads import asking

    async with asking(places.optimizer_url) as reads:
        return await reads.savings()


def without_process(places: Places) -> frozenset[tuple[str, int]]:
    """The trials (job_id, number) of an SQLite file whose processes have ended without a word.

    The end of some may have been recorded since.
    """
    database = places.database("bso") if places.has_database else ""
    if not database.startswith("sqlite"):
        return frozenset()
    from bso.storage.urls import database_url, sqlite_path
    from bso_client.transports.presence import Presence

    with suppress(OSError):
        ended = Presence.beside(sqlite_path(database_url(database))).ended()
        return frozenset((trained.job_id, trained.trial_number) for trained in ended)
    return frozenset()


def seen(places: Places, work: Callable[[JobReads], Awaitable[T]]) -> T:
    """Do some work on the jobs that can be seen from here."""

    async def run() -> T:
        async with seeing(places) as reads:
            return await work(reads)

    return asyncio.run(run())


def in_store(database: str, work: Callable[[SqlStore], Awaitable[T]]) -> T:
    """Do some work on the open store of a database."""

    async def run() -> T:
        async with reading(database) as store:
            return await work(store)

    return asyncio.run(run())


@contextmanager
def naming_file(url: str) -> Iterator[None]:
    """Let errors of an SQLite file say which file it is; those of other databases pass as they are."""
    if not url.startswith("sqlite"):
        yield
        return
    from bso.storage.urls import database_url, sqlite_path
    from bso_client.transports.embedded import named

    with named(sqlite_path(database_url(url))):
        yield


async def whole_history(store: JobReads, job_id: str | None, *, after: int = 0) -> AsyncGenerator[StoredEvent, None]:
    """Every event, of one job or of all, read page by page. Raises EventUnreadable behind those before it."""
    from bso.replay.publication import pages

    async for page in pages(store, job_id, after=after):
        for stored in page:
            yield stored


def require_existing_file(url: str) -> None:
    """Raise NothingThere where the address is that of a file which is not there; others pass."""
    if not url.startswith("sqlite"):
        return
    from bso.storage.urls import database_url, sqlite_path

    path = sqlite_path(database_url(url))
    if not path.exists():
        raise NothingThere(f"no training has used {path} yet: {_neighbours(path)}")


async def ask(places: Places, job_id: str, command: Command, expected: type[R]) -> R:
    """Send one command, to the database where one is known, else through the broker. Raises CommandRefused."""
    from bso.domain.commands import Request
    from bso.domain.replies import Problem

    request = Request(command_id=str(uuid.uuid4()), job_id=job_id, command=command)
    where_to_look = _WHERE_TO_LOOK
    if places.has_database:
        from bso.service.engine import Engine
        from bso.service.log_epochs import LogWatch

        async with reading(places.database("bso")) as store:
            [answer] = await Engine(store, watch=LogWatch(store.log_epochs)).execute([request])
            reply = answer.reply
            if isinstance(reply, Problem):
                where_to_look = await _where_to_look(store, job_id)
    else:
        reply = await call(places.optimizer_url, request)
    if isinstance(reply, Problem):
        raise refused(reply, where_to_look=where_to_look)
    assert isinstance(reply, expected), f"expected {expected.__name__}, got {type(reply).__name__}"
    return reply


async def show_job(places: Places, job_id: str) -> ShownJob:
    """A job as far as it can be read from here; no decision is involved. Raises CommandRefused."""
    from bso.domain.replies import Problem
    from bso.service.query_answers import shown_job

    if places.has_database:
        async with reading(places.database("bso")) as store:
            found = await shown_job(store, job_id)
            if isinstance(found, Problem):
                raise refused(found, where_to_look=await _where_to_look(store, job_id))
            return found
    from bso_cli.broker_reads import asking

    async with asking(places.optimizer_url) as reads:
        return await reads.shown_job(job_id)


def refused(problem: Problem, *, where_to_look: str) -> CommandRefused:
    """A problem in words; where a job is not known also where to look for it."""
    advice = f"; {where_to_look}" if problem.type == "unknown_job" else ""
    kind = RefusedForNow if problem.is_retryable else CommandRefused
    return kind(f"{problem.title}: {problem.detail}{advice}")


async def _where_to_look(store: SqlStore, job_id: str) -> str:
    """For a job that cannot be used."""
    if await store.history(job_id, limit=1):
        return f"its history is still there: `bso events history {job_id}`, `bso jobs list --deleted`"
    return _WHERE_TO_LOOK


async def call(url: str, request: Request, *, trial_log: Path | None = None) -> Reply:
    """Send one command to the optimizer; a reply about a trial is also logged. Raises Unreachable, Misconfigured."""
    from bso_client.delivery.logged import logged
    from bso_client.transports import open_transport

    transport = logged(open_transport(url), trial_log)
    try:
        with failing_once(), saying_it_is_slow():
            await transport.start()
            return await transport.call(request, timeout_s=CALL_TIMEOUT_S)
    finally:
        await transport.close()


@contextmanager
def failing_once() -> Iterator[None]:
    """Log no failure to connect to the broker: the error of what waits for the connection says the same."""
    logger = logging.getLogger("bso_broker.session")
    logger.addFilter(_says_more)
    try:
        yield
    finally:
        logger.removeFilter(_says_more)


def _says_more(record: logging.LogRecord) -> bool:
    return getattr(record, "action", None) != "broker_unreachable"


@contextmanager
def saying_it_is_slow() -> Iterator[None]:
    """Say so where the optimizer does not answer soon."""
    words = f"the optimizer has not answered yet: waiting up to {seconds(CALL_TIMEOUT_S)} for it"
    notice = asyncio.get_running_loop().call_later(_SLOW_S, print_notice, words)
    try:
        yield
    finally:
        notice.cancel()


def _neighbours(path: Path) -> str:
    if not path.parent.is_dir():
        return "its folder does not exist; is BSO_STATE_DIR or BSO_URL the one that the training had?"
    return "run one first, or name the file that the training used with BSO_URL or BSO_STATE_DIR"
