"""A broker in memory that passes the contract suite of RabbitMQ, and the types of what either of the two makes."""

from typing import TypeAlias

from bso_broker.consumer import CommandConsumer
from bso_broker.dead_letters import DeadLetters
from bso_broker.rabbit import RabbitBroker
from bso_broker.rpc import RpcClient
from bso_broker.subscriber import EventSubscriber
from tests.fakes.memory_broker.broker import MemoryBroker
from tests.fakes.memory_broker.caller import MemoryRpcClient
from tests.fakes.memory_broker.consumer import MemoryConsumer
from tests.fakes.memory_broker.dead_letters import MemoryDeadLetters
from tests.fakes.memory_broker.events import MemorySubscriber

__all__ = ["Broker", "CommandCaller", "CommandSource", "DeadLetterBox", "EventSource", "MemoryBroker"]

Broker: TypeAlias = RabbitBroker | MemoryBroker
CommandCaller: TypeAlias = RpcClient | MemoryRpcClient
CommandSource: TypeAlias = CommandConsumer | MemoryConsumer
DeadLetterBox: TypeAlias = DeadLetters | MemoryDeadLetters
EventSource: TypeAlias = EventSubscriber | MemorySubscriber
