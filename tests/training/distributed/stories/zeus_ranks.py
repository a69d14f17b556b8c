"""Four ranks with Zeus' own client, as its documentation shows: rank 0 asks for the batch size, every rank reports."""

import sys

import torch
import torch.distributed as dist
from zeus.monitor import ZeusMonitor
from zeus.optimizer.batch_size import BatchSizeOptimizer, JobSpec

from tests.training.distributed.rank_notes import RANK, join, say

join()
bso = BatchSizeOptimizer(
    monitor=ZeusMonitor(gpu_indices=[RANK]),
    server_url=sys.argv[1],
    job=JobSpec(
        job_id="zeus-ranks",
        job_id_prefix="zeus",
        default_batch_size=64,
        batch_sizes=[32, 64, 128],
        target_metric=0.9,
        max_epochs=5,
    ),
    rank=RANK,
)
chosen = torch.tensor([bso.get_batch_size(), bso.trial_number] if RANK == 0 else [0, 0])
dist.broadcast(chosen, src=0)
bso.current_batch_size, bso.trial_number = (int(each) for each in chosen)
say(batch_size=bso.current_batch_size, trial=bso.trial_number)
bso.on_train_begin()
epochs = 0
while not bso.training_finished:
    epochs += 1
    metric = torch.tensor(0.31 * epochs)
    dist.all_reduce(metric, op=dist.ReduceOp.MAX)  # hangs where another rank has been stopped before
    bso.on_evaluate(float(metric))
say(epochs=epochs, finished=bso.training_finished)
dist.barrier()
dist.destroy_process_group()
