"""Take queries from the broker one after the other, and send the answers back."""

from __future__ import annotations

import asyncio
import logging

import aio_pika
from aio_pika.abc import AbstractIncomingMessage
from typing_extensions import override

from bso.schema.envelope import MAX_MESSAGE_BYTES
from bso_broker.addresses import is_reply_address, reply_id
from bso_broker.connection import BrokerAddress, is_lost
from bso_broker.declaration import declare_if_allowed
from bso_broker.frames import discarded_bytes
from bso_broker.ports import Answer
from bso_broker.session import BrokerSession, Link
from bso_broker.topology import QUERY_QUEUE

logger = logging.getLogger(__name__)

_SHARE = 0.25
"""Queries take so much of a worker's time at most: it rests after each, while others may take the next one."""
_LONGEST_REST_S = 5.0


class _QuerySession(BrokerSession):
    def __init__(self, address: BrokerAddress, answer: Answer) -> None:
        super().__init__(address)
        self._answer = answer
        self._answers: aio_pika.Channel | None = None

    @override
    async def open(self) -> None:
        connection = await self.connect("bso worker: queries", largest_body=MAX_MESSAGE_BYTES)
        await declare_if_allowed(connection)
        self._answers = await self.channel(connection, confirms=False)
        channel = await self.channel(connection, confirms=False)
        await channel.set_qos(prefetch_count=1)
        queue = await channel.get_queue(QUERY_QUEUE, ensure=False)
        await queue.consume(self._on_query)

    async def _on_query(self, message: AbstractIncomingMessage) -> None:
        """Answer a query, and rest before the next one comes. One whose answer may not go to its address is dropped."""
        clock = asyncio.get_running_loop().time
        began_s = clock()
        try:
            if is_reply_address(message.reply_to, message.user_id) and not discarded_bytes(message.body):
                await self._reply(message, await self._answer(message.body, message.user_id))
            await asyncio.sleep(min(_LONGEST_REST_S, (clock() - began_s) * (1.0 - _SHARE) / _SHARE))
            await message.ack()
        except BaseException as error:  # unforeseen ones, too: the next session gets the query again
            if not is_lost(error) and not isinstance(error, Exception):
                raise
            self.fail(error)

    async def _reply(self, message: AbstractIncomingMessage, answer: bytes) -> None:
        assert self._answers is not None
        reply = aio_pika.Message(answer, correlation_id=reply_id(message.correlation_id, message.user_id))
        await self._answers.default_exchange.publish(reply, message.reply_to or "", mandatory=False)


class QueryConsumer:
    """Answers queries, one at a time, until it is closed."""

    def __init__(self, address: BrokerAddress, answer: Answer) -> None:
        self._link = Link(lambda: _QuerySession(address, answer), name="query consumer")

    async def run(self) -> None:
        """Answer until cancelled."""
        self._link.start()
        try:
            await asyncio.Event().wait()
        finally:
            await self._link.stop()
