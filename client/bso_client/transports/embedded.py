"""The optimizer inside this process: the engine over an SQLite file that belongs to the trainings of one machine."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from sqlalchemy.engine.url import URL

from bso.domain.commands import BeginTrial, FinishTrial, RegisterJob, RenewLease, ReportEpoch, Request
from bso.domain.decide import Rules
from bso.domain.errors import Retryable
from bso.domain.identifiers import job_id_for
from bso.domain.policies import PolicyMissing
from bso.domain.replies import EpochJudged, LeaseRenewed, Problem, Reply, TrialBegun
from bso.domain.trial import Outcome
from bso.private_files import denial, make_folders
from bso.service.answers import Answer
from bso.service.engine import Engine
from bso.service.errors import Conflict, SchemaMissing, StoreNotReady, StoreUnavailable, StoreUnusable
from bso.service.leases import expiry_of
from bso.service.records import SchemaStatus
from bso.storage.connections import ConnectionLimits
from bso.storage.errors import BadDatabaseUrl
from bso.storage.filesystems import require_local
from bso.storage.store import SqlStore, open_store
from bso.storage.urls import database_url, shown, sqlite_path, sqlite_url
from bso_client.errors import Unreachable
from bso_client.transports.presence import Presence, Trained

logger = logging.getLogger("bso")

_DEFAULT_RULES = Rules()
_PAUSE_S = 0.2  # before a command is offered again to a file that was locked
LOCK_WAIT_S = 0.5
"""So long a statement waits for the lock of the file, in a thread that nothing can interrupt; then it is repeated."""
_LIMITS = ConnectionLimits(pool_size=2, lock_wait_s=LOCK_WAIT_S)
_REAPED_AT_ONCE = 100
_ELSEWHERE = "let BSO_STATE_DIR, or BSO_URL where that is set, name another place"


class EmbeddedTransport:
    """Decides here. Any number of processes of one machine may share the file."""

    def __init__(self, path_or_url: str | Path, *, rules: Rules = _DEFAULT_RULES) -> None:
        self._path_or_url = path_or_url
        self._rules = rules
        self._embedded: Embedded | None = None
        self._opening = asyncio.Lock()
        self._quiet_at_s = 0.0  # until then a thread may wait for the file on behalf of a command that was given up

    async def start(self) -> None:
        """Open the file, making or upgrading it where needed."""
        try:
            await self._opened()
        except Retryable as error:
            raise Unreachable(str(error)) from error

    async def call(self, request: Request, *, timeout_s: float) -> Reply:
        """The reply to a command; Unreachable when the file stayed locked."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        request = _addressed(request)
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    embedded = await self._opened()
                    answers = await embedded.execute([request])
                reply = answers[0].reply
                if not (isinstance(reply, EpochJudged) and not reply.should_stop):
                    embedded.note(request, reply)
                return reply
            except PolicyMissing as error:
                return Problem(type="policy_missing", title="The policy of the job is not installed", detail=str(error))
            except TimeoutError as error:
                self._quiet_at_s = loop.time() + 3.0 * LOCK_WAIT_S
                file = self._path_or_url if self._embedded is None else self._embedded.path
                raise Unreachable(f"the optimizer's file {file} did not answer within {timeout_s:g} s") from error
            except Retryable as error:
                if loop.time() + _PAUSE_S >= deadline:
                    raise Unreachable(str(error)) from error
            await asyncio.sleep(_PAUSE_S)

    async def close(self) -> None:
        """Close the file. A thread that still waits for it ends first: it needs the event loop for that."""
        await asyncio.sleep(self._quiet_at_s - asyncio.get_running_loop().time())
        embedded, self._embedded = self._embedded, None
        if embedded is not None:
            await embedded.close()

    async def _opened(self) -> Embedded:
        async with self._opening:
            if self._embedded is None:
                self._embedded = await open_embedded(self._path_or_url, rules=self._rules)
            return self._embedded


def _addressed(request: Request) -> Request:
    """A registration without a job's name makes one, as it does for a worker that reads it from the queue."""
    if request.job_id or not isinstance(request.command, RegisterJob):
        return request
    return replace(request, job_id=job_id_for(request.command.job_id_prefix, request.command_id))


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedded:
    """An engine and its SQLite file.

    Without workers, beginning a trial expires its job's lapsed leases, and suspends trials whose processes are gone.
    """

    path: Path
    was_created: bool
    store: SqlStore
    engine: Engine
    presence: Presence

    async def execute(self, requests: Sequence[Request]) -> list[Answer]:
        """Decide requests; see Engine.execute."""
        with named(self.path):
            for job_id in {request.job_id for request in requests if isinstance(request.command, BeginTrial)}:
                await self._suspend_gone(job_id)
                await self._reap(job_id)
            return [_explained(answer) for answer in await self.engine.execute(requests)]

    def note(self, request: Request, reply: Reply) -> None:
        """Keep up which trials this process trains. A folder that cannot be written leaves that to the leases."""
        command = request.command
        with suppress(OSError):
            if isinstance(reply, TrialBegun):
                self._enter(request.job_id, reply.trial_number, reply.trial_id)
            elif isinstance(reply, LeaseRenewed) and isinstance(command, RenewLease):
                self._enter(request.job_id, command.trial_number, command.trial_id)
            elif isinstance(command, FinishTrial) or (
                isinstance(command, ReportEpoch) and isinstance(reply, EpochJudged)
            ):
                self.presence.leave(request.job_id, command.trial_number)

    def _enter(self, job_id: str, trial_number: int, trial_id: str) -> None:
        self.presence.enter(Trained(job_id=job_id, trial_number=trial_number, trial_id=trial_id))

    async def close(self) -> None:
        """Close the file."""
        self.presence.close()
        await self.store.close()

    async def _suspend_gone(self, job_id: str) -> None:
        """Suspend trials whose processes have ended: they can be resumed, and nobody waits for them."""
        with suppress(OSError), self.presence.gone(job_id) as gone:
            if gone:
                await self.engine.execute([_suspension(trained) for trained in gone])

    async def _reap(self, job_id: str) -> None:
        while lapsed := await self.store.lapsed_leases(job_id=job_id, limit=_REAPED_AT_ONCE):
            answers = await self.engine.execute([expiry_of(lease) for lease in lapsed])
            if not any(answer.events for answer in answers):
                return


def _explained(answer: Answer) -> Answer:
    """An answer that says why a command cannot be decided: without a broker no operator finds that elsewhere."""
    if answer.poison is None or not isinstance(answer.reply, Problem):
        return answer
    words = "a command of job %s cannot be decided: %s"
    logger.error(words, answer.request.job_id, answer.poison, extra={"action": "undecidable"}, exc_info=answer.error)
    return replace(answer, reply=replace(answer.reply, detail=f"Nothing was recorded: {answer.poison}"))


def _suspension(trained: Trained) -> Request:
    finish = FinishTrial(
        trial_number=trained.trial_number,
        trial_id=trained.trial_id,
        outcome=Outcome.INTERRUPTED,
        reason="its process has ended",
        may_resume=True,
    )
    return Request(command_id=str(uuid.uuid4()), job_id=trained.job_id, command=finish)


async def open_embedded(path_or_url: str | Path, *, rules: Rules = _DEFAULT_RULES) -> Embedded:
    """Open the file, making or upgrading it where needed; any number of processes may do so at once.

    Raises NetworkFileSystem, BadDatabaseUrl, StoreUnusable, or StoreNotReady where a newer release has upgraded the
    file.
    """
    url = _address(path_or_url)
    path = sqlite_path(url)
    require_local(path)
    with _opening(path):
        make_folders(path.parent)
        was_created = not path.exists()
    store = open_store(url.render_as_string(hide_password=False), limits=_LIMITS, has_outbox=False)
    try:
        with _opening(path), named(path):
            await _bring_up_to_date(store, url)
    except BaseException:
        await store.close()
        raise
    engine = Engine(store, rules)
    return Embedded(path=path, was_created=was_created, store=store, engine=engine, presence=Presence.beside(path))


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Let errors of the file say which file it is, and what to do about one that cannot be used."""
    try:
        yield
    except SchemaMissing as error:
        if path.exists():
            raise
        raise SchemaMissing(f"{path} was there, and is gone: the next process makes a new one") from error
    except StoreUnusable as error:
        words = denial(path)
        advice = _ELSEWHERE if words else f"repair or remove the file, or {_ELSEWHERE}"
        raise StoreUnusable(f"{words or f'{path}: {error}'}; {advice}") from error
    except (StoreUnavailable, Conflict) as error:
        raise type(error)(f"{path}: {error}") from error


@contextmanager
def _opening(path: Path) -> Iterator[None]:
    """Let errors of the disk say what cannot be made or opened, and what to do. Raises StoreUnusable."""
    try:
        yield
    except OSError as error:
        words = denial(path) or f"{path} cannot be made, or opened: {error}"
        raise StoreUnusable(f"{words}; {_ELSEWHERE}") from error


async def _bring_up_to_date(store: SqlStore, url: URL) -> None:
    state = await store.schema_state()
    if state.status is SchemaStatus.NEWER:
        raise StoreNotReady(
            f"{url.database} has schema {state.found}, this program knows {state.expected}: upgrade the program"
        )
    if state.status is not SchemaStatus.CURRENT:
        from bso_migrations import upgrade  # Alembic takes its time, and a file that is up to date does not need it

        await upgrade(url.render_as_string(hide_password=False))


def _address(path_or_url: str | Path) -> URL:
    if not isinstance(path_or_url, str) or "://" not in path_or_url:
        return sqlite_url(Path(path_or_url).expanduser().absolute())
    url = database_url(path_or_url)
    if url.get_backend_name() != "sqlite":
        raise BadDatabaseUrl(f"only an SQLite file can be embedded (sqlite:////path/to/file.sqlite), got {shown(url)}")
    return url
