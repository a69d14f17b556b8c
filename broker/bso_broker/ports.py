"""What a worker asks of a broker. RabbitMQ and the double of the tests pass one contract suite."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from bso_broker.messages import Delivery, Event, Readiness, Reply


class CommandSource(Protocol):
    """Hands out commands, which stay the broker's until they are settled."""

    @property
    def readiness(self) -> Readiness:
        """Whether commands are being consumed and find what they need on the broker, and if not, why."""
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
        """Begin consuming in the background, also after a pause."""
        ...

    async def drain(self, *, timeout_s: float) -> bool:
        """Take no more, wait until what was taken is settled, and close; False: not all in time."""
        ...

    async def close(self) -> None:
        """Disconnect at once; what is unsettled is delivered to others."""
        ...

    async def ready_messages(self) -> int:
        """How many messages wait in the queue."""
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


Answer = Callable[[bytes, str | None], Awaitable[bytes]]
"""From a query, and the login that the broker has checked (None: the sender named none), to its answer."""


class QuerySource(Protocol):
    """Hands queries, one after the other and of each login in turn, to what answers them."""

    async def run(self) -> None:
        """Go on until cancelled."""
        ...


class Broker(Protocol):
    """Makes what a worker talks through; it is opened and closed by the worker's process."""

    def command_consumer(self, *, batch_limit: int = 32, prefetch: int = 128) -> CommandSource:
        """Commands; it declares exchanges and queues itself whenever it connects."""
        ...

    def query_consumer(self, answer: Answer, *, refusal: bytes) -> QuerySource:
        """Queries, for what answers them; ``refusal`` is the answer where too many queries of a login wait."""
        ...

    def event_publisher(self) -> EventSink:
        """Events."""
        ...

    def reply_publisher(self) -> ReplySink:
        """Replies."""
        ...

    def publishing_obstacle(self) -> str | None:
        """What keeps events or replies from being sent right now; None: nothing."""
        ...
