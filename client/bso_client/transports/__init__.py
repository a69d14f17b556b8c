"""Ways to the optimizer: through a broker, over HTTP, or inside this process."""

from __future__ import annotations

from pathlib import Path

from bso_client.transports.transport import Transport

__all__ = ["Transport", "open_transport"]


def open_transport(url: str, *, trial_log: Path | None = None) -> Transport:
    """The transport of an address, not started yet; it logs replies about trials to ``trial_log``."""
    transport = _transport_of(url)
    if trial_log is None:
        return transport
    from bso_client.transports.logged import LoggedTransport

    return LoggedTransport(transport, trial_log)


def _transport_of(url: str) -> Transport:
    if url.startswith("sqlite"):
        from bso_client.transports.embedded import EmbeddedTransport

        return EmbeddedTransport(url)
    if url.startswith("http"):
        from bso_client.transports.http import HttpTransport

        return HttpTransport(url)
    from bso_client.transports.broker import BrokerTransport

    return BrokerTransport(url)
