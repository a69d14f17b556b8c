"""A GPU runs out of memory, on all ranks or on one, while the others evaluate or wait for it in a collective."""

import sys

import torch
import torch.distributed as dist

from tests.training.distributed.rank_notes import RANK, join, make_bso, said, say

where = sys.argv[1]
join()
bso = make_bso(rank_timeout=15.0) if where == "stuck" else make_bso()


def step(batch_size: int) -> None:
    """One that does not fit with the first batch size."""
    if batch_size == 64 and (where == "all" or RANK == 1):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
    if where == "stuck":
        dist.all_reduce(torch.ones(1))


def train() -> None:
    """The loop over trials."""
    for trial in bso.trials():
        say(batch_size=trial.batch_size)
        with trial:
            while not trial.finished:
                step(trial.batch_size)
                trial.on_evaluate(0.95)
        say(outcome=trial.outcome.value if trial.outcome else None, why=trial.outcome_reason)


say(error=said(train))
if where == "stuck":
    raise SystemExit(1)
bso.close()
dist.destroy_process_group()
