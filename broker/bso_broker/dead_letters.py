"""The commands no worker could handle: setting them aside, looking at them, trying them again, deleting them."""

from __future__ import annotations

import asyncio
import reprlib
from collections.abc import AsyncIterator, Collection, Container, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Self

from aio_pika.abc import AbstractChannel, AbstractIncomingMessage, AbstractQueue
from pamqp import encode
from pamqp.commands import Basic

from bso.schema.envelope import MAX_MESSAGE_BYTES
from bso_broker.bundles import BUNDLE
from bso_broker.connection import BrokerAddress, Connection, connect, explain, is_lost, publish
from bso_broker.declaration import depth_of
from bso_broker.errors import BrokerClosed, BrokerUnreachable
from bso_broker.frames import discarded_bytes
from bso_broker.messages import DeadLetter, Delivery, Headers, QueueCounts
from bso_broker.publisher import PERSISTENT, PublishingLink, field_table
from bso_broker.topology import COMMAND_KEY, COMMAND_QUEUE, COMMANDS, DEAD_LETTER_EXCHANGE, DEAD_LETTERS, EXPIRED
from bso_broker.underlay import Outgoing, open_channel, underlay_channel_of

REASON_HEADER = "bso-reason"
SENDER_HEADER = "bso-original-user"
PARKED_HEADER = "bso-parked-s"
CLAIMED_HEADER = "bso-claimed-user"
DISCARDED_HEADER = "bso-discarded-bytes"
_ADDED = (REASON_HEADER, SENDER_HEADER, PARKED_HEADER, CLAIMED_HEADER, DISCARDED_HEADER)
_DEATH_HEADER = "x-first-death-reason"
_ANSWER_TIMEOUT_S = 30.0
_MOST_HEADER_BYTES = 64 * 1024  # of a sender; RabbitMQ's frames take 128 KiB


def sender_of(delivery: Delivery, *, operators: Container[str] = ()) -> str | None:
    """Whose command this is: the login that published it, or, when it was requeued or parked, whose it was before.

    Only operators, and workers that have parked it, are believed when they name somebody else. A requeued command may
    have two such names: the login that parked it, and whose it was according to that login.
    """
    if delivery.parked_s:
        named = delivery.headers.get(SENDER_HEADER)
        return (named or None) if isinstance(named, str) else None
    sender = named_sender(delivery.user_id, delivery.headers, operators)
    claimed = delivery.headers.get(CLAIMED_HEADER)
    is_believed = sender is not None and sender in operators
    return (claimed or None) if is_believed and isinstance(claimed, str) else sender


def named_sender(user_id: str | None, headers: Headers, operators: Container[str]) -> str | None:
    """The user that a message's headers name, if an operator sent it, else the user that sent it; None: nobody."""
    named = headers.get(SENDER_HEADER)
    is_believed = user_id is not None and user_id in operators and isinstance(named, str)
    return (str(named) or None) if is_believed else user_id


def claimed_sender(headers: Headers, *, sender: str | None) -> str | None:
    """Whose a command is according to a login that has parked it; "": nobody's; None: it names none but ``sender``."""
    parked = headers.get(PARKED_HEADER)
    claimed = headers.get(SENDER_HEADER, "") if isinstance(parked, int) and parked > 0 else headers.get(CLAIMED_HEADER)
    return claimed if isinstance(claimed, str) and claimed != (sender or "") else None


async def set_aside(
    link: PublishingLink, delivery: Delivery, *, reason: str, sender: str | None, timeout_s: float
) -> None:
    """Publish a command to the dead letters, with the reason and whose command it was. It is not acknowledged."""
    properties = Basic.Properties(
        message_id=delivery.message_id,
        correlation_id=delivery.correlation_id,
        reply_to=delivery.reply_to,
        delivery_mode=PERSISTENT,
        timestamp=datetime.now(UTC),
        headers=field_table(
            own_headers(delivery.headers)
            | {REASON_HEADER: reason}
            | sender_header(sender)
            | _claimed_header(delivery.headers, sender)
            | ({DISCARDED_HEADER: delivery.discarded_bytes} if delivery.discarded_bytes else {})
        ),
    )
    message = Outgoing(routing_key="", body=delivery.body, properties=properties)
    await link.publish_command(message, exchange=DEAD_LETTER_EXCHANGE, timeout_s=timeout_s)


def own_headers(headers: Headers) -> dict[str, object]:
    """The headers a sender chose: without those the broker and bso add, in words where they cannot be sent on.

    Of more than 64 KiB, only those that fit.
    """
    own: dict[str, object] = {}
    left = _MOST_HEADER_BYTES
    for name, value in headers.items():
        if name.startswith("x-") or name in _ADDED:
            continue
        size, sent = _sized(name, value)
        if size > left:
            continue  # with what bso adds they would be larger than a frame, and end the connection
        left -= size
        own[name] = sent
    return own


def added_headers(headers: Headers) -> dict[str, object]:
    """The headers that bso adds, which say whose command it is."""
    return {name: headers[name] for name in _ADDED if name in headers}


def _sized(name: str, value: object) -> tuple[int, object]:
    """A header as pamqp can write it, and its size. It reads some that it cannot: doubles, text that is not UTF-8."""
    try:
        return len(encode.field_table({name: value})), value  # type: ignore[dict-item]  # what it refuses
    except (TypeError, ValueError, OverflowError, RecursionError):
        words = reprlib.repr(value)
        return len(encode.field_table({name: words})), words


def sender_header(sender: str | None) -> dict[str, object]:
    """Whose command it is, as a header; "": nobody's. Without it, it would be of the operator who sends it again."""
    return {SENDER_HEADER: sender or ""}


def _claimed_header(headers: Headers, sender: str | None) -> dict[str, object]:
    claimed = claimed_sender(headers, sender=sender)
    return {} if claimed is None else {CLAIMED_HEADER: claimed}


class DeadLetters:
    """An operator's view of the dead letters: an async context manager that holds one connection.

    Its login should be among the operators that the workers know, so that they believe it whose command a requeued
    one is.
    """

    _channel: AbstractChannel
    _letters: AbstractQueue

    def __init__(self, address: BrokerAddress, *, operators: Collection[str] = ()) -> None:
        self._address = address
        self._operators = {address.login, *operators}
        self._connection: Connection | None = None

    async def __aenter__(self) -> Self:
        self._connection = await connect(self._address, name="bso operator", largest_body=MAX_MESSAGE_BYTES)
        try:
            async with self._deadline() as connection:
                self._channel = await open_channel(connection, confirms=True)
                self._letters = await self._channel.get_queue(DEAD_LETTERS, ensure=False)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._connection is not None:
            await self._connection.close()
            self._connection = None

    async def counts(self) -> QueueCounts:
        """Count the waiting commands, the dead letters, and what expired within a day."""
        commands, dead, expired = [await self._count(queue) for queue in (COMMAND_QUEUE, DEAD_LETTERS, EXPIRED)]
        return QueueCounts(commands=commands, dead_letters=dead, expired=expired)

    async def _count(self, queue: str) -> int:
        async with self._deadline() as connection:
            return (await depth_of(connection, queue)).messages

    async def peek(self, *, limit: int = 100) -> tuple[DeadLetter, ...]:
        """Look at the oldest dead letters and leave them where they are."""
        taken = await self._take(limit)
        await self._put_back(taken)
        return tuple(_dead_letter(message, self._operators) for message in taken)

    async def requeue(self, message_ids: Container[str | None] | None = None) -> int:
        """Send dead letters to the workers again, all or those with these ids; returns how many.

        Each carries in a header whose command it was. A command is deleted here after the broker has confirmed it
        there: interrupted, it may exist twice, which its message_id makes harmless. What was too large to be read has
        no body that could be sent: it stays.
        """
        taken = await self._take(None)  # until the queue is empty: its count lags behind what peek() has put back
        wanted = [
            message
            for message in taken
            if (message_ids is None or message.message_id in message_ids) and not _discarded_bytes(message)
        ]
        for message in wanted:
            await self._send_again(message)
        await self._put_back([message for message in taken if message not in wanted])
        return len(wanted)

    async def purge(self) -> int:
        """Delete all dead letters; returns how many."""
        async with self._deadline():
            return (await self._letters.purge()).message_count or 0

    async def _take(self, limit: int | None) -> list[AbstractIncomingMessage]:
        taken: list[AbstractIncomingMessage] = []
        async with self._deadline():
            while limit is None or len(taken) < limit:
                message = await self._letters.get(fail=False, timeout=None)
                if message is None:
                    break
                taken.append(message)
        return taken

    async def _put_back(self, messages: Sequence[AbstractIncomingMessage]) -> None:
        async with self._deadline():
            for message in messages:
                await message.nack(requeue=True)

    async def _send_again(self, old: AbstractIncomingMessage) -> None:
        letter = _dead_letter(old, self._operators)
        properties = Basic.Properties(
            content_type=BUNDLE if old.content_type == BUNDLE else None,
            message_id=old.message_id,
            correlation_id=old.correlation_id,
            reply_to=old.reply_to,
            user_id=self._address.login,
            delivery_mode=PERSISTENT,
            headers=field_table(
                own_headers(letter.headers)
                | sender_header(letter.user_id)
                | _claimed_header(letter.headers, letter.user_id)
            ),
        )
        async with self._deadline():
            channel, timeout_s = await underlay_channel_of(self._channel), self._address.confirm_timeout_s
            message = Outgoing(routing_key=COMMAND_KEY, body=old.body, properties=properties)
            await publish(channel, message, exchange=COMMANDS, timeout_s=timeout_s)
            await old.ack()

    @asynccontextmanager
    async def _deadline(self) -> AsyncIterator[Connection]:
        """Errors of ours for what fails inside, also when the broker does not answer in time."""
        if self._connection is None:
            raise BrokerClosed("use the dead letters inside 'async with'")
        try:
            async with asyncio.timeout(_ANSWER_TIMEOUT_S):
                yield self._connection
        except TimeoutError as error:
            raise BrokerUnreachable(f"the broker at {self._address} stopped answering") from error
        except BaseException as error:
            if is_lost(error):
                raise explain(error) from error
            raise


def _dead_letter(message: AbstractIncomingMessage, operators: Container[str]) -> DeadLetter:
    headers = message.headers
    death = headers.get(_DEATH_HEADER)
    named = headers.get(SENDER_HEADER)
    # What a worker set aside names the sender itself; what the broker moved is as the sender, or an operator, sent it.
    by_worker = (named or None) if isinstance(named, str) else None
    return DeadLetter(
        body=b"" if discarded_bytes(message.body) else message.body,
        message_id=message.message_id,
        user_id=named_sender(message.user_id, headers, operators) if death else by_worker,
        reason=str(_latest_death(headers).get("reason") or headers.get(REASON_HEADER) or "unknown"),
        died_at=_died_at(headers) if death else message.timestamp,
        headers=headers,
        discarded_bytes=_discarded_bytes(message),
    )


def _discarded_bytes(message: AbstractIncomingMessage) -> int:
    """How large a body was that is thrown away here, or was by the worker that set the command aside; else 0."""
    # What the broker moved, a sender wrote.
    said = None if _DEATH_HEADER in message.headers else message.headers.get(DISCARDED_HEADER)
    return discarded_bytes(message.body) or (said if isinstance(said, int) else 0)


def _died_at(headers: Headers) -> datetime | None:
    when = _latest_death(headers).get("time")
    return when if isinstance(when, datetime) else None


def _latest_death(headers: Headers) -> Mapping[str, object]:
    """Why and when the broker moved a message last; empty if it never did. A parked one has expired before."""
    deaths = headers.get("x-death")
    latest = deaths[0] if isinstance(deaths, list) and deaths else {}
    return latest if isinstance(latest, Mapping) else {}
