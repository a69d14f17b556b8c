"""A Trainer that probes epoch costs by itself."""

from pathlib import Path

import pytest
import torch

from bso.domain.commands import ReportEpochCosts
from bso_client.integrations.transformers import BsoCallback, apply_trial
from tests.training.integrations.tiny import Accuracies, arguments, tiny_bert, trainer_for
from tests.training.integrations.tiny_task import FirstTokens
from tests.unit.client.doubles import ReachableOptimizer, job_spec
from tests.unit.client.fixtures import MakeOptimizer

EPOCHS = 6


def trained(
    make_bso: MakeOptimizer, folder: Path, job_id: str = "job", *, max_micro_batch_size: int | None = None
) -> dict[str, torch.Tensor]:
    """The weights after some epochs of a training whose model and data are always the same."""
    spec = job_spec(job_id=job_id, batch_sizes=[8, 16, 32], default_batch_size=16, max_epochs=100, probing_budget=0.5)
    bso = make_bso(spec)
    torch.manual_seed(3)
    model = tiny_bert()
    trial = next(trials := bso.trials())
    with trial:
        base = arguments(folder, num_train_epochs=EPOCHS, seed=5)
        args = apply_trial(base, trial, max_micro_batch_size=max_micro_batch_size)
        trainer_for(
            args,
            BsoCallback(trial, metric="accuracy"),
            model=model,
            train_dataset=FirstTokens(256),
            compute_metrics=Accuracies(0.1),
        ).train()
    trials.close()
    bso.close()
    return {name: value.clone() for name, value in model.state_dict().items()}


@pytest.mark.usefixtures("even_steps")
def test_it_probes_and_trains_as_it_would_without(
    make_bso: MakeOptimizer, optimizer: ReachableOptimizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_probes = trained(make_bso, tmp_path)
    probed = {one.batch_size for sent in optimizer.commands(ReportEpochCosts) for one in sent.probes}
    assert probed == {8, 16, 32}
    sent_before = len(optimizer.commands(ReportEpochCosts))
    monkeypatch.setenv("BSO_PROBING", "off")
    without = trained(make_bso, tmp_path, "another")
    assert all(torch.equal(with_probes[name], value) for name, value in without.items())
    assert len(optimizer.commands(ReportEpochCosts)) == sent_before


def test_with_accumulated_gradients_nothing_is_probed(
    make_bso: MakeOptimizer, optimizer: ReachableOptimizer, tmp_path: Path
) -> None:
    trained(make_bso, tmp_path, max_micro_batch_size=4)
    assert optimizer.commands(ReportEpochCosts) == []
