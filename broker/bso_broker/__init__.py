"""Carry commands, replies and events over RabbitMQ.

``RabbitBroker`` makes everything else; ``bso_broker.ports`` says what a worker asks of it.
"""

from bso_optimizer import require_own_package

require_own_package()
