"""Some ranks call what the others do not."""

import sys
import time

import torch.distributed as dist

from tests.training.distributed.telling import RANK, job_spec, join, make_bso, said, say

RANK_TIMEOUT_S = 5.0


def call(name: str) -> None:
    """Call it here; the others wait in the training's own group until that is over."""
    began = time.monotonic()
    error = said(bso.get_batch_size if name == "begin" else lambda: bso.on_evaluate(0.1))
    say(error=error, took_s=time.monotonic() - began)
    began = time.monotonic()
    say(again=said(lambda: bso.on_evaluate(0.1)) if name != "begin" else [], again_s=time.monotonic() - began)


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
