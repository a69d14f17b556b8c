"""What travels: bodies are opaque bytes here, only what the broker itself needs has a name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeAlias

from bso.domain.log import RecordedEvent
from bso.schema.codec import encode_event, wire_name
from bso.schema.envelope import MAX_ANSWER_BYTES
from bso_broker.addresses import routing_key
from bso_broker.errors import MessageTooLarge

HeaderValue: TypeAlias = object
Headers: TypeAlias = Mapping[str, HeaderValue]


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """A command that the broker handed over; it stays the broker's until it is settled."""

    body: bytes
    message_id: str | None
    reply_to: str | None = None
    correlation_id: str | None = None
    user_id: str | None = None  # the login that published it, checked by the broker; None if the sender left it out
    headers: Headers = field(default_factory=dict)
    parked_s: float = 0.0  # how long workers have parked it so far, because its job was in trouble
    redelivered: bool = False
    exchange: str = ""  # which exchange it came through; "": straight to the queue
    is_damaged: bool = False  # what its AMQP properties said could not be read, and is missing here
    discarded_bytes: int = 0  # how large its body was, if it was too large to be read, and is missing here
    delivery_count: int = 0  # how often it was handed over before
    session: int = 0  # which life of the connection it came on: only there can it be settled
    tag: int = 0
    part: int = 0  # of its message, which is settled once all its parts are
    is_of_bundle: bool = False  # its sender reads bundles, too


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The answer to a command."""

    reply_to: str
    body: bytes
    correlation_id: str
    user_id: str | None  # whose command it was: the reply goes to a queue of that user, or nowhere
    may_be_bundled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A fact on its way to subscribers."""

    routing_key: str
    body: bytes
    message_id: str
    headers: Headers = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """Whether commands are being consumed and find what they need on the broker, why (not), and since when."""

    ready: bool
    reason: str
    since_s: float  # on the event loop's clock


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A command that no worker could handle."""

    body: bytes
    message_id: str | None
    user_id: str | None  # whose command it was
    reason: str
    died_at: datetime | None
    headers: Headers = field(default_factory=dict)
    discarded_bytes: int = 0  # how large its body was, if it was too large to be read, and is missing here


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueCounts:
    """How many messages wait for a worker, lie among the dead letters, and expired within the last day."""

    commands: int
    dead_letters: int
    expired: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueDepth:
    """How many messages wait in one queue, and how many consumers it has."""

    messages: int
    consumers: int


def check_size(body: bytes) -> None:
    """Raise MessageTooLarge for what a broker would answer by closing the channel, and everybody's calls with it."""
    if len(body) > MAX_ANSWER_BYTES:
        raise MessageTooLarge(f"a message may have at most {MAX_ANSWER_BYTES} bytes, got {len(body)}")


def event_message(recorded: RecordedEvent) -> Event:
    """An event of the log as a message, the same wherever it is published, live or again: ``job_id:log_epoch:seq``."""
    return Event(
        routing_key=routing_key(wire_name(type(recorded.event)), recorded.job_id),
        body=encode_event(recorded),
        message_id=f"{recorded.job_id}:{recorded.log_epoch}:{recorded.seq}",
    )
