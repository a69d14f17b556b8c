"""A DataLoader's workers beside a training that talks to the optimizer."""

from pathlib import Path

import pytest

from bso.domain.trial import Outcome
from tests.integration.client.scripts import Script, recorded_trials

BODY = """
import torch
from torch.utils.data import DataLoader, Dataset

class Numbers(Dataset):
    def __init__(self, bso):
        self.bso = bso  # as careless as can be: the optimizer travels into each worker

    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.tensor(float(index))

if __name__ == "__main__":
    for trial in bso.trials():
        loader = DataLoader(
            Numbers(bso),
            batch_size=trial.batch_size,
            num_workers=2,
            persistent_workers=True,  # each of them imports torch
            multiprocessing_context=sys.argv[1],
        )
        with trial:
            for epoch in range(3):
                assert sum(float(batch.sum()) for batch in loader) == 2016.0
                trial.on_evaluate(0.95 if epoch == 2 else 0.1)
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_loader_workers_do_no_harm(tmp_path: Path, method: str) -> None:
    result = Script(tmp_path, BODY).run(method)

    assert result.returncode == 0, result.stderr
    assert [(trial.outcome, trial.reports) for trial in recorded_trials(tmp_path)] == [(Outcome.CONVERGED, 3)]
