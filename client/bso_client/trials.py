"""When a loop over trials goes on."""

from __future__ import annotations

import logging

from bso.domain.trial import Outcome
from bso_client.errors import WrongOrder
from bso_client.progress import Progress
from bso_client.training import Training

logger = logging.getLogger("bso")


class TrialLoop:
    """One loop over trials. A script that catches what its trainings raise, and goes on, must not do so for ever."""

    def __init__(self) -> None:
        self._interruptions = 0

    def goes_on_after(self, run: Training) -> bool:
        """Whether another trial follows this one. Raises WrongOrder if its training never began."""
        if not run.has_started:
            raise WrongOrder(
                "the loop went on without a training: put it inside `with trial:` (async: `async with trial:`)"
            )
        progress = run.progress
        self._interruptions += progress.outcome is Outcome.INTERRUPTED
        is_worn_out = self._interruptions >= progress.spec.max_attempts
        if progress.should_retry and not run.is_called_off and not is_worn_out:
            return True
        if run.ranks.rank == 0:  # the others know the same
            _say_why_no_other_follows(run, interruptions=self._interruptions if is_worn_out else 0)
        return False


def _say_why_no_other_follows(run: Training, *, interruptions: int) -> None:
    progress = run.progress
    if interruptions and not run.is_called_off:
        logger.warning(
            "no other trial follows, and there is no model: %d %s of this loop ended with an exception of the "
            "training, which the script caught, and max_attempts is %d; the last was %s",
            interruptions,
            "trial" if interruptions == 1 else "trials",
            progress.spec.max_attempts,
            progress.outcome_reason,
            extra={"action": "trials_interrupted"},
        )
    elif run.is_called_off:
        extra = {"action": "trials_called_off"}
        logger.warning("%s: %s", _what_is_left(progress), progress.outcome_reason, extra=extra)
    elif progress.outcome is not Outcome.CONVERGED:
        logger.warning(
            "no attempt is left, and none reached the target; the last one, with batch size %d, ended as %s: %s",
            progress.batch_size,
            progress.outcome.value if progress.outcome else "running",
            progress.outcome_reason,
            extra={"action": "recurrence_without_model"},
        )


def _what_is_left(progress: Progress) -> str:
    if progress.outcome is Outcome.INTERRUPTED:
        return "no other trial follows, and there is no model"
    return (
        "no other trial follows: the model is as it was trained, but nothing was learnt about batch size "
        f"{progress.batch_size}"
    )
