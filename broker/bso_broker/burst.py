"""Publish many small messages as one write: per message a third of the cost of aiormq's own publishing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import aiormq
from aiormq.abc import ChannelFrame
from aiormq.exceptions import ChannelInvalidStateError
from pamqp.body import ContentBody
from pamqp.commands import Basic
from pamqp.header import ContentHeader


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """A message that nobody has to take: it is never returned."""

    routing_key: str
    body: bytes
    properties: Basic.Properties


async def publish_burst(
    channel: aiormq.Channel, messages: Sequence[Outgoing], *, exchange: str
) -> list[asyncio.Future[object]]:
    """Write messages and return their confirmations, which fail when the channel ends; [] on a channel without them."""
    async with channel.lock:
        if channel.is_closed:
            raise ChannelInvalidStateError(f"{channel!r} closed")
        frames = [frame for message in messages for frame in _frames(channel, message, exchange)]
        together = ChannelFrame.marshall(channel_number=channel.number, frames=frames)
        # A broker that does not read makes this wait. Nothing happens between it and the next line, though: the broker
        # counts what is written, and we count along.
        await channel.write_queue.put(together)
        return [_expect(channel) for _ in messages] if channel.publisher_confirms else []


def _frames(
    channel: aiormq.Channel, message: Outgoing, exchange: str
) -> Iterator[Basic.Publish | ContentHeader | ContentBody]:
    yield Basic.Publish(exchange=exchange, routing_key=message.routing_key)
    yield ContentHeader(properties=message.properties, body_size=len(message.body))
    for start in range(0, len(message.body), channel.max_content_size):
        yield ContentBody(message.body[start : start + channel.max_content_size])


def _expect(channel: aiormq.Channel) -> asyncio.Future[object]:
    channel.delivery_tag += 1
    confirmation: asyncio.Future[object] = channel.create_future()
    channel.confirmations[channel.delivery_tag] = confirmation
    return confirmation
