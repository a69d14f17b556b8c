"""What a worker needs to have commands decided."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from bso.domain.commands import Request
from bso.service.answers import Answer, Undecided


class Decider(Protocol):
    """Decides commands; the engine does."""

    async def execute(self, requests: Sequence[Request]) -> list[Answer]:
        """The answers, in the order of the requests; waits for locked jobs. Raises Retryable, Misconfigured."""
        ...

    async def attempt(self, requests: Sequence[Request]) -> list[Answer | Undecided]:
        """The same in one transaction, once, and without waiting for locked jobs. Raises whatever goes wrong."""
        ...
