"""Whatever is wrong with an address, the error says what to do."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

import pytest
from pamqp import frame as frames
from pamqp.base import Frame
from pamqp.commands import Connection
from pamqp.constants import FRAME_HEADER_SIZE
from pamqp.header import ProtocolHeader
from yarl import URL

from bso_broker.connection import BrokerAddress, connect
from bso_broker.errors import (
    BrokerClosed,
    BrokerUnreachable,
    InvalidBrokerUrl,
    LoginRefused,
    VirtualHostRefused,
)
from bso_broker.publisher import PublishingLink
from bso_broker.rpc import RpcClient
from tests.servers import PATIENCE_S, eventually_async
from tools.private_servers.ports import ClaimedPorts


@pytest.fixture
async def silent_port() -> AsyncIterator[int]:
    """A server that accepts connections and says nothing."""
    over = asyncio.Event()

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await over.wait()
        writer.close()

    server = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    over.set()
    server.close()
    await server.wait_closed()


@asynccontextmanager
async def serving(serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]) -> AsyncIterator[str]:
    """The URL of a server that does this with each connection."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    yield f"amqp://guest:guest@127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    server.close()
    await server.wait_closed()


async def connecting(url: str, *, timeout_s: float = PATIENCE_S) -> bool:
    """Connect, and hang up again; whether the connection was open in between."""
    connection = await connect(BrokerAddress(url=url, connect_timeout_s=timeout_s), name="test")
    was_open = not connection.is_closed
    await connection.close()
    return was_open


async def test_a_good_address_connects(amqp_url: str) -> None:
    assert await connecting(amqp_url)


async def test_a_wrong_password_is_named_and_not_shown(amqp_url: str) -> None:
    with pytest.raises(LoginRefused, match="expected a user name and password that it knows") as raised:
        await connecting(str(URL(amqp_url).with_password("secret")))
    assert "secret" not in str(raised.value)


async def test_a_missing_virtual_host_is_named(amqp_url: str) -> None:
    with pytest.raises(VirtualHostRefused, match=r"127\.0\.0\.1:\d+/nowhere.*add_vhost"):
        await connecting(urlsplit(amqp_url)._replace(path="/nowhere").geturl())


async def test_a_port_where_nobody_listens_is_unreachable() -> None:
    with ClaimedPorts(1) as claimed, pytest.raises(BrokerUnreachable, match="is it running"):
        await connecting(f"amqp://127.0.0.1:{claimed.numbers[0]}/")


async def test_a_server_that_does_not_answer_is_unreachable_at_the_deadline(silent_port: int) -> None:
    with pytest.raises(BrokerUnreachable, match=r"did not answer within 0\.2 s"):
        await connecting(f"amqp://127.0.0.1:{silent_port}/", timeout_s=0.2)


async def test_an_unknown_host_is_unreachable() -> None:
    with pytest.raises(BrokerUnreachable, match=r"'broker\.invalid'.* cannot be resolved .*check its spelling"):
        await connecting("amqp://broker.invalid/")


@pytest.mark.parametrize("url", ["", "nonsense", "http://host/", "amqp://", "amqp://host:99999/", "localhost:5672"])
def test_what_is_no_broker_url_is_refused_at_once(url: str) -> None:
    with pytest.raises(InvalidBrokerUrl, match="amqp://"):
        BrokerAddress(url=url)


def test_an_address_shows_no_password() -> None:
    address = BrokerAddress(url="amqps://alice:secret@broker/team%2Fa")
    assert str(address) == "broker:5671/team/a"
    assert address.login == "alice"
    assert "secret" not in repr(address)


async def test_a_call_with_a_wrong_password_fails_at_once_with_that_error(amqp_url: str) -> None:
    client = RpcClient(str(URL(amqp_url).with_password("wrong")))
    await client.start()
    try:
        with pytest.raises(LoginRefused):
            await client.call(b"body", message_id="1", timeout_s=PATIENCE_S)
    finally:
        await client.close()


async def test_a_link_to_a_server_that_does_not_answer_says_so_and_goes_on_trying(silent_port: int) -> None:
    link = PublishingLink(BrokerAddress(url=f"amqp://127.0.0.1:{silent_port}/", connect_timeout_s=0.1))
    failures = 0

    def count() -> None:
        nonlocal failures
        failures += "did not answer within 0.1 s" in str(link.last_error)

    link.on_change = count
    link.start()
    await eventually_async(lambda: failures >= 3)
    async with asyncio.timeout(PATIENCE_S):
        await link.stop()


async def test_a_link_gives_up_a_connection_over_which_aio_pika_hangs() -> None:
    """As one that the broker blocks as soon as it is open: aio-pika waits for its end without a deadline."""
    connections = 0

    async def open_and_block(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1

        def send(*answers: Frame) -> None:
            writer.write(b"".join(frames.marshal(answer, 0) for answer in answers))

        async def skip_frame() -> None:
            head = await reader.readexactly(FRAME_HEADER_SIZE)
            await reader.readexactly(int.from_bytes(head[3:]) + 1)

        await reader.readexactly(len(ProtocolHeader().marshal()))
        send(Connection.Start(server_properties={"capabilities": {}}))
        await skip_frame()
        send(Connection.Tune(channel_max=10, frame_max=131072, heartbeat=0))
        await skip_frame()
        await skip_frame()
        send(Connection.OpenOk(), Connection.Blocked(reason="low on memory"))
        with suppress(ConnectionError):
            await reader.read()
        writer.close()

    async with serving(open_and_block) as url:
        link = PublishingLink(BrokerAddress(url=url, set_up_timeout_s=0.3))
        link.start()
        await eventually_async(lambda: connections >= 2)
        assert "stopped answering" in str(link.last_error)
        async with asyncio.timeout(PATIENCE_S):
            await link.stop()


async def test_the_pauses_between_attempts_grow() -> None:
    attempts: list[float] = []

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        attempts.append(asyncio.get_running_loop().time())
        writer.close()

    async with serving(refuse) as url:
        link = PublishingLink(BrokerAddress(url=url))
        link.start()
        await eventually_async(lambda: len(attempts) >= 6)
        await link.stop()
    pauses = [after - before for before, after in itertools.pairwise(attempts)]
    assert [pause >= 0.05 * 2**n for n, pause in enumerate(pauses[:5])] == [True] * 5


async def test_a_client_that_was_not_started_says_so(amqp_url: str) -> None:
    with pytest.raises(BrokerClosed, match="the broker client is not started"):
        await RpcClient(amqp_url).call(b"body", message_id="1", timeout_s=1)
