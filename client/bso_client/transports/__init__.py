"""Ways to the optimizer: through a broker, over HTTP, or inside this process."""

from __future__ import annotations

from bso_client.transports.transport import Transport

__all__ = ["Transport", "open_transport"]


def open_transport(url: str) -> Transport:
    """The transport of an address, not started yet."""
    if url.startswith("sqlite"):
        from bso_client.transports.embedded import EmbeddedTransport

        return EmbeddedTransport(url)
    if url.startswith("http"):
        from bso_client.transports.http import HttpTransport

        return HttpTransport(url)
    from bso_client.transports.broker import BrokerTransport

    return BrokerTransport(url)
