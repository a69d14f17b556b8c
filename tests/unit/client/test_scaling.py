"""What depends on the batch size: learning rate and gradient accumulation."""

import logging
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bso.domain.commands import BeginTrial
from bso_client import Accumulation, BatchSizeOptimizer, InvalidSetting, LearningRate, Outcome
from bso_client.scaling import accumulate, largest_that_fits
from tests.unit.client.doubles import ReachableOptimizer
from tests.unit.client.fixtures import MakeOptimizer

OUT_OF_MEMORY = RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")


@pytest.mark.parametrize(("rule", "expected"), [("linear", 0.05), ("square_root", 0.1 * math.sqrt(0.5)), ("none", 0.1)])
def test_a_trial_scales_the_learning_rate_to_its_batch_size_and_records_it(
    make_bso: MakeOptimizer, optimizer: ReachableOptimizer, rule: Any, expected: float
) -> None:
    rate = LearningRate(0.1, reference_batch_size=128, rule=rule)
    bso = make_bso(learning_rate=rate)
    bso.get_batch_size()

    assert bso.trial is not None
    assert bso.trial.learning_rate == pytest.approx(expected)  # batch size 64
    assert [begun.learning_rate for begun in optimizer.commands(BeginTrial)] == [rate]
    assert optimizer.trials()[0].learning_rate == rate


def test_a_resumed_trial_keeps_its_learning_rate(make_bso: MakeOptimizer) -> None:
    rate = LearningRate(0.1, reference_batch_size=32)
    before, after = make_bso(learning_rate=rate), make_bso(learning_rate=rate)
    before.get_batch_size()
    after.load_state_dict(before.state_dict())
    after.get_batch_size()

    assert after.trial is not None
    assert after.trial.learning_rate == pytest.approx(0.2)


def test_a_trial_that_goes_on_alone_scales_all_the_same(make_bso: MakeOptimizer, optimizer: ReachableOptimizer) -> None:
    bso = make_bso(learning_rate=LearningRate(0.1, reference_batch_size=64))
    for trial in bso.trials():
        with trial:
            trial.on_evaluate(0.95)
    optimizer.is_away = True
    bso.get_batch_size()

    assert bso.trial is not None
    assert bso.trial.trial_number is None
    assert bso.trial.learning_rate == 0.1


def test_a_rate_that_was_never_given_is_an_error_that_shows_how_to_give_it(bso: BatchSizeOptimizer) -> None:
    bso.get_batch_size()

    assert bso.trial is not None
    with pytest.raises(InvalidSetting, match=r"learning_rate=LearningRate\(0\.1, reference_batch_size=256\)"):
        _ = bso.trial.learning_rate


@pytest.mark.parametrize(
    ("rate", "words"),
    [
        (0.1, "got 0.1: to be scaled, a rate needs the batch size"),
        (LearningRate(-1.0, reference_batch_size=64), "must be a positive number"),
        (LearningRate(math.nan, reference_batch_size=64), "must be a positive number"),
        (LearningRate(0.1, reference_batch_size=0), "reference_batch_size"),
        (LearningRate(0.1, reference_batch_size=64, rule="cubic"), "linear, square_root, none"),  # type: ignore[arg-type]
    ],
    ids=["a number", "negative", "not a number", "no batch", "no rule"],
)
def test_a_rate_that_is_none_is_refused_at_once(make_bso: MakeOptimizer, rate: Any, words: str) -> None:
    with pytest.raises(InvalidSetting, match=words):
        make_bso(learning_rate=rate)


@given(micro=st.integers(1, 300), steps=st.integers(1, 40), world=st.integers(1, 8), limit=st.integers(1, 400))
def test_micro_batches_make_up_the_batch_size_exactly_and_are_the_largest_equal_ones_that_fit(
    micro: int, steps: int, world: int, limit: int
) -> None:
    batch_size = micro * steps * world
    found = accumulate(batch_size, world_size=world, max_micro_batch_size=limit)

    assert found.micro_batch_size * found.steps * found.world_size == found.batch_size == batch_size
    assert found.micro_batch_size <= limit
    larger = range(found.micro_batch_size + 1, min(limit, batch_size // world) + 1)
    assert not [size for size in larger if (batch_size // world) % size == 0]


@pytest.mark.parametrize(
    ("batch_size", "limit", "expected"),
    [(256, None, (256, 1)), (256, 512, (256, 1)), (256, 64, (64, 4)), (96, 40, (32, 3)), (7, 7, (7, 1))],
)
def test_a_trial_computes_its_micro_batches(batch_size: int, limit: int | None, expected: tuple[int, int]) -> None:
    found = accumulate(batch_size, max_micro_batch_size=limit)

    assert (found.micro_batch_size, found.steps) == expected


def test_the_trial_accumulates_its_own_batch_size(bso: BatchSizeOptimizer) -> None:
    bso.get_batch_size()

    assert bso.trial is not None
    assert bso.trial.accumulation(16) == Accumulation(batch_size=64, micro_batch_size=16, steps=4)
    assert bso.trial.accumulation() == Accumulation(batch_size=64, micro_batch_size=64)


def test_a_prime_batch_size_is_warned_of_as_a_waste(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "bso"):
        found = accumulate(254, world_size=2, max_micro_batch_size=64)

    assert (found.micro_batch_size, found.steps) == (1, 127)
    (record,) = caplog.records
    assert record.__dict__["action"] == "micro_batches_wasteful"
    assert "no divisor between 2 and 64" in record.message
    assert "a batch size of 128 or 256 would need far fewer" in record.message


def test_a_batch_size_with_a_good_divisor_is_no_waste(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "bso"):
        accumulate(96, max_micro_batch_size=40)

    assert not caplog.records


def test_ranks_that_cannot_share_equally_get_batch_sizes_that_can() -> None:
    with pytest.raises(InvalidSetting, match=r"batch size 130 .* among 4 ranks.* multiples of 4 .* 128 or 132"):
        accumulate(130, world_size=4)


@pytest.mark.parametrize("limit", [0, -8, 1.5, True])
def test_a_limit_is_a_number_of_samples(limit: Any) -> None:
    with pytest.raises(InvalidSetting, match="max_micro_batch_size must be a number of samples"):
        accumulate(64, max_micro_batch_size=limit)


def test_the_weights_are_updated_after_each_group_and_at_the_end_of_the_epoch() -> None:
    accumulation = accumulate(12, max_micro_batch_size=4)

    assert [accumulation.is_last(step) for step in range(7)] == [False, False, True, False, False, True, False]
    assert list(accumulation.over("abcdefg")) == [
        *(("a", False), ("b", False), ("c", True)),
        *(("d", False), ("e", False), ("f", True)),
        ("g", True),
    ]
    assert list(accumulation.over("")) == []


def test_none_may_be_a_micro_batch() -> None:
    assert list(accumulate(2, max_micro_batch_size=1).over([None, None])) == [(None, False), (None, True)]


class Gpu:
    """Runs out of memory above ``fits`` samples."""

    def __init__(self, fits: int) -> None:
        self.fits = fits
        self.tried: list[int] = []

    def step(self, micro_batch_size: int) -> None:
        self.tried.append(micro_batch_size)
        if micro_batch_size > self.fits:
            raise OUT_OF_MEMORY


def test_micro_batches_shrink_until_they_fit() -> None:
    gpu = Gpu(fits=20)
    found = largest_that_fits(accumulate(96), gpu.step)

    assert (found.micro_batch_size, found.steps, gpu.tried) == (16, 6, [96, 48, 32, 24, 16])


def test_what_does_not_fit_with_one_sample_is_out_of_memory() -> None:
    gpu = Gpu(fits=0)
    with pytest.raises(RuntimeError, match="CUDA out of memory"):
        largest_that_fits(accumulate(4), gpu.step)

    assert gpu.tried == [4, 2, 1]


def test_all_ranks_take_what_fits_on_each() -> None:
    gpu, elsewhere = Gpu(fits=64), iter([False, False, True])
    found = largest_that_fits(accumulate(64), gpu.step, agree=lambda fits: next(elsewhere) and fits)

    assert found.micro_batch_size == 16


def test_another_error_of_the_step_goes_its_way() -> None:
    def step(micro_batch_size: int) -> None:
        raise ValueError("shapes differ")

    with pytest.raises(ValueError, match="shapes differ"):
        largest_that_fits(accumulate(64), step)


def test_a_trial_finds_out_what_fits(bso: BatchSizeOptimizer) -> None:
    bso.get_batch_size()
    gpu = Gpu(fits=20)

    assert bso.trial is not None
    assert bso.trial.accumulation(32, fits=gpu.step) == Accumulation(batch_size=64, micro_batch_size=16, steps=4)
    assert gpu.tried == [32, 16]


def test_a_batch_size_of_which_nothing_fits_is_infeasible_and_the_loop_goes_on(bso: BatchSizeOptimizer) -> None:
    tried = []
    for trial in bso.trials():
        tried.append(trial)
        with trial:
            trial.accumulation(fits=Gpu(fits=0 if trial.batch_size == 64 else 8).step)
            trial.on_evaluate(0.95)

    assert [(trial.batch_size, trial.outcome) for trial in tried] == [(64, Outcome.INFEASIBLE), (32, Outcome.CONVERGED)]
