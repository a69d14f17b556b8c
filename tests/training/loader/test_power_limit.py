"""A power limit optimizer that the loader drives, on a GPU that is not there."""

from pathlib import Path

import pytest
from torch.utils.data import TensorDataset

from bso_client import PowerLimitOptimizer
from bso_client.integrations.torch import TrainingLoader
from tests.fakes import gpus as fake_gpus
from tests.fakes.simulated_training import SimulatedTraining, step_cost_j
from tests.training.loader.conftest import MakeOptimizer


def test_the_best_limit_is_found_in_the_first_epoch_and_known_in_the_next_recurrence(
    make_bso: MakeOptimizer, numbers: TensorDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus = fake_gpus.install(monkeypatch, tmp_path)
    gpus.add()
    training = SimulatedTraining(gpus)
    cheapest_w = min((700.0, 450.0, 200.0), key=lambda limit_w: step_cost_j(limit_w, eta_knob=1.0, max_power_w=300.0))
    for _ in range(2):
        bso = make_bso(batch_sizes=[16], default_batch_size=16)
        with PowerLimitOptimizer(
            bso, monitor=training, lock_folder=tmp_path, warmup_steps=0, profile_steps=1, step_w=250
        ) as power_limit:
            for trial in bso.trials():
                loader = TrainingLoader(numbers, trial, power_limit=power_limit)
                with trial:
                    for epoch in loader.epochs():
                        for _batch in loader:
                            training.step()
                        loader.report_metric(0.95 if epoch == 1 else 0.1)
        bso.close(timeout=5)

    updates = 7  # 100 samples in batches of 16
    assert training.limits_w[:5] == [700.0, 700.0, 450.0, 200.0, cheapest_w]  # the first step is waited for
    assert set(training.limits_w[2 * updates :]) == {cheapest_w}
    assert len(training.limits_w) == 4 * updates
    assert gpus.device(0)["limit_w"] == 700.0, "restored"
