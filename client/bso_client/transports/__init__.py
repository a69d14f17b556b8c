"""Ways to the optimizer: through a broker, or inside this process."""

from bso_client.transports.transport import Transport, open_transport

__all__ = ["Transport", "open_transport"]
