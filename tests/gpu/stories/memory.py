"""The GPU is full for one rank only: its share of it is smaller than what the first batch size needs."""

import importlib
from typing import Any

from tests.training.distributed.rank_notes import RANK, join, make_bso, said, say

torch: Any = importlib.import_module("torch")
MIB_A_SAMPLE = 16

join()
torch.cuda.set_device(0)
if RANK == 1:
    whole_mib = torch.cuda.get_device_properties(0).total_memory / 2**20
    torch.cuda.set_per_process_memory_fraction(24 * MIB_A_SAMPLE / whole_mib)
bso = make_bso()


def train() -> None:
    """The loop over trials; each rank takes memory for its share of the batch."""
    for trial in bso.trials():
        say(batch_size=trial.batch_size, local_batch_size=trial.local_batch_size)
        with trial:
            while not trial.finished:
                samples = torch.ones(trial.local_batch_size, MIB_A_SAMPLE * 2**18, device="cuda")
                trial.on_evaluate(0.95 * float(samples.mean()))
        samples = None
        say(outcome=trial.outcome.value if trial.outcome else None, why=trial.outcome_reason)


say(error=said(train))
bso.close()
torch.distributed.destroy_process_group()
