"""What the client needs of a way to the optimizer, and which one an address stands for."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from bso.domain.commands import Request
from bso.domain.replies import Reply


class Transport(Protocol):
    """Carries commands to an optimizer and brings back its replies."""

    async def start(self) -> None:
        """Get ready, once, before the first call. Raises Misconfigured where waiting cannot help."""
        ...

    async def call(self, request: Request, *, timeout_s: float) -> Reply:
        """The reply to a command.

        Raises Unreachable when none came in time (the command may have been carried out: call again with the same
        command_id), Misconfigured where waiting cannot help.
        """
        ...

    async def close(self) -> None:
        """Let go of everything; pending calls raise Unreachable."""
        ...


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
    from bso_client.transports.broker import BrokerTransport

    return BrokerTransport(url)
