"""The HTTP gateway: who cannot speak AMQP reaches the same decisions over HTTP. Stateless, any number of replicas."""

from bso_optimizer import require_own_package

require_own_package()
