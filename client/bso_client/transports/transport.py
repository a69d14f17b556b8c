"""What the client needs of a way to the optimizer."""

from __future__ import annotations

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
