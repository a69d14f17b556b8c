"""RabbitMQ as a broker: makes clients, consumers and publishers for one address."""

from __future__ import annotations

from collections.abc import Collection
from typing import Self

from bso_broker.connection import BrokerAddress, connect
from bso_broker.consumer import CommandConsumer
from bso_broker.dead_letters import DeadLetters
from bso_broker.declaration import declare
from bso_broker.ports import Answer
from bso_broker.publisher import EventPublisher, PublishingLink, ReplyingLink, ReplyPublisher
from bso_broker.queries import QueryConsumer
from bso_broker.rpc import RpcClient
from bso_broker.subscriber import EventSubscriber
from bso_broker.topology import REPLAY


class RabbitBroker:
    """Makes everything that talks to one RabbitMQ; what a worker publishes shares two connections.

    An async context manager: leaving it closes these connections. Clients, consumers and subscribers are closed by
    their owners, before.
    """

    def __init__(self, address: BrokerAddress | str, *, operators: Collection[str] = ()) -> None:
        self.address = BrokerAddress(url=address) if isinstance(address, str) else address
        self._operators = operators
        self._link = PublishingLink(self.address)
        self._replying = ReplyingLink(self.address)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._link.stop()
        await self._replying.stop()

    async def declare(self) -> None:
        """Create exchanges and queues; TopologyMismatch if they exist with other properties."""
        connection = await connect(self.address, name="bso declare")
        try:
            await declare(connection, self.address.topology)
        finally:
            await connection.close()

    def rpc_client(self) -> RpcClient:
        """For clients, with connections of its own."""
        return RpcClient(self.address)

    def command_consumer(self, *, batch_limit: int = 32, prefetch: int = 128) -> CommandConsumer:
        """For workers; it declares exchanges and queues itself whenever it connects."""
        return CommandConsumer(
            self.address, self._publishing(), operators=self._operators, batch_limit=batch_limit, prefetch=prefetch
        )

    def query_consumer(self, answer: Answer, *, refusal: bytes) -> QueryConsumer:
        """For workers, with a connection of its own."""
        return QueryConsumer(self.address, answer, refusal=refusal)

    def event_publisher(self) -> EventPublisher:
        """For workers."""
        return EventPublisher(self._publishing())

    def replay_publisher(self) -> EventPublisher:
        """For operators: recorded events again, for those who listen to replays and nobody else."""
        return EventPublisher(self._publishing(), exchange=REPLAY)

    def reply_publisher(self) -> ReplyPublisher:
        """For workers."""
        self._replying.start()
        return ReplyPublisher(self._replying)

    def event_subscriber(self, *patterns: str) -> EventSubscriber:
        """For subscribers of events; without patterns, all of them."""
        return EventSubscriber(self.address, *patterns)

    def replay_subscriber(self, *patterns: str) -> EventSubscriber:
        """For subscribers of replays; without patterns, all of them."""
        return EventSubscriber(self.address, *patterns, exchange=REPLAY)

    def dead_letters(self) -> DeadLetters:
        """For operators."""
        return DeadLetters(self.address, operators=self._operators)

    def publishing_obstacle(self) -> str | None:
        """What keeps events or replies from being sent."""
        return self._link.obstacle or self._replying.obstacle

    def _publishing(self) -> PublishingLink:
        self._link.start()
        return self._link
