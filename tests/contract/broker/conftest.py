"""Every broker in turn, empty and declared, and shorthand for what most tests need of it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass

import pytest

from bso_broker.connection import BrokerAddress
from bso_broker.rabbit import RabbitBroker
from tests.contract.broker.stories import DEADLINE_S, cancelled, started_caller, started_consumer
from tests.fakes.memory_broker import Broker, CommandCaller, CommandSource, MemoryBroker
from tests.servers import TcpProxy


@dataclass(frozen=True, kw_only=True)
class Outage:
    """Takes the broker away and brings it back."""

    begin: Callable[[], None]
    end: Callable[[], None]


@pytest.fixture(params=["memory", pytest.param("rabbitmq", marks=pytest.mark.newest)])
def broker_and_outage(request: pytest.FixtureRequest) -> tuple[Broker, Outage]:
    if request.param == "memory":
        memory = MemoryBroker()
        return memory, Outage(begin=memory.go_away, end=memory.come_back)
    proxy: TcpProxy = request.getfixturevalue("tcp_proxy")(request.getfixturevalue("amqp_url"))
    address = BrokerAddress(url=proxy.url, resend_after_s=DEADLINE_S)  # what a test counts comes once
    return RabbitBroker(address), Outage(begin=proxy.cut, end=proxy.restore)


@pytest.fixture
async def bare_broker(broker_and_outage: tuple[Broker, Outage]) -> AsyncIterator[Broker]:
    """A broker on which nothing has been declared."""
    async with broker_and_outage[0] as broker:
        yield broker


@pytest.fixture
def outage(broker_and_outage: tuple[Broker, Outage]) -> Outage:
    return broker_and_outage[1]


@pytest.fixture
async def broker(bare_broker: Broker) -> Broker:
    await bare_broker.declare()
    return bare_broker


@pytest.fixture
async def cleaning() -> AsyncIterator[AsyncExitStack]:
    """Closes at the test's end what the test has started."""
    async with AsyncExitStack() as stack:
        yield stack


@pytest.fixture
async def caller(broker: Broker, cleaning: AsyncExitStack) -> CommandCaller:
    return await started_caller(broker, cleaning)


@pytest.fixture
async def consumer(broker: Broker, cleaning: AsyncExitStack) -> CommandSource:
    return await started_consumer(broker, cleaning)


@pytest.fixture
async def ask(caller: CommandCaller, cleaning: AsyncExitStack) -> Callable[..., asyncio.Task[bytes]]:
    """A function that begins a call in a task of its own, which ends with the test at the latest."""

    def begin(body: bytes, *, message_id: str, expiration_s: float | None = None) -> asyncio.Task[bytes]:
        call = caller.call(body, message_id=message_id, timeout_s=DEADLINE_S, expiration_s=expiration_s)
        task = asyncio.create_task(call)
        cleaning.push_async_callback(cancelled, task)
        return task

    return begin
