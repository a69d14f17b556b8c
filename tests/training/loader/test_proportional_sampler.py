"""The sampler for uneven shares: every sample once, and as many steps on each rank."""

import itertools

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from bso_client import InvalidSetting, InvalidSpec
from bso_client.integrations.torch import ProportionalSampler


def batches_of(samples: int, batch_size: int, ranks: int, *, epoch: int = 0, **options: bool) -> list[list[list[int]]]:
    """What each rank loads in an epoch, by rank: its batches."""
    data = TensorDataset(torch.arange(samples))
    loaded = []
    for rank in range(ranks):
        sampler = ProportionalSampler(data, batch_size, num_replicas=ranks, rank=rank, **options)
        sampler.set_epoch(epoch)
        share = batch_size // ranks + (rank < batch_size % ranks)
        loader = DataLoader(data, batch_size=share, sampler=sampler)
        loaded.append([batch.tolist() for (batch,) in loader])
        assert len(loader) == len(loaded[-1])
    return loaded


def flat(of_ranks: list[list[list[int]]]) -> list[int]:
    return list(itertools.chain.from_iterable(itertools.chain.from_iterable(of_ranks)))


@pytest.mark.parametrize(("ranks", "batch_size"), [(2, 7), (2, 127), (3, 32), (4, 5), (4, 8), (3, 3)])
@pytest.mark.parametrize("samples", [*range(5, 30), 100, 254, 1000])
def test_ranks_make_as_many_steps_and_each_step_has_the_whole_batch(ranks: int, batch_size: int, samples: int) -> None:
    loaded = batches_of(samples, batch_size, ranks)
    assert len({len(of_rank) for of_rank in loaded}) == 1
    steps = [sum(map(len, step)) for step in zip(*loaded, strict=True)]
    left = samples % batch_size
    assert steps == [batch_size] * (samples // batch_size) + [left] * (left >= ranks)
    assert all(batch for of_rank in loaded for batch in of_rank)
    assert len(set(flat(loaded))) == len(flat(loaded)) == sum(steps)


def test_without_shuffling_the_ranks_read_on_in_order() -> None:
    assert batches_of(12, 5, 2, shuffle=False) == [[[0, 1, 2], [5, 6, 7], [10]], [[3, 4], [8, 9], [11]]]
    assert batches_of(12, 5, 2, shuffle=False, drop_last=True) == [[[0, 1, 2], [5, 6, 7]], [[3, 4], [8, 9]]]


def test_each_epoch_has_an_order_of_its_own() -> None:
    first, second = (flat(batches_of(100, 7, 2, epoch=epoch)) for epoch in range(2))
    assert first != second
    assert flat(batches_of(100, 7, 2, epoch=1)) == second


def test_nothing_to_load_is_an_error() -> None:
    with pytest.raises(InvalidSetting, match="there is no batch in an epoch: 1 samples are divided among 2 ranks"):
        batches_of(1, 7, 2)
    with pytest.raises(InvalidSetting, match="drop_last drops what is left"):
        batches_of(6, 7, 2, drop_last=True)
    with pytest.raises(InvalidSpec, match="expected at least 2, got 1"):
        batches_of(10, 1, 2)
