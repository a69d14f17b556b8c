"""Messages as anybody might send them, whatever is in them."""

import asyncio
import uuid
from types import TracebackType
from typing import Any, Self

import aiormq
from aiormq.abc import DeliveredMessage
from pamqp.commands import Basic

from bso.domain.commands import DescribeJob, Request
from bso.domain.replies import Problem, Reply
from bso.schema.codec import decode_reply, encode_command
from bso_broker.addresses import new_reply_queue
from bso_broker.topology import COMMAND_KEY, COMMANDS
from tests.servers import PATIENCE_S


class RawSender:
    """Publishes bytes to the workers and hears what comes back; an async context manager."""

    def __init__(self, url: str, *, user: str = "guest") -> None:
        self._url = url
        self._user = user
        self.reply_queue = new_reply_queue(user)
        self._replies: asyncio.Queue[DeliveredMessage] = asyncio.Queue()

    async def __aenter__(self) -> Self:
        self._connection = await aiormq.connect(self._url)
        self._channel = await self._connection.channel()
        await self._channel.queue_declare(self.reply_queue, exclusive=True)
        await self._channel.basic_consume(self.reply_queue, self._replies.put, no_ack=True)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._connection.close()

    async def send(self, body: bytes, *, routing_key: str = COMMAND_KEY, **properties: Any) -> str:
        """Publish, with properties of AMQP that replace the usual ones; returns the message_id."""
        message_id = str(uuid.uuid4())
        usual = {
            "message_id": message_id,
            "correlation_id": message_id,
            "reply_to": self.reply_queue,
            "user_id": self._user,
        }
        await self._channel.basic_publish(
            body,
            exchange=COMMANDS,
            routing_key=routing_key,
            properties=Basic.Properties(**{**usual, **properties}),
            mandatory=True,
        )
        return message_id

    async def receive_reply(self) -> Reply:
        """The next reply."""
        return decode_reply(await self.receive_body())

    async def receive_body(self) -> bytes:
        """The next message that comes back, as it is."""
        return (await self.receive()).body

    async def receive(self) -> DeliveredMessage:
        """The same with its properties."""
        async with asyncio.timeout(PATIENCE_S):
            return await self._replies.get()

    async def problem(self, body: bytes, **properties: Any) -> Problem:
        """Publish, and return the problem that comes back."""
        await self.send(body, **properties)
        reply = await self.receive_reply()
        assert isinstance(reply, Problem), reply
        return reply

    async def has_heard_nothing(self) -> bool:
        """Whether the first reply is that to a question asked now, which a worker answers after all before."""
        question = Request(command_id=str(uuid.uuid4()), job_id="never-registered", command=DescribeJob())
        message_id = await self.send(encode_command(question))
        return (await self.receive()).header.properties.correlation_id == message_id
