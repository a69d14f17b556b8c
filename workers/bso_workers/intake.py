"""The intake: commands are taken from the broker only while the database can record what is decided on them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator

import structlog
from structlog.typing import FilteringBoundLogger

from bso.domain.errors import BsoError, Misconfigured, Retryable
from bso.service.errors import StoreUnavailable
from bso.service.log_epochs import LogWatch
from bso.service.ports import Store
from bso.service.readiness import require_schema
from bso_broker.ports import CommandSource
from bso_workers.batch_limit import MOST_BATCHES
from bso_workers.metrics import Metrics
from bso_workers.readiness import WorkerReadiness
from bso_workers.troubled_jobs import TroubledJobs
from bso_workers.unforeseen import UnforeseenErrors

_log: FilteringBoundLogger = structlog.get_logger(__name__)

_CHECK_TIMEOUT_S = 10.0
_REMIND_EVERY_S = 30.0
_FAR_S = 0.5  # a database that takes longer for a few reads is far: a new connection takes as long as some decisions
_DATABASE = "database"
_STEADY_S = 10.0  # an intake that was open for so long was not opened in vain
_FIRST_REST_S, _LONGEST_REST_S = 0.5, 30.0


class Intake:
    """Opens and shuts the intake of commands. What it shuts out stays with the broker, for this worker or another."""

    def __init__(
        self,
        *,
        consumer: CommandSource,
        store: Store,
        log_watch: LogWatch,
        parking: TroubledJobs,
        readiness: WorkerReadiness,
        metrics: Metrics,
        unforeseen: UnforeseenErrors,
        check_interval_s: float,
    ) -> None:
        self._consumer = consumer
        self._store = store
        self._log_watch = log_watch
        self._parking = parking
        self._readiness = readiness
        self._metrics = metrics
        self._unforeseen = unforeseen
        self._check_interval_s = check_interval_s
        self._look_s = 0.0  # what a look at the database took last
        self._is_shut = asyncio.Event()
        self.on_shut: Callable[[], None] = lambda: None

    async def run(self) -> None:
        """Keep the intake open while the database is there, for ever."""
        self._is_shut.set()
        await self._consumer.pause("waiting for the database")
        clock = asyncio.get_running_loop().time
        rest_s = 0.0
        while True:
            await self._database_is_back()
            await self._keep_connections_open()
            await self._open()
            began_s = clock()
            await self._something_is_wrong()
            rest_s = rest_after(rest_s, open_s=clock() - began_s)
            await asyncio.sleep(rest_s)

    async def shut(self, error: BsoError) -> None:
        """Stop taking commands, and hand back those not settled, until the database can be written again."""
        if self._is_shut.is_set():
            return
        self._is_shut.set()
        self._metrics.pauses.inc()
        self._readiness.report(_DATABASE, str(error))
        _log.warning("stopped taking commands", action="intake_shut", reason=str(error))
        self.on_shut()
        await self._consumer.pause("paused, as the database cannot be used")

    async def _open(self) -> None:
        self._is_shut.clear()
        self._readiness.report(_DATABASE, None)
        self._readiness.report("worker", None)
        await self._consumer.resume()
        _log.info("the database is there: commands may come", action="intake_open")

    async def _something_is_wrong(self) -> None:
        """Look after the database while commands are taken; return when the intake has been shut."""
        while not self._is_shut.is_set():
            try:
                async with asyncio.timeout(self._check_interval_s):
                    await self._is_shut.wait()
            except TimeoutError:
                obstacle = await self._found(self._look())
                if obstacle is not None:
                    await self.shut(obstacle)
                    return
                await self._keep_connections_open()

    async def _database_is_back(self) -> None:
        reminder = _Reminder()
        for pause_s in _growing_pauses(most_s=self._check_interval_s):
            obstacle = await self.obstacle()
            if obstacle is None:
                return
            self._readiness.report(_DATABASE, str(obstacle))
            reminder.log(obstacle)
            await asyncio.sleep(pause_s)

    async def obstacle(self) -> BsoError | None:
        """What keeps anything from being recorded; None: a row can be written, so that a job is to blame."""
        return await self._found(self._write())

    async def _look(self) -> None:
        clock = asyncio.get_running_loop().time
        began_s = clock()
        await require_schema(self._store)
        if await self._log_watch.look():
            _log.info("another epoch of the log has begun, after `bso restored`: going on in it", action="log_epoch")
        await self._parking.refresh()
        self._look_s = clock() - began_s

    async def _keep_connections_open(self) -> None:
        """Have a connection to a far database open for each batch: one that had to open its own would take seconds."""
        if self._look_s > _FAR_S:
            with contextlib.suppress(TimeoutError):  # then all are in use
                async with asyncio.timeout(_CHECK_TIMEOUT_S):
                    await asyncio.gather(*(self._store.ping() for _ in range(MOST_BATCHES)), return_exceptions=True)

    async def _write(self) -> None:
        await self._look()
        await self._store.parked_jobs.try_writing()

    async def _found(self, check: Coroutine[None, None, None]) -> BsoError | None:
        try:
            async with asyncio.timeout(_CHECK_TIMEOUT_S):
                await check
        except TimeoutError:
            return StoreUnavailable(f"the database did not answer within {_CHECK_TIMEOUT_S:g} s")
        except (Retryable, Misconfigured) as error:
            return error
        except Exception as error:  # noqa: BLE001  noted; it must not end the worker
            self._unforeseen.note(error, part="intake")
            return StoreUnavailable(f"the database cannot be checked: {type(error).__name__}: {error}")
        return None


def rest_after(rest_s: float, *, open_s: float) -> float:
    """How long to rest [s] before the database is tried again, after an intake that was open for so long.

    Where a database comes and goes, each command that was taken meanwhile has used up one of its deliveries.
    """
    return 0.0 if open_s >= _STEADY_S else min(_LONGEST_REST_S, max(_FIRST_REST_S, 2.0 * rest_s))


class _Reminder:
    """Logs an obstacle when it is new, and again from time to time."""

    def __init__(self) -> None:
        self._said = ""
        self._said_at_s = 0.0

    def log(self, obstacle: BsoError) -> None:
        """Say it, unless that has just been done."""
        now_s = asyncio.get_running_loop().time()
        words = str(obstacle)
        if words != self._said or now_s - self._said_at_s > _REMIND_EVERY_S:
            self._said, self._said_at_s = words, now_s
            _log.warning("waiting for the database", action="waiting_for_database", reason=words)


def _growing_pauses(*, most_s: float) -> Iterator[float]:
    pause_s = 0.1
    while True:
        yield pause_s
        pause_s = min(most_s, pause_s * 2)
