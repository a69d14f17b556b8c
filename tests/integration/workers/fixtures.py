"""What tests of workers start and stop: databases with tables, brokers, workers as processes and in this process."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import structlog

from bso.service.memory import InMemoryStore
from bso.service.ports import Store
from bso.storage import SqlStore, open_store
from bso_broker.rabbit import RabbitBroker
from bso_migrations import upgrade
from bso_workers.bootstrap import WorkerParts, assemble
from bso_workers.lifecycle import ExitCode, run_together
from bso_workers.settings import WorkerSettings
from tests.fakes.memory_broker import Broker, MemoryBroker
from tests.integration.workers.processes import WorkerProcess
from tests.integration.workers.recurrences import Queue
from tests.servers import PATIENCE_S, eventually_async

__all__ = [
    "ask",
    "clock",
    "logs_as_records",
    "memory_broker",
    "memory_store",
    "migrated_url",
    "run_worker",
    "start_worker",
    "store",
    "store_by_clock",
]

StartWorker = Callable[..., WorkerProcess]
RunWorker = Callable[..., AbstractAsyncContextManager[WorkerParts]]

# Quick enough for tests, slow enough for a busy machine.
QUICK: dict[str, Any] = {"check_interval_s": 0.3, "relay_interval_s": 0.2, "reaper_interval_s": 0.2}


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = datetime(2026, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def forward(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


@pytest.fixture(autouse=True)
def logs_as_records() -> Iterator[None]:
    """Hand what workers in this process log to pytest, with the facts as attributes of the records."""
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, structlog.stdlib.render_to_log_kwargs],
        logger_factory=structlog.stdlib.LoggerFactory(),
    )
    yield
    structlog.reset_defaults()


@pytest.fixture
async def migrated_url(mysql_url: str) -> str:
    """A database with tables, without rows."""
    await upgrade(mysql_url)
    return mysql_url


@pytest.fixture
async def store(migrated_url: str) -> AsyncIterator[SqlStore]:
    """What the workers' database holds."""
    store = open_store(migrated_url)
    yield store
    await store.close()


@pytest.fixture
async def ask(amqp_url: str) -> AsyncIterator[Queue]:
    """Sends commands through the broker."""
    async with RabbitBroker(amqp_url) as broker, Queue(broker=broker) as queue:
        yield queue


@pytest.fixture
def start_worker(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[StartWorker]:
    """Starts worker processes; at the test's end they are drained.

    Their URLs are those of the test, unless given; other arguments are settings.
    """
    workers: list[WorkerProcess] = []

    def start(
        *, amqp_url: str | None = None, database_url: str | None = None, program: Any = None, **settings: object
    ) -> WorkerProcess:
        environ = {
            "BSO_AMQP_URL": request.getfixturevalue("amqp_url") if amqp_url is None else amqp_url,
            "BSO_DATABASE_URL": request.getfixturevalue("mysql_url") if database_url is None else database_url,
            "BSO_HEALTH_PORT": "0",
            "BSO_LOG_FORMAT": "json",
        }
        environ |= {f"BSO_{name.upper()}": str(value) for name, value in (QUICK | settings).items()}
        log = tmp_path / f"worker-{len(workers) + 1}.log"
        options = {} if program is None else {"program": program}
        workers.append(WorkerProcess(log, environ, **options))
        return workers[-1]

    yield start
    for worker in workers:
        worker.stop()


@pytest.fixture
def memory_broker() -> MemoryBroker:
    """A broker in this process."""
    return MemoryBroker(user="trainer", operators=["operator"])


@pytest.fixture
def memory_store() -> InMemoryStore:
    """A store in this process."""
    return InMemoryStore(lambda: datetime.now(UTC))


@pytest.fixture
def clock() -> Clock:
    """The clock of `store_by_clock`."""
    return Clock()


@pytest.fixture
def store_by_clock(clock: Clock) -> InMemoryStore:
    """A store in this process in which only the test lets time pass."""
    return InMemoryStore(clock)


@pytest.fixture
def run_worker() -> RunWorker:
    """Runs a worker in this process, inside `async with`, ready when the block begins and drained after it."""
    return running_worker


@asynccontextmanager
async def running_worker(
    broker: Broker, store: Store, *, is_ready: bool = True, **settings: Any
) -> AsyncIterator[WorkerParts]:
    given = {"database_url": "unused", "amqp_url": "unused", "drain_timeout_s": PATIENCE_S / 2, **QUICK, **settings}
    parts = assemble(WorkerSettings(**given), broker=broker, store=store, reads=store)
    is_over = asyncio.Event()

    async def until() -> str:
        await is_over.wait()
        return "the test is over"

    running = asyncio.create_task(run_together(parts.loops, until=until, drain=parts.drain))
    try:
        if is_ready:
            await eventually_async(lambda: parts.readiness.is_ready or running.done(), what="a ready worker")
        yield parts
    finally:
        is_over.set()
        async with asyncio.timeout(PATIENCE_S):
            exit_code = await running
    assert exit_code is ExitCode.DRAINED
