"""A trial kept in Lightning's checkpoints, among the states of callbacks."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bso_client.errors import CannotResume
from bso_client.optimizer import BatchSizeOptimizer
from bso_client.trial import Trial

logger = logging.getLogger("bso")

STATE_KEY = "BsoCallback"
"""The name of the callback's state in a checkpoint."""


def resumable_trials(bso: BatchSizeOptimizer, checkpoint: str | Path) -> Iterator[Trial]:
    """``bso.trials()``, beginning with the trial in a Lightning checkpoint, if the file is there and it goes on.

    Then ``trainer.fit(..., ckpt_path=checkpoint_of(trial, checkpoint))``. A trial that has ended meanwhile is not
    resumed: training begins anew, with a warning.
    """
    yield from bso.resumable_trials(_trial_in(Path(checkpoint)) or None)


def checkpoint_of(trial: Trial, checkpoint: str | Path) -> str | None:
    """The checkpoint's path for ``trainer.fit(ckpt_path=...)`` if it is one of this trial; else None: begin anew."""
    state = _trial_in(Path(checkpoint))
    return str(checkpoint) if state and _is_of(trial, state) else None


def _trial_in(checkpoint: Path) -> Mapping[str, Any]:
    import torch

    if not checkpoint.is_file():
        return {}
    try:
        data = torch.load(checkpoint, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:
        raise CannotResume(
            f"{checkpoint} cannot be read ({' '.join(str(error).split())[:300]}): a checkpoint has to hold plain data "
            "(hyperparameters of one's own classes are none); to train anew, leave it out"
        ) from error
    state: Mapping[str, Any] = data.get("callbacks", {}).get(STATE_KEY, {})
    return state


def _is_of(trial: Trial, state: Mapping[str, Any]) -> bool:
    mine = (trial.trial_number, trial.recurrence_id, trial.batch_size, trial.epoch)
    return mine == tuple(state.get(name) for name in ("trial_number", "recurrence_id", "batch_size", "epoch"))
