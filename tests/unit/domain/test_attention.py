"""A target out of reach: after three recurrences without a model a recurrence is one training, until one reaches it."""

import random
from typing import Any

import pytest

from bso.domain import commands as do
from bso.domain.events import AttentionNeeded, RecurrenceEnded
from bso.domain.policies import own_policies
from bso.domain.replies import JobDescription, KindDescription, TrialBegun, TrialFinished
from bso.domain.trial import Outcome
from bso.policies.curve.memory import NAME as CURVE
from bso.policies.pruning_thompson.memory import NAME as PRUNING_THOMPSON
from tests.unit.domain.builders import A100, SIZES, V100, JobLife, expect, without_leases

COSTS = {16: 40.0, 32: 25.0, 64: 20.0, 128: 15.0, 256: 30.0}

policies = pytest.mark.parametrize("policy", own_policies())


def job(policy: str, **spec: Any) -> JobLife:
    life = JobLife(is_stateless=True)
    life.register(policy=policy, **spec)
    return life


def fruitless(life: JobLife, name: str, **more: Any) -> list[TrialBegun]:
    """A recurrence in which nothing reaches the target."""
    trials = [life.begin(name, **more)]
    while life.give_up(trials[-1]).should_retry:
        trials.append(life.begin(name, **more))
    return trials


def out_of_reach(policy: str, **spec: Any) -> JobLife:
    """A job in which nothing has ever reached the target."""
    life = job(policy, **spec)
    for number in range(3):
        fruitless(life, f"barren-{number}")
    return life


def converging(policy: str, recurrences: int = 12) -> JobLife:
    """A job that has converged for a while."""
    life = job(policy)
    for number in range(recurrences):
        life.run(f"good-{number}", COSTS)
    return life


def described(life: JobLife) -> KindDescription:
    [kind] = expect(JobDescription, life.send(do.DescribeJob())).kinds
    return kind


@policies
def test_after_three_recurrences_without_a_model_a_recurrence_is_one_training(policy: str) -> None:
    life = job(policy)
    assert [len(fruitless(life, f"r{number}")) for number in range(9)] == [3, 3, 3, 1, 1, 1, 1, 1, 1]


@policies
def test_it_runs_the_default_without_a_bound_and_says_so(policy: str) -> None:
    life = out_of_reach(policy, cost_budget=5.0)
    trial = life.begin("night")
    assert (trial.batch_size, trial.bound, trial.is_last_attempt) == (64, None, True)
    assert trial.reason == "3 recurrences in a row ended without a model; 64 is the default"
    [warning] = trial.warnings
    assert "job job needs attention: 3 recurrences in a row" in warning
    who = "the job's owner, or an operator, can set an easier target_metric, or raise max_epochs"
    for advice in ("a metric of at least 0.5", "max_epochs (100)", "higher_is_better_metric (True)", who):
        assert advice in warning
    for epoch in range(1, 50):
        assert not life.report(trial, cost=1000.0 * epoch).should_stop


@policies
def test_two_recurrences_without_a_model_change_nothing(policy: str) -> None:
    life = job(policy)
    fruitless(life, "a")
    fruitless(life, "b")
    assert (life.known().recurrences_without_model, life.known().needs_attention) == (2, False)
    life.converge(life.begin("c"), 10.0)
    assert life.known().recurrences_without_model == 0
    fruitless(life, "d")
    assert len(fruitless(life, "e")) == 3


@policies
def test_a_training_that_reaches_the_target_ends_it(policy: str) -> None:
    life = out_of_reach(policy)
    fruitless(life, "night")
    trial = life.begin("reached")
    life.report(trial, cost=5.0)
    life.converge(trial, 10.0)
    assert not life.known().needs_attention
    assert described(life).attention == ""
    assert life.begin("later").warnings == ()
    assert life.known().arm(64).convergences == 1, "it is learnt from"
    assert len(fruitless(life, "one-failure")) == 3


@policies
def test_a_job_whose_data_have_moved_comes_into_it_and_out_of_it(policy: str) -> None:
    life = converging(policy)
    lengths = [len(fruitless(life, f"moved-{number}")) for number in range(8)]
    assert lengths == [3, 3, 3, 1, 1, 1, 1, 1]
    life.run("moved-back", COSTS)
    assert not life.known().needs_attention
    assert [life.run(f"after-{number}", COSTS).warnings for number in range(5)] == [()] * 5


@policies
@pytest.mark.parametrize("only", SIZES)
def test_whichever_batch_size_that_used_to_converge_does_so_again_is_found(policy: str, only: int) -> None:
    life = job(policy)
    for size in {64, only}:
        life.converge(life.begin(f"client-{size}", batch_size=size), COSTS[size])
    for number in range(3):
        fruitless(life, f"barren-{number}")
    for number in range(6):
        trial = life.begin(f"night-{number}")
        if trial.batch_size == only:
            life.converge(trial, 20.0)
            assert not life.known().needs_attention
            return
        assert not life.give_up(trial).should_retry
    raise AssertionError("never tried")


MANY = [2**power for power in range(3, 15)]


@policies
@pytest.mark.parametrize("only", MANY)
@pytest.mark.parametrize("default", [8, 256, 16384])
def test_where_nothing_has_ever_converged_each_batch_size_that_was_never_tried_gets_a_turn(
    policy: str, only: int, default: int
) -> None:
    life = job(policy, batch_sizes=MANY, default_batch_size=default)
    for number in range(3 + len(MANY)):
        while True:
            trial = life.begin(f"r{number}")
            if trial.batch_size == only:
                return
            if not life.give_up(trial).should_retry:
                break
    raise AssertionError("never tried")


@policies
def test_once_all_have_been_tried_the_default_remains(policy: str) -> None:
    life = job(policy, batch_sizes=MANY, default_batch_size=256)
    for number in range(3 + len(MANY)):
        fruitless(life, f"r{number}")
    assert {row.batch_size for row in life.rows.values()} == set(MANY)
    assert [fruitless(life, f"later-{number}")[0].batch_size for number in range(5)] == [256] * 5


def test_what_another_version_has_converged_with_is_not_taken_for_its_own() -> None:
    life = converging(CURVE)
    life.register(target_metric=0.9)
    for number in range(3):
        fruitless(life, f"harder-{number}")
    sizes = [fruitless(life, f"night-{number}")[0].batch_size for number in range(6)]
    assert {row.batch_size for row in life.rows.values() if row.version_number == 2} == set(SIZES)
    assert sizes[-1] == 64


@policies
def test_a_batch_size_that_does_not_fit_is_followed_by_another(policy: str) -> None:
    """It has cost nothing, and the next one may have a model."""
    life = out_of_reach(policy)
    assert life.run_out_of_memory(life.begin("night")).should_retry
    second = life.begin("night")
    assert second.batch_size == 32
    assert not life.give_up(second).should_retry


@policies
def test_where_nothing_fits_that_is_what_is_said(policy: str) -> None:
    life = job(policy, batch_sizes=[32, 64])
    for number in range(4):
        while life.run_out_of_memory(life.begin(f"r{number}")).should_retry:
            pass
    assert described(life).needs_attention
    assert described(life).attention.endswith(
        "since no batch size fits in memory: the job's owner, or an operator, can add smaller ones, or allow these "
        "again once they fit (`bso jobs allow JOB BATCH_SIZE`)"
    )


@policies
def test_each_further_recurrence_without_a_model_is_announced(policy: str) -> None:
    life = job(policy)
    for number in range(5):
        fruitless(life, f"r{number}")
    assert [event.reason.split(" ")[0] for event in life.happened(AttentionNeeded)] == ["3", "4", "5"]
    replied = [reply.warnings for reply in life.replies if isinstance(reply, TrialFinished)]
    assert [len(warnings) for warnings in replied] == [0] * 8 + [1] * 3
    assert replied[-1][0].startswith("job job needs attention: 5 recurrences in a row ended without a model")
    assert (described(life).needs_attention, described(life).attention) == (True, replied[-1][0].split(": ", 1)[1])


@policies
def test_an_end_that_the_optimizer_judges_says_so_too(policy: str) -> None:
    life = job(policy, max_epochs=1, max_attempts=1)
    judged = [life.report(life.begin(f"r{number}"), cost=5.0) for number in range(3)]
    assert [len(one.warnings) for one in judged] == [0, 0, 1]
    assert [one.should_retry for one in judged] == [False] * 3


@policies
def test_hardware_kinds_and_versions_count_for_themselves(policy: str) -> None:
    life = out_of_reach(policy)
    assert len(fruitless(life, "elsewhere", hardware=V100)) == 3
    life.register(target_metric=0.4)
    assert life.begin("easier").warnings == ()
    life.register(target_metric=0.5)
    assert len(fruitless(life, "back")) == 1


@policies
def test_abandoned_recurrences_do_not_count(policy: str) -> None:
    life = job(policy)
    for number in range(140):
        life.give_up(life.begin(f"r{number}"))
    ended = life.happened(RecurrenceEnded)
    assert ended
    assert all(one.reason.startswith("abandoned") for one in ended)
    assert life.known().recurrences_without_model == 0


@policies
def test_a_client_that_chose_alone_has_no_bound_either(policy: str) -> None:
    life = out_of_reach(policy, cost_budget=5.0)
    trial = life.begin("night", batch_size=16)
    assert (trial.bound, trial.is_last_attempt) == (None, True)


def test_a_job_that_samples_already_comes_into_it_too() -> None:
    """Rounds of exploration are over there, or there were none."""
    life = out_of_reach(PRUNING_THOMPSON, num_pruning_rounds=0)
    assert life.known().needs_attention


@policies
def test_the_log_gives_the_same_state(policy: str) -> None:
    life = out_of_reach(policy)
    fruitless(life, "night")
    assert life.job is not None
    assert without_leases(life.folded().without_ended_trials()) == without_leases(life.job.without_ended_trials())


@policies
@pytest.mark.parametrize("rate", [0.03, 0.05, 0.2])
def test_failures_here_and_there_never_lead_to_it(policy: str, rate: float) -> None:
    life, chance = job(policy), random.Random(7)
    for number in range(300):
        trial = life.begin(f"r{number}")
        while chance.random() < rate and life.give_up(trial).should_retry:
            trial = life.begin(f"r{number}")
        if life.row(trial).is_active:
            life.converge(trial, COSTS[trial.batch_size])
    assert not life.happened(AttentionNeeded)
    assert sum(row.outcome is Outcome.NOT_CONVERGED for row in life.rows.values()) > 0


# The other way to be wrong about a target: it is reached at once.


def test_a_target_that_the_first_evaluation_reaches_is_doubted_once() -> None:
    life = job(CURVE)
    replied = life.report(life.begin("a"), cost=5.0, metric=2.3)
    assert replied.outcome is Outcome.CONVERGED
    assert replied.reason == (
        "the metric 2.3 reached the target 0.5 after 1 epoch, with the first evaluation: is higher_is_better_metric "
        "(True) right, and the target not too easy?"
    )
    assert replied.warnings == (f"trial 1 of job job: {replied.reason}",)
    assert life.rows[1].outcome_reason == replied.reason
    again = life.report(life.begin("b"), cost=5.0, metric=2.3)
    assert (again.warnings, "right" in again.reason) == ((), False)
    life.register(higher_is_better_metric=False)
    assert life.report(life.begin("c"), cost=5.0, metric=0.1).warnings, "another version is doubted anew"


def test_a_target_that_takes_longer_is_not_doubted() -> None:
    life = job(CURVE)
    assert life.report(life.begin("a"), cost=5.0, metric=2.3, epoch=3.0).warnings == ()
    life = job(CURVE)
    trial = life.begin("a")
    life.report(trial, cost=1.0, epoch=0.5)
    assert life.report(trial, cost=5.0, metric=2.3, epoch=1.0).warnings == ()


def test_on_another_hardware_kind_it_is_not_doubted_again() -> None:
    life = job(CURVE)
    trial = life.begin("a", hardware=A100)
    life.report(trial, cost=1.0)
    life.converge(trial, 5.0)
    assert life.converge(life.begin("b", hardware=V100), 5.0).warnings == ()
