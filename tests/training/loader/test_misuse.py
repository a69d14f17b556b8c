# ruff: noqa: PT012  # what a user writes has more than one statement
"""What the loaders say to those who use them in another way than they are made for."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, IterableDataset, SequentialSampler, TensorDataset

from bso_client import BatchSizeOptimizer, InvalidReport, InvalidSetting, Outcome, WrongOrder
from bso_client.integrations.torch import EvaluationLoader, TrainingLoader
from tests.integration.client.scripts import recorded_trials
from tests.training.loader.conftest import MakeOptimizer


class Nothing(IterableDataset):  # type: ignore[misc]  # torch is Any where it need not be installed
    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(())


def test_an_epoch_that_was_not_reported(bso: BatchSizeOptimizer, numbers: TensorDataset) -> None:
    loader = TrainingLoader(numbers, bso)
    with pytest.raises(WrongOrder, match=r"epoch 0 ended without train_loader\.report_metric\(metric\)"):
        for _ in loader.epochs():
            pass


def test_an_epoch_that_was_reported_twice(bso: BatchSizeOptimizer, numbers: TensorDataset) -> None:
    loader = TrainingLoader(numbers, bso)
    with pytest.raises(WrongOrder, match=r"epoch 0 was reported already: report_metric\(\) comes once per epoch"):
        for _ in loader.epochs():
            loader.report_metric(0.1)
            loader.report_metric(0.2)


def test_a_report_outside_of_an_epoch(bso: BatchSizeOptimizer, numbers: TensorDataset) -> None:
    loader = TrainingLoader(numbers, bso)
    with pytest.raises(WrongOrder, match=r"belongs inside `for epoch in train_loader\.epochs\(\):`"):
        loader.report_metric(0.1)
    for _ in loader.epochs():
        loader.report_metric(0.95)
    with pytest.raises(WrongOrder, match="belongs inside"):
        loader.report_metric(0.95)


def test_a_metric_that_is_no_number_leaves_the_epoch_to_be_reported(
    bso: BatchSizeOptimizer, numbers: TensorDataset
) -> None:
    loader = TrainingLoader(numbers, bso)
    for _ in loader.epochs():
        with pytest.raises(InvalidReport, match="a metric is one number, got Tensor"):
            loader.report_metric(torch.ones(2))
        loader.report_metric(0.95)

    assert loader.trial.converged


def test_batches_outside_of_an_epoch(bso: BatchSizeOptimizer, numbers: TensorDataset) -> None:
    with pytest.raises(WrongOrder, match=r"is read inside `for epoch in train_loader\.epochs\(\):`"):
        next(iter(TrainingLoader(numbers, bso)))


def test_epochs_twice(bso: BatchSizeOptimizer, numbers: TensorDataset) -> None:
    loader = TrainingLoader(numbers, bso)
    for _ in loader.epochs():
        loader.report_metric(0.95)
    with pytest.raises(WrongOrder, match="make another TrainingLoader, and a new model"):
        next(loader.epochs())


@pytest.mark.parametrize("training", [None, 32, "loader"])
def test_an_evaluation_loader_without_a_training_loader(numbers: TensorDataset, training: Any) -> None:
    with pytest.raises(InvalidSetting, match="stands beside a TrainingLoader: make that one first and pass it"):
        EvaluationLoader(numbers, training)


def test_a_batch_size_beside_the_optimizers(bso: BatchSizeOptimizer, numbers: TensorDataset, tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match=r"takes no batch_size: the optimizer chooses it.*JobSpec\(batch_sizes="):
        TrainingLoader(numbers, bso, batch_size=32)
    with pytest.raises(InvalidSetting, match="takes no batch_size"):
        TrainingLoader(numbers, 32)  # type: ignore[arg-type]

    assert bso.trial is None, "no trial was begun for nothing"


@pytest.mark.parametrize("loader", [TrainingLoader, EvaluationLoader])
def test_a_batch_sampler(bso: BatchSizeOptimizer, numbers: TensorDataset, loader: type) -> None:
    sampler = BatchSampler(SequentialSampler(numbers), 4, drop_last=False)
    beside: Any = bso if loader is TrainingLoader else TrainingLoader(numbers, bso)
    with pytest.raises(InvalidSetting, match=r"takes no batch_sampler.*pass sampler="):
        loader(numbers, beside, batch_sampler=sampler)


def test_something_else_than_an_optimizer(numbers: TensorDataset) -> None:
    with pytest.raises(InvalidSetting, match=r"needs the BatchSizeOptimizer, or a trial of its trials\(\), got str"):
        TrainingLoader(numbers, "job")  # type: ignore[arg-type]
    with pytest.raises(InvalidSetting, match=r"needs the BatchSizeOptimizer, or a trial .*, got nothing"):
        TrainingLoader(numbers, max_epochs=3)


def test_a_stream_without_the_length_of_an_epoch(bso: BatchSizeOptimizer) -> None:
    with pytest.raises(InvalidSetting, match=r"an IterableDataset has no epoch length.*samples_per_epoch=50_000"):
        TrainingLoader(Nothing(), bso)


def test_a_length_of_an_epoch_for_data_that_have_one(bso: BatchSizeOptimizer, numbers: TensorDataset) -> None:
    with pytest.raises(InvalidSetting, match="samples_per_epoch is for an IterableDataset"):
        TrainingLoader(numbers, bso, samples_per_epoch=50)


@pytest.mark.parametrize("samples", [0, -1])
def test_an_epoch_of_nothing(bso: BatchSizeOptimizer, samples: int) -> None:
    with pytest.raises(InvalidSetting, match="samples_per_epoch must be a number of samples of 1 or more"):
        TrainingLoader(Nothing(), bso, samples_per_epoch=samples)


def test_a_stream_that_yields_nothing(bso: BatchSizeOptimizer) -> None:
    loader = TrainingLoader(Nothing(), bso, samples_per_epoch=50)
    with pytest.raises(InvalidSetting, match="this Nothing yields no sample"):
        for _ in loader.epochs():
            list(loader)


def test_a_batch_size_that_is_larger_than_the_data_and_drops_what_is_left(
    make_bso: MakeOptimizer, numbers: TensorDataset
) -> None:
    bso = make_bso(batch_sizes=[128], default_batch_size=128)
    with pytest.raises(
        InvalidSetting, match=r"no batch in an epoch: 100 samples, batch size 128.*128 out of batch_sizes"
    ):
        TrainingLoader(numbers, bso, drop_last=True)


def test_a_training_that_is_running(bso: BatchSizeOptimizer, numbers: TensorDataset) -> None:
    loader = TrainingLoader(numbers, bso)
    for _ in loader.epochs():
        with pytest.raises(WrongOrder, match="a training is running"):
            TrainingLoader(numbers, bso)
        loader.report_metric(0.95)

    assert loader.trial.outcome is Outcome.CONVERGED


def test_a_loader_that_is_never_trained_with_costs_nothing(
    bso: BatchSizeOptimizer, numbers: TensorDataset, tmp_path: Path
) -> None:
    TrainingLoader(numbers, bso)
    TrainingLoader(numbers, bso)

    assert len(recorded_trials(tmp_path)) == 1
