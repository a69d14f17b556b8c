"""Ways to the optimizer: through a broker, or inside this process."""

from bso_client.transports.opening import open_transport
from bso_client.transports.transport import Transport

__all__ = ["Transport", "open_transport"]
