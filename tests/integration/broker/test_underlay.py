"""What bso_broker.underlay uses of aio-pika, aiormq and pamqp without their documenting it.

A release that changes one of these fails here, with a sentence that says what no longer works.
"""

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiormq
import pytest
from aiormq.connection import FrameReceiver, TransportFactory
from aiormq.exceptions import ChannelInvalidStateError
from pamqp import frame as frames
from pamqp.body import ContentBody
from pamqp.commands import Basic
from pamqp.header import ContentHeader
from typing_extensions import override
from yarl import URL

from bso.tls import OFF, TlsOptions
from bso_broker.connection import is_lost
from bso_broker.errors import ConnectionLost
from bso_broker.frames import FrameReader
from bso_broker.underlay import (
    ConfirmedChannel,
    Outcome,
    Outgoing,
    RobustConnection,
    open_channel,
    open_fast_channel,
    underlay_channel_of,
    underlay_of,
)
from tests.servers import PATIENCE_S

PLAIN = TlsOptions(mode=OFF)
NOWHERE = URL("amqp://guest:guest@nowhere.invalid/")


class Refusing(TransportFactory):
    """Notes the password with which a connection is wanted, and gives none."""

    def __init__(self) -> None:
        self.asked: list[str | None] = []

    @override
    async def create(self, url: URL, **kwargs: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        self.asked.append(url.password)
        raise ConnectionRefusedError("ours")


@pytest.fixture
async def connection(amqp_url: str) -> AsyncIterator[RobustConnection]:
    connection = RobustConnection(URL(amqp_url), tls=PLAIN)
    await connection.connect()
    yield connection
    await connection.close()


@pytest.fixture
async def channel(connection: RobustConnection) -> aiormq.Channel:
    return await open_fast_channel(connection, confirms=True)


async def test_a_connection_asks_our_transport_announces_failures_and_reads_pause_and_address_each_time() -> None:
    connection = RobustConnection(NOWHERE, tls=PLAIN)
    connection.kwargs["transport_factory"] = factory = Refusing()
    failures: list[BaseException | None] = []
    enough = asyncio.Event()

    def note(_: object, error: BaseException | None) -> None:
        failures.append(error)
        connection.set_pause(0.001)
        connection.set_url(NOWHERE.with_password(f"guest-{len(failures)}"))
        if len(failures) == 3:
            enough.set()

    connection.close_callbacks.add(note)
    connecting = asyncio.create_task(connection.connect())
    async with asyncio.timeout(PATIENCE_S):
        await enough.wait()
    connecting.cancel()
    await connection.close()
    assert all(isinstance(failure, ConnectionRefusedError) for failure in failures), (
        "aio-pika hands the error of a failed attempt to close_callbacks no more: a wrong password is not reported"
    )
    assert len(factory.asked) >= 1, (
        "aio-pika hands its kwargs to aiormq no more: writes are not coalesced, bad and large messages not repaired"
    )
    assert len(factory.asked) >= 3, "aio-pika reads reconnect_interval once only: pauses do not grow"
    assert factory.asked[:3] == ["guest", "guest-1", "guest-2"], (
        "aio-pika reads the address once only: a connection does not learn of a new password"
    )


async def test_the_connection_below_is_aiormqs(connection: RobustConnection) -> None:
    assert isinstance(underlay_of(connection), aiormq.Connection), (
        "connection.transport.connection is something else: a worker's channels cannot be opened"
    )


async def test_the_channel_below_is_aiormqs(connection: RobustConnection) -> None:
    assert isinstance(await underlay_channel_of(await open_channel(connection, confirms=True)), aiormq.Channel), (
        "get_underlay_channel returns something else: a session does not notice that its channel is gone"
    )


async def test_what_waits_on_a_channel_that_this_side_closes_is_lost(channel: aiormq.Channel) -> None:
    waiting = channel.create_future()
    await channel.close(ConnectionLost("closed by this side"))
    await asyncio.wait([waiting])
    error = waiting.exception()
    assert error is not None
    assert is_lost(error)


async def test_what_waits_on_a_connection_that_ends_without_a_cause_is_lost(
    connection: RobustConnection, channel: aiormq.Channel
) -> None:
    confirmation = channel.create_future()
    await underlay_of(connection).close(None)
    await asyncio.wait([confirmation])
    error = confirmation.exception()
    assert error is not None
    assert is_lost(error), "aiormq ends what waits with another error: callers get it instead of ConnectionLost"


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("on_consumer_cancel_callbacks", "nobody notices that the broker has cancelled a consumer"),
        ("closing", "a session does not notice that its channel is gone"),
        ("number", "bursts cannot name their channel"),
        ("is_closed", "bursts are written to a channel that is gone"),
        ("max_content_size", "large events cannot be split into frames"),
    ],
)
async def test_an_aiormq_channel_has(channel: aiormq.Channel, name: str, broken: str) -> None:
    assert hasattr(channel, name), f"aiormq.Channel has no {name}: {broken}"


def test_the_frame_buffer_can_be_chosen() -> None:
    assert "frame_buffer_size" in inspect.signature(aiormq.Connection.channel).parameters, (
        "aiormq opens channels with 10 frames of buffer only: a worker takes few commands at a time"
    )


async def test_what_is_published_in_one_turn_of_the_event_loop_is_written_at_once(
    connection: RobustConnection, channel: aiormq.Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []
    write = asyncio.StreamWriter.write

    def noting(writer: asyncio.StreamWriter, data: bytes) -> None:
        written.append(data.count(b"many"))
        write(writer, data)

    monkeypatch.setattr(asyncio.StreamWriter, "write", noting)  # what reaches the socket shows nowhere else
    confirmed = ConfirmedChannel(channel, connection.sockets)
    message = Outgoing(routing_key="many", body=b"one", properties=Basic.Properties())
    outcomes = await asyncio.gather(*(confirmed.publish([message], exchange="") for _ in range(50)))
    assert outcomes == [Outcome.TAKEN] * 50
    assert max(written) == 50, "each message is a system call of its own"


async def test_nothing_is_written_on_a_channel_that_is_gone(
    connection: RobustConnection, channel: aiormq.Channel
) -> None:
    confirmed = ConfirmedChannel(channel, connection.sockets)
    await channel.close()
    with pytest.raises(ChannelInvalidStateError):
        confirmed.publish([Outgoing(routing_key="", body=b"", properties=Basic.Properties())], exchange="")


def header(properties: Basic.Properties, size: int) -> bytes:
    return frames.marshal(ContentHeader(properties=properties, body_size=size), 1)


def unreadable(size: int) -> bytes:
    return header(Basic.Properties(correlation_id="??"), size).replace(b"??", b"\xff\xfe")


def with_mode(mode: int) -> bytes:
    properties = Basic.Properties(content_type="x", headers={"a": "b"})
    properties.delivery_mode = mode
    return header(properties, 0)


READERS: dict[str, tuple[Callable[[ContentHeader], Any], bytes, object]] = {
    "the mark of what was unreadable": (lambda read: read.weight, unreadable(0), 1),
    "the size of a body": (lambda read: read.body_size, header(Basic.Properties(), 7), 7),
    "a delivery mode that exists": (
        lambda read: read.properties.delivery_mode,
        with_mode(7),
        1,
    ),
}


@pytest.mark.parametrize("what", READERS)
async def test_aiormq_reads_through_our_reader(what: str) -> None:
    look, sent, expected = READERS[what]
    _, _, read = await received(sent)
    assert isinstance(read, ContentHeader)
    assert look(read) == expected, f"aiormq or pamqp reads frames in another way: {what} does not arrive"


async def test_the_body_of_a_large_message_is_replaced_and_the_next_one_is_read() -> None:
    large = header(Basic.Properties(message_id="large"), 30) + b"".join(
        frames.marshal(ContentBody(b"x" * 10), 1) for _ in range(3)
    )
    reader = asyncio.StreamReader()
    reader.feed_data(large + header(Basic.Properties(message_id="small"), 1) + frames.marshal(ContentBody(b"y"), 1))
    receiver = FrameReceiver(FrameReader(reader, largest_body=20))
    read: list[Any] = [(await receiver.get_frame())[2] for _ in range(4)]
    assert [one.properties.message_id for one in read[::2]] == ["large", "small"]
    assert len(read[1].value) == read[0].body_size, "a body of ours is taken for the sender's"
    assert read[3].value == b"y"


async def test_a_version_of_the_protocol_that_the_broker_refuses_is_read() -> None:
    with pytest.raises(aiormq.exceptions.ProtocolSyntaxError):
        await received(b"AMQP\0\0\x09\1")


async def received(sent: bytes) -> tuple[int, int, object]:
    reader = asyncio.StreamReader()
    reader.feed_data(sent)
    async with asyncio.timeout(PATIENCE_S):
        return await FrameReceiver(FrameReader(reader, largest_body=20)).get_frame()
