"""Ask the optimizer: publish a command, wait for its reply, and survive everything in between."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import dataclass
from functools import partial

from pamqp.commands import Basic
from typing_extensions import override

from bso.domain.errors import Misconfigured
from bso.log_records import logger_of
from bso.schema.envelope import MAX_ANSWER_BYTES
from bso_broker.addresses import new_reply_queue, reply_id
from bso_broker.bundles import BUNDLE, Bundle, bundle_of, may_share, parts_of
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
    may_be_bundled: bool


@dataclass(slots=True, eq=False)
class _Asked:
    """A command that waits for its reply until ``until_s``; without one it goes out again after ``pause_s``."""

    command: _Command
    reply: asyncio.Future[bytes | None]
    until_s: float
    pause_s: float
    sent_at_s: float = 0.0
    confirmation: asyncio.Future[Outcome] | None = None
    timer: asyncio.TimerHandle | None = None

    def fail(self, error: Exception) -> None:
        """End the waiting, if it has not ended."""
        if not self.reply.done():
            self.reply.set_exception(error)


@dataclass(slots=True, eq=False)
class _Gathering:
    """Commands of one turn of the event loop, which go out as one message, and what becomes of that."""

    bundle: Bundle
    asked: list[_Asked]
    outcome: asyncio.Future[Outcome]


class _RpcSession(BrokerSession):
    """One connection: commands go out on one of its channels, replies come in on another.

    A broker without memory or disk reads nothing from it, and still sends the replies.
    """

    _commands: ConfirmedChannel

    def __init__(self, address: BrokerAddress) -> None:
        super().__init__(address)
        self._reply_queue = new_reply_queue(address.login)
        self._replies: dict[str, asyncio.Future[bytes | None]] = {}
        self._gathering: _Gathering | None = None

    @override
    async def open(self) -> None:
        connection = await self.connect("bso client")
        consuming = await self.fast_channel(connection, confirms=False)
        await consuming.queue_declare(self._reply_queue, exclusive=True, auto_delete=True)
        connection.sockets.tap(consuming, Tap(on_delivery=self._on_reply))
        await consuming.basic_consume(self._reply_queue, not_tapped, no_ack=True)
        self._commands = ConfirmedChannel(await self.fast_channel(connection, confirms=True), connection.sockets)

    async def ask(self, command: _Command, *, until_s: float) -> bytes:
        """Publish and wait for the reply, which may come before the broker's confirmation.

        ConnectionLost: this session ended before. TopologyMissing, PublishFailed: the broker does not take the command.
        TimeoutError: no reply came until then, on the event loop's clock.

        A reply is not confirmed and can be lost on its way, so the command goes out again after a while, then after
        twice that, and so on: rarely enough not to swell the queue of workers that are only slow.
        """
        user_id = None if command.is_anonymous else self.address.login
        awaited = reply_id(command.message_id, user_id)
        asked = _Asked(command, asyncio.get_running_loop().create_future(), until_s, self.address.resend_after_s)
        self._replies[awaited] = asked.reply
        try:
            self._send(asked)
            body = await asked.reply
        finally:
            del self._replies[awaited]
            if asked.timer is not None:
                asked.timer.cancel()
        if body is None:
            if isinstance(self.cause, (TopologyMissing, NotPermitted)):
                raise self.cause
            raise ConnectionLost("the connection broke before the reply came") from self.cause
        return body

    def _send(self, asked: _Asked) -> None:
        loop = asyncio.get_running_loop()
        asked.confirmation = self._publish(asked)
        asked.confirmation.add_done_callback(partial(_pass_on_refusal, asked.reply))
        asked.sent_at_s = loop.time()
        self._look_later(asked, after_s=min(asked.pause_s, self.address.confirm_timeout_s))

    def _look_later(self, asked: _Asked, *, after_s: float) -> None:
        if asked.timer is not None:
            asked.timer.cancel()
        at_s = min(asked.sent_at_s + after_s, asked.until_s)
        asked.timer = asyncio.get_running_loop().call_at(at_s, self._look_at, asked)

    def _look_at(self, asked: _Asked, _: object = None) -> None:
        """Send a command again whose reply is due; a broker from which no confirmation comes is taken for frozen."""
        if asked.reply.done() or asked.confirmation is None:
            return
        now_s, patience_s = asyncio.get_running_loop().time(), self.address.confirm_timeout_s
        if now_s >= asked.until_s:
            asked.reply.set_exception(TimeoutError())
        elif asked.confirmation.done():
            if now_s < asked.sent_at_s + asked.pause_s:
                self._look_later(asked, after_s=asked.pause_s)
            else:
                self._send_again(asked)
        elif now_s < asked.sent_at_s + patience_s:
            asked.confirmation.add_done_callback(partial(self._look_at, asked))
            self._look_later(asked, after_s=patience_s)
        else:
            self.fail(ConnectionLost(f"no confirmation within {patience_s:g} s"))

    def _send_again(self, asked: _Asked) -> None:
        asked.pause_s *= 2
        try:
            self._send(asked)
        except Exception as error:  # noqa: BLE001  for who waits
            asked.fail(error)

    def _publish(self, asked: _Asked) -> asyncio.Future[Outcome]:
        """Publish; a command that may be bundled goes out with others, once this turn of the event loop is over."""
        command, part = asked.command, (asked.command.message_id, asked.command.body)
        check_size(command.body)
        if not (command.may_be_bundled and may_share(part)):
            return self._write(self._message(command))
        gathering = self._gathering
        if gathering is not None and gathering.bundle.add(part):
            gathering.asked.append(asked)
            return gathering.outcome
        loop = asyncio.get_running_loop()
        gathering = self._gathering = _Gathering(Bundle(part), [asked], loop.create_future())
        loop.call_soon(self._publish_gathered, gathering)
        return gathering.outcome

    def _publish_gathered(self, gathering: _Gathering) -> None:
        if self._gathering is gathering:
            self._gathering = None
        is_alone = len(gathering.asked) == 1
        message = self._message(gathering.asked[0].command) if is_alone else self._bundle(gathering.bundle)
        try:
            confirmation = self._write(message)
        except Exception as error:  # noqa: BLE001  for all that wait
            gathering.outcome.cancel()
            for asked in gathering.asked:
                asked.fail(error)
        else:
            confirmation.add_done_callback(partial(_pass_on, gathering.outcome))

    def _write(self, message: Outgoing) -> asyncio.Future[Outcome]:
        try:
            return self._commands.publish([message], exchange=COMMANDS, mandatory=True)
        except BaseException as error:
            if not is_lost(error):
                raise
            lost = explain(error)
            if isinstance(lost, ConnectionLost):
                self.fail(lost)  # else the next attempt would be on this session again
            raise lost from error

    def _message(self, command: _Command) -> Outgoing:
        properties = Basic.Properties(
            message_id=command.message_id,
            correlation_id=command.message_id,
            reply_to=self._reply_queue,
            user_id=None if command.is_anonymous else self.address.login,
            delivery_mode=PERSISTENT,
            expiration=_remaining_ms(command.expires_at_s),
        )
        return Outgoing(routing_key=command.routing_key, body=command.body, properties=properties)

    def _bundle(self, bundle: Bundle) -> Outgoing:
        properties = Basic.Properties(
            content_type=BUNDLE,
            message_id=str(uuid.uuid4()),
            reply_to=self._reply_queue,
            user_id=self.address.login,
            delivery_mode=PERSISTENT,
        )
        return Outgoing(routing_key=COMMAND_KEY, body=bundle_of(bundle.parts), properties=properties)

    def _on_reply(self, message: Arrived) -> None:
        if message.properties.content_type != BUNDLE:
            self._take_reply(message.properties.correlation_id or "", message.body)
            return
        try:
            parts = parts_of(message.body)
        except ValueError as error:
            logger.warning("replies cannot be read: %s", error, extra={"action": "bundle_unreadable"})
            return
        for correlation_id, body in parts:
            self._take_reply(correlation_id, body)

    def _take_reply(self, correlation_id: str, body: bytes) -> None:
        reply = self._replies.get(correlation_id)
        if reply is None or reply.done():
            logger.debug("a reply nobody waits for", extra={"action": "reply_ignored"})
            return
        if size := discarded_bytes(body):
            reply.set_exception(MessageTooLarge(f"the reply has {size} bytes, at most {MAX_ANSWER_BYTES} are read"))
        else:
            reply.set_result(body)

    @override
    def fail(self, cause: BaseException | None) -> None:
        super().fail(cause)
        for reply in self._replies.values():
            if not reply.done():
                reply.set_result(None)


def _pass_on(outcome: asyncio.Future[Outcome], confirmation: asyncio.Future[Outcome]) -> None:
    if confirmation.cancelled() or confirmation.exception() is not None:
        outcome.cancel()
    else:
        outcome.set_result(confirmation.result())


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
        may_be_bundled: bool = False,
    ) -> bytes:
        """Send a command, or what else its routing key says, and return the reply to it.

        ``is_anonymous``: it does not say whose it is. ``may_be_bundled``: it may share a message with other calls of
        the same turn of the event loop, and its reply with theirs; it may be decided again where one of these is.

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
            may_be_bundled=may_be_bundled and expiration_s is None and routing_key == COMMAND_KEY and not is_anonymous,
        )
        self._in_flight.add(message_id)
        try:
            return await self._ask_until_answered(command, until_s=now + timeout_s)
        except TimeoutError as error:
            if isinstance(self._link.last_error, Misconfigured):
                raise self._link.last_error from error
            raise CallTimeout(self._why_no_reply(timeout_s)) from (self._link.last_error or error)
        finally:
            self._in_flight.discard(message_id)

    async def _ask_until_answered(self, command: _Command, *, until_s: float) -> bytes:
        while True:
            try:
                session = self._link.current
                if session is None:
                    async with asyncio.timeout_at(until_s):
                        session = await self._link.session()
                reply = await session.ask(command, until_s=until_s)
                self._was_answered = True
                return reply
            except ConnectionLost:
                logger.debug("sending a command again on the next connection", extra={"action": "command_resent"})
            except PublishFailed:
                logger.debug("the queue of commands takes no more: waiting", extra={"action": "command_refused"})
                await _pause(until_s)
            except TopologyMissing as error:
                if self._was_answered:  # somebody has deleted the queue: a worker declares it again
                    await _pause(until_s)
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


async def _pause(until_s: float) -> None:
    """Wait before a command is offered again. Raises TimeoutError where there is no time for that."""
    async with asyncio.timeout_at(until_s):
        await asyncio.sleep(_REFUSED_PAUSE_S)


def _remaining_ms(expires_at_s: float | None) -> str | None:
    """Until a command expires, at least the millisecond that AMQP can say."""
    if expires_at_s is None:
        return None
    return str(max(1, round(1e3 * (expires_at_s - asyncio.get_running_loop().time()))))
