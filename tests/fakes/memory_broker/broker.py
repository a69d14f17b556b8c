"""The broker in memory: makes clients, consumers and publishers that talk to each other."""

from __future__ import annotations

from collections.abc import Collection
from typing import Self

from bso_broker.addresses import event_pattern
from bso_broker.ports import Answer
from tests.fakes.memory_broker.caller import MemoryRpcClient
from tests.fakes.memory_broker.consumer import MemoryConsumer, MemoryQueryConsumer
from tests.fakes.memory_broker.dead_letters import MemoryDeadLetters
from tests.fakes.memory_broker.events import MemoryEventPublisher, MemoryReplyPublisher, MemorySubscriber
from tests.fakes.memory_broker.wire import Wire


class MemoryBroker:
    """Keeps the promises that RabbitMQ keeps with bso's topology, inside one process and one event loop.

    Commands stay until they are settled, come again after a requeue or an outage, die after too many deliveries or when
    they expire, and a call survives an outage. ``go_away()`` and ``come_back()`` cause one, as a restarted RabbitMQ
    would. ``wire`` is what its parts are made with; a part that fails is made with it, too.
    """

    def __init__(self, *, user: str = "guest", operators: Collection[str] = ()) -> None:
        self.wire = Wire(user=user, operators=operators)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    async def declare(self) -> None:
        """Let commands be taken from now on."""
        self.wire.declared = True

    def rpc_client(self) -> MemoryRpcClient:
        """For clients."""
        return MemoryRpcClient(self.wire)

    def command_consumer(self, *, batch_limit: int = 32, prefetch: int = 128) -> MemoryConsumer:
        """For workers; nothing is fetched before it is asked for."""
        return MemoryConsumer(self.wire, batch_limit=min(batch_limit, prefetch))

    def event_publisher(self) -> MemoryEventPublisher:
        """For workers."""
        return MemoryEventPublisher(self.wire)

    def replay_publisher(self) -> MemoryEventPublisher:
        """For operators: recorded events again, for those who listen to replays and nobody else."""
        return MemoryEventPublisher(self.wire, self.wire.replay_hearers)

    def reply_publisher(self) -> MemoryReplyPublisher:
        """For workers."""
        return MemoryReplyPublisher(self.wire)

    def query_consumer(self, answer: Answer, *, refusal: bytes) -> MemoryQueryConsumer:
        """For workers; nobody asks it anything."""
        return MemoryQueryConsumer()

    def publishing_obstacle(self) -> str | None:
        """What keeps events or replies from being sent."""
        return None if self.wire.up.is_set() else "the broker is away"

    def event_subscriber(self, *patterns: str) -> MemorySubscriber:
        """For subscribers of events; without patterns, all of them."""
        return MemorySubscriber(self.wire, self.wire.hearers, patterns or (event_pattern(),))

    def replay_subscriber(self, *patterns: str) -> MemorySubscriber:
        """For subscribers of replays; without patterns, all of them."""
        return MemorySubscriber(self.wire, self.wire.replay_hearers, patterns or (event_pattern(),))

    def dead_letters(self) -> MemoryDeadLetters:
        """For operators."""
        return MemoryDeadLetters(self.wire)

    def go_away(self) -> None:
        """Break every connection; commands handed over but not settled wait for the next worker."""
        self.wire.up.clear()
        for part in list(self.wire.parts):
            part.connection_lost()

    def come_back(self) -> None:
        """Accept connections again; clients send what they wait for once more."""
        self.wire.up.set()
        for part in list(self.wire.parts):
            part.connection_made()
