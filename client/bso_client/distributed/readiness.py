"""Which processes train together, as far as launcher and torch.distributed say."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from bso_client.errors import DistributedNotReady
from bso_client.settings import Settings

if TYPE_CHECKING:
    from bso_client.distributed.torch_ranks import TorchRanks


def ranks_for(settings: Settings, *, timeout_s: float) -> TorchRanks | None:
    """The ranks of torch.distributed, if it is in use; None: this process trains alone.

    Raises DistributedNotReady where a launcher started several processes and they have not found each other.
    """
    if _is_initialized():
        from bso_client.distributed.torch_ranks import TorchRanks

        ranks = TorchRanks(timeout_s=timeout_s, local_rank=settings.local_rank)
        return ranks if ranks.size > 1 else None
    if settings.world_size > 1:
        which = "" if settings.rank is None else f"this is rank {settings.rank} of {settings.world_size}, but "
        raise DistributedNotReady(
            f"{which}no process group is initialised, and WORLD_SIZE is {settings.world_size}: call "
            "torch.distributed.init_process_group() on every rank before get_batch_size() or trials() (with Hugging "
            "Face, make TrainingArguments; with Lightning, call start_ranks(trainer) of its integration); to train in "
            "one process, unset WORLD_SIZE"
        )
    return None


def _is_initialized() -> bool:
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    return distributed is not None and distributed.is_available() and bool(distributed.is_initialized())
