"""Renewing the lease of a training in the background."""

from __future__ import annotations

import asyncio
import logging
import random

from bso.domain.commands import RenewLease, Request
from bso.domain.errors import BsoError
from bso_client.delivery.outbox import Sender, new_command_id
from bso_client.transports.transport import Transport

logger = logging.getLogger("bso")


async def keep_lease(transport: Transport, sender: Sender) -> None:
    """Renew a trial's lease three or four times within its length, until the trial has ended. A failure is tried again.

    Intervals vary: trainings that an outage has brought together do not renew in the same second for ever.
    """
    while not sender.state.has_ended:
        interval_s = sender.state.lease_s / 3 * random.uniform(0.75, 1.0)  # noqa: S311  # not a secret
        await asyncio.sleep(interval_s)
        state = sender.state
        if state.trial_number is None or state.trial_id is None or state.is_refused:
            continue
        command = RenewLease(trial_number=state.trial_number, trial_id=state.trial_id)
        request = Request(command_id=new_command_id(), job_id=state.job_id, command=command)
        try:
            reply = await transport.call(request, timeout_s=interval_s)
        except BsoError as error:
            logger.debug("the lease was not renewed: %s", error, extra={"action": "lease_not_renewed"})
            continue
        sender.received(command, reply)
