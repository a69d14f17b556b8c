"""The stage of sampling, sentence by sentence."""

from dataclasses import replace

import pytest

from bso.domain.events import ChangePoint
from bso.domain.statistics import CostStatistics, statistics_of
from bso.domain.trial import Outcome
from bso.policies.pruning_thompson.bandit import CostPosterior, posterior_of, sample_cheapest
from bso.policies.pruning_thompson.memory import Stage
from tests.unit.domain.builders import JobLife

COSTS = {32: 11.0, 64: 10.0, 128: 12.0}


def sampling(**spec: object) -> JobLife:
    """A job whose three arms all have two costs."""
    fields = {"batch_sizes": [32, 64, 128], "default_batch_size": 64, "num_pruning_rounds": 0, "mab_seed": 3, **spec}
    life = JobLife()
    life.register(policy="pruning_thompson", **fields)  # type: ignore[arg-type]  # fields of the specification
    for number in range(6):
        life.run(f"first-{number}", COSTS)
    return life


def test_an_arm_with_fewer_than_two_costs_is_explored_first() -> None:
    life = JobLife()
    life.register(policy="pruning_thompson", num_pruning_rounds=0, mab_num_explorations=0)
    life.register(batch_sizes=[32, 64, 128])
    assert [life.run(f"r{n}", COSTS).batch_size for n in range(6)] == [32, 64, 128, 32, 64, 128]
    assert "sampled cost" in life.begin("then").reason


def test_more_explorations_can_be_asked_for() -> None:
    life = sampling(mab_num_explorations=3)
    assert "fewer than 3 costs" in life.begin("then").reason


def test_the_variance_is_at_least_a_hundredth_of_the_mean_squared() -> None:
    equal = statistics_of([100.0, 100.0])
    posterior = posterior_of(equal, prior_mean=0.0, prior_precision=0.0)
    assert posterior is not None
    assert posterior.std == pytest.approx(1.0 / 2**0.5)


def test_the_posterior_is_conjugate_with_the_prior_on_the_reward() -> None:
    costs = statistics_of([90.0, 110.0])  # mean 100, variance 200
    posterior = posterior_of(costs, prior_mean=-50.0, prior_precision=0.01)
    assert posterior is not None
    assert posterior.mean == pytest.approx((0.01 * 100.0 + 0.01 * 50.0) / 0.02)
    assert posterior.std == pytest.approx((1 / 0.02) ** 0.5)


def test_without_costs_the_prior_is_all_there_is() -> None:
    assert posterior_of(CostStatistics(), prior_mean=-3.0, prior_precision=0.0) is None
    prior = posterior_of(CostStatistics(), prior_mean=-3.0, prior_precision=4.0)
    assert prior is not None
    assert (prior.mean, prior.std) == (3.0, 0.5)


def test_the_variance_is_that_of_a_sample() -> None:
    assert statistics_of([1.0, 2.0, 4.0]).variance == pytest.approx(7 / 3)
    assert statistics_of([5.0]).variance == 0.0


def test_ties_go_to_the_smaller_batch_size() -> None:
    certain = CostPosterior(mean=10.0, std=0.0)
    assert sample_cheapest({64: certain, 32: certain}, seed=0, trial_number=1) == (32, 10.0)


def test_a_batch_size_that_failed_is_not_offered_again_in_that_recurrence() -> None:
    life = sampling(max_attempts=4)
    sizes = []
    for _ in range(3):
        trial = life.begin("failing")
        sizes.append(trial.batch_size)
        life.give_up(trial)
    assert sorted(sizes) == [32, 64, 128]


def test_if_none_is_left_the_exclusions_lift() -> None:
    life = sampling(max_attempts=5)
    for _ in range(3):
        life.exceed(life.begin("failing"))
    assert "is the lowest of 3 arms" in life.begin("failing").reason


def test_not_converged_in_two_consecutive_trials_excludes_until_the_next_change_point() -> None:
    life = sampling(max_attempts=2)
    for number in range(2):
        life.give_up(life.begin(f"bad-{number}", batch_size=64))
    offered = {life.run(f"r{number}", COSTS).batch_size for number in range(30)}
    assert 64 not in offered
    life.converge(life.begin("risen", batch_size=32), 50.0)
    assert len(life.happened(ChangePoint)) == 1
    assert {life.run(f"s{n}", {32: 50.0, 64: 50.0, 128: 50.0}).batch_size for n in range(8)} == {32, 64, 128}


def test_two_failures_with_a_convergence_between_do_not_exclude() -> None:
    life = sampling()
    life.give_up(life.begin("a", batch_size=64))
    life.converge(life.begin("b", batch_size=64), 10.0)
    life.give_up(life.begin("c", batch_size=64))
    assert life.known().arm(64).still_converges


def test_when_no_arm_converges_any_more_pruned_batch_sizes_come_back() -> None:
    life = JobLife()
    life.register(max_attempts=2, policy="pruning_thompson")
    life.enter_mab({16: 99.0, 32: 99.0, 64: 10.0, 128: 99.0, 256: 99.0})
    assert life.pruning().pruned == {16, 32, 128, 256}
    for number in range(2):
        life.give_up(life.begin(f"dead-{number}", batch_size=64))
    assert life.begin("next").batch_size != 64


def test_when_all_arms_failed_for_another_reason_the_first_convergence_lifts_the_exclusions() -> None:
    life = sampling(max_attempts=1)
    for size in COSTS:
        for number in range(2):
            life.give_up(life.begin(f"outage-{size}-{number}", batch_size=size))
    assert not any(life.known().arm(size).still_converges for size in COSTS)
    life.run("after", COSTS)
    assert all(life.known().arm(size).still_converges for size in COSTS)


def test_learning_from_a_window_forgets_older_trials() -> None:
    life = sampling(window_size=2)
    assert len(life.known().window) == 6
    for number in range(10):
        life.run(f"later-{number}", {size: cost * 1.5 for size, cost in COSTS.items()})
    assert all(seen.cost is not None and seen.cost >= 15.0 for seen in life.known().window)
    assert life.known().arm(64).costs.count > 2, "the window is what counts, the record is kept beside it"


def test_interruptions_push_nothing_out_of_the_window() -> None:
    life = sampling(window_size=2)
    before = life.known().window
    life.finish(life.begin("x"), Outcome.INTERRUPTED, "preempted")
    assert life.known().window == before


def test_sampling_settles_on_the_cheapest_arm() -> None:
    life = sampling()
    sizes = [life.run(f"r{n}", {32: 20.0, 64: 10.0, 128: 14.0}).batch_size for n in range(40)]
    assert sizes[-20:].count(64) >= 18


def test_arms_without_energy_take_turns_and_are_never_starved() -> None:
    life = JobLife()
    life.register(policy="pruning_thompson", batch_sizes=[32, 64], default_batch_size=64, num_pruning_rounds=0)
    sizes = []
    for number in range(6):
        trial = life.begin(f"r{number}")
        sizes.append(trial.batch_size)
        life.send(replace(life.reporting(trial, 10.0, 0.9), energy_j=None))
    assert sorted(sizes) == [32, 32, 32, 64, 64, 64]
    assert life.pruning().stage is Stage.MAB
    assert not life.known().arm(32).costs.count
