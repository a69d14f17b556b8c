"""The ranks that power limits are agreed on among: a process group of its own.

What goes wrong here must not be mistaken for an exchange about the trial, which ends trainings.
"""

from __future__ import annotations

import sys
from typing import Any

from bso_client.distributed import Alone, Ranks
from bso_client.distributed.torch_ranks import TorchRanks

DEFAULT_TIMEOUT_S = 30.0
"""Half of what an exchange about the trial waits: whoever gives up here still comes in time there."""


def ranks_beside(given: Ranks, before: Ranks) -> Ranks:
    """Own ranks beside those of a trial; the same ones again for the same ranks. Collective."""
    if not isinstance(given, TorchRanks) or given.size == 1:
        return given
    if isinstance(before, TorchRanks) and before.is_current and before.size == given.size:
        return before
    return TorchRanks(timeout_s=given.timeout_s / 2, local_rank=given.local_rank)


def ranks_of_process() -> Ranks:
    """The ranks of torch.distributed, if it is in use, else this process alone."""
    distributed: Any = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return Alone()
    return TorchRanks(timeout_s=DEFAULT_TIMEOUT_S)
