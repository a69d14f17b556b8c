"""Ask the optimizer: publish a command, wait for its reply, and survive everything in between."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import Any

from pamqp.commands import Basic
from typing_extensions import override

from bso.domain.errors import Misconfigured
from bso.log_records import logger_of
from bso.schema.envelope import MAX_ANSWER_BYTES
from bso_broker.addresses import new_reply_queue, reply_id
from bso_broker.connection import BrokerAddress, explain, is_lost
from bso_broker.errors import (
    CallTimeout,
    ConnectionLost,
    MessageTooLarge,
    NoCommandQueue,
    NotPermitted,
    PublishFailed,
    TopologyMissing,
)
from bso_broker.frames import Arrived, Tap, discarded_bytes
from bso_broker.messages import check_size
from bso_broker.publisher import PERSISTENT
from bso_broker.session import BrokerSession, Link
from bso_broker.topology import COMMAND_KEY, COMMANDS
from bso_broker.underlay import ConfirmedChannel, Outcome, Outgoing, not_tapped

logger = logger_of(__name__)

_REFUSED_PAUSE_S = 1.0  # before a command is offered again to a queue that was full


@dataclass(frozen=True, slots=True, kw_only=True)
class _Command:
    body: bytes
    message_id: str
    routing_key: str
    is_anonymous: bool
    expires_at_s: float | None


class _RpcSession(BrokerSession):
    """One connection: commands go out on one of its channels, replies come in on another.

    A broker without memory or disk reads nothing from it, and still sends the replies.
    """

    _commands: ConfirmedChannel

    def __init__(self, address: BrokerAddress) -> None:
        super().__init__(address)
        self._reply_queue = new_reply_queue(address.login)
        self._replies: dict[str, asyncio.Future[bytes | None]] = {}

    @override
    async def open(self) -> None:
        connection = await self.connect("bso client")
        consuming = await self.fast_channel(connection, confirms=False)
        await consuming.queue_declare(self._reply_queue, exclusive=True, auto_delete=True)
        connection.sockets.tap(consuming, Tap(on_delivery=self._on_reply))
        await consuming.basic_consume(self._reply_queue, not_tapped, no_ack=True)
        self._commands = ConfirmedChannel(await self.fast_channel(connection, confirms=True), connection.sockets)

    async def ask(self, command: _Command) -> bytes:
        """Publish and wait for the reply, which may come before the broker's confirmation.

        ConnectionLost: this session ended before. TopologyMissing, PublishFailed: the broker does not take the command.

        A reply is not confirmed and can be lost on its way, so the command goes out again after a while, then after
        twice that, and so on: rarely enough not to swell the queue of workers that are only slow.
        """
        reply: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        user_id = None if command.is_anonymous else self.address.login
        awaited = reply_id(command.message_id, user_id)
        self._replies[awaited] = reply
        pause_s = self.address.resend_after_s
        try:
            while not reply.done():
                confirmation = self._publish(command)
                confirmation.add_done_callback(partial(_pass_on_refusal, reply))
                await self._wait(reply, confirmation, timeout_s=pause_s)
                pause_s *= 2
        finally:
            del self._replies[awaited]
            if not reply.cancel():
                reply.exception()  # where publishing again has failed, nobody asks for it
        body = reply.result()
        if body is None:
            if isinstance(self.cause, (TopologyMissing, NotPermitted)):
                raise self.cause
            raise ConnectionLost("the connection broke before the reply came") from self.cause
        return body

    async def _wait(
        self, reply: asyncio.Future[bytes | None], confirmation: asyncio.Future[Outcome], *, timeout_s: float
    ) -> None:
        """Wait for a reply; a broker from which neither that nor a confirmation comes is taken for frozen."""
        patience_s = self.address.confirm_timeout_s
        first_s = min(timeout_s, patience_s)
        await asyncio.wait([reply], timeout=first_s)
        if not reply.done() and not confirmation.done():
            both: list[asyncio.Future[Any]] = [reply, confirmation]
            done, _ = await asyncio.wait(both, timeout=patience_s - first_s, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                self.fail(ConnectionLost(f"no confirmation within {patience_s:g} s"))
        if not reply.done() and timeout_s > first_s:
            await asyncio.wait([reply], timeout=timeout_s - first_s)

    def _publish(self, command: _Command) -> asyncio.Future[Outcome]:
        check_size(command.body)
        properties = Basic.Properties(
            message_id=command.message_id,
            correlation_id=command.message_id,
            reply_to=self._reply_queue,
            user_id=None if command.is_anonymous else self.address.login,
            delivery_mode=PERSISTENT,
            expiration=_remaining_ms(command.expires_at_s),
        )
        message = Outgoing(routing_key=command.routing_key, body=command.body, properties=properties)
        try:
            return self._commands.publish([message], exchange=COMMANDS, mandatory=True)
        except BaseException as error:
            if not is_lost(error):
                raise
            lost = explain(error)
            if isinstance(lost, ConnectionLost):
                self.fail(lost)  # else the next attempt would be on this session again
            raise lost from error

    def _on_reply(self, message: Arrived) -> None:
        reply = self._replies.get(message.properties.correlation_id or "")
        if reply is None or reply.done():
            logger.debug("a reply nobody waits for", extra={"action": "reply_ignored"})
            return
        if size := discarded_bytes(message.body):
            reply.set_exception(MessageTooLarge(f"the reply has {size} bytes, at most {MAX_ANSWER_BYTES} are read"))
        else:
            reply.set_result(message.body)

    @override
    def fail(self, cause: BaseException | None) -> None:
        super().fail(cause)
        for reply in self._replies.values():
            if not reply.done():
                reply.set_result(None)


def _pass_on_refusal(reply: asyncio.Future[bytes | None], confirmation: asyncio.Future[Outcome]) -> None:
    if reply.done() or confirmation.cancelled() or confirmation.exception() is not None:
        return
    if confirmation.result() is Outcome.REFUSED:
        reply.set_exception(
            PublishFailed("the broker refused the command: the queue is full or its leader unavailable")
        )
    elif confirmation.result() is Outcome.RETURNED:
        reply.set_exception(TopologyMissing("no queue is bound for this command"))


class RpcClient:
    """Calls the optimizer through RabbitMQ.

    A call outlives reconnects: until its deadline it is sent again with the same message_id on each new connection,
    so a worker must give the same answer to the same message_id. Replies to nobody, and second ones, are
    ignored.
    """

    def __init__(self, address: BrokerAddress | str) -> None:
        where = BrokerAddress(url=address) if isinstance(address, str) else address
        self._where = where
        self._link = Link(lambda: _RpcSession(where), name="broker client")
        self._in_flight: set[str] = set()
        self._was_answered = False

    @property
    def connected(self) -> asyncio.Event:
        """Set while the broker is reachable."""
        return self._link.connected

    async def start(self) -> None:
        """Begin connecting; calls wait for the connection."""
        self._link.start()

    async def close(self) -> None:
        """Disconnect; pending calls raise BrokerClosed."""
        await self._link.stop()

    async def call(
        self,
        body: bytes,
        *,
        message_id: str,
        timeout_s: float,
        expiration_s: float | None = None,
        routing_key: str = COMMAND_KEY,
        is_anonymous: bool = False,
    ) -> bytes:
        """Send a command, or what else its routing key says, and return the reply to it.

        ``is_anonymous``: it does not say whose it is.

        Raises CallTimeout when no reply came within ``timeout_s`` (it may be carried out all the same: call again
        with the same message_id), NoCommandQueue when there is no queue and nobody has answered before, and what is
        Misconfigured: at once when the first connection shows it, later when it still is so after ``timeout_s``.
        After ``expiration_s`` the broker drops a command that no worker has taken.
        """
        if message_id in self._in_flight:
            raise ValueError(f"a call with message_id {message_id} is under way already")
        now = asyncio.get_running_loop().time()
        expires_at_s = None if expiration_s is None else now + expiration_s
        command = _Command(
            body=body,
            message_id=message_id,
            routing_key=routing_key,
            is_anonymous=is_anonymous,
            expires_at_s=expires_at_s,
        )
        self._in_flight.add(message_id)
        try:
            async with asyncio.timeout(timeout_s):
                return await self._ask_until_answered(command)
        except TimeoutError as error:
            if isinstance(self._link.last_error, Misconfigured):
                raise self._link.last_error from error
            raise CallTimeout(self._why_no_reply(timeout_s)) from (self._link.last_error or error)
        finally:
            self._in_flight.discard(message_id)

    async def _ask_until_answered(self, command: _Command) -> bytes:
        while True:
            session = await self._link.session()
            try:
                reply = await session.ask(command)
                self._was_answered = True
                return reply
            except ConnectionLost:
                logger.debug("sending a command again on the next connection", extra={"action": "command_resent"})
            except PublishFailed:
                logger.debug("the queue of commands takes no more: waiting", extra={"action": "command_refused"})
                await asyncio.sleep(_REFUSED_PAUSE_S)
            except TopologyMissing as error:
                if self._was_answered:  # somebody has deleted the queue: a worker declares it again
                    await asyncio.sleep(_REFUSED_PAUSE_S)
                    continue
                raise NoCommandQueue(
                    "the broker has no queue for commands: no worker has been started there yet (bso worker), "
                    "or the URL names another virtual host than the workers' one"
                ) from error

    @property
    def obstacle(self) -> str | None:
        """What keeps calls from being sent, as far as it is known; None: nothing."""
        return self._link.obstacle

    def _why_no_reply(self, timeout_s: float) -> str:
        if self._link.last_error is not None:
            return f"no reply within {timeout_s:.3g} s: {self._link.last_error}"
        if not self._link.connected.is_set():
            return f"no reply within {timeout_s:.3g} s: the broker at {self._where} has not answered yet"
        if self._link.obstacle is not None:
            return f"no reply within {timeout_s:.3g} s: {self._link.obstacle}"
        ask = "does a worker run there, and reach its database?"
        return f"no reply within {timeout_s:.3g} s, though the connection to the broker stands: {ask}"


def _remaining_ms(expires_at_s: float | None) -> str | None:
    """Until a command expires, at least the millisecond that AMQP can say."""
    if expires_at_s is None:
        return None
    return str(max(1, round(1e3 * (expires_at_s - asyncio.get_running_loop().time()))))
