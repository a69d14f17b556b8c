"""Two ranks that share one GPU, and measure it with its own counter."""

import importlib
from typing import Any

from bso_client.energy.nvml import Nvml
from tests.gpu.load import Products
from tests.training.distributed.rank_notes import RANK, join, make_bso, say

torch: Any = importlib.import_module("torch")

join()
torch.cuda.set_device(0)
products = Products(torch, rows=4096)
products.run(2)
with Nvml() as nvml, make_bso() as bso:
    [gpu] = nvml.gpus()
    for trial in bso.trials():
        torch.distributed.barrier()
        before_j = gpu.energy_j()
        with trial:
            while not trial.finished:
                products.run(40)
                trial.on_evaluate(0.95 if trial.batch_size == 32 else 0.1)
                say(epoch=trial.epoch, finished=trial.finished, cost=trial.cost)
        consumed_j = gpu.energy_j() - before_j
        kind = trial.hardware
        say(batch_size=trial.batch_size, outcome=trial.outcome.value if trial.outcome else None)
        say(gpus=kind.number_of_gpus, max_power_w=kind.max_power_w, model=kind.gpu_model)
        if RANK == 0:
            say(consumed_j=consumed_j)
torch.distributed.destroy_process_group()
