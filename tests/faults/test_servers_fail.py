"""Broker and database are killed, frozen, cut off and broken under load: nothing is lost, nothing is doubled."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace

import pytest

from bso.domain.commands import DescribeJob, Request
from bso.schema.codec import encode_command
from bso.service.errors import StoreUnavailable
from bso.storage import SqlStore, open_store
from bso.storage.connections import ConnectionLimits
from bso.storage.schema import VERSION_TABLE
from bso.storage.tables import metadata
from bso_broker.errors import CallTimeout
from bso_broker.rabbit import RabbitBroker
from bso_broker.topology import COMMAND_QUEUE, EVENT_LOG, EVENTS, PARKED
from bso_migrations import upgrade
from tests.integration.broker.test_broker_failures import settled_down
from tests.integration.gateway.conftest import StartGateway, start_gateway
from tests.integration.workers.fixtures import StartWorker
from tests.integration.workers.processes import WorkerProcess
from tests.integration.workers.recurrences import Load, Queue, audit, begin, new_job, register, train
from tests.servers import TcpProxy, eventually_async
from tools.private_servers import MariaDB, RabbitMQ

__all__ = ["start_gateway"]  # a fixture


@dataclass(frozen=True, kw_only=True)
class Stack:
    """Two workers over servers that may be broken."""

    rabbitmq: RabbitMQ
    mariadb: MariaDB
    amqp_url: str
    database_url: str
    workers: Sequence[WorkerProcess]

    def reasons(self) -> list[str]:
        return [reason for worker in self.workers for reason in worker.reasons().values()]

    async def all_ready(self) -> None:
        for worker in self.workers:
            await asyncio.to_thread(worker.ready)

    async def none_ready(self) -> None:
        def is_none_ready() -> bool:
            return all(worker.page("readyz")[0] == 503 for worker in self.workers)

        await asyncio.to_thread(self.workers[0].until, is_none_ready)
        assert all(worker.page("livez")[0] == 200 for worker in self.workers)

    def dead_letters(self) -> float:
        return sum(worker.metric("bso_dead_letters_total") for worker in self.workers)


@pytest.fixture
def command_queue() -> str:
    """The type of the queue of commands."""
    return "quorum"


@pytest.fixture
async def stack(
    breakable_rabbitmq: RabbitMQ, breakable_mariadb: MariaDB, start_worker: StartWorker, command_queue: str
) -> Stack:
    amqp_url, database_url = breakable_rabbitmq.create_vhost(), breakable_mariadb.create_database()
    await upgrade(database_url)
    urls = {"amqp_url": amqp_url, "database_url": database_url}
    of_workers = urls | {"amqp_url": f"{amqp_url}?command_queue={command_queue}"}
    workers = [start_worker(**of_workers, database_timeout_s=5.0) for _ in range(2)]
    for worker in workers:
        worker.ready()
    return Stack(
        rabbitmq=breakable_rabbitmq,
        mariadb=breakable_mariadb,
        workers=workers,
        **urls,
    )


async def answers_more(worker: WorkerProcess) -> None:
    """Wait until it has answered something from now on."""
    before = worker.metric("bso_commands_total")

    def has_answered_more() -> bool:
        return worker.metric("bso_commands_total") > before

    await eventually_async(has_answered_more, what="more answers")


async def under_load(stack: Stack, break_and_mend: Callable[[], Awaitable[None]]) -> None:
    """Break something while trainings run; afterwards they go on, and everything agrees."""
    job = new_job()
    async with RabbitBroker(stack.amqp_url) as broker, Queue(broker=broker, is_patient=True) as ask:
        await register(ask, job)
        async with Load(ask=ask, job_id=job) as load:
            await load.progress(10)
            await break_and_mend()
            await load.progress(20)
    await stack.all_ready()
    store = open_store(stack.database_url)
    try:
        assert load.trials == await audit(store, job)
        await eventually_async(lambda: _all_published(store))
    finally:
        await store.close()
    assert stack.dead_letters() == 0
    for worker in stack.workers:
        assert worker.process.poll() is None, "nothing crashed"


async def _all_published(store: SqlStore) -> bool:
    return not (await store.unpublished(older_than_s=0.0)).events


@pytest.mark.slow
@pytest.mark.parametrize("command_queue", ["quorum", "classic"])
async def test_the_broker_is_killed_and_started_again(stack: Stack) -> None:
    async def break_and_mend() -> None:
        await asyncio.to_thread(settled_down, stack.rabbitmq, stack.amqp_url)
        stack.rabbitmq.kill()
        await stack.none_ready()
        await asyncio.to_thread(stack.rabbitmq.start)

    await under_load(stack, break_and_mend)


@pytest.mark.slow
async def test_the_broker_is_frozen_until_the_workers_give_up_and_thawed(
    stack: Stack, start_worker: StartWorker
) -> None:
    for worker in stack.workers:
        worker.stop()
    urls = {"amqp_url": f"{stack.amqp_url}?heartbeat=2", "database_url": stack.database_url}
    watchful = replace(stack, workers=[start_worker(**urls).ready() for _ in range(2)])

    async def break_and_mend() -> None:
        watchful.rabbitmq.freeze()
        await watchful.none_ready()
        watchful.rabbitmq.thaw()

    await under_load(watchful, break_and_mend)


@pytest.mark.slow
async def test_the_database_is_killed_and_started_again(stack: Stack) -> None:
    async def break_and_mend() -> None:
        stack.mariadb.kill()
        await stack.none_ready()
        await asyncio.to_thread(stack.mariadb.start)

    await under_load(stack, break_and_mend)


@pytest.mark.slow
async def test_the_database_is_restarted_at_once_several_times(stack: Stack) -> None:
    async def break_and_mend() -> None:
        for _ in range(3):
            stack.mariadb.kill()
            await asyncio.to_thread(stack.mariadb.start)
            await stack.all_ready()

    await under_load(stack, break_and_mend)


@pytest.mark.slow
async def test_the_database_is_frozen_until_the_workers_give_up_and_thawed(stack: Stack) -> None:
    async def break_and_mend() -> None:
        stack.mariadb.freeze()
        await stack.none_ready()
        assert any("did not answer within" in reason for reason in stack.reasons())
        stack.mariadb.thaw()

    await under_load(stack, break_and_mend)


@pytest.mark.slow
async def test_a_table_is_missing_for_a_while(stack: Stack) -> None:
    name = stack.database_url.rpartition("/")[2]

    async def break_and_mend() -> None:
        stack.mariadb.execute(f"RENAME TABLE {name}.event TO {name}.event_away")
        await stack.none_ready()
        assert any("event" in reason for reason in stack.reasons())
        paused = [worker.metric("bso_pauses_total") for worker in stack.workers]
        await eventually_async(lambda: all(len(w.lines("waiting_for_database")) >= 1 for w in stack.workers))
        assert [worker.metric("bso_pauses_total") for worker in stack.workers] == paused, "no opening in between"
        stack.mariadb.execute(f"RENAME TABLE {name}.event_away TO {name}.event")

    await under_load(stack, break_and_mend)


async def test_the_database_is_read_only_for_a_while(
    breakable_rabbitmq: RabbitMQ, breakable_mariadb: MariaDB, start_worker: StartWorker
) -> None:
    """For an ordinary login: those that may write all the same notice nothing."""
    amqp_url, database_url = breakable_rabbitmq.create_vhost(), breakable_mariadb.create_database()
    await upgrade(database_url)
    plain_url = breakable_mariadb.create_login(database_url)
    worker = start_worker(amqp_url=amqp_url, database_url=plain_url).ready()
    job = new_job()
    async with RabbitBroker(amqp_url) as broker, Queue(broker=broker) as ask:
        await register(ask, job)
        breakable_mariadb.execute("SET GLOBAL read_only = 1")
        try:
            pending = asyncio.create_task(begin(ask, job))
            await asyncio.to_thread(worker.until, lambda: "read" in worker.reasons().get("database", ""))
        finally:
            breakable_mariadb.execute("SET GLOBAL read_only = 0")
        trial = await pending
        await train(ask, job, trial, lambda: None)
    assert worker.metric("bso_dead_letters_total") == 0
    store = open_store(database_url)
    assert await audit(store, job) == 1
    await store.close()


async def test_the_right_to_write_events_alone_is_taken_away_for_a_while(
    breakable_rabbitmq: RabbitMQ, breakable_mariadb: MariaDB, start_worker: StartWorker
) -> None:
    """No job is to blame."""
    amqp_url, database_url = breakable_rabbitmq.create_vhost(), breakable_mariadb.create_database()
    await upgrade(database_url)
    plain_url, name = breakable_mariadb.create_login(database_url), database_url.rpartition("/")[2]
    login = plain_url.partition("//")[2].partition(":")[0]
    grants = "; ".join(f"GRANT ALL ON {name}.{table} TO {login}" for table in (*metadata.tables, VERSION_TABLE))
    breakable_mariadb.execute(f"REVOKE ALL ON {name}.* FROM {login}; {grants}")
    worker = start_worker(amqp_url=amqp_url, database_url=plain_url).ready()
    job = new_job()
    async with RabbitBroker(amqp_url) as broker, Queue(broker=broker) as ask:
        await register(ask, job)
        breakable_mariadb.execute(f"REVOKE INSERT ON {name}.event FROM {login}")
        pending = asyncio.create_task(begin(ask, job))
        await asyncio.to_thread(worker.until, lambda: "INSERT" in worker.reasons().get("database", ""))
        breakable_mariadb.execute(f"GRANT INSERT ON {name}.event TO {login}")
        await pending
    assert worker.metric("bso_job_parks_total") == 0
    assert worker.metric("bso_dead_letters_total") == 0


@pytest.mark.slow
async def test_somebody_deletes_an_exchange_or_a_queue(stack: Stack) -> None:
    """Publishers declare what they need, and replies have a connection of their own."""
    management, vhost = stack.rabbitmq.management, stack.amqp_url.rpartition("/")[2]

    async def break_and_mend() -> None:
        for kind, name in (
            ("exchanges", EVENTS),
            ("queues", EVENT_LOG),
            ("exchanges", PARKED),
            ("queues", COMMAND_QUEUE),
        ):
            await asyncio.to_thread(management.request, "DELETE", f"{kind}/{vhost}/{name}")
            for worker in stack.workers:
                await answers_more(worker)

    await under_load(stack, break_and_mend)
    for kind, name in (("exchanges", EVENTS), ("exchanges", PARKED), ("queues", COMMAND_QUEUE)):
        assert await asyncio.to_thread(management.request, "GET", f"{kind}/{vhost}/{name}")


@pytest.mark.slow
async def test_the_broker_has_no_memory_left(stack: Stack) -> None:
    """It takes nothing from publishers then: workers cannot answer, and say so; clients say so, too."""

    question = Request(command_id=str(uuid.uuid4()), job_id="nobody", command=DescribeJob())

    async def break_and_mend() -> None:
        await asyncio.to_thread(stack.rabbitmq.control, "set_vm_memory_high_watermark", "0.0000001")
        try:
            await stack.none_ready()
            assert any("memory or its disk is full" in reason for reason in stack.reasons())
            async with RabbitBroker(stack.amqp_url) as broker:
                client = broker.rpc_client()
                await client.start()
                with pytest.raises(CallTimeout, match="memory or its disk is full"):
                    await client.call(encode_command(question), message_id=question.command_id, timeout_s=5.0)
                await client.close()
        finally:
            await asyncio.to_thread(stack.rabbitmq.control, "set_vm_memory_high_watermark", "absolute", "2GB")

    await under_load(stack, break_and_mend)


@pytest.mark.slow
async def test_who_has_nothing_to_do_notices_that_the_broker_takes_no_messages(
    stack: Stack, start_worker: StartWorker, start_gateway: StartGateway
) -> None:
    gateway = start_gateway(url=stack.amqp_url)
    gateway.process.logged("not_a_gateway")
    await asyncio.to_thread(stack.rabbitmq.control, "set_vm_memory_high_watermark", "0.0000001")
    try:
        await stack.none_ready()
        late = start_worker(amqp_url=stack.amqp_url, database_url=stack.database_url)
        late.until(lambda: "memory or its disk is full" in late.page("readyz")[1])
        gateway.process.until(lambda: "memory or its disk is full" in gateway.ask("GET", "/readyz").text)
    finally:
        await asyncio.to_thread(stack.rabbitmq.control, "set_vm_memory_high_watermark", "absolute", "2GB")
    for worker in (*stack.workers, late):
        worker.ready()
    gateway.process.until(lambda: "memory" not in gateway.ask("GET", "/readyz").text)


@pytest.mark.slow
async def test_a_load_balancer_loses_its_backend(
    stack: Stack, start_worker: StartWorker, tcp_proxy: Callable[[str], TcpProxy]
) -> None:
    """Connections are accepted and closed at once: drivers call that by all kinds of names."""
    proxy = tcp_proxy(stack.database_url)
    for worker in stack.workers:
        worker.stop()
    urls = {"amqp_url": stack.amqp_url, "database_url": proxy.url}
    balanced = replace(stack, workers=[start_worker(**urls).ready() for _ in range(2)])

    async def break_and_mend() -> None:
        proxy.cut()
        await balanced.none_ready()
        assert all("database" in reason for reason in balanced.reasons())
        start_worker(**urls).logged("waiting_for_database")
        proxy.restore()

    await under_load(balanced, break_and_mend)


@pytest.mark.slow
async def test_the_database_has_no_connection_left(stack: Stack, start_worker: StartWorker) -> None:
    for worker in stack.workers:
        worker.stop()
    plain_url = stack.mariadb.create_login(stack.database_url)
    urls = {"amqp_url": stack.amqp_url, "database_url": plain_url}
    crowded = replace(stack, workers=[start_worker(**urls).ready() for _ in range(2)])

    async def break_and_mend() -> None:
        stack.mariadb.execute("SET GLOBAL max_connections = 10")
        others = open_store(stack.mariadb.create_login(stack.database_url), limits=ConnectionLimits(pool_size=20))
        try:
            async with AsyncExitStack() as held:
                with suppress(StoreUnavailable):
                    for _ in range(20):
                        await held.enter_async_context(others.unit_of_work())
                login = plain_url.partition("//")[2].partition(":")[0]
                stack.mariadb.execute(f"KILL USER {login}")
                with suppress(StoreUnavailable):
                    for _ in range(20):
                        await held.enter_async_context(others.unit_of_work())
                await crowded.none_ready()
                assert any("oo many connections" in reason for reason in crowded.reasons())
                start_worker(**urls).logged("waiting_for_database")
        finally:
            await others.close()
            stack.mariadb.execute("SET GLOBAL max_connections = 600")

    await under_load(crowded, break_and_mend)


@pytest.mark.slow
async def test_connections_to_the_database_are_cut_again_and_again(
    stack: Stack, start_worker: StartWorker, tcp_proxy: Callable[[str], TcpProxy]
) -> None:
    """Some of them at commit, whose outcome then is unknown."""
    proxy = tcp_proxy(stack.database_url)
    for worker in stack.workers:
        worker.stop()
    workers = [start_worker(amqp_url=stack.amqp_url, database_url=proxy.url).ready() for _ in range(2)]
    cut = replace(stack, workers=workers)

    async def break_and_mend() -> None:
        for number in range(10):
            await answers_more(workers[0])
            if number % 2:
                proxy.stall_replies()
            proxy.drop()
            proxy.restore()

    await under_load(cut, break_and_mend)
    assert sum(worker.metric("bso_database_retries_total") for worker in workers) > 0


@pytest.mark.slow
async def test_connections_to_the_broker_are_cut_again_and_again(
    stack: Stack, start_worker: StartWorker, tcp_proxy: Callable[[str], TcpProxy]
) -> None:
    proxy = tcp_proxy(stack.amqp_url)
    for worker in stack.workers:
        worker.stop()
    workers = [start_worker(amqp_url=proxy.url, database_url=stack.database_url).ready() for _ in range(2)]
    cut = replace(stack, workers=workers)

    async def break_and_mend() -> None:
        for _ in range(5):
            await cut.all_ready()
            await answers_more(workers[0])
            proxy.drop()

    await under_load(cut, break_and_mend)


@pytest.mark.slow
async def test_a_worker_whose_network_swallows_everything_is_replaced_by_another(
    stack: Stack, start_worker: StartWorker, tcp_proxy: Callable[[str], TcpProxy]
) -> None:
    """The broker notices by heartbeats, and hands to the other what the silent one had."""
    proxy = tcp_proxy(stack.amqp_url)
    silent = start_worker(amqp_url=f"{proxy.url}?heartbeat=1", database_url=stack.database_url).ready()

    async def break_and_mend() -> None:
        proxy.stall()
        await asyncio.to_thread(silent.until, lambda: silent.page("readyz")[0] == 503)
        proxy.restore()
        await asyncio.to_thread(silent.ready)

    await under_load(stack, break_and_mend)
