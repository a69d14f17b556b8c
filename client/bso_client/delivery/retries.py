"""One request, sent again until it is answered or the time is up."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from bso.domain.commands import Request
from bso.domain.replies import JobDescription, LeaseRenewed, Problem, Registered, TrialBegun
from bso_client.delivery.obstacle import declined
from bso_client.errors import Refused, SpecConflict, Unreachable
from bso_client.transports.transport import Transport

R = TypeVar("R", Registered, TrialBegun, LeaseRenewed, JobDescription)

_PAUSE_S = 0.5  # before a command is offered again to an optimizer that asked for patience, and named no time


async def ask(transport: Transport, request: Request, expected: type[R], *, deadline: float) -> R:
    """The reply to a request, sent as often as needed, always under the same command_id.

    ``deadline`` is on the event loop's clock. Raises Unreachable, Refused (SpecConflict), Misconfigured.
    """
    loop = asyncio.get_running_loop()
    while True:
        reply = await transport.call(request, timeout_s=max(0.0, deadline - loop.time()))
        if isinstance(reply, expected):
            return reply
        if not isinstance(reply, Problem):
            raise Unreachable(f"expected {expected.__name__} as reply, got {type(reply).__name__}")
        if not reply.is_retryable:
            raise SpecConflict(reply) if reply.type == "job_conflict" else Refused(reply)
        pause_s = max(_PAUSE_S, reply.retry_after_s or 0.0)
        if loop.time() + pause_s >= deadline:
            raise declined(reply)
        await asyncio.sleep(pause_s)
