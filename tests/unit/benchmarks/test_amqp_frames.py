"""AMQP frames are counted in whatever pieces they come."""

import pytest
from pamqp.body import ContentBody
from pamqp.commands import Basic
from pamqp.frame import marshal
from pamqp.header import ContentHeader, ProtocolHeader
from pamqp.heartbeat import Heartbeat

from tests.benchmarks.amqp_frames import FrameCounts

PUBLISHED = (
    marshal(Basic.Publish(routing_key="bso.inbox"), 1)
    + marshal(ContentHeader(body_size=6), 1)
    + marshal(ContentBody(b"report"), 1)
)
SENT = ProtocolHeader().marshal() + PUBLISHED + marshal(Heartbeat(), 0) + PUBLISHED + marshal(Basic.Qos(), 1)


@pytest.mark.parametrize("size", [1, 5, 8, 64, len(SENT)])
def test_frames_are_counted_whatever_the_pieces(size: int) -> None:
    counts = FrameCounts()
    take = counts.watch(True)
    for start in range(0, len(SENT), size):
        take(SENT[start : start + size])
    assert counts.sent == {"publish": 2, "header": 2, "body": 2, "heartbeat": 1, "other method": 1}
    assert counts.totals == {"sent": 7, "received": 0}


def test_connections_and_directions_are_told_apart() -> None:
    counts = FrameCounts()
    first, second, answers = counts.watch(True), counts.watch(True), counts.watch(False)
    first(PUBLISHED[:9])
    second(PUBLISHED)
    answers(marshal(Basic.Ack(1), 1))
    first(PUBLISHED[9:])
    assert counts.totals == {"sent": 6, "received": 1}


def test_what_is_no_frame_is_noticed() -> None:
    take = FrameCounts().watch(True)
    with pytest.raises(AssertionError, match="expected a frame"):
        take(b"\x01\0\x01\0\0\0\x04\0\x3c\0\x28!")
