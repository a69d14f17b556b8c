"""The embedded mode: an engine over an SQLite file that belongs to the training processes of one machine."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sqlalchemy.engine.url import URL

from bso.domain.commands import BeginTrial, Request
from bso.domain.decide import Rules
from bso.service.answers import Answer
from bso.service.engine import Engine
from bso.service.errors import StoreNotReady, StoreUnavailable, StoreUnusable
from bso.service.leases import expiry_of
from bso.service.records import SchemaStatus
from bso.storage.connections import ConnectionLimits
from bso.storage.errors import BadDatabaseUrl
from bso.storage.filesystems import require_local
from bso.storage.store import SqlStore, open_store
from bso.storage.urls import database_url, shown, sqlite_path, sqlite_url

_DEFAULT_RULES = Rules()
LOCK_WAIT_S = 0.5
"""So long a statement waits for the lock of the file, in a thread that nothing can interrupt; then it is repeated."""
_LIMITS = ConnectionLimits(pool_size=2, lock_wait_s=LOCK_WAIT_S)
_REAPED_AT_ONCE = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedded:
    """An engine and its SQLite file. Without workers, beginning a trial expires its job's lapsed leases."""

    path: Path
    was_created: bool
    store: SqlStore
    engine: Engine

    async def execute(self, requests: Sequence[Request]) -> list[Answer]:
        """Decide requests; see Engine.execute."""
        with named(self.path):
            for job_id in {request.job_id for request in requests if isinstance(request.command, BeginTrial)}:
                await self._reap(job_id)
            return await self.engine.execute(requests)

    async def close(self) -> None:
        """Close the file."""
        await self.store.close()

    async def _reap(self, job_id: str) -> None:
        while lapsed := await self.store.lapsed_leases(job_id=job_id, limit=_REAPED_AT_ONCE):
            answers = await self.engine.execute([expiry_of(lease) for lease in lapsed])
            if not any(answer.events for answer in answers):
                return


class Upgrade(Protocol):
    """Brings a database to the program's schema, alone, however many ask at once: ``bso_migrations.upgrade``."""

    def __call__(self, url: str) -> Awaitable[object]:
        """Upgrade the database at an address."""
        ...


async def open_embedded(path_or_url: str | Path, *, upgrade: Upgrade, rules: Rules = _DEFAULT_RULES) -> Embedded:
    """Open the file, making or upgrading it where needed; any number of processes may do so at once.

    Raises NetworkFileSystem, BadDatabaseUrl, StoreUnusable, or StoreNotReady where a newer release has upgraded the
    file.
    """
    url = _address(path_or_url)
    path = sqlite_path(url)
    require_local(path)
    _make_folder(path)
    was_created = not path.exists()
    store = open_store(url.render_as_string(hide_password=False), limits=_LIMITS, has_outbox=False)
    try:
        with named(path):
            await _bring_up_to_date(store, url, upgrade)
    except BaseException:
        await store.close()
        raise
    return Embedded(path=path, was_created=was_created, store=store, engine=Engine(store, rules))


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Let errors of the file say which file it is, and what to do about one that cannot be used."""
    try:
        yield
    except StoreUnusable as error:
        advice = "repair or remove the file, or let BSO_URL or BSO_STATE_DIR name another place"
        raise StoreUnusable(f"{path}: {error}; {advice}") from error
    except StoreUnavailable as error:
        raise type(error)(f"{path}: {error}") from error


async def _bring_up_to_date(store: SqlStore, url: URL, upgrade: Upgrade) -> None:
    state = await store.schema_state()
    if state.status is SchemaStatus.NEWER:
        raise StoreNotReady(
            f"{url.database} has schema {state.found}, this program knows {state.expected}: upgrade the program"
        )
    if state.status is not SchemaStatus.CURRENT:
        await upgrade(url.render_as_string(hide_password=False))


def _make_folder(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        advice = "let BSO_STATE_DIR, or BSO_URL where that is set, name another place"
        raise StoreUnusable(f"the folder {path.parent} cannot be made: {error}; {advice}") from error


def _address(path_or_url: str | Path) -> URL:
    if not isinstance(path_or_url, str) or "://" not in path_or_url:
        return sqlite_url(Path(path_or_url).expanduser().absolute())
    url = database_url(path_or_url)
    if url.get_backend_name() != "sqlite":
        raise BadDatabaseUrl(f"only an SQLite file can be embedded (sqlite:////path/to/file.sqlite), got {shown(url)}")
    return url
