"""A job that moves to a hardware kind on which it has never run."""

import dataclasses
import math

import pytest

from bso.domain.commands import DescribeJob
from bso.domain.events import TrialStarted
from bso.domain.hardware import HardwareKind
from bso.domain.replies import JobDescription, KindDescription
from bso.domain.trial import Outcome
from bso.policies.curve.beliefs import Beliefs
from bso.policies.curve.cost_records import EpochCostKnowledge
from bso.policies.curve.memory import costs_elsewhere, epoch_costs_on
from tests.unit.domain.builders import A100, V100, JobLife, expect
from tests.unit.policies.curve.invented_trainings import EPOCHS, PRICES, Trainings
from tests.unit.policies.curve.made_up_knowledge import SIZES, SPEC, costing, lasting

OLD_KIND = dataclasses.replace(V100, gpu_model="P100")


def moved() -> Trainings:
    """Trainings that have recurred 30 times on one kind, and now run on another."""
    trainings = Trainings(noise=0.05).register()
    trainings.chosen(range(30))
    return dataclasses.replace(trainings, hardware=V100)


@pytest.mark.parametrize("level", [0.2, 1.0, 7.0])
def test_it_goes_on_with_the_best_batch_size(level: float) -> None:
    trainings = dataclasses.replace(moved(), prices={size: level * price for size, price in PRICES.items()})
    first = trainings.life.begin("first", hardware=V100)
    assert "nothing has run on this hardware kind yet" in first.reason
    assert first.batch_size in (64, 128)
    trainings.end(first)
    chosen = [trial for number in range(30, 50) for trial in trainings.recur(number)]
    assert sum(trial.batch_size in (64, 128) for trial in chosen) >= 18
    assert {trial.batch_size for trial in chosen} <= {32, 64, 128, 256}


def test_the_first_trial_has_a_bound_from_its_first_epochs_on() -> None:
    trainings = dataclasses.replace(moved(), prices={size: 5.0 * price for size, price in PRICES.items()})
    first = trainings.life.begin("first", hardware=V100)
    assert first.bound is None
    trainings.train(first, up_to=2.0)
    bound = trainings.life.row(first).bound
    assert bound == pytest.approx(2.0 * 5.0 * PRICES[first.batch_size] * EPOCHS[first.batch_size], rel=0.1)
    assert trainings.end(first).outcome is Outcome.CONVERGED


def test_a_run_that_takes_far_too_long_is_stopped_there_too() -> None:
    trainings = moved()
    best = trainings.life.begin("which", hardware=V100).batch_size
    stuck = dataclasses.replace(trainings, epochs={**trainings.epochs, best: None})
    first = stuck.life.begin("first", hardware=V100)
    assert stuck.end(first).outcome is Outcome.COST_EXCEEDED
    assert stuck.life.row(first).epoch < 60


def test_another_shape_of_costs_is_learnt_in_the_end() -> None:
    """Where the new kind is slow with small batches, 512 is the cheapest of all there."""
    steep = {size: 640.0 * (16 / size) ** 1.5 for size in PRICES}
    trainings = dataclasses.replace(moved(), prices=steep)
    trainings.chosen(range(30, 60))
    assert trainings.chosen(range(60, 80)).count(512) >= 17


def test_where_the_best_one_does_not_fit_the_next_best_runs() -> None:
    trainings = moved()
    best = trainings.life.begin("which", hardware=V100).batch_size
    trial = trainings.life.begin("first", hardware=V100)
    trainings.life.run_out_of_memory(trial)
    again = trainings.life.begin("first", hardware=V100)
    assert again.batch_size < best
    assert again.batch_size >= 32


def test_both_kinds_learn_from_one_another_while_a_job_runs_on_both() -> None:
    """A second kind is used from the beginning: what the first one shows later counts there, too."""
    trainings = Trainings(noise=0.05).register()
    other = dataclasses.replace(trainings, hardware=V100)
    other.recur(0)
    trainings.chosen(range(1, 30))
    assert set(other.chosen(range(30, 36))) <= {64, 128}


def test_the_kind_with_most_runs_counts() -> None:
    trainings = moved()
    trainings = dataclasses.replace(trainings, hardware=OLD_KIND)
    trainings.recur(30)
    assert trainings.life.job is not None
    version = trainings.life.job.version
    assert costs_elsewhere(version, V100) is epoch_costs_on(trainings.life.known(A100))
    assert costs_elsewhere(version, A100) is epoch_costs_on(trainings.life.known(OLD_KIND))


def test_a_shape_that_is_inherited_counts_more_than_one_run_on_a_third_kind() -> None:
    trainings = moved()
    trainings.life.register(version="wider")
    trainings.recur(30)
    assert trainings.life.job is not None
    found = costs_elsewhere(trainings.life.job.version, OLD_KIND)
    assert found is epoch_costs_on(trainings.life.known(A100))


def test_what_was_seen_before_a_change_of_costs_is_moved_by_it_before_it_is_compared() -> None:
    """Costs rose eight times, and only 64 has run since."""
    trainings = moved()
    trainings.prices = {size: 8.0 * price for size, price in PRICES.items()}
    here = dataclasses.replace(trainings, hardware=A100)
    here.chosen(range(30, 50))
    known = epoch_costs_on(trainings.life.known(A100))
    levels = {size: sums.mean - math.log(PRICES[size]) for size, sums in known.compared.items()}
    assert len({size for size, record in known.records.items() if not record.sums.weight}) >= 1
    assert max(levels.values()) - min(levels.values()) < 0.3


def test_trainings_whose_energy_is_never_complete_explore_all_the_same() -> None:
    life = JobLife()
    life.register(policy="curve")
    for number in range(6):
        trial = life.begin(f"r{number}")
        report = dataclasses.replace(life.reporting(trial, 10.0, trial.spec.target_metric), energy_j=None)
        life.send(report)
    sizes = {started.batch_size for started in life.happened(TrialStarted)}
    assert len(sizes) > 1


def test_nothing_is_said_of_costs_before_an_epoch_was_paid_for_there() -> None:
    trainings = moved()
    trainings.life.begin("first", hardware=V100)
    new = described(trainings.life, V100)
    assert new.best_batch_size in (64, 128)
    assert new.confidence is None
    assert all(arm.posterior_mean is None for arm in new.arms)
    assert any(arm.posterior_mean is not None for arm in described(trainings.life, A100).arms)


def test_costs_compare_as_they_do_elsewhere_and_their_level_is_not_taken_over() -> None:
    here = one_cost(128)
    alone, moving = Beliefs(SPEC, lasting({}), here), Beliefs(SPEC, lasting({}), here, elsewhere=costing())
    assert moving.of(128).epoch_cost == pytest.approx(5.0, abs=0.05)
    for size in SIZES:
        assert moving.of(size).epoch_cost == pytest.approx(5.0, abs=0.15)
    assert moving.cost_ratio_variance(128, 512) < 0.3 * alone.cost_ratio_variance(128, 512)


def test_noise_that_was_seen_elsewhere_counts_a_little() -> None:
    noisy = dataclasses.replace(costing(), squares=100 * 0.5**2)
    alone = Beliefs(SPEC, lasting({}), one_cost(128))
    moving = Beliefs(SPEC, lasting({}), one_cost(128), elsewhere=noisy)
    assert moving.cost_noise > 2.0 * alone.cost_noise
    settled = Beliefs(SPEC, lasting({}), costing(), elsewhere=noisy)
    assert settled.cost_noise < 0.03**2


def one_cost(batch_size: int) -> EpochCostKnowledge:
    """An epoch of one batch size is known to cost e^5 J."""
    record = costing((batch_size,)).records[batch_size]
    sums = dataclasses.replace(record.sums, weight=1.0, mean=5.0)
    return EpochCostKnowledge(records={batch_size: dataclasses.replace(record, sums=sums)}, runs=1)


def described(life: JobLife, hardware: HardwareKind) -> KindDescription:
    """What people see of a hardware kind."""
    kinds = expect(JobDescription, life.send(DescribeJob())).kinds
    return next(kind for kind in kinds if kind.hardware_key == hardware.key)
