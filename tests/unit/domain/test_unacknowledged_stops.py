"""A stop whose answer was lost: the training went on, and what it says in the end is what is learnt."""

from dataclasses import replace

import pytest

from bso.domain import commands as do
from bso.domain.events import EpochReported, LateResult, RecurrenceEnded, StopAcknowledged, StopWithdrawn, TrialEnded
from bso.domain.job import Job
from bso.domain.replies import EpochCostsRecorded, EpochJudged, TrialBegun
from bso.domain.trial import Outcome
from bso.policies.curve.memory import epoch_costs_on, epochs_of
from tests.unit.domain.builders import JobLife, expect, problem_of, without_leases

COSTS = {16: 400.0, 32: 300.0, 64: 250.0, 128: 300.0, 256: 400.0}


@pytest.fixture(params=["curve", "pruning_thompson"])
def life(request: pytest.FixtureRequest) -> JobLife:
    """A job that has converged before, so that its trials have a bound."""
    life = JobLife(is_stateless=True)
    life.register(policy=request.param, target_metric=0.9, max_epochs=50)
    life.run("before", COSTS)
    return life


def stopped(life: JobLife, recurrence_id: str = "night", *, batch_size: int | None = None) -> TrialBegun:
    """A trial that was stopped for its cost."""
    trial = life.begin(recurrence_id, batch_size=batch_size)
    judged = life.report(trial, cost=2000.0, metric=0.5)
    assert judged.outcome is Outcome.COST_EXCEEDED
    assert judged.should_retry
    return trial


def reported_late(life: JobLife, trial: TrialBegun, outcome: Outcome = Outcome.CONVERGED) -> bool:
    """What a training says that went on without knowing of its stop; whether to retry."""
    metric = 0.95 if outcome is Outcome.CONVERGED else 0.5
    late = replace(life.reporting(trial, 2500.0, metric), epoch=2.0, is_journalled=True)
    assert expect(EpochJudged, life.send(late)).reason == "recorded"
    finished = life.finish(trial, outcome, "as the training saw it", is_journalled=True)
    assert finished.outcome is outcome
    return finished.should_retry


def probed(life: JobLife, trial: TrialBegun) -> None:
    """A training has probed two batch sizes, one of which does not fit in memory."""
    probes = tuple(do.EpochCostProbe(batch_size=size, time_s=1.0, energy_j=1.0, variance=0.01) for size in (64, 128))
    command = do.ReportEpochCosts(
        trial_number=trial.trial_number, trial_id=trial.trial_id, probes=probes, out_of_memory=(256,)
    )
    expect(EpochCostsRecorded, life.send(command))


def control(life: JobLife, outcome: Outcome = Outcome.CONVERGED) -> JobLife:
    """The same job, in which nobody judged the report: nothing was ever stopped."""
    other = JobLife(is_stateless=True)
    other.register(policy=life.spec.policy, target_metric=0.9, max_epochs=50)
    other.run("before", COSTS)
    trial = other.begin("night")
    other.send(replace(other.reporting(trial, 2000.0, 0.5), is_journalled=True))
    metric = 0.95 if outcome is Outcome.CONVERGED else 0.5
    other.send(replace(other.reporting(trial, 2500.0, metric), epoch=2.0, is_journalled=True))
    other.finish(trial, outcome, "as the training saw it", is_journalled=True)
    return other


def test_a_stop_that_never_arrived_is_not_learnt(life: JobLife) -> None:
    trial = stopped(life)
    assert not reported_late(life, trial), "there is a model"
    assert life.known() == control(life).known()
    assert life.job is not None
    assert epochs_of(life.job.version) == epochs_of(expect_job(control(life)).version)
    (late,) = life.happened(LateResult)
    assert (late.recorded_outcome, late.outcome) == (Outcome.COST_EXCEEDED, Outcome.CONVERGED)
    row = life.row(trial)
    assert (row.outcome, row.late_outcome, row.cost) == (Outcome.COST_EXCEEDED, Outcome.CONVERGED, 2500.0)
    assert life.happened(RecurrenceEnded)[-1].trial_number == trial.trial_number
    assert without_leases(replace(life.folded(), trials={})) == without_leases(replace(life.job, trials={}))


@pytest.mark.parametrize("is_own", [True, False])
def test_what_was_probed_between_a_stop_and_its_withdrawal_is_kept(*, is_own: bool) -> None:
    """By the training that did not receive its stop, or by another one meanwhile."""
    life = JobLife(is_stateless=True)
    life.register(target_metric=0.9, max_epochs=50)
    life.run("before", {16: 400.0, 32: 300.0, 64: 250.0, 128: 300.0})
    other = life.begin("another-night")
    trial = stopped(life, batch_size=64)
    probed(life, trial if is_own else other)
    before = life.known()
    reported_late(life, trial)
    assert len(life.happened(StopWithdrawn)) == 1
    assert set(epoch_costs_on(before).probes) == {64, 128}
    assert epoch_costs_on(life.known()).probes == epoch_costs_on(before).probes
    assert life.known().arm(256).out_of_memories == before.arm(256).out_of_memories > 0
    following = life.begin("the-night-after")
    assert {64, 128, 256}.isdisjoint(following.to_probe), "nobody pays for them again"
    assert following.batch_size != 256
    assert without_leases(replace(life.folded(), trials={})) == without_leases(replace(expect_job(life), trials={}))


def test_a_live_finish_that_was_parked_has_the_bound_that_the_trial_was_given(life: JobLife) -> None:
    trial = life.begin("night")
    life.finish(trial, Outcome.NOT_CONVERGED, is_journalled=True)
    (ended,) = [one for one in life.happened(TrialEnded) if one.trial_number == trial.trial_number]
    assert ended.bound == trial.bound is not None


def test_a_live_training_states_no_bound_of_its_own(life: JobLife) -> None:
    trial = life.begin("night")
    assert trial.bound is not None
    life.finish(trial, Outcome.NOT_CONVERGED, bound=2.0 * trial.bound)
    (ended,) = [one for one in life.happened(TrialEnded) if one.trial_number == trial.trial_number]
    assert ended.bound == trial.bound


def test_it_is_learnt_once(life: JobLife) -> None:
    trial = stopped(life)
    reported_late(life, trial)
    before = life.job
    assert life.finish(trial, Outcome.CONVERGED, is_journalled=True).outcome is Outcome.CONVERGED
    assert life.finish(trial, Outcome.NOT_CONVERGED, is_journalled=True).outcome is Outcome.CONVERGED
    assert life.job == before
    assert len(life.happened(LateResult)) == 1


def test_a_stop_that_was_acknowledged_stands(life: JobLife) -> None:
    trial = stopped(life)
    learnt = life.known()
    assert life.finish(trial, Outcome.COST_EXCEEDED).outcome is Outcome.COST_EXCEEDED
    assert [event.trial_number for event in life.happened(StopAcknowledged)] == [trial.trial_number]
    late = life.finish(trial, Outcome.CONVERGED, is_journalled=True)
    assert (late.outcome, late.should_retry) == (Outcome.COST_EXCEEDED, True)
    assert life.known() == learnt
    assert not life.happened(LateResult)
    again = life.finish(trial, Outcome.COST_EXCEEDED)
    assert again.outcome is Outcome.COST_EXCEEDED
    assert len(life.happened(StopAcknowledged)) == 1
    report = replace(life.reporting(trial, 2500.0, 0.95), epoch=2.0, is_journalled=True)
    expect(EpochJudged, life.send(report))
    assert life.happened(EpochReported)[-1].is_fill_in


def test_another_failure_is_the_same_attempt(life: JobLife) -> None:
    trial = stopped(life)
    assert reported_late(life, trial, Outcome.NOT_CONVERGED)
    assert life.job is not None
    assert life.job.recurrences["night"].aborts == 1
    assert life.known() == control(life, Outcome.NOT_CONVERGED).known()


def test_a_live_training_overrules_nothing(life: JobLife) -> None:
    trial = stopped(life)
    report = replace(life.reporting(trial, 2500.0, 0.95), epoch=2.0)
    assert problem_of(life.send(report)).type == "trial_ended"
    assert life.finish(trial, Outcome.NOT_CONVERGED).outcome is Outcome.COST_EXCEEDED
    assert not life.happened(StopWithdrawn)


def test_an_interruption_is_no_result(life: JobLife) -> None:
    trial = stopped(life)
    assert life.finish(trial, Outcome.INTERRUPTED, is_journalled=True).outcome is Outcome.COST_EXCEEDED
    assert not life.happened(StopWithdrawn)


def test_where_others_have_ended_since_the_late_result_is_added(life: JobLife) -> None:
    trial = stopped(life)
    other = life.begin("another-night")
    life.converge(other, 260.0)
    reported_late(life, trial)
    assert len(life.happened(StopWithdrawn)) == 1
    assert life.known().arm(trial.batch_size).convergences >= 1
    assert not any(recurrence == "night" for recurrence in expect_job(life).recurrences)


def test_should_retry_is_that_of_the_recurrence_as_it_is_now(life: JobLife) -> None:
    trial = stopped(life)
    second = life.begin("night")
    life.converge(second, 240.0)
    finished = life.finish(trial, Outcome.COST_EXCEEDED)
    assert not finished.should_retry, "another trial has ended the recurrence with a model"


def test_only_the_last_stops_are_remembered() -> None:
    life = JobLife(is_stateless=True)
    life.register(policy="pruning_thompson", target_metric=0.9, max_epochs=50)
    life.run("before", COSTS)
    trials = [life.begin(f"night-{number}") for number in range(20)]
    for trial in trials:
        assert life.report(trial, cost=9000.0, metric=0.5).should_stop
    assert len(expect_job(life).unacknowledged_stops) == 16
    first, *_, last = trials
    assert life.finish(first, Outcome.CONVERGED, is_journalled=True).outcome is Outcome.COST_EXCEEDED
    assert life.finish(last, Outcome.CONVERGED, is_journalled=True).outcome is Outcome.CONVERGED


def test_an_end_that_the_training_has_declared_is_no_stop(life: JobLife) -> None:
    trial = life.begin("night")
    life.give_up(trial)
    assert not life.happened(TrialEnded)[-1].is_stop
    assert life.finish(trial, Outcome.CONVERGED, is_journalled=True).outcome is Outcome.NOT_CONVERGED


def test_a_deleted_job_forgets_them(life: JobLife) -> None:
    stopped(life)
    life.send(do.DeleteJob())
    assert not expect_job(life).unacknowledged_stops


def expect_job(life: JobLife) -> Job:
    assert life.job is not None
    return life.job
