"""What is remembered: sums that say as much as the runs themselves."""

import math
import statistics
from dataclasses import replace

import pytest

from bso.policies.curve.epoch_records import (
    EpochKnowledge,
    EpochRecord,
    LearntEpochs,
    RunSums,
    with_learnt_epochs,
)
from bso.policies.curve.surprises import Surprises
from tests.unit.policies.curve.invented_trainings import Trainings

RUNS = [12, 14, 11, 19, 12, 13]


def test_a_record_holds_mean_and_squares_of_its_runs() -> None:
    record = EpochRecord()
    for epochs in RUNS:
        record = record.with_run(math.log(epochs))
    logs = [math.log(epochs) for epochs in RUNS]
    assert record.sums.weight == record.converged == record.looks == len(RUNS)
    assert record.sums.mean == pytest.approx(statistics.mean(logs))
    assert record.squares == pytest.approx(statistics.variance(logs) * (len(RUNS) - 1))


def test_all_runs_are_one_observation() -> None:
    sums = EpochRecord().with_run(2.0).with_run(3.0).with_censored(4.0, 0.5, 0.25).sums
    assert sums.observation(noise=0.25) == pytest.approx(((2.5 * 8 + 4.0 * 2) / 10, 1 / 10))
    assert EpochRecord().sums.observation(noise=0.25) is None


def test_after_a_change_earlier_runs_count_apart_and_those_before_another_one_less() -> None:
    record = EpochRecord().with_run(2.0).with_run(3.0).with_censored(4.0, 0.5, 0.25).after_change(0.1)
    assert record.sums == RunSums()
    assert (record.before.weight, record.before.mean) == pytest.approx((2.0, 2.5))
    assert (record.before.censored_precision, record.before.censored_sum) == pytest.approx((2.0, 8.0))
    assert (record.looks, record.has_converged, record.squares) == (3, True, 0.0)

    again = record.with_run(1.0).after_change(0.1)
    assert (again.before.weight, again.before.mean) == pytest.approx((1.2, (1.0 + 0.2 * 2.5) / 1.2))
    assert again.before.censored_precision == pytest.approx(0.2)


def test_a_change_counts_for_all_batch_sizes_and_the_new_run_is_the_first_after_it() -> None:
    before = EpochKnowledge(records={32: EpochRecord().with_run(2.0), 64: EpochRecord().with_run(2.5)})
    learnt = LearntEpochs(ln_epochs=4.0, variance=None, failed=0.0, kept=0.1)
    after = with_learnt_epochs(before, 3, 64, learnt)
    assert (after.record(32).sums.weight, after.record(32).before.weight) == (0.0, 1.0)
    assert (after.record(64).sums.weight, after.record(64).before.weight) == (1.0, 1.0)
    assert after.record(64).sums.mean == 4.0


def test_a_failure_on_one_hardware_kind_leaves_the_surprises_as_they_are() -> None:
    surprised = EpochKnowledge(records={32: replace(EpochRecord().with_run(2.0), surprises=Surprises(rising=2.5))})
    after = with_learnt_epochs(surprised, 3, 32, LearntEpochs(ln_epochs=None, variance=None, failed=1.0)).record(32)
    assert (after.surprises, after.failed) == (Surprises(rising=2.5), 1.0)


def test_what_is_remembered_does_not_grow_with_the_number_of_trials() -> None:
    trainings = Trainings(noise=0.2).register()
    trainings.chosen(range(30))
    assert trainings.life.job is not None
    early = len(repr(trainings.life.job.version))
    trainings.chosen(range(30, 90))
    assert len(repr(trainings.life.job.version)) < 1.2 * early


def test_folding_the_log_gives_what_was_learnt() -> None:
    trainings = Trainings(noise=0.3).register()
    trainings.chosen(range(40))
    assert trainings.life.job is not None
    assert trainings.life.folded().versions == trainings.life.job.versions
