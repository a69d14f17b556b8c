"""The learning rate of a trial, for those who have one of their own where the optimizer was given none."""

from __future__ import annotations

from bso_client.errors import InvalidSetting
from bso_client.trial import Trial


def learning_rate_for(trial: Trial, *, otherwise: float) -> float:
    """``trial.learning_rate``; ``otherwise`` if the optimizer was given no ``learning_rate=`` to scale."""
    try:
        return trial.learning_rate
    except InvalidSetting:
        return otherwise
