"""Ranks that probe epoch costs beside a DistributedDataParallel training, and one that runs out of memory doing so."""

import functools
import itertools
import os
from typing import ClassVar

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bso_client import Trial, session
from bso_client.integrations.probe_step import ProbeStep
from bso_client.prober import Prober
from tests.training.distributed.rank_notes import RANK, job_spec, join, make_bso, say

EPOCHS, FEATURES, SAMPLES = 4, 32, 512

torch.set_num_threads(1)
vars(session)["Prober"] = functools.partial(Prober, clock=itertools.count(0.0, 1e-4).__next__)
join()
data = TensorDataset(
    torch.randn(SAMPLES, FEATURES, generator=torch.Generator().manual_seed(1)),
    torch.arange(SAMPLES) % 2,
)


class Short(ProbeStep):
    """Steps of which those with the largest batch size do not fit in the memory of rank 1."""

    sizes: ClassVar[set[int]] = set()

    def __call__(self, batch_size: int) -> None:
        self.sizes.add(batch_size)
        if RANK == 1 and batch_size == 64:
            raise torch.OutOfMemoryError("CUDA out of memory")
        super().__call__(batch_size)


def train(trial: Trial, *, fails: bool = False) -> list[float]:
    """The sums of the weights and of the running means after some epochs."""
    torch.manual_seed(2)
    module = nn.Sequential(nn.Linear(FEATURES, 16), nn.BatchNorm1d(16), nn.Dropout(0.1), nn.Linear(16, 2))
    model = DistributedDataParallel(module)
    optimizing = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = nn.CrossEntropyLoss()
    sampler = DistributedSampler(data, shuffle=True)
    loader = DataLoader(data, batch_size=trial.local_batch_size, sampler=sampler)
    step = (Short if fails else ProbeStep)(model, lambda batch: loss(model(batch[0]), batch[1]), loader)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for inputs, labels in loader:
            optimizing.zero_grad()
            loss(model(inputs), labels).backward()
            optimizing.step()
        trial.on_evaluate(0.1)
        trial.probe_epoch_costs(step)
    if fails:
        say(sizes=sorted(Short.sizes))
    return [float(value.double().sum()) for value in module.state_dict().values()]


def probe(job_id: str, *, fails: bool = False) -> None:
    bso = make_bso(job_spec(job_id=job_id, policy="curve", max_epochs=100, probing_budget=0.5))
    for trial in bso.trials():
        with trial:
            say(**{job_id: train(trial, fails=fails)})
            trial.on_evaluate(0.95)
    bso.close()


probe("probed")
probe("short", fails=True)
os.environ["BSO_PROBING"] = "off"
probe("plain")
dist.destroy_process_group()
