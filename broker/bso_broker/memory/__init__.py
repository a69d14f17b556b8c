"""A broker in memory, for tests and for everything that runs in one process."""

from bso_broker.memory.broker import MemoryBroker

__all__ = ["MemoryBroker"]
