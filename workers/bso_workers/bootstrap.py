"""Wiring: the only place where a worker's parts meet their broker and their database."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import structlog
from structlog.typing import FilteringBoundLogger

from bso.domain.errors import Misconfigured
from bso.schema.codec import build_validators
from bso.service.engine import Engine, Patience
from bso.service.log_epochs import LogWatch
from bso.service.ports import Reads, Store
from bso.storage import open_store
from bso.storage.connections import ConnectionLimits
from bso_broker.connection import BrokerAddress, login_of
from bso_broker.ports import Broker, CommandSource, QuerySource
from bso_broker.rabbit import RabbitBroker
from bso_workers.admission import Admission
from bso_workers.batch_limit import BatchLimit
from bso_workers.health import HealthPages, serve_health
from bso_workers.intake import Intake
from bso_workers.lifecycle import (
    ExitCode,
    Loop,
    StopSignal,
    Tasks,
    collect_garbage_seldom,
    fastest_loop,
    run_together,
)
from bso_workers.logs import configure_logs, warn_of_misspelt
from bso_workers.metrics import CountedStore, Metrics
from bso_workers.outbox import MARK_AFTER_S, EventOutbox
from bso_workers.queries import TOO_MANY, QueryAnswers
from bso_workers.rates import Rates
from bso_workers.readiness import JOBS, WorkerReadiness
from bso_workers.reaper import Reaper
from bso_workers.recovery import Recovery
from bso_workers.relay import Relay
from bso_workers.savings import SavingsWatch
from bso_workers.settings import PREFIX, WorkerSettings, variables_of
from bso_workers.settlement import Settlement
from bso_workers.troubled_jobs import TroubledJobs
from bso_workers.unforeseen import UnforeseenErrors
from bso_workers.worker import CommandWorker

_log: FilteringBoundLogger = structlog.get_logger(__name__)

STUCK_AFTER_S = 600.0
"""A batch under way for so long hangs on something that should have had a deadline: the process is not alive."""
_CONNECTIONS = ConnectionLimits(pool_size=16, lock_wait_s=1.0)
_FOR_QUERIES = ConnectionLimits(pool_size=1, lock_wait_s=1.0)
_ALONE_S = 5.0  # how long a job that goes alone is tried before it is parked
_RECOVERY_S = 1.0  # between two looks for jobs in trouble whose pauses are over
_HEARTBEAT_S = 4
"""RabbitMQ takes back what a frozen worker was handed after two to three times as long."""
_CLOSE_TIMEOUT_S = 3.0
_SWITCH_S = 0.0005
"""A costly decision is made in a thread of its own; each time all others are to go on, it gives way within so long."""


def run_worker(settings: WorkerSettings) -> ExitCode:
    """Work until SIGTERM or SIGINT, then drain; a second signal ends the process at once."""
    configure_logs(level=settings.log_level, style=settings.log_format, stream=sys.stderr)
    warn_of_misspelt(os.environ, variables_of(WorkerSettings, prefix=PREFIX))
    sys.setswitchinterval(_SWITCH_S)
    with asyncio.Runner(loop_factory=fastest_loop()) as runner:
        return runner.run(_until_signalled(settings))


async def _until_signalled(settings: WorkerSettings) -> ExitCode:
    collect_garbage_seldom()
    with StopSignal() as stop:
        try:
            return await serve(settings, until=stop.wait)
        except Misconfigured as error:
            _log.error("cannot start like this", action="misconfigured", reason=str(error))
            return ExitCode.MISCONFIGURED


async def serve(settings: WorkerSettings, *, until: Callable[[], Awaitable[str]]) -> ExitCode:
    """Work until a signal to stop. A broker or database that is away is waited for; Misconfigured is a bad address."""
    warn_of_unchecked_logins(settings)
    build_validators()  # while there are file descriptors
    store = open_store(settings.database_url, limits=_CONNECTIONS)
    reads = open_store(settings.database_url, limits=_FOR_QUERIES)
    try:
        address = BrokerAddress(url=settings.amqp_url, heartbeat_s=_HEARTBEAT_S)
        warn_of_plain_connection(address)
        async with RabbitBroker(address, operators=settings.operators) as broker:
            parts = assemble(settings, broker=broker, store=store, reads=reads)
            pages = parts.health_pages()
            async with serve_health(pages, host=settings.health_host, port=settings.health_port) as port:
                _log.info("worker started", action="started", host=settings.health_host, port=port)
                exit_code = await run_together(parts.loops, until=until, drain=parts.drain)
            _log.info("worker ended", action="ended", exit_code=int(exit_code))
            return exit_code
    finally:
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await asyncio.gather(store.close(), reads.close())


def warn_of_unchecked_logins(settings: WorkerSettings) -> None:
    """Warn where rights go by logins that senders need not name."""
    if not settings.require_user_id:
        _log.warning(
            "commands need not name their login, so everybody may do everything with every job: right only where one "
            "team has the broker to itself; else remove BSO_REQUIRE_USER_ID=false",
            action="no_login_check",
        )


def warn_of_plain_connection(address: BrokerAddress) -> None:
    """Warn where the network can read what a worker and its broker send each other."""
    if address.is_exposed:
        _log.warning(
            "the connection to the broker is not encrypted: who reads the network reads the password and everything "
            "else; let the broker listen with TLS, and write amqps:// (docs/encryption.md)",
            action="not_encrypted",
            broker=str(address),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerParts:
    """A worker, wired but not running."""

    consumer: CommandSource
    worker: CommandWorker
    intake: Intake
    outbox: EventOutbox
    relay: Relay
    reaper: Reaper
    recovery: Recovery
    queries: QuerySource
    savings: SavingsWatch
    readiness: WorkerReadiness
    metrics: Metrics
    unforeseen: UnforeseenErrors
    drain_timeout_s: float

    @property
    def loops(self) -> Mapping[str, Loop]:
        """Everything that runs side by side, by name."""
        kept_up = {
            "intake": self.intake.run,
            "outbox": self.outbox.run,
            "relay": self.relay.run,
            "reaper": self.reaper.run,
            "recovery": self.recovery.run,
            "queries": self.queries.run,
            "readiness": self.readiness.watch,
            "savings": self.savings.run,
        }
        loops = {part: partial(self.unforeseen.keep_up, part, loop) for part, loop in kept_up.items()}
        return {"worker": self.worker.run, **loops}

    async def drain(self, tasks: Tasks) -> None:
        """Take no more commands, finish those taken, publish what they led to; what is late stays with the broker."""
        self.readiness.report("worker", "draining")
        for name in ("intake", "relay", "reaper", "recovery", "queries", "savings"):
            tasks[name].cancel()
        try:
            async with asyncio.timeout(self.drain_timeout_s):
                await self.consumer.drain(timeout_s=self.drain_timeout_s)
                await asyncio.wait([tasks["worker"]])
                await self.outbox.flushed()
        except TimeoutError:
            _log.warning("not all was done in time: the broker delivers the rest again", action="drained_late")
            await self.consumer.close()

    def health_pages(self) -> HealthPages:
        """What is served over HTTP."""
        return HealthPages(
            readiness=self.readiness,
            metrics=self.metrics,
            busy_for_s=self.worker.busy_for_s,
            stuck_after_s=STUCK_AFTER_S,
        )


def assemble(settings: WorkerSettings, *, broker: Broker, store: Store, reads: Reads) -> WorkerParts:
    """Wire a worker to a broker and a store; call it inside the event loop that it will run in.

    ``reads`` is the same store with connections of its own, for queries.
    """
    metrics = Metrics()
    consumer = broker.command_consumer(batch_limit=settings.prefetch, prefetch=settings.prefetch)
    events = broker.event_publisher()
    mark_after_s = min(MARK_AFTER_S, settings.relay_age_s / 10)
    clock = asyncio.get_running_loop().time
    log_watch = LogWatch(store.log_epochs)
    settlement = Settlement(consumer=consumer, replies=broker.reply_publisher(), metrics=metrics)
    parking = TroubledJobs(
        jobs=store.parked_jobs, settlement=settlement, metrics=metrics, clock=clock, limit_s=settings.park_limit_s
    )
    relay = Relay(
        store=store, sink=events, metrics=metrics, age_s=settings.relay_age_s, interval_s=settings.relay_interval_s
    )
    batch_limit = BatchLimit(settings.batch_limit)
    obstacles: dict[str, Callable[[], str | None]] = {
        "publishing": broker.publishing_obstacle,
        "replies": lambda: settlement.obstacle,
        "events": lambda: relay.obstacle,
        JOBS: lambda: parking.obstacle,
        "transactions": lambda: batch_limit.obstacle,
    }
    shared = _Shared(
        settings=settings,
        store=store,
        consumer=consumer,
        log_watch=log_watch,
        engine=_engine(settings, store, metrics, log_watch),
        outbox=EventOutbox(sink=events, marks=store, metrics=metrics, mark_after_s=mark_after_s),
        readiness=WorkerReadiness(broker=lambda: consumer.readiness, clock=clock, others=obstacles),
        metrics=metrics,
        unforeseen=UnforeseenErrors(metrics),
    )
    intake = _intake(shared, parking)
    worker = _command_worker(shared, intake, parking, settlement, batch_limit)
    return WorkerParts(
        consumer=consumer,
        worker=worker,
        intake=intake,
        outbox=shared.outbox,
        relay=relay,
        reaper=_reaper(shared, parking),
        recovery=_recovery(shared, parking, worker),
        queries=_queries(settings, broker, reads),
        savings=SavingsWatch(reads=reads, metrics=metrics, interval_s=settings.savings_interval_s),
        readiness=shared.readiness,
        metrics=metrics,
        unforeseen=shared.unforeseen,
        drain_timeout_s=settings.drain_timeout_s,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shared:
    """What most parts of a worker work with."""

    settings: WorkerSettings
    store: Store
    consumer: CommandSource
    log_watch: LogWatch
    engine: Engine
    outbox: EventOutbox
    readiness: WorkerReadiness
    metrics: Metrics
    unforeseen: UnforeseenErrors


def _queries(settings: WorkerSettings, broker: Broker, reads: Reads) -> QuerySource:
    answers = QueryAnswers(
        reads=reads,
        rules=settings.rules,
        requires_user_id=settings.require_user_id,
        gateways=settings.gateways,
    )
    return broker.query_consumer(answers.answer, refusal=TOO_MANY)


def _engine(settings: WorkerSettings, store: Store, metrics: Metrics, log_watch: LogWatch) -> Engine:
    patience = Patience(attempt_s=settings.database_timeout_s, total_s=_ALONE_S)
    return Engine(
        store,
        settings.rules,
        patience=patience,
        on_retry=metrics.database_retries.inc,
        watch=log_watch,
        optimistic=None if store.optimistic is None else CountedStore(store.optimistic, metrics),
    )


def _intake(shared: _Shared, parking: TroubledJobs) -> Intake:
    return Intake(
        consumer=shared.consumer,
        store=shared.store,
        log_watch=shared.log_watch,
        parking=parking,
        readiness=shared.readiness,
        metrics=shared.metrics,
        unforeseen=shared.unforeseen,
        check_interval_s=shared.settings.check_interval_s,
    )


def _admission(settings: WorkerSettings) -> Admission:
    """Operators are believed, and so is the workers' own login: an operator may requeue what it had parked."""
    believed = settings.operators | {login_of(settings.amqp_url)}
    return Admission(operators=believed, gateways=settings.gateways, requires_user_id=settings.require_user_id)


def _command_worker(
    shared: _Shared, intake: Intake, parking: TroubledJobs, settlement: Settlement, batch_limit: BatchLimit
) -> CommandWorker:
    settings = shared.settings
    return CommandWorker(
        consumer=shared.consumer,
        decider=shared.engine,
        admission=_admission(settings),
        rates=Rates(rules=settings.rules, metrics=shared.metrics, clock=asyncio.get_running_loop().time),
        settlement=settlement,
        parking=parking,
        intake=intake,
        outbox=shared.outbox,
        metrics=shared.metrics,
        batch_limit=batch_limit,
        most_of_a_job=max(1, settings.prefetch // 2),
        park_limit_s=settings.park_limit_s,
    )


def _reaper(shared: _Shared, parking: TroubledJobs) -> Reaper:
    return Reaper(
        store=shared.store,
        decider=shared.engine,
        outbox=shared.outbox,
        metrics=shared.metrics,
        unforeseen=shared.unforeseen,
        parking=parking,
        ready_for_s=shared.readiness.ready_for_s,
        waiting_commands=shared.consumer.ready_messages,
        lease_s=shared.settings.lease_s,
        interval_s=shared.settings.reaper_interval_s,
    )


def _recovery(shared: _Shared, parking: TroubledJobs, worker: CommandWorker) -> Recovery:
    return Recovery(
        store=shared.store,
        decider=shared.engine,
        parking=parking,
        unforeseen=shared.unforeseen,
        ready_for_s=shared.readiness.ready_for_s,
        has_lane=worker.has_lane,
        interval_s=min(_RECOVERY_S, shared.settings.check_interval_s),
    )
