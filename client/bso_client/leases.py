"""Saying in the background that a training is alive."""

from __future__ import annotations

import asyncio
import logging

from bso.domain.commands import RenewLease, Request
from bso.domain.errors import BsoError
from bso.domain.replies import LeaseRenewed
from bso_client.command_ids import new_command_id
from bso_client.progress import Progress
from bso_client.transports.transport import Transport

logger = logging.getLogger("bso")


async def keep_lease(transport: Transport, job_id: str, progress: Progress) -> None:
    """Renew a trial's lease three times within its length, until the trial has ended. A failure is tried again."""
    while not progress.has_ended:
        interval_s = progress.lease_s / 3
        await asyncio.sleep(interval_s)
        if progress.trial_number is None or progress.trial_id is None or progress.is_refused:
            continue
        command = RenewLease(trial_number=progress.trial_number, trial_id=progress.trial_id)
        request = Request(command_id=new_command_id(), job_id=job_id, command=command)
        try:
            reply = await transport.call(request, timeout_s=interval_s)
        except BsoError as error:
            logger.debug("the lease was not renewed: %s", error, extra={"action": "lease_not_renewed"})
            continue
        if isinstance(reply, LeaseRenewed):
            progress.bound, progress.lease_s = reply.bound, reply.lease_s
