"""One life of the command consumer: what has arrived on it and what is not settled yet, in the broker's order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Container, Iterable, Sequence

import aiormq
from typing_extensions import override

from bso.domain.errors import BsoError
from bso.domain.frozen_values import replace
from bso.log_records import logger_of
from bso.schema.envelope import MAX_MESSAGE_BYTES
from bso_broker.bundles import BUNDLE, parts_of
from bso_broker.connection import BrokerAddress, Connection
from bso_broker.dead_letters import added_headers
from bso_broker.declaration import declare_if_allowed, depth_of
from bso_broker.errors import BrokerUnreachable, ConnectionLost
from bso_broker.frames import Arrived, Tap, discarded_bytes
from bso_broker.messages import Delivery
from bso_broker.parked_commands import parked_for_s
from bso_broker.session import BrokerSession
from bso_broker.topology import COMMAND_QUEUE
from bso_broker.underlay import not_tapped

logger = logger_of(__name__)

_ANSWER_TIMEOUT_S = 5.0


class ConsumerSession(BrokerSession):
    """A consuming channel; deliveries can be settled on it only while it lives.

    While it does, exchanges, queues and bindings are declared again and again: nothing else shows that a binding is
    gone. ``obstacle`` is what keeps them from being as they must be; None: nothing. ``believed`` are the logins that
    are believed when they name a parked command's sender.
    """

    _channel: aiormq.Channel
    _connection: Connection

    def __init__(
        self,
        address: BrokerAddress,
        *,
        number: int,
        believed: Container[str],
        prefetch: int,
        wake: Callable[[], None],
        announce: Callable[[], Awaitable[None]],
    ) -> None:
        super().__init__(address)
        self.number = number
        self._believed = believed
        self.obstacle: BsoError | None = None
        self._announce = announce
        self._declaring: asyncio.Task[None] | None = None
        self.settled = asyncio.Event()
        self._prefetch = prefetch
        self._wake = wake
        self._consumer_tag: str | None = None
        self._has_come = False  # anything since the subscription was looked at last
        self._turn = asyncio.Lock()  # frames go out in the order in which they were decided on
        self._arrived: deque[Delivery] = deque()
        self._unsettled: dict[int, set[int]] = {}  # the parts of each message, by its tag
        self._to_hand_back: set[int] = set()  # tags of messages that have to be delivered again

    @override
    async def open(self) -> None:
        self._connection = await self.connect("bso worker: commands", largest_body=MAX_MESSAGE_BYTES)
        is_declared = await declare_if_allowed(self._connection, self.address.topology)
        await self._subscribe(await self._new_channel())
        self._declaring = asyncio.create_task(self._keep_up(may_declare=is_declared), name="bso-topology")

    async def _new_channel(self) -> aiormq.Channel:
        channel = await self.fast_channel(self._connection, confirms=False)
        await channel.basic_qos(prefetch_count=self._prefetch)
        return channel

    async def _subscribe(self, channel: aiormq.Channel) -> None:
        self._channel = channel
        self._connection.sockets.tap(channel, Tap(on_delivery=self._on_delivery))
        self._consumer_tag = (await channel.basic_consume(COMMAND_QUEUE, not_tapped)).consumer_tag

    async def _keep_up(self, *, may_declare: bool) -> None:
        while not self.lost.is_set():
            await asyncio.sleep(self.address.declare_every_s)
            obstacle: BsoError | None = None
            try:
                may_declare = may_declare and await declare_if_allowed(self._connection, self.address.topology)
            except ConnectionLost:
                continue  # then this session ends, too
            except BsoError as error:
                obstacle = error
            except Exception as error:  # noqa: BLE001  unforeseen: the next session declares again
                self.fail(error)
                continue
            await self._found(obstacle)
            await self._consume_anew()

    async def _consume_anew(self) -> None:
        """Subscribe again, on another channel, where nothing has come since the last time.

        RabbitMQ may forget to cancel the consumers of a queue that is deleted, and created again at once by others.
        """
        async with self._turn:
            has_come, self._has_come = self._has_come, False
            if has_come or self._unsettled or self._consumer_tag is None:
                return
            old = self._channel
            try:
                async with asyncio.timeout(_ANSWER_TIMEOUT_S):
                    await old.basic_cancel(self._consumer_tag)
                    if self._unsettled:
                        await self._subscribe(old)
                        return
                    await self._subscribe(await self._new_channel())
                    await self.discard(old)
            except TimeoutError:
                self.fail(ConnectionLost(f"the broker at {self.address} stopped answering"))
            except Exception as error:  # noqa: BLE001  lost, or unforeseen: the next session subscribes anew
                self.fail(error)

    async def _found(self, obstacle: BsoError | None) -> None:
        is_news = str(obstacle) != str(self.obstacle)
        self.obstacle = obstacle
        if is_news and not self.lost.is_set():
            if obstacle is not None:
                logger.warning("the broker lacks what is needed: %s", obstacle, extra={"action": "topology_differs"})
            await self._announce()

    def _on_delivery(self, arrived: Arrived) -> None:
        deliveries = _deliveries(arrived, session=self.number, believed=self._believed)
        self._has_come = True
        self._unsettled[arrived.tag] = {delivery.part for delivery in deliveries}
        self._arrived.extend(deliveries)
        self._wake()

    @property
    def arrived(self) -> int:
        """How many have arrived and are not taken."""
        return len(self._arrived)

    def take(self, limit: int) -> tuple[Delivery, ...]:
        """What has arrived, up to a limit."""
        return tuple(self._arrived.popleft() for _ in range(min(limit, len(self._arrived))))

    async def ack(self, deliveries: Sequence[Delivery]) -> None:
        """Acknowledge: one frame for everything before the first message that stays unsettled, one for each other."""
        async with self._turn:
            await self._settle(deliveries)
        self._announce_if_idle()

    async def requeue(self, deliveries: Sequence[Delivery]) -> None:
        """Hand deliveries back; the broker delivers their messages again, here or elsewhere."""
        async with self._turn:
            self._to_hand_back |= {each.tag for each in deliveries if each.part in self._unsettled.get(each.tag, ())}
            await self._settle(deliveries)
        self._announce_if_idle()

    async def _settle(self, deliveries: Iterable[Delivery]) -> None:
        """Settle the messages of which no other part is unsettled."""
        whole: dict[int, None] = {}
        for each in deliveries:
            parts = self._unsettled.get(each.tag)
            if parts is not None:
                parts.discard(each.part)
                if not parts:
                    whole[each.tag] = None
        await self._nack(tag for tag in whole if tag in self._to_hand_back)
        rest = {tag: None for tag in whole if tag in self._unsettled}
        last = 0
        for tag in self._unsettled:
            if tag not in rest:
                break
            del rest[tag]
            last = tag
        for tag in whole:
            self._unsettled.pop(tag, None)
        if last:
            await self._channel.basic_ack(last, multiple=True, wait=False)
        for tag in rest:
            await self._channel.basic_ack(tag, wait=False)

    async def _nack(self, tags: Iterable[int]) -> None:
        known = [tag for tag in tags if tag in self._unsettled]
        for tag in known:  # first: the connection may be lost on the way
            del self._unsettled[tag]
            self._to_hand_back.discard(tag)
        for tag in known:
            await self._channel.basic_nack(tag, requeue=True, wait=False)

    def _announce_if_idle(self) -> None:
        if not self._unsettled:
            self.settled.set()

    async def stop_consuming(self) -> None:
        """Let no more come, and hand back what has arrived but was not taken."""
        self.settled.clear()
        async with self._turn:
            if self._consumer_tag is not None:
                await self._channel.basic_cancel(self._consumer_tag, timeout=_ANSWER_TIMEOUT_S)
                self._consumer_tag = None
        untaken = list(self._arrived)
        self._arrived.clear()
        await self.requeue(untaken)

    async def hand_back(self) -> None:
        """Let no more come, and hand back everything unsettled: nacks, which newer brokers do not count as failures."""
        await self.stop_consuming()
        async with self._turn:
            await self._nack(list(self._unsettled))
        self._announce_if_idle()

    async def ready_messages(self) -> int:
        """Count what waits in the queue."""
        try:
            async with asyncio.timeout(_ANSWER_TIMEOUT_S):
                return (await depth_of(self._connection, COMMAND_QUEUE)).messages
        except TimeoutError as error:
            raise BrokerUnreachable(f"the broker at {self.address} stopped answering") from error

    @override
    def fail(self, cause: BaseException | None) -> None:
        super().fail(cause)
        if self._declaring is not None:
            self._declaring.cancel()
        self._arrived.clear()
        self._unsettled.clear()
        self._to_hand_back.clear()
        self.settled.set()
        self._wake()


def _deliveries(arrived: Arrived, *, session: int, believed: Container[str]) -> list[Delivery]:
    """The command in a message, or those of a bundle. A bundle that cannot be read is handed over as one command.

    Headers that the sender of a bundle chose are left out: each command would carry them to the dead letters.
    """
    alone = _delivery(arrived, session=session, believed=believed)
    if arrived.properties.content_type != BUNDLE or alone.discarded_bytes:
        return [alone]
    try:
        parts = parts_of(alone.body)
    except ValueError as error:
        logger.info("a bundle cannot be read: %s", error, extra={"action": "bundle_unreadable"})
        return [alone]
    of_bundle = replace(alone, headers=added_headers(alone.headers), is_of_bundle=True)
    return [
        replace(of_bundle, body=body, message_id=command_id, correlation_id=command_id, part=part)
        for part, (command_id, body) in enumerate(parts)
    ]


def _delivery(arrived: Arrived, *, session: int, believed: Container[str]) -> Delivery:
    properties = arrived.properties
    headers = properties.headers or {}
    count = headers.get("x-delivery-count")
    discarded = discarded_bytes(arrived.body)
    return Delivery(
        body=b"" if discarded else arrived.body,
        message_id=properties.message_id,
        reply_to=properties.reply_to,
        correlation_id=properties.correlation_id,
        user_id=properties.user_id,
        headers=headers,
        parked_s=parked_for_s(properties.user_id, headers, believed=believed),
        exchange=arrived.exchange,
        is_damaged=arrived.is_mended,
        discarded_bytes=discarded,
        redelivered=arrived.redelivered,
        delivery_count=count if isinstance(count, int) else int(arrived.redelivered),
        session=session,
        tag=arrived.tag,
    )
