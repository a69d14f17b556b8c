"""A TrainingLoader that probes by itself."""

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from bso.domain.commands import ReportEpochCosts
from bso_client.integrations.torch import TrainingLoader
from tests.unit.client.doubles import ReachableOptimizer, job_spec
from tests.unit.client.fixtures import MakeOptimizer

FEATURES, SAMPLES = 64, 4096


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.usefixtures("even_steps")
def test_other_batch_sizes_are_probed_between_epochs(make_bso: MakeOptimizer, optimizer: ReachableOptimizer) -> None:
    data = TensorDataset(torch.randn(SAMPLES, FEATURES), torch.randint(0, 2, (SAMPLES,)))
    loss = nn.CrossEntropyLoss()
    bso = make_bso(job_spec(max_epochs=100, probing_budget=0.5))
    for trial in bso.trials():
        model = nn.Sequential(nn.Linear(FEATURES, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 2))
        optimizing = torch.optim.SGD(model.parameters(), lr=0.1)
        probe = (model, lambda batch, model=model: loss(model(batch[0]), batch[1]))
        loader = TrainingLoader(data, trial, shuffle=True, probe=probe)
        with trial:
            for epoch in loader.epochs():
                for inputs, labels in loader:
                    optimizing.zero_grad()
                    loss(model(inputs), labels).backward()
                    optimizing.step()
                probed = {one.batch_size for sent in optimizer.commands(ReportEpochCosts) for one in sent.probes}
                loader.report_metric(0.95 if probed == {32, 64, 128} or epoch > 50 else 0.1)
    probed = {one.batch_size for sent in optimizer.commands(ReportEpochCosts) for one in sent.probes}
    assert probed == {32, 64, 128}
