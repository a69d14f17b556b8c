"""Publish events and replies over one shared connection."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence

import aiormq
from pamqp.commands import Basic
from pamqp.common import FieldTable
from typing_extensions import override

from bso_broker.addresses import is_reply_address
from bso_broker.bundles import BUNDLE, Bundle, Part, bundle_of, may_share
from bso_broker.connection import BrokerAddress, explain, is_lost
from bso_broker.declaration import declare_if_allowed
from bso_broker.errors import ConnectionLost, ForgedReplyAddress, PublishFailed, TopologyMissing
from bso_broker.messages import Event, Headers, Reply, check_size
from bso_broker.session import BrokerSession, Link
from bso_broker.topology import EVENTS
from bso_broker.underlay import BurstChannel, ConfirmedChannel, Outcome, Outgoing

_TRANSIENT = 1
PERSISTENT = 2
_PROBE_EVERY_S = 10.0
_PROBE = Outgoing(routing_key="bso.no-such-queue", body=b"", properties=Basic.Properties(delivery_mode=_TRANSIENT))


class PublishingSession(BrokerSession):
    """Channels with publisher confirms; exchanges and queues are declared first, in case one was deleted."""

    for_events: ConfirmedChannel
    for_commands: aiormq.Channel

    @override
    async def open(self) -> None:
        """Connect."""
        connection = await self.connect("bso worker: publishing")
        await declare_if_allowed(connection, self.address.topology)
        self.for_commands = await self.fast_channel(connection, confirms=True)
        self.for_events = ConfirmedChannel(await self.fast_channel(connection, confirms=True), connection.sockets)


class PublishingLink(Link[PublishingSession]):
    """The connection over which a worker publishes what must not be lost: events, and commands for later."""

    def __init__(self, address: BrokerAddress) -> None:
        super().__init__(lambda: PublishingSession(address), name="publisher")

    async def publish_command(self, message: Outgoing, *, exchange: str, timeout_s: float) -> None:
        """Publish a command that nobody decides now, and wait until the broker has it. It is not acknowledged.

        Raises PublishFailed, and what else keeps the broker from taking it: it may have it all the same.
        """
        try:
            async with asyncio.timeout(timeout_s):
                session = await self.session()
                await session.publish(session.for_commands, message, exchange=exchange)
        except TopologyMissing as error:
            if (living := self.current) is not None:
                living.fail(error)  # the next session declares what was deleted
            raise
        except (TimeoutError, ConnectionLost) as error:
            raise PublishFailed(f"command {message.properties.message_id} did not reach {exchange}: {error}") from error


class ReplyingSession(BrokerSession):
    """A channel for replies, which are not confirmed. They need nothing that could be missing.

    RabbitMQ says that its memory or its disk is full (connection.blocked) only to connections that publish: then no
    command arrives either, nobody publishes, and all would look well. So a message that goes nowhere is sent now and
    then.
    """

    unconfirmed: BurstChannel

    @override
    async def open(self) -> None:
        """Connect."""
        connection = await self.connect("bso worker: replies")
        self.unconfirmed = BurstChannel(await self.fast_channel(connection, confirms=False), connection.sockets)
        self._probing = asyncio.create_task(self._probe(), name="bso probe of the broker")

    async def _probe(self) -> None:
        while not self.lost.is_set():
            try:
                self.unconfirmed.write([_PROBE], exchange="")
            except Exception as error:  # noqa: BLE001  # the next session probes again
                self.fail(error)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_PROBE_EVERY_S):
                    await self.lost.wait()


class ReplyingLink(Link[ReplyingSession]):
    """The connection that replies go over: they do not share the fate of events."""

    def __init__(self, address: BrokerAddress) -> None:
        super().__init__(lambda: ReplyingSession(address), name="replies")


class EventPublisher:
    """Publishes events: persistent, confirmed, at least once; nobody has to be listening."""

    def __init__(self, link: PublishingLink, *, exchange: str = EVENTS) -> None:
        self._link = link
        self._exchange = exchange

    async def publish_batch(self, events: Sequence[Event], *, timeout_s: float = 10.0) -> None:
        """Publish events without waiting between them, and return when the broker has confirmed all.

        PublishFailed: any of them may or may not have been published; publish all again.
        """
        for event in events:
            check_size(event.body)
        try:
            async with asyncio.timeout(timeout_s):
                session = await self._link.session()
                outgoing = [_outgoing(event) for event in events]
                outcome = await session.for_events.publish(outgoing, exchange=self._exchange)
        except TimeoutError as error:
            why = self._link.last_error or "the broker does not confirm"
            raise PublishFailed(f"{len(events)} events not published within {timeout_s:g} s: {why}") from error
        except BaseException as error:
            if is_lost(error):
                raise PublishFailed("the connection broke while events were published") from explain(error)
            raise
        if outcome is not Outcome.TAKEN:
            raise PublishFailed("the broker refused an event: its queue is full, or the queue's leader unavailable")


def _outgoing(event: Event) -> Outgoing:
    properties = Basic.Properties(
        message_id=event.message_id, delivery_mode=PERSISTENT, headers=field_table(event.headers) or None
    )
    return Outgoing(routing_key=event.routing_key, body=event.body, properties=properties)


class ReplyPublisher:
    """Sends replies: transient and unconfirmed, for who no longer waits must not stop a worker."""

    def __init__(self, link: ReplyingLink) -> None:
        self._link = link

    async def reply_batch(self, replies: Sequence[Reply], *, timeout_s: float = 5.0) -> None:
        """Answer commands. ForgedReplyAddress, before any is answered, if a user cannot own the queue ``reply_to``.

        PublishFailed when the broker is away for longer than ``timeout_s``: leave the commands unacknowledged.
        """
        for reply in replies:
            check_reply_address(reply.reply_to, reply.user_id)
            check_size(reply.body)
        try:
            async with asyncio.timeout(timeout_s):
                session = await self._link.session()
                session.unconfirmed.write([*_messages_of(replies)], exchange="")
        except TimeoutError as error:
            raise PublishFailed(f"{len(replies)} replies did not go out within {timeout_s:g} s") from error
        except BaseException as error:
            if is_lost(error):
                raise PublishFailed("the connection broke before the replies were sent") from explain(error)
            raise


def _messages_of(replies: Sequence[Reply]) -> Iterator[Outgoing]:
    """A message for each reply, or for several that go to the same queue, where their receiver reads bundles."""
    bundles: dict[str, Bundle] = {}
    for reply in replies:
        part = (reply.correlation_id, reply.body)
        if not (reply.may_be_bundled and may_share(part)):
            yield _reply(reply.reply_to, part)
            continue
        bundle = bundles.get(reply.reply_to)
        if bundle is None or not bundle.add(part):
            if bundle is not None:
                yield _replies(reply.reply_to, bundle)
            bundles[reply.reply_to] = Bundle(part)
    for queue, bundle in bundles.items():
        yield _replies(queue, bundle)


def _replies(queue: str, bundle: Bundle) -> Outgoing:
    if len(bundle.parts) == 1:
        return _reply(queue, bundle.parts[0])
    properties = Basic.Properties(content_type=BUNDLE, delivery_mode=_TRANSIENT)
    return Outgoing(routing_key=queue, body=bundle_of(bundle.parts), properties=properties)


def _reply(queue: str, part: Part) -> Outgoing:
    correlation_id, body = part
    properties = Basic.Properties(correlation_id=correlation_id, delivery_mode=_TRANSIENT)
    return Outgoing(routing_key=queue, body=body, properties=properties)


def check_reply_address(reply_to: str, user_id: str | None) -> None:
    """Raise ForgedReplyAddress unless the queue is a reply queue, and this user's where the user is known."""
    if not is_reply_address(reply_to, user_id):
        sender = "its sender" if user_id is None else f"user {user_id!r}"
        raise ForgedReplyAddress(f"{reply_to!r} is not a reply queue of {sender} (bso.reply.<user>.<uuid>)")


def field_table(headers: Headers) -> FieldTable:
    """Headers as AMQP has them."""
    return dict(headers)  # type: ignore[arg-type]  # pamqp refuses values that AMQP cannot carry
