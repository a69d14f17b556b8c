"""Carry commands, replies and events over RabbitMQ, or over memory.

``RabbitBroker`` and ``MemoryBroker`` make everything else; ``bso_broker.ports`` says what the things made can do.
"""

from bso_optimizer import require_own_package

require_own_package()
