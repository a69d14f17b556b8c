"""Metrics as PyTorch gives them: 32-bit tensors of one element."""

import warnings

import torch

from bso_client import Outcome, Trial
from tests.training.loader.conftest import MakeOptimizer


def trained(make_bso: MakeOptimizer, metric: torch.Tensor | float) -> Trial:
    for trial in make_bso(max_attempts=1, max_epochs=1).trials():
        with trial:
            trial.on_evaluate(metric)
    return trial


def test_the_mean_of_a_tensor_that_is_the_target_reaches_it(make_bso: MakeOptimizer) -> None:
    accuracy = (torch.arange(1000) < 900).float().mean()
    for metric in (accuracy, accuracy.item(), accuracy.reshape(1, 1), accuracy.double().item()):
        trial = trained(make_bso, metric)
        assert (trial.outcome, trial.metric) == (Outcome.CONVERGED, 0.9)


def test_a_loss_with_its_graph_is_reported_without_a_warning(make_bso: MakeOptimizer) -> None:
    loss = (torch.tensor([0.75], requires_grad=True) * 1.0).sum()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert trained(make_bso, loss).metric == 0.75
