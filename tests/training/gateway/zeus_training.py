"""A training with Zeus' own client (zeus 0.16), as its documentation shows one. Arguments: the server's url, an end."""

import os
import signal
import sys

from zeus.monitor import ZeusMonitor
from zeus.optimizer.batch_size import BatchSizeOptimizer, JobSpec

url, end = sys.argv[1:]
bso = BatchSizeOptimizer(
    monitor=ZeusMonitor(gpu_indices=[0]),
    server_url=url,
    job=JobSpec(
        job_id="mnist-1",
        job_id_prefix="mnist",
        default_batch_size=64,
        batch_sizes=[64, 32, 128],
        target_metric=0.9,
        max_epochs=3,
    ),
)
sys.stdout.write(f"batch size {bso.get_batch_size()}, trial {bso.trial_number}\n")
if end == "nothing":
    raise SystemExit
bso.on_train_begin()
for epoch in range(1, 4):
    bso.on_evaluate(0.31 * epoch if end == "converges" else 0.1)
    if bso.training_finished:
        break
    if end == "raises":
        raise KeyError("label")
    if end == "killed":
        os.kill(os.getpid(), signal.SIGTERM)
sys.stdout.write(f"finished: {bso.training_finished}\n")
