"""Some ranks call what the others do not."""

import sys

import torch.distributed as dist

from bso_client.distributed.torch_ranks import TorchRanks
from tests.training.distributed.rank_notes import RANK, job_spec, join, make_bso, said, say

RANK_TIMEOUT_S = 15.0


def call(name: str) -> None:
    """Call it here; the others wait in the training's own group until that is over."""
    say(error=said(bso.get_batch_size if name == "begin" else lambda: bso.on_evaluate(0.1)))
    if name != "begin":
        ranks = bso.ranks
        assert isinstance(ranks, TorchRanks)
        ranks.timeout_s = 1e6  # whoever waited for the others once more would not come back
        say(again=said(lambda: bso.on_evaluate(0.1)))


where, name = sys.argv[1], sys.argv[2]
join()
bso = make_bso(job_spec(), rank_timeout=RANK_TIMEOUT_S, uneven=True)
if name != "begin":
    bso.get_batch_size()
    bso.on_train_begin()
    bso.on_evaluate(0.1)
if (RANK == 0) == (where == "first"):
    call(name)
dist.barrier()
bso.close()
say(closed=True)
dist.destroy_process_group()
