# ruff: noqa: PT012  # what a user writes has more than one statement
"""The loaders in one process: what a training of a user's own does with them."""

import itertools
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, SubsetRandomSampler, TensorDataset

from bso_client import RELAUNCH, BatchSizeOptimizer, Outcome
from bso_client.integrations.torch import EvaluationLoader, TrainingLoader
from tests.integration.client.scripts import recorded_trials
from tests.training.loader.conftest import MakeOptimizer
from tests.unit.client.doubles import ScriptedMonitor


def values(batches: Any) -> list[list[float]]:
    """The numbers in each batch."""
    return [batch.tolist() for (batch,) in batches]


def flat(batches: list[list[float]]) -> list[float]:
    """The numbers, one after the other."""
    return list(itertools.chain.from_iterable(batches))


def one_epoch(loader: TrainingLoader, *, metric: float = 0.95) -> list[list[float]]:
    """The numbers of the training's only epoch."""
    seen: list[list[float]] = []
    for _ in loader.epochs():
        seen += values(loader)
        loader.report_metric(metric)
    return seen


def test_one_loop_trains_until_the_target(bso: BatchSizeOptimizer, numbers: TensorDataset, tmp_path: Path) -> None:
    train_loader = TrainingLoader(numbers, bso, max_epochs=50, shuffle=True)
    eval_loader = EvaluationLoader(numbers, train_loader, batch_size=50)
    metrics, epochs = iter([0.2, torch.tensor(0.5), 0.95]), []
    for epoch in train_loader.epochs():
        epochs.append(epoch)
        assert sorted(flat(values(train_loader))) == numbers.tensors[0].tolist()
        assert [len(batch) for batch in values(eval_loader)] == [50, 50]
        train_loader.report_metric(next(metrics))

    assert epochs == [0, 1, 2]
    assert train_loader.trial.converged
    (trial,) = recorded_trials(tmp_path)
    assert (trial.outcome, trial.batch_size, trial.reports) == (Outcome.CONVERGED, 16, 3)


def test_the_batches_are_those_of_a_data_loader(bso: BatchSizeOptimizer, numbers: TensorDataset) -> None:
    loader = TrainingLoader(numbers, bso)

    assert isinstance(loader, DataLoader)
    assert (loader.batch_size, len(loader)) == (16, 7)
    assert one_epoch(loader) == values(DataLoader(numbers, batch_size=16))


def test_what_a_data_loader_takes_is_passed_on(bso: BatchSizeOptimizer, numbers: TensorDataset) -> None:
    loader = TrainingLoader(
        numbers,
        bso,
        sampler=SubsetRandomSampler(range(40), generator=torch.Generator().manual_seed(1)),
        drop_last=True,
        collate_fn=lambda samples: (torch.stack([number for (number,) in samples]) + 0.5,),
    )

    assert len(loader) == 2
    seen = one_epoch(loader)
    assert [len(batch) for batch in seen] == [16, 16]
    assert set(flat(seen)) <= {number + 0.5 for number in range(40)}


def test_shuffling_is_another_order_in_each_epoch(bso: BatchSizeOptimizer, numbers: TensorDataset) -> None:
    loader = TrainingLoader(numbers, bso, shuffle=True, generator=torch.Generator().manual_seed(1))
    orders = []
    for epoch in loader.epochs():
        orders.append(flat(values(loader)))
        loader.report_metric(0.95 if epoch else 0.1)

    assert orders[0] != orders[1]


class Squares(Dataset):  # type: ignore[misc]  # torch is Any where it need not be installed
    """Made in whatever process the loader asks from."""

    def __init__(self, bso: BatchSizeOptimizer) -> None:
        self.bso = bso  # as careless as can be: the optimizer travels into each worker

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[torch.Tensor]:
        assert torch.utils.data.get_worker_info() is not None
        return (torch.tensor(float(index**2)),)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_worker_processes_load_what_they_should(bso: BatchSizeOptimizer, method: str) -> None:
    loader = TrainingLoader(
        Squares(bso), bso, num_workers=2, persistent_workers=True, multiprocessing_context=method, prefetch_factor=1
    )
    sums = []
    for epoch in loader.epochs():
        sums.append(sum(flat(values(loader))))
        loader.report_metric(0.95 if epoch == 2 else 0.1)

    assert sums == [85344.0] * 3


def test_a_batch_size_that_fails_is_followed_by_another_in_the_same_process(
    bso: BatchSizeOptimizer, numbers: TensorDataset, tmp_path: Path
) -> None:
    lengths = []
    for trial in bso.trials():
        loader = TrainingLoader(numbers, trial)
        with trial:
            for _ in loader.epochs():
                lengths.append(len(next(iter(loader))[0]))
                loader.report_metric(0.95 if trial.batch_size == 32 else 0.1)

    assert lengths == [16] * 5 + [32]
    assert [trial.outcome for trial in recorded_trials(tmp_path)] == [Outcome.NOT_CONVERGED, Outcome.CONVERGED]


def test_the_block_around_the_epochs_may_be_left_out(
    bso: BatchSizeOptimizer, numbers: TensorDataset, tmp_path: Path
) -> None:
    for trial in bso.trials():
        loader = TrainingLoader(numbers, trial, max_epochs=2)
        for _ in loader.epochs():
            loader.report_metric(0.1 if trial.attempt == 1 else 0.95)

    outcomes = [(trial.outcome, trial.reports) for trial in recorded_trials(tmp_path)]
    assert outcomes == [(Outcome.NOT_CONVERGED, 2), (Outcome.CONVERGED, 1)]


def test_a_gpu_out_of_memory_moves_on_to_a_smaller_batch_size(
    bso: BatchSizeOptimizer, numbers: TensorDataset, tmp_path: Path
) -> None:
    for trial in bso.trials():
        loader = TrainingLoader(numbers, trial)
        with trial:
            for _ in loader.epochs():
                for (batch,) in loader:
                    if len(batch) > 8:
                        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
                loader.report_metric(0.95)

    assert [(trial.batch_size, trial.outcome) for trial in recorded_trials(tmp_path)] == [
        (16, Outcome.INFEASIBLE),
        (8, Outcome.CONVERGED),
    ]


def test_an_exception_of_the_loop_goes_its_way_and_interrupts_the_trial(
    bso: BatchSizeOptimizer, numbers: TensorDataset, tmp_path: Path
) -> None:
    with pytest.raises(ZeroDivisionError):
        for trial in bso.trials():
            loader = TrainingLoader(numbers, trial)
            with trial:
                for _ in loader.epochs():
                    _ = 1 / 0

    (trial_row,) = recorded_trials(tmp_path)
    assert (trial_row.outcome, trial_row.outcome_reason) == (Outcome.INTERRUPTED, "ZeroDivisionError: division by zero")


def test_with_the_optimizer_itself_a_failure_exits_with_the_code_that_asks_for_another_launch(
    bso: BatchSizeOptimizer, numbers: TensorDataset, capsys: pytest.CaptureFixture[str]
) -> None:
    loader, after_reports = TrainingLoader(numbers, bso), 0
    with pytest.raises(SystemExit) as ended:
        for _ in loader.epochs():
            loader.report_metric(0.1)
            after_reports += 1

    assert ended.value.code == RELAUNCH
    assert after_reports == 5, "the body of the last epoch runs to its end"
    assert "batch size 16 failed (not_converged)" in capsys.readouterr().err


def test_relaunching_around_one_loop_asks_for_another_launch_after_out_of_memory(
    bso: BatchSizeOptimizer, numbers: TensorDataset, tmp_path: Path
) -> None:
    with pytest.raises(SystemExit) as ended, bso.relaunching():
        loader = TrainingLoader(numbers, bso)
        for _ in loader.epochs():
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    assert ended.value.code == RELAUNCH
    assert [trial.outcome for trial in recorded_trials(tmp_path)] == [Outcome.INFEASIBLE]


def test_max_epochs_of_the_loader_are_enough(
    bso: BatchSizeOptimizer, numbers: TensorDataset, capsys: pytest.CaptureFixture[str]
) -> None:
    loader = TrainingLoader(numbers, bso, max_epochs=2)
    with pytest.raises(SystemExit):
        one_epoch(loader, metric=0.1)

    assert loader.trial.epoch == 2.0
    assert "the metric was 0.1 after 2 epochs" in capsys.readouterr().err


def test_the_evaluation_counts_up_to_the_last_report(
    bso: BatchSizeOptimizer, numbers: TensorDataset, monitor: ScriptedMonitor
) -> None:
    loader = TrainingLoader(numbers, bso)
    eval_loader = EvaluationLoader(numbers, loader)
    for _ in loader.epochs():
        values(loader)
        assert len(monitor.windows) == 1
        monitor.energy_j = 20.0
        values(eval_loader)
        assert len(monitor.windows) == 1, "the window of the epoch is open during its evaluation"
        loader.report_metric(0.95)

    assert (loader.trial.cost, monitor.windows) == (20.0, [])


def test_an_evaluation_is_loaded_like_the_training_by_default(bso: BatchSizeOptimizer, numbers: TensorDataset) -> None:
    training = TrainingLoader(numbers, bso, max_micro_batch_size=4)

    assert EvaluationLoader(numbers, training).batch_size == 4
    assert EvaluationLoader(numbers, training, batch_size=64).batch_size == 64
    assert values(EvaluationLoader(numbers, training)) == values(DataLoader(numbers, batch_size=4))


def test_a_batch_that_does_not_fit_is_loaded_in_micro_batches(bso: BatchSizeOptimizer, numbers: TensorDataset) -> None:
    loader = TrainingLoader(numbers, bso, max_micro_batch_size=5)
    updates: list[list[float]] = [[]]
    for _ in loader.epochs():
        for (batch,), is_last in loader.accumulation.over(loader):
            updates[-1] += batch.tolist()
            if is_last:
                updates.append([])
        loader.report_metric(0.95)

    assert (loader.batch_size, loader.accumulation.steps, len(loader)) == (4, 4, 25)
    assert updates[:-1] == values(DataLoader(numbers, batch_size=16))


def test_dropping_the_last_batch_drops_all_its_micro_batches(bso: BatchSizeOptimizer, numbers: TensorDataset) -> None:
    loader = TrainingLoader(numbers, bso, max_micro_batch_size=4, drop_last=True)

    assert len(loader) == 24
    assert flat(one_epoch(loader)) == numbers.tensors[0].tolist()[:96]


class PowerLimit:
    """Writes down its hooks."""

    def __init__(self) -> None:
        self.noted = ""

    def on_epoch_begin(self) -> None:
        self.noted += "{"

    def on_epoch_end(self) -> None:
        self.noted += "}"

    def on_step_begin(self) -> None:
        self.noted += "("

    def on_step_end(self) -> None:
        self.noted += ")"


@pytest.mark.parametrize("micro_batch", [None, 4])
def test_the_power_limit_sees_each_update_and_no_evaluation(
    bso: BatchSizeOptimizer, numbers: TensorDataset, micro_batch: int | None
) -> None:
    power_limit = PowerLimit()
    loader = TrainingLoader(numbers, bso, power_limit=power_limit, max_micro_batch_size=micro_batch, drop_last=True)
    for epoch in loader.epochs():
        values(loader)
        values(EvaluationLoader(numbers, loader))
        loader.report_metric(0.95 if epoch else 0.1)

    assert power_limit.noted == "{()()()()()()}" * 2


def test_an_epoch_that_is_left_early_ends_for_the_power_limit_too(
    bso: BatchSizeOptimizer, numbers: TensorDataset
) -> None:
    power_limit = PowerLimit()
    loader = TrainingLoader(numbers, bso, power_limit=power_limit)
    for _ in loader.epochs():
        for number, _batch in enumerate(loader):
            if number == 1:
                break
        loader.report_metric(0.95)

    assert power_limit.noted == "{()(}"


class Stream(IterableDataset):  # type: ignore[misc]  # as above
    """0.0 to 99.0, from the beginning each time it is read."""

    def __iter__(self) -> Iterator[tuple[torch.Tensor]]:
        return ((torch.tensor(float(number)),) for number in range(100))


def test_a_stream_goes_on_from_epoch_to_epoch_and_begins_again(bso: BatchSizeOptimizer) -> None:
    loader = TrainingLoader(Stream(), bso, samples_per_epoch=60)
    epochs = []
    for epoch in loader.epochs():
        epochs.append(values(loader))
        loader.report_metric(0.95 if epoch == 1 else 0.1)

    assert len(loader) == 4, "60 samples are begun with a fourth batch of 16"
    assert [[len(batch) for batch in epoch] for epoch in epochs] == [[16, 16, 16, 16], [16, 16, 4, 16]]
    assert (epochs[1][0][0], epochs[1][3][0]) == (64.0, 0.0)


@pytest.mark.parametrize(("drop_last", "micro_batch", "length"), [(True, None, 3), (False, 4, 16), (True, 4, 12)])
def test_a_stream_has_whole_updates_only(
    bso: BatchSizeOptimizer, *, drop_last: bool, micro_batch: int | None, length: int
) -> None:
    loader = TrainingLoader(Stream(), bso, samples_per_epoch=60, drop_last=drop_last, max_micro_batch_size=micro_batch)

    assert len(loader) == len(one_epoch(loader)) == length


def test_a_resumed_trial_goes_on_at_its_epoch(make_bso: MakeOptimizer, numbers: TensorDataset) -> None:
    before, after = make_bso(), make_bso()
    loader = TrainingLoader(numbers, before)
    for epoch in loader.epochs():
        loader.report_metric(0.1)
        if epoch == 1:
            break
    saved = before.state_dict()
    before.close()
    after.load_state_dict(saved)
    resumed = TrainingLoader(numbers, after, max_epochs=10)
    epochs = []
    for epoch in resumed.epochs():
        epochs.append(epoch)
        resumed.report_metric(0.95)

    assert (resumed.trial.trial_number, resumed.trial.epoch, epochs) == (1, 3.0, [2])


def test_a_model_learns_with_the_loaders(bso: BatchSizeOptimizer) -> None:
    torch.manual_seed(1)
    inputs = torch.randn(400, 2)
    labels = (inputs.sum(1) > 0).long()
    train_set, eval_set = TensorDataset(inputs[:300], labels[:300]), TensorDataset(inputs[300:], labels[300:])
    for trial in bso.trials():
        model = torch.nn.Linear(2, 2)
        updates = torch.optim.SGD(model.parameters(), lr=0.5)
        train_loader = TrainingLoader(train_set, trial, shuffle=True)
        eval_loader = EvaluationLoader(eval_set, train_loader)
        with trial:
            for _ in train_loader.epochs():
                for batch, answers in train_loader:
                    updates.zero_grad()
                    torch.nn.functional.cross_entropy(model(batch), answers).backward()
                    updates.step()
                with torch.no_grad():
                    right = sum(int((model(batch).argmax(1) == answers).sum()) for batch, answers in eval_loader)
                train_loader.report_metric(right / len(eval_set))

    assert bso.trial is not None
    assert bso.trial.converged
    assert bso.trial.metric is not None
    assert bso.trial.metric >= 0.9


def test_any_sampler_may_be_passed_in_one_process(bso: BatchSizeOptimizer, numbers: TensorDataset) -> None:
    sampler = RandomSampler(numbers, replacement=True, num_samples=40)

    assert [len(batch) for batch in one_epoch(TrainingLoader(numbers, bso, sampler=sampler))] == [16, 16, 8]


def test_a_loader_that_is_no_longer_used_is_gone_at_once(bso: BatchSizeOptimizer, numbers: TensorDataset) -> None:
    """Without waiting for the garbage collector: its power limit must be free for the next one."""
    loader = TrainingLoader(numbers, bso)
    one_epoch(loader)
    gone = weakref.ref(loader)
    del loader

    assert gone() is None
