"""Early stopping, change points, attempts and infeasibility, sentence by sentence."""

import math
from dataclasses import replace

import pytest

from bso.domain.commands import AllowBatchSize
from bso.domain.events import ChangePoint, RecurrenceEnded
from bso.domain.knowledge import feasible
from bso.domain.trial import Outcome
from tests.unit.domain.builders import A100, V100, JobLife

COSTS = {16: 12.0, 32: 11.0, 64: 10.0, 128: 13.0, 256: 14.0}


def job(**spec: object) -> JobLife:
    life = JobLife()
    life.register(policy="pruning_thompson", **spec)  # type: ignore[arg-type]  # fields of the specification
    return life


def sampling(**spec: object) -> JobLife:
    life = job(num_pruning_rounds=1, **spec)
    life.enter_mab(COSTS)
    return life


def test_a_trial_is_stopped_when_its_cost_is_above_beta_times_the_reference() -> None:
    life = job(beta_knob=1.5)
    life.converge(life.begin("a"), 10.0)
    trial = life.begin("b")
    assert trial.bound == 15.0
    assert not life.report(trial, cost=15.0).should_stop
    reply = life.report(trial, cost=15.1)
    assert (reply.should_stop, reply.outcome, reply.should_retry) == (True, Outcome.COST_EXCEEDED, True)
    assert life.known().arm(trial.batch_size).costs.mean == pytest.approx(15.1), "a censored cost is learnt as it is"


@pytest.mark.parametrize(("epochs", "words"), [(1, "after 1 epoch"), (2, "after 2 epochs")])
def test_one_epoch_is_written_in_the_singular(epochs: int, words: str) -> None:
    life = job()
    trial = life.begin("a")
    reply = [life.report(trial, cost=epoch, metric=0.5 if epoch == epochs else 0.1) for epoch in range(1, epochs + 1)]
    assert reply[-1].reason.partition(",")[0].endswith(words)


@pytest.mark.parametrize("spec", [{"beta_knob": None}, {"early_stopping": False}])
def test_without_early_stopping_no_cost_stops_a_trial(spec: dict[str, object]) -> None:
    life = job(**spec)
    life.converge(life.begin("a"), 10.0)
    trial = life.begin("b")
    assert trial.bound is None
    assert not life.report(trial, cost=1e9).should_stop


def test_the_cost_budget_bounds_trials_while_nothing_has_converged() -> None:
    life = job(cost_budget=30.0)
    trial = life.begin("a")
    assert trial.bound == 30.0
    life.exceed(trial)
    life.converge(life.begin("a"), 29.0)
    assert life.begin("b").bound == 58.0


def test_the_last_attempt_has_no_bound_not_even_a_budget() -> None:
    life = job(cost_budget=30.0, max_attempts=2)
    life.exceed(life.begin("a"))
    last = life.begin("a")
    assert (last.bound, last.is_last_attempt) == (None, True)
    assert not life.report(last, cost=1e6).should_stop


def test_the_last_attempt_takes_the_cheapest_known_that_has_not_failed_in_the_recurrence() -> None:
    life = sampling(max_attempts=2)
    first = life.begin("a", batch_size=64)
    life.exceed(first)
    assert life.begin("a").batch_size == 32


def test_a_client_that_chooses_itself_in_the_last_attempt_has_no_bound_either() -> None:
    life = sampling(max_attempts=2)
    life.exceed(life.begin("a"))
    assert life.begin("a", batch_size=256).bound is None


def test_with_one_attempt_the_policy_chooses_and_nothing_is_stopped() -> None:
    life = job(max_attempts=1)
    life.converge(life.begin("a"), 10.0)
    trial = life.begin("b")
    assert (trial.batch_size, trial.bound, trial.is_last_attempt) == (32, None, True)
    assert not life.report(trial, cost=1e6).should_stop
    assert not life.give_up(trial).should_retry


def test_a_recurrence_ends_without_a_model_when_its_last_attempt_failed() -> None:
    life = job(max_attempts=2)
    assert life.give_up(life.begin("a")).should_retry
    assert not life.give_up(life.begin("a")).should_retry
    (ended,) = life.happened(RecurrenceEnded)
    assert (ended.has_model, ended.reason) == (False, "none of 2 attempts converged")


def test_in_the_mab_stage_the_bound_doubles_with_each_abort_for_those_that_have_converged_before() -> None:
    life = sampling(max_attempts=5)
    bounds = []
    for _ in range(3):
        trial = life.begin("a")
        bounds.append(trial.bound)
        life.exceed(trial)
    assert bounds == [20.0, 40.0, 80.0]


def test_the_bound_does_not_double_for_a_batch_size_that_never_converged() -> None:
    life = sampling(max_attempts=5)
    life.register(batch_sizes=[8, 16, 32, 64, 128, 256])
    life.exceed(life.begin("a", batch_size=64))
    fresh = life.begin("a")
    assert (fresh.batch_size, fresh.bound) == (8, 20.0)


def test_the_bound_does_not_double_while_pruning() -> None:
    life = job(max_attempts=5)
    life.converge(life.begin("a"), 10.0)
    life.exceed(life.begin("b"))
    assert life.begin("b").bound == 20.0


def test_a_convergence_above_the_bound_of_what_was_within_it_is_a_change_point() -> None:
    life = sampling()
    life.converge(life.begin("a", batch_size=64), 50.0)
    (change,) = life.happened(ChangePoint)
    assert (change.cost, change.old_reference) == (50.0, 10.0)
    assert life.reference() == 50.0
    assert life.known().arm(32).costs.count == 0
    assert life.begin("b").bound == 100.0


def test_a_batch_size_that_was_always_above_the_bound_makes_no_change_point() -> None:
    life = sampling()
    life.converge(life.begin("a", batch_size=999), 500.0)
    assert not life.happened(ChangePoint)
    life.register(batch_sizes=[*COSTS, 999])
    for number in range(3):
        life.converge(life.begin(f"b{number}", batch_size=999), 500.0)
    assert not life.happened(ChangePoint)
    assert life.reference() == 10.0


def test_it_does_make_one_where_a_batch_size_that_used_to_be_within_the_bound_has_just_failed() -> None:
    life = sampling(early_stopping=True, max_attempts=2)
    life.register(batch_sizes=[*COSTS, 999])
    life.converge(life.begin("a", batch_size=999), 30.0)
    life.exceed(life.begin("b", batch_size=64))
    assert not life.happened(ChangePoint)
    life.converge(life.begin("b", batch_size=999), 150.0)
    assert len(life.happened(ChangePoint)) == 1


def test_the_reference_of_a_removed_batch_size_does_not_stop_the_others() -> None:
    life = sampling()
    life.register(batch_sizes=[128, 256], default_batch_size=128)
    assert life.reference() == 13.0


def test_the_target_comes_before_the_bound_a_model_is_a_model() -> None:
    life = sampling()
    assert life.converge(life.begin("a"), 1e6).outcome is Outcome.CONVERGED


def test_the_target_may_be_a_minimum() -> None:
    life = job(target_metric=3.0, higher_is_better_metric=False)
    trial = life.begin()
    assert not life.report(trial, cost=1.0, metric=3.1).should_stop
    assert life.report(trial, cost=2.0, metric=3.0).outcome is Outcome.CONVERGED


def test_max_epochs_end_a_trial() -> None:
    life = job(max_epochs=2)
    trial = life.begin()
    assert not life.report(trial, cost=1.0).should_stop
    assert life.report(trial, cost=2.0).outcome is Outcome.NOT_CONVERGED


@pytest.mark.parametrize("metric", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("is_higher_better", [True, False])
def test_two_metrics_in_a_row_that_are_no_numbers_mean_diverged(metric: float, is_higher_better: bool) -> None:
    life = job(higher_is_better_metric=is_higher_better)
    bad = 0.0 if is_higher_better else 1.0
    trial = life.begin()
    assert not life.report(trial, cost=1.0, metric=metric).should_stop
    assert not life.report(trial, cost=2.0, metric=bad).should_stop
    assert not life.report(trial, cost=3.0, metric=metric).should_stop
    reply = life.report(trial, cost=4.0, metric=metric)
    assert reply.outcome is Outcome.NOT_CONVERGED
    assert reply.reason.startswith("diverged: ")


def test_one_out_of_memory_excludes_that_size_and_larger_ones_in_this_recurrence() -> None:
    life = sampling(max_attempts=9)
    life.run_out_of_memory(life.begin("a", batch_size=64))
    assert {life.begin("a").batch_size for _ in range(8)} <= {16, 32}
    assert feasible(life.known(), life.spec) == set(COSTS)


def test_a_second_one_excludes_for_good_on_that_hardware_kind_until_it_is_allowed() -> None:
    life = sampling()
    for name in "ab":
        life.run_out_of_memory(life.begin(name, batch_size=64))
    assert feasible(life.known(), life.spec) == {16, 32}
    assert life.begin("c", hardware=V100).batch_size == 64
    life.send(AllowBatchSize(batch_size=64, hardware_key=A100.key))
    assert feasible(life.known(), life.spec) == set(COSTS)


def test_allowing_a_batch_size_brings_back_the_smaller_ones_that_memory_excluded() -> None:
    life = job(num_pruning_rounds=1, default_batch_size=256)
    for name in "ab":
        life.run_out_of_memory(life.begin(name, batch_size=64))
    life.enter_mab(COSTS)
    assert life.pruning().pruned >= {64, 128, 256}
    life.send(AllowBatchSize(batch_size=128))
    assert life.pruning().pruned == {256}


def test_where_everything_ran_out_of_memory_the_smallest_is_still_offered() -> None:
    life = sampling()
    for name in "ab":
        life.run_out_of_memory(life.begin(name, batch_size=16))
    assert life.begin("c").batch_size == 16


def test_three_interruptions_in_a_row_rest_a_batch_size_until_another_trial_has_ended() -> None:
    life = job()
    for elapsed in (1.0, 5.0, 20.0):
        trial = life.begin()
        assert trial.batch_size == 64
        life.finish(trial, Outcome.INTERRUPTED, "preempted", time_s=elapsed)
    other = life.begin()
    assert other.batch_size == 32
    life.finish(other, Outcome.INTERRUPTED, "preempted", time_s=2.0)
    assert life.begin().batch_size == 64


def test_three_interruptions_at_about_the_same_time_are_the_wall_time() -> None:
    life = sampling()
    for elapsed in (100.0, 103.0, 98.0):
        life.finish(life.begin("a", batch_size=64), Outcome.INTERRUPTED, "preempted", time_s=elapsed)
    assert life.known().arm(64).exceeds_wall_time
    assert feasible(life.known(), life.spec) == set(COSTS) - {64}


@pytest.mark.parametrize(
    "raised", ["ValueError: bug in saving my model", "KeyError: 'x'", "RuntimeError", "MyError: no"]
)
def test_an_exception_at_the_same_time_each_night_is_no_wall_time(raised: str) -> None:
    life = sampling()
    for elapsed in (100.0, 103.0, 98.0):
        life.finish(life.begin("a", batch_size=64), Outcome.INTERRUPTED, raised, time_s=elapsed)
    assert not life.known().arm(64).exceeds_wall_time
    assert life.known().arm(64).is_resting
    assert feasible(life.known(), life.spec) == set(COSTS)


def test_wall_time_never_makes_a_job_infeasible() -> None:
    life = job(batch_sizes=[64], default_batch_size=64)
    for _ in range(3):
        life.finish(life.begin("a"), Outcome.INTERRUPTED, "preempted", time_s=100.0)
    assert feasible(life.known(), life.spec) == {64}


def test_an_interruption_is_no_abort_of_the_recurrence() -> None:
    life = job(max_attempts=2)
    for _ in range(4):
        assert life.finish(life.begin("a"), Outcome.INTERRUPTED).should_retry
    assert life.begin("a").attempt == 1


def test_costs_without_complete_energy_are_not_learnt() -> None:
    life = job()
    trial = life.begin()
    life.send(replace(life.reporting(trial, 5.0), energy_j=None))
    life.converge(trial, 10.0)
    arm = life.known().arm(trial.batch_size)
    assert (arm.convergences, arm.costs.count) == (1, 0)


def test_where_energy_does_not_count_it_need_not_be_measured() -> None:
    life = job(eta_knob=0.0)
    trial = life.begin()
    life.send(replace(life.reporting(trial, 5.0, 0.9), energy_j=None))
    assert life.known().arm(trial.batch_size).costs.mean == 5.0


def test_a_cost_of_nothing_is_no_reference() -> None:
    life = job()
    life.converge(life.begin("a"), 0.0)
    assert life.reference() is None
    assert life.begin("b").bound is None


def test_the_last_attempt_after_a_default_that_failed_says_why_it_has_its_batch_size() -> None:
    life = job(batch_sizes=[16, 32, 64], default_batch_size=64, max_attempts=2)
    life.give_up(life.begin("a"))
    assert life.begin("a").reason == (
        "attempt 2 of 2 is the last, without a bound on its cost; "
        "of the batch sizes left, 32 is nearest to the default 64"
    )


def test_the_only_batch_size_left_is_not_said_to_be_the_lowest_of_one() -> None:
    life = job(batch_sizes=[16, 32], default_batch_size=32, num_pruning_rounds=1)
    life.enter_mab({32: 10.0})
    for _ in range(2):
        life.converge(life.begin(), 10.0)
    assert life.begin().reason == "32 is the only batch size left to choose (expected 10 J)"
