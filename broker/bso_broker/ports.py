"""What the rest of bso may ask of a broker; RabbitMQ and memory both pass one contract suite over these."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Container, Sequence
from typing import Protocol, Self

from bso_broker.messages import DeadLetter, Delivery, Event, QueueCounts, Readiness, Reply


class CommandCaller(Protocol):
    """Sends commands and waits for their replies."""

    @property
    def connected(self) -> asyncio.Event:
        """Set while the broker is reachable."""
        ...

    async def start(self) -> None:
        """Begin connecting in the background."""
        ...

    async def call(self, body: bytes, *, message_id: str, timeout_s: float, expiration_s: float | None = None) -> bytes:
        """Send a command, again after every reconnect, and return the reply; CallTimeout, NoCommandQueue."""
        ...

    async def close(self) -> None:
        """Disconnect; pending calls raise BrokerClosed."""
        ...


class CommandSource(Protocol):
    """Hands out commands, which stay the broker's until they are settled."""

    @property
    def readiness(self) -> Readiness:
        """Whether commands are being consumed and find what they need on the broker, and if not, why."""
        ...

    async def start(self) -> None:
        """Begin connecting and consuming in the background."""
        ...

    async def wait_until_ready(self) -> None:
        """Return once commands are being consumed."""
        ...

    async def next_batch(self) -> tuple[Delivery, ...]:
        """Wait for commands and return what has arrived, up to a limit; () once drained or closed."""
        ...

    async def ack(self, deliveries: Sequence[Delivery]) -> None:
        """These are done. Too late (the connection is gone) is no error: they will be delivered again."""
        ...

    async def requeue(self, deliveries: Sequence[Delivery]) -> None:
        """Hand these back, to be delivered again."""
        ...

    async def dead_letter(
        self, delivery: Delivery, *, reason: str, sender: str | None, timeout_s: float = 10.0
    ) -> None:
        """Set a command aside with the reason and whose it was, and acknowledge it; PublishFailed leaves it."""
        ...

    async def park(self, delivery: Delivery, *, sender: str | None, pause_s: float) -> None:
        """Let a command come back after about so long, and acknowledge it; PublishFailed, TopologyMissing leave it."""
        ...

    async def pause(self, reason: str) -> None:
        """Stop consuming and hand back everything unsettled, until resume()."""
        ...

    async def resume(self) -> None:
        """Consume again after a pause."""
        ...

    async def drain(self, *, timeout_s: float) -> bool:
        """Take no more, wait until what was taken is settled, and close; False: not all in time."""
        ...

    async def close(self) -> None:
        """Disconnect at once; what is unsettled is delivered to others."""
        ...

    async def ready_messages(self) -> int:
        """How many commands wait in the queue."""
        ...


class EventSink(Protocol):
    """Takes events to be published, at least once."""

    async def publish_batch(self, events: Sequence[Event], *, timeout_s: float = 10.0) -> None:
        """Publish events; PublishFailed: publish all again."""
        ...


class ReplySink(Protocol):
    """Takes replies to commands."""

    async def reply_batch(self, replies: Sequence[Reply], *, timeout_s: float = 5.0) -> None:
        """Answer commands; PublishFailed. ForgedReplyAddress: one of them is not its user's, and none is answered."""
        ...


class EventSource(Protocol):
    """Events from the moment it is connected."""

    @property
    def gaps(self) -> int:
        """How often the connection was lost and made again, and events may have been missed."""
        ...

    @property
    def connected(self) -> asyncio.Event:
        """Set while events are being received."""
        ...

    async def start(self) -> None:
        """Begin connecting in the background."""
        ...

    def __aiter__(self) -> AsyncIterator[Event]:
        """Events, for ever."""
        ...

    async def close(self) -> None:
        """Disconnect; the iteration ends with BrokerClosed."""
        ...


class DeadLetterBox(Protocol):
    """An operator's view of the commands that no worker could handle, inside ``async with``."""

    async def __aenter__(self) -> Self:
        """Connect."""
        ...

    async def __aexit__(self, *_: object) -> None:
        """Disconnect."""
        ...

    async def counts(self) -> QueueCounts:
        """Count the waiting commands, the dead letters, and what expired within a day."""
        ...

    async def peek(self, *, limit: int = 100) -> tuple[DeadLetter, ...]:
        """Look at the oldest dead letters and leave them where they are."""
        ...

    async def requeue(self, message_ids: Container[str | None] | None = None) -> int:
        """Send dead letters to the workers again, all or those with these ids; returns how many.

        What was too large to be read has no body that could be sent: it stays.
        """
        ...

    async def purge(self) -> int:
        """Delete all dead letters; returns how many."""
        ...


class Broker(Protocol):
    """Makes everything else; an async context manager."""

    async def __aenter__(self) -> Self:
        """Ready to make things; nothing is connected yet."""
        ...

    async def __aexit__(self, *_: object) -> None:
        """Close what is shared between the things made here; each of those is closed by its owner."""
        ...

    async def declare(self) -> None:
        """Create exchanges and queues; TopologyMismatch if they exist with other properties."""
        ...

    def rpc_client(self) -> CommandCaller:
        """For clients."""
        ...

    def command_consumer(self, *, batch_limit: int = 32, prefetch: int = 128) -> CommandSource:
        """For workers; it declares exchanges and queues itself whenever it connects."""
        ...

    def event_publisher(self) -> EventSink:
        """For workers."""
        ...

    def replay_publisher(self) -> EventSink:
        """For operators: recorded events again, for those who listen to replays and nobody else."""
        ...

    def reply_publisher(self) -> ReplySink:
        """For workers."""
        ...

    def publishing_obstacle(self) -> str | None:
        """What keeps events or replies from being sent right now; None: nothing."""
        ...

    def event_subscriber(self, *patterns: str) -> EventSource:
        """For subscribers of events; without patterns, all of them."""
        ...

    def replay_subscriber(self, *patterns: str) -> EventSource:
        """For subscribers of replays; without patterns, all of them."""
        ...

    def dead_letters(self) -> DeadLetterBox:
        """For operators."""
        ...
