"""Take queries from the broker, answer one after the other, of each login in turn, and send the answers back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aio_pika
from aio_pika.abc import AbstractIncomingMessage
from typing_extensions import override

from bso.log_records import logger_of
from bso_broker.addresses import is_reply_address, reply_id
from bso_broker.connection import BrokerAddress, is_lost
from bso_broker.declaration import declare_if_allowed
from bso_broker.errors import NoRoom
from bso_broker.frames import discarded_bytes
from bso_broker.ports import Answer
from bso_broker.session import BrokerSession, Link
from bso_broker.topology import QUERY_QUEUE
from bso_broker.turns import Turns

logger = logger_of(__name__)

_SHARE = 0.25
"""Queries take so much of a worker's time at most: it rests after each, while others may take the next one."""
_LONGEST_REST_S = 5.0
_MOST_AT_HAND, _LARGEST_BYTES = 64, 10_000
_MOST_WAITING = 8
"""Of one login. What it sends beyond that is refused, and leaves room for the queries of others."""


class _QuerySession(BrokerSession):
    def __init__(self, address: BrokerAddress, answer: Answer, refusal: bytes) -> None:
        super().__init__(address)
        self._answer = answer
        self._refusal = refusal
        self._turns = Turns(most_waiting=_MOST_WAITING)
        self._refusing = asyncio.Lock()
        self._answers: aio_pika.Channel | None = None

    @override
    async def open(self) -> None:
        connection = await self.connect("bso worker: queries", largest_body=_LARGEST_BYTES)
        await declare_if_allowed(connection, self.address.topology)
        self._answers = await self.channel(connection, confirms=False)
        channel = await self.channel(connection, confirms=False)
        await channel.set_qos(prefetch_count=_MOST_AT_HAND)
        queue = await channel.get_queue(QUERY_QUEUE, ensure=False)
        await queue.consume(self._on_query)

    async def _on_query(self, message: AbstractIncomingMessage) -> None:
        """Answer a query, or refuse it. One whose answer may not go to its address is dropped."""
        try:
            if is_reply_address(message.reply_to, message.user_id) and not discarded_bytes(message.body):
                await self._answer_in_turn(message)
            await message.ack()
        except BaseException as error:  # unforeseen ones, too: the next session gets the query again
            if not is_lost(error) and not isinstance(error, Exception):
                raise
            self.fail(error)

    async def _answer_in_turn(self, message: AbstractIncomingMessage) -> None:
        """Answer a query when its turn comes, unless it has expired by then; refuse it where too many wait."""
        clock = asyncio.get_running_loop().time
        came_s = clock()
        try:
            async with self._turns.of(message.user_id), _rest_after():
                expires_after_s = message.expiration
                if not isinstance(expires_after_s, float) or clock() - came_s < expires_after_s:
                    await self._reply(message, await self._answer(message.body, message.user_id))
        except NoRoom:
            async with self._refusing, _rest_after():
                await self._reply(message, self._refusal)

    async def _reply(self, message: AbstractIncomingMessage, answer: bytes) -> None:
        assert self._answers is not None
        reply = aio_pika.Message(answer, correlation_id=reply_id(message.correlation_id, message.user_id))
        await self._answers.default_exchange.publish(reply, message.reply_to or "", mandatory=False)


@asynccontextmanager
async def _rest_after() -> AsyncIterator[None]:
    """Rest after the block for so long that it has taken its share of the time."""
    clock = asyncio.get_running_loop().time
    began_s = clock()
    yield
    await asyncio.sleep(min(_LONGEST_REST_S, (clock() - began_s) * (1.0 - _SHARE) / _SHARE))


class QueryConsumer:
    """Answers queries, one at a time, of each login in turn, until it is closed.

    Those of a login that sends faster than that get ``refusal``.
    """

    def __init__(self, address: BrokerAddress, answer: Answer, *, refusal: bytes) -> None:
        self._link = Link(lambda: _QuerySession(address, answer, refusal), name="query consumer")

    async def run(self) -> None:
        """Answer until cancelled."""
        self._link.start()
        try:
            await asyncio.Event().wait()
        finally:
            await self._link.stop()
