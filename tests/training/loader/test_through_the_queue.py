"""The loaders, data parallel, through RabbitMQ and a worker on MariaDB or MySQL."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from bso.domain.trial import Outcome, Trial
from bso.storage import open_store
from bso_migrations import upgrade
from tests.integration.workers.fixtures import StartWorker, start_worker
from tests.servers import PATIENCE_S

__all__ = ["start_worker"]

SCRIPT = """
import torch
import torch.distributed as dist
from torch.utils.data import TensorDataset
from bso_client import BatchSizeOptimizer, JobSpec, LearningRate
from bso_client.integrations.torch import EvaluationLoader, TrainingLoader

dist.init_process_group("gloo")
inputs = torch.randn(160, 2, generator=torch.Generator().manual_seed(1))
data = TensorDataset(inputs, (inputs.sum(1) > 0).long())
spec = JobSpec(job_id="job", policy="pruning_thompson",
    batch_sizes=[8, 16, 32], default_batch_size=16, target_metric=0.9, max_epochs=20)
bso = BatchSizeOptimizer(spec, learning_rate=LearningRate(0.5, reference_batch_size=16))
for trial in bso.trials():
    torch.manual_seed(1)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    updates = torch.optim.SGD(model.parameters(), lr=trial.learning_rate)
    train_loader = TrainingLoader(data, trial, shuffle=True)
    eval_loader = EvaluationLoader(data, train_loader)
    with trial:
        for epoch in train_loader.epochs():
            for batch, answers in train_loader:
                updates.zero_grad()
                torch.nn.functional.cross_entropy(model(batch), answers).backward()
                updates.step()
            with torch.no_grad():
                right = sum(int((model.module(batch).argmax(1) == answers).sum()) for batch, answers in eval_loader)
            train_loader.report_metric(right / len(eval_loader.sampler))
assert trial.converged
"""


def trials_in(database_url: str) -> Sequence[Trial]:
    async def read() -> Sequence[Trial]:
        store = open_store(database_url)
        try:
            return await store.trials("job")
        finally:
            await store.close()

    return asyncio.run(read())


def test_ranks_train_through_the_queue(
    amqp_url: str, mysql_url: str, start_worker: StartWorker, tmp_path: Path
) -> None:
    asyncio.run(upgrade(mysql_url))
    start_worker().ready()
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("BSO_")}
    environ |= {"BSO_URL": amqp_url, "BSO_STATE_DIR": str(tmp_path), "BSO_ENERGY": "assumed", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=4 * PATIENCE_S, check=False)

    assert done.returncode == 0, done.stderr
    (trial,) = trials_in(mysql_url)
    assert (trial.outcome, trial.batch_size) == (Outcome.CONVERGED, 16)
    assert trial.reports >= 1
    assert trial.learning_rate is not None
    assert trial.learning_rate.describe() == "0.5 at batch size 16, linear scaling"
