"""Ending the trial of a training that was killed before it could do so itself."""

from __future__ import annotations

import uuid

from bso.cli.recurring.narration import SeenTrial
from bso.cli.terminal import print_notice
from bso.domain.commands import FinishTrial, Request
from bso.domain.errors import BsoError
from bso.domain.trial import Outcome
from bso_client.transports import open_transport

FINISH_TIMEOUT_S = 15.0


async def finish_as_interrupted(url: str, trial: SeenTrial, reason: str, *, may_resume: bool) -> None:
    """Finish or suspend the trial of a dead training; where that fails, its lease will lapse, so only say so."""
    command = FinishTrial(
        trial_number=trial.trial_number,
        trial_id=trial.trial_id,
        outcome=Outcome.INTERRUPTED,
        reason=reason,
        may_resume=may_resume,
    )
    request = Request(command_id=str(uuid.uuid4()), job_id=trial.job_id, command=command)
    transport = open_transport(url)
    try:
        await transport.start()
        await transport.call(request, timeout_s=FINISH_TIMEOUT_S)
    except BsoError as error:
        print_notice(f"trial {trial.trial_number} could not be finished ({error}); its lease will lapse instead")
    finally:
        await transport.close()
