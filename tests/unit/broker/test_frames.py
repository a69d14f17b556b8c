import asyncio
from typing import Any

import pytest
from aiormq.connection import FrameReceiver
from pamqp import frame as frames
from pamqp.body import ContentBody
from pamqp.commands import Basic, Channel
from pamqp.header import ContentHeader
from pamqp.heartbeat import Heartbeat

from bso_broker.frames import Arrived, Confirmed, FrameReader, Tap, discarded_bytes, published

PROPERTIES = [
    Basic.Properties(),
    Basic.Properties(delivery_mode=2),
    Basic.Properties(message_id="m", correlation_id="c", reply_to="r", user_id="u", expiration="17", delivery_mode=1),
    Basic.Properties(message_id="ümlaut"),
    Basic.Properties(headers={"x-delivery-count": 3, "text": "ü"}, message_id="m", delivery_mode=2),
]
DELIVER = Basic.Deliver(
    consumer_tag="ctag1.ü", delivery_tag=2**40, redelivered=True, exchange="bso.commands", routing_key="command"
)


def delivered(properties: Basic.Properties, body: bytes, *, channel: int = 1, piece: int = 10) -> bytes:
    """A delivery as the broker sends it, by pamqp."""
    sent: list[Any] = [DELIVER, ContentHeader(properties=properties, body_size=len(body))]
    pieces = [ContentBody(body[start : start + piece]) for start in range(0, len(body), piece)]
    return b"".join(frames.marshal(one, channel) for one in [*sent, *pieces])


def unexpected(arrived: Arrived) -> None:
    """What a tap must not take."""
    raise AssertionError(arrived)


def reading(sent: bytes, *, tap: Tap, channel: int = 1) -> FrameReceiver:
    """What aiormq reads, with a tap on one channel."""
    reader = asyncio.StreamReader()
    reader.feed_data(sent)
    reader.feed_eof()
    ours = FrameReader(reader, largest_body=50)
    ours.taps[channel] = tap
    return FrameReceiver(ours)


@pytest.mark.parametrize("properties", PROPERTIES)
@pytest.mark.parametrize("body", [b"", b"short", b"longer than a frame"])
def test_what_is_published_is_what_pamqp_would_write(properties: Basic.Properties, body: bytes) -> None:
    ours = published(
        [("key", properties, body)] * 2, channel=3, exchange="bso.events", mandatory=True, largest_piece=10
    )
    theirs: list[Any] = [
        Basic.Publish(exchange="bso.events", routing_key="key", mandatory=True),
        ContentHeader(properties=properties, body_size=len(body)),
        *(ContentBody(body[start : start + 10]) for start in range(0, len(body), 10)),
    ]
    assert ours == b"".join(frames.marshal(one, 3) for one in theirs) * 2


@pytest.mark.parametrize("properties", PROPERTIES)
@pytest.mark.parametrize("body", [b"", b"short", b"longer than a frame"])
async def test_a_delivery_comes_to_the_tap_and_not_to_aiormq(properties: Basic.Properties, body: bytes) -> None:
    arrived: list[Arrived] = []
    after = frames.marshal(Channel.CloseOk(), 1)
    read = reading(delivered(properties, body) + after, tap=Tap(on_delivery=arrived.append))
    assert isinstance((await read.get_frame())[2], Channel.CloseOk)
    [one] = arrived
    assert (one.tag, one.redelivered, one.exchange, one.body) == (2**40, True, "bso.commands", body)
    assert dict(one.properties) == dict(properties)
    assert not one.is_mended


async def test_what_cannot_be_read_comes_without_its_properties_and_what_is_too_large_without_its_body() -> None:
    arrived: list[Arrived] = []
    bad = delivered(Basic.Properties(message_id="??"), b"a body").replace(b"??", b"\xff\xfe")
    large = delivered(Basic.Properties(message_id="large"), b"x" * 51)
    after = frames.marshal(Channel.CloseOk(), 1)
    await reading(bad + large + after, tap=Tap(on_delivery=arrived.append)).get_frame()
    assert [(one.is_mended, one.properties.message_id) for one in arrived] == [(True, None), (False, "large")]
    assert [discarded_bytes(one.body) for one in arrived] == [0, 51]


async def test_confirmations_come_to_the_tap() -> None:
    confirmed: list[Confirmed] = []
    sent: list[Any] = [Basic.Ack(5, multiple=True), Basic.Nack(6, multiple=False), Basic.Ack(7), Channel.CloseOk()]
    read = reading(b"".join(frames.marshal(one, 1) for one in sent), tap=Tap(on_confirmation=confirmed.append))
    await read.get_frame()
    assert [(one.tag, one.is_multiple, one.is_accepted) for one in confirmed] == [
        (5, True, True),
        (6, False, False),
        (7, False, True),
    ]


async def test_a_message_that_no_queue_takes_comes_to_the_tap() -> None:
    returned: list[str | None] = []
    sent: list[Any] = [
        Basic.Return(reply_code=312, reply_text="NO_ROUTE", exchange="bso.commands", routing_key="command"),
        ContentHeader(properties=Basic.Properties(message_id="m", delivery_mode=2), body_size=4),
        ContentBody(b"body"),
        Channel.CloseOk(),
    ]
    read = reading(b"".join(frames.marshal(one, 1) for one in sent), tap=Tap(on_return=returned.append))
    assert isinstance((await read.get_frame())[2], Channel.CloseOk)
    assert returned == ["m"]


async def test_other_channels_are_aiormqs() -> None:
    read = reading(delivered(Basic.Properties(), b"short", channel=2), tap=Tap(on_delivery=unexpected))
    assert [type((await read.get_frame())[2]) for _ in range(3)] == [Basic.Deliver, ContentHeader, ContentBody]


async def test_what_an_operator_gets_on_a_tapped_channel_is_aiormqs() -> None:
    got: list[Any] = [
        Basic.GetOk(delivery_tag=1, redelivered=False, exchange="", routing_key="", message_count=0),
        ContentHeader(properties=Basic.Properties(), body_size=1),
        ContentBody(b"x"),
    ]
    read = reading(b"".join(frames.marshal(one, 1) for one in got), tap=Tap(on_delivery=unexpected))
    assert [type((await read.get_frame())[2]) for _ in range(3)] == [Basic.GetOk, ContentHeader, ContentBody]


async def test_aiormq_learns_that_the_broker_lives_while_a_tap_takes_everything() -> None:
    """Else it would take the connection for dead, and close it."""
    reader = asyncio.StreamReader()
    seconds = iter(range(1000))
    ours = FrameReader(reader, largest_body=50, clock=lambda: float(next(seconds)))
    ours.taps[1] = Tap(on_delivery=lambda _: None)
    reader.feed_data(delivered(Basic.Properties(), b"short") * 3)
    assert isinstance((await FrameReceiver(ours).get_frame())[2], Heartbeat)


async def test_a_connection_that_ends_within_a_frame_is_lost() -> None:
    read = reading(delivered(Basic.Properties(), b"short")[:-3], tap=Tap(on_delivery=unexpected))
    with pytest.raises(ConnectionError):
        await read.get_frame()
