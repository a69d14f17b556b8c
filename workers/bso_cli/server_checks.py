"""The broker, the workers behind it, and the database."""

from __future__ import annotations

import asyncio
import time
import uuid
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from bso.credentials import shown_address
from bso.domain.errors import BsoError
from bso.domain.quantities import seconds
from bso_cli.findings import Finding, Health, broken, note, ok, schema_finding
from bso_cli.job_checks import check_events, check_jobs, check_log, check_parked
from bso_cli.refusals import sentence_of
from bso_cli.settings import Places

if TYPE_CHECKING:
    from aio_pika.abc import AbstractConnection
    from sqlalchemy import URL

    from bso.storage import SqlStore
    from bso_broker.connection import BrokerAddress, Connection

ANSWER_TIMEOUT_S = 5.0
DATABASE_ADVICE = (
    "does it run, take connections and write, and are host, port, login and name of the database right "
    "(BSO_DATABASE_URL)? the runbook in docs/platform-engineer.md lists what errors mean"
)
TLS_ADVICE = "docs/encryption.md shows what server and address need"
_BROKER_ADVICE = (
    "`rabbitmq-diagnostics alarms` shows whether memory or disk is short; workers go on once there is enough"
)
_WORKERS_ADVICE = "look at the logs and /readyz of the workers: can they reach their database?"


async def check_broker(places: Places) -> list[Finding]:
    """Login, queues, workers, and whether one of them answers."""
    from bso_broker.connection import BrokerAddress, connect

    address = BrokerAddress(url=places.optimizer_url)
    started = time.perf_counter()
    connection = await connect(address, name="bso doctor")
    try:
        took = seconds(time.perf_counter() - started)
        findings = [ok("broker", f"{address}, login {address.login}, {took}"), _encryption(connection, address)]
        queues, has_workers = await _check_queues(connection)
        findings += queues
    finally:
        await connection.close()
    if not has_workers:
        return findings
    answers = await _check_answer(places, _WORKERS_ADVICE)
    return [*findings, answers, *([await _check_logins(places)] if answers.health is Health.OK else [])]


def _encryption(connection: Connection, address: BrokerAddress) -> Finding:
    """How the connection to the broker is encrypted."""
    found = connection.sockets.encryption
    if address.tls.is_on:
        return ok("broker encryption", found)
    if not address.is_exposed:
        return ok("broker encryption", f"{found}: loopback")
    advice = "let the broker listen with TLS, and write amqps:// in the address (docs/encryption.md)"
    return note("broker encryption", f"{found}: who reads the network reads the password and all else", advice)


async def _check_queues(connection: AbstractConnection) -> tuple[list[Finding], bool]:
    from bso_broker.declaration import depth_of
    from bso_broker.errors import NotPermitted, TopologyMissing
    from bso_broker.topology import COMMAND_QUEUE

    start = "start a worker (`bso worker`): it declares exchanges and queues"
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            queue = await depth_of(connection, COMMAND_QUEUE)
    except TopologyMissing:
        return [broken("workers", "no worker has ever been started on this virtual host", start)], False
    except NotPermitted:
        return [note("workers", f"this login may not look at the queue {COMMAND_QUEUE}")], True
    if not queue.consumers:
        found = f"no worker consumes {COMMAND_QUEUE}; {queue.messages} messages wait"
        return [broken("workers", found, "start one (`bso worker`), or look at /readyz of those that run")], False
    working = ok("workers", f"{queue.consumers} consume {COMMAND_QUEUE}; {queue.messages} messages wait")
    return [working, *await _check_leftover(connection)], True


async def _check_leftover(connection: AbstractConnection) -> list[Finding]:
    """Whether the queue that commands had before is still there."""
    from bso_broker.declaration import depth_of
    from bso_broker.topology import FORMER_COMMAND_QUEUE

    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            queue = await depth_of(connection, FORMER_COMMAND_QUEUE)
    except BsoError:
        return []  # it is gone, as it should be, or this login may not look at it
    found = f"{FORMER_COMMAND_QUEUE} is left over from an earlier release: it takes a copy of each command"
    waiting = f"{queue.messages} messages, commands from before the upgrade among them"
    advice = f"when none is missed, delete it: `rabbitmqctl delete_queue {FORMER_COMMAND_QUEUE}` ({waiting})"
    return [broken("queues", found, advice)]


async def check_gateway(places: Places) -> list[Finding]:
    """Whether it answers, and takes the token."""
    from bso.tls import is_loopback

    url = shown_address(places.optimizer_url)
    answers = await _check_answer(places, f"does `bso serve` run there, and a worker behind it? look at {url}/readyz")
    if answers.health is not Health.OK:
        return [answers]
    is_plain = url.startswith("http://") and not is_loopback(urlsplit(url).hostname)
    found = f"{url} is not encrypted: who reads the network reads the token and all else"
    return [ok("gateway", url), answers, *([note("gateway encryption", found)] if is_plain else [])]


async def _check_answer(places: Places, advice: str) -> Finding:
    """Ask for a job that cannot exist: the refusal shows that the whole way works."""
    from bso.domain.commands import DescribeJob, Request
    from bso_client.errors import Unreachable
    from bso_client.transports import open_transport
    from bso_client.transports.broker import BrokerTransport

    transport = open_transport(places.optimizer_url)
    await transport.start()
    started = time.perf_counter()
    try:
        request = Request(command_id=str(uuid.uuid4()), job_id=f"doctor-{uuid.uuid4()}", command=DescribeJob())
        await transport.call(request, timeout_s=ANSWER_TIMEOUT_S)
    except Unreachable as error:
        is_full = isinstance(transport, BrokerTransport) and transport.is_connected and transport.obstacle is not None
        return broken("answers", sentence_of(error), _BROKER_ADVICE if is_full else advice)
    finally:
        await transport.close()
    return ok("answers", f"an answer came within {seconds(time.perf_counter() - started)}")


async def _check_logins(places: Places) -> Finding:
    """Whether rights go by logins that the broker has checked."""
    from bso_cli.broker_reads import asking

    async with asking(places.optimizer_url) as reads:
        try:
            requires = await reads.requires_logins()
        except BsoError as error:
            return note("logins", f"workers do not answer queries: {sentence_of(error)}")
    if requires:
        return ok("logins", "a command must name its login: rights go by logins")
    found = "workers take commands that name no login (BSO_REQUIRE_USER_ID=false): everybody may do everything"
    return note("logins", found, "right only where one team has the broker to itself")


async def check_database(places: Places) -> list[Finding]:
    """Login, encryption and schema."""
    from bso.storage import open_store
    from bso.storage.urls import database_url, shown
    from bso.tls import TlsFailed
    from bso_cli.access import require_existing_file

    assert places.database_url is not None
    address = database_url(places.database_url)
    name = shown(address)
    require_existing_file(places.database_url)
    store = open_store(places.database_url)
    try:
        started = time.perf_counter()
        try:
            await store.ping()
        except BsoError as error:
            advice = TLS_ADVICE if isinstance(error, TlsFailed) else DATABASE_ADVICE
            return [broken("database", f"{name}: {error}", advice)]
        took = seconds(time.perf_counter() - started)
        encryption = [] if address.get_backend_name() == "sqlite" else [await _check_encryption(store, address)]
        schema = schema_finding("database", f"{name}, {took}", await store.schema_state())
        if schema.health is not Health.OK:
            return [schema, *encryption]
        rights = await _check_rights(store)
        found = [*await check_log(store), *await check_events(store), *await check_parked(store)]
        found += await check_jobs(store)
        return [schema, *encryption, *rights, *found]
    finally:
        await store.close()


async def _check_rights(store: SqlStore) -> list[Finding]:
    """Whether a worker could work with this login."""
    from bso.service.errors import StorePrivilegeMissing

    try:
        await store.require_rights()
    except StorePrivilegeMissing as error:
        advice = (
            "docs/secrets.md has the statements that grant it; an operator's login that only reads lacks it rightly"
        )
        return [note("database rights", f"no worker could work with this login: {error}", advice)]
    return []


async def _check_encryption(store: SqlStore, address: URL) -> Finding:
    """How the connection to the database is encrypted."""
    from bso.storage.urls import server_host, tls_of
    from bso.tls import encryption_of, is_loopback

    tls = tls_of(address)
    found = encryption_of(await store.tls_version(), tls)
    if tls.is_on:
        return ok("database encryption", found)
    if is_loopback(server_host(address)):
        return ok("database encryption", f"{found}: loopback")
    advice = "put tls=verify in its place (docs/encryption.md), unless nobody else can read the network between"
    return note("database encryption", f"{found}: tls=off", advice)
