"""The life of a trial: reports, leases, late results, and the diagram of trial.py."""

import math
import re
from dataclasses import replace
from datetime import timedelta

import pytest

from bso.domain import commands as do
from bso.domain import trial as trial_module
from bso.domain.decide.trial_end import MAX_REASON_LENGTH
from bso.domain.events import EpochReported, LateResult, TrialEnded, TrialResumed, TrialSuspended
from bso.domain.identifiers import trial_id_for
from bso.domain.replies import Deleted, EpochJudged, LeaseExpired, LeaseRenewed, TrialBegun
from bso.domain.trial import TRANSITIONS, Outcome, TrialState
from tests.unit.domain.builders import A100, JobLife, command_id, expect, problem_of


@pytest.fixture
def life() -> JobLife:
    job = JobLife()
    job.register()
    return job


def given_up(life: JobLife) -> TrialBegun:
    """A trial that sent nothing for the whole resume window."""
    trial = life.begin("a")
    life.report(trial, cost=3.0)
    life.lapse(trial)
    life.lapse(trial)
    return trial


def test_the_diagram_in_the_words_is_the_one_in_the_code() -> None:
    drawn = re.findall(r"^    ([A-Z]+)\s+-> ([A-Z]+)", str(trial_module.__doc__), re.MULTILINE)
    assert {(TrialState[one], TrialState[other]) for one, other in drawn} == TRANSITIONS


def test_a_lapsed_lease_suspends_and_does_not_end(life: JobLife) -> None:
    trial = life.begin()
    assert expect(LeaseExpired, life.lapse(trial)).state is TrialState.SUSPENDED
    assert life.row(trial).outcome is None


def test_a_report_wakes_a_suspended_trial_up(life: JobLife) -> None:
    trial = life.begin()
    life.lapse(trial)
    life.report(trial, cost=1.0)
    assert life.row(trial).state is TrialState.RUNNING
    assert len(life.happened(TrialResumed)) == 1


def test_a_renewal_wakes_a_suspended_trial_up_and_returns_what_a_resumption_needs(life: JobLife) -> None:
    trial = life.begin()
    life.report(trial, cost=1.0, epoch=2.5)
    life.lapse(trial)
    renewal = do.RenewLease(trial_number=trial.trial_number, trial_id=trial.trial_id)
    renewed = expect(LeaseRenewed, life.send(renewal))
    assert (renewed.batch_size, renewed.epoch, renewed.recurrence_id) == (64, 2.5, trial.recurrence_id)
    assert life.row(trial).state is TrialState.RUNNING


def test_a_renewal_leaves_no_event_unless_it_wakes(life: JobLife) -> None:
    trial = life.begin()
    before = len(life.history)
    life.send(do.RenewLease(trial_number=trial.trial_number, trial_id=trial.trial_id))
    assert len(life.history) == before


def test_a_lease_that_was_renewed_meanwhile_does_not_lapse(life: JobLife) -> None:
    trial = life.begin()
    old = life.row(trial).lease_expires_at
    assert old is not None
    life.report(trial, cost=1.0)
    life.now = old + timedelta(seconds=1)
    expiry = do.ExpireLease(trial_number=trial.trial_number, trial_id=trial.trial_id, lease_expires_at=old)
    assert expect(LeaseExpired, life.send(expiry)).state is TrialState.RUNNING


def test_a_lease_does_not_lapse_early(life: JobLife) -> None:
    trial = life.begin()
    lease = life.row(trial).lease_expires_at
    assert lease is not None
    expiry = do.ExpireLease(trial_number=trial.trial_number, trial_id=trial.trial_id, lease_expires_at=lease)
    assert expect(LeaseExpired, life.send(expiry)).state is TrialState.RUNNING
    naive = replace(expiry, lease_expires_at=lease.replace(tzinfo=None))
    assert expect(LeaseExpired, life.send(naive)).state is TrialState.RUNNING


def test_after_the_resume_window_a_trial_ends_as_interrupted(life: JobLife) -> None:
    trial = given_up(life)
    row = life.row(trial)
    assert (row.state, row.outcome, row.may_report_late) == (TrialState.ENDED, Outcome.INTERRUPTED, True)
    assert row.outcome_reason.startswith("lease_lapsed: ")


def test_a_result_later_than_that_is_still_learnt_and_a_trial_ends_once(life: JobLife) -> None:
    trial = given_up(life)
    reply = life.converge(trial, 5.0)
    assert reply.outcome is Outcome.CONVERGED
    assert len(life.happened(TrialEnded)) == len(life.happened(LateResult)) == 1
    assert life.known().arm(64).costs.mean == 5.0
    assert life.row(trial).outcome is Outcome.INTERRUPTED
    assert life.row(trial).late_outcome is Outcome.CONVERGED
    assert problem_of(life.send(life.reporting(trial, 6.0))).type == "trial_ended"
    assert life.finish(trial, Outcome.NOT_CONVERGED).outcome is Outcome.CONVERGED


def test_late_reports_below_the_target_are_recorded_until_there_is_a_result(life: JobLife) -> None:
    trial = given_up(life)
    assert not life.report(trial, cost=4.0).should_stop
    assert not life.happened(LateResult)
    assert life.finish(trial, Outcome.NOT_CONVERGED, "gave up").outcome is Outcome.NOT_CONVERGED


def test_an_interruption_is_no_late_result_and_counts_once(life: JobLife) -> None:
    trial = given_up(life)
    for outcome in (Outcome.INTERRUPTED, Outcome.CANCELLED):
        assert life.finish(trial, outcome, may_resume=True).outcome is Outcome.INTERRUPTED
    assert not life.happened(LateResult)
    assert len(life.known().arm(64).interrupted_after_s) == 1


def test_the_end_of_a_training_is_recorded_whatever_is_in_its_reason(life: JobLife) -> None:
    trial = life.begin()
    reply = life.finish(trial, Outcome.INTERRUPTED, "RuntimeError: \x1b[2J\nall is \u202ewell\x00" + "\x1b" * 1000)
    assert reply.reason.startswith(r"RuntimeError: \x1b[2J\nall is \u202ewell\x00\x1b")
    assert len(reply.reason) == MAX_REASON_LENGTH
    assert life.row(trial).outcome_reason == reply.reason


def test_a_training_cannot_claim_to_have_been_given_up(life: JobLife) -> None:
    trial = life.begin()
    life.finish(trial, Outcome.INTERRUPTED, "lease_lapsed: or so")
    assert not life.row(trial).may_report_late


def test_an_interrupted_training_with_a_checkpoint_is_suspended(life: JobLife) -> None:
    trial = life.begin("a")
    assert life.finish(trial, Outcome.INTERRUPTED, may_resume=True).should_retry
    assert life.row(trial).state is TrialState.SUSPENDED
    lease = life.row(trial).lease_expires_at
    assert lease is not None
    assert (lease - life.now).total_seconds() == life.rules.resume_window_s
    assert life.finish(trial, Outcome.INTERRUPTED, may_resume=True).should_retry
    assert len(life.happened(TrialSuspended)) == 1
    assert life.converge(trial, 5.0).outcome is Outcome.CONVERGED


def test_a_client_that_went_on_alone_replaces_the_request_it_gave_up(life: JobLife) -> None:
    abandoned = expect(
        TrialBegun, life.send(do.BeginTrial(hardware=A100, recurrence_id="a"), as_command=command_id(77))
    )
    assert abandoned.trial_id == trial_id_for(command_id(77))
    mine = life.begin("a", batch_size=128, replaces=command_id(77))
    assert (mine.batch_size, mine.recurrence_id) == (128, "a")
    assert life.row(abandoned).outcome is Outcome.CANCELLED
    assert life.begin("a", batch_size=128, replaces=command_id(78)).batch_size == 128, "nothing to replace is fine"


def test_nothing_is_learnt_of_a_batch_size_that_the_job_never_had(life: JobLife) -> None:
    life.converge(life.begin("a", batch_size=999), 1.0)
    life.run_out_of_memory(life.begin("b", batch_size=998))
    assert life.known().arms == {}


def test_a_journalled_report_is_recorded_and_never_judged(life: JobLife) -> None:
    trial = life.begin()
    reply = life.report(trial, cost=1.0, metric=1.0, is_journalled=True)
    assert not reply.should_stop
    assert life.row(trial).metric == 1.0


def test_the_journalled_outcome_is_what_the_client_did_with_the_bound_it_used(life: JobLife) -> None:
    trial = life.begin()
    life.report(trial, cost=9.0, is_journalled=True)
    reply = life.finish(trial, Outcome.COST_EXCEEDED, "too expensive", is_journalled=True, bound=8.0)
    assert (reply.outcome, life.row(trial).bound, reply.should_retry) == (Outcome.COST_EXCEEDED, 8.0, True)


@pytest.mark.parametrize("outcome", [Outcome.CONVERGED, Outcome.COST_EXCEEDED])
def test_a_live_training_cannot_declare_itself_converged_or_too_costly(life: JobLife, outcome: Outcome) -> None:
    problem = problem_of(life.send(life.finishing(life.begin(), outcome)))
    assert "is decided by the optimizer" in problem.fields["outcome"]


def test_a_lower_epoch_not_seen_yet_is_a_fill_in(life: JobLife) -> None:
    trial = life.begin()
    life.report(trial, cost=3.0, epoch=3.0)
    assert not life.report(trial, cost=1.0, metric=9.0, epoch=1.0).should_stop
    assert [event.is_fill_in for event in life.happened(EpochReported)] == [False, True]
    assert (life.row(trial).epoch, life.row(trial).cost, life.row(trial).reports) == (3.0, 3.0, 2)


def test_the_same_epoch_again_is_answered_again(life: JobLife) -> None:
    trial = life.begin()
    report = life.reporting(trial, 3.0, math.nan)
    life.send(report)
    before = len(life.history)
    life.send(report)
    assert len(life.history) == before


def test_the_same_epoch_with_other_numbers_is_rejected(life: JobLife) -> None:
    trial = life.begin()
    life.report(trial, cost=3.0, epoch=1.0)
    assert problem_of(life.send(life.reporting(trial, 4.0, epoch=1.0))).type == "conflicting_report"


def test_totals_never_fall(life: JobLife) -> None:
    trial = life.begin()
    life.report(trial, cost=3.0)
    problem = problem_of(life.send(life.reporting(trial, 2.0)))
    assert (problem.type, set(problem.fields)) == ("report_goes_backwards", {"time_s", "energy_j"})


@pytest.mark.parametrize(
    ("field", "value"),
    [(name, value) for name in ("epoch", "time_s", "energy_j") for value in (math.nan, math.inf, -math.inf, -1.0, 1e19)]
    + [("epoch", 0.0)],
)
def test_numbers_out_of_range_are_refused_by_name(life: JobLife, field: str, value: float) -> None:
    report = replace(life.reporting(life.begin(), 1.0), **{field: value})  # type: ignore[arg-type]  # one field
    assert set(problem_of(life.send(report)).fields) == {field}


@pytest.mark.parametrize("field", ["time_s", "energy_j", "bound"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0])
def test_totals_of_a_finish_out_of_range_are_refused_by_name(life: JobLife, field: str, value: float) -> None:
    finish = replace(life.finishing(life.begin(), Outcome.NOT_CONVERGED), **{field: value})  # type: ignore[arg-type]
    assert set(problem_of(life.send(finish)).fields) == {field}


def test_a_journalled_result_without_any_energy_is_not_learnt(life: JobLife) -> None:
    trial = life.begin()
    life.finish(trial, Outcome.CONVERGED, is_journalled=True, time_s=10.0)
    assert (life.known().arm(64).convergences, life.known().arm(64).costs.count) == (1, 0)


def test_a_journalled_result_with_all_totals_is_learnt(life: JobLife) -> None:
    trial = life.begin()
    life.finish(trial, Outcome.CONVERGED, is_journalled=True, time_s=1.0, energy_j=400.0)
    assert life.known().arm(64).costs.mean == 400.0


def test_only_who_knows_the_trial_id_may_report(life: JobLife) -> None:
    trial = life.begin()
    stranger = replace(life.reporting(trial, 1.0), trial_id=command_id(5))
    assert problem_of(life.send(stranger)).type == "wrong_trial_id"


def test_an_unknown_trial_is_refused(life: JobLife) -> None:
    renewal = do.RenewLease(trial_number=7, trial_id="x")
    assert "has no trials, got 7" in problem_of(life.send(renewal)).detail
    life.begin()
    assert "has the trials 1 to 1, got 7" in problem_of(life.send(renewal)).detail


def test_a_report_after_the_end_is_refused_with_the_reason(life: JobLife) -> None:
    trial = life.begin()
    life.give_up(trial)
    assert "ended as not_converged (the training gave up)" in problem_of(life.send(life.reporting(trial, 1.0))).detail
    renewal = do.RenewLease(trial_number=trial.trial_number, trial_id=trial.trial_id)
    assert problem_of(life.send(renewal)).type == "trial_ended"


def test_a_journalled_report_after_the_end_is_recorded_once_and_changes_nothing(life: JobLife) -> None:
    """Its finish came by a shorter way than the report, which had to wait for its job."""
    trial = life.begin()
    life.report(trial, cost=1.0)
    life.give_up(trial)
    before, known = life.row(trial), life.known()
    late = replace(life.reporting(trial, 4.0), epoch=2.0, is_journalled=True)
    judged = expect(EpochJudged, life.send(late))
    assert (judged.should_stop, judged.reason) == (False, "recorded late, and so not judged")
    assert life.happened(EpochReported)[-1].is_fill_in
    assert life.row(trial) == replace(before, reports=2)
    assert life.known() == known
    assert expect(EpochJudged, life.send(late)) == replace(judged, reason="recorded before")
    assert problem_of(life.send(replace(late, metric=0.123))).type == "conflicting_report"
    assert len(life.happened(EpochReported)) == 2


def test_finishing_twice_gives_the_first_outcome(life: JobLife) -> None:
    trial = life.begin()
    life.give_up(trial)
    assert life.finish(trial, Outcome.CANCELLED).outcome is Outcome.NOT_CONVERGED
    assert len(life.happened(TrialEnded)) == 1


def test_deleting_a_job_cancels_its_trials_and_its_numbers_go_on(life: JobLife) -> None:
    trial = life.begin()
    assert expect(Deleted, life.send(do.DeleteJob())).cancelled_trials == (1,)
    assert problem_of(life.send(do.BeginTrial(hardware=A100))).detail == "job job was deleted: register it first"
    assert problem_of(life.send(do.DescribeJob())).detail == "job job was deleted"
    assert problem_of(life.send(life.reporting(trial, 1.0))).type == "trial_ended"
    life.register(batch_sizes=[8], default_batch_size=8)
    again = life.begin()
    assert (again.trial_number, again.batch_size, life.known().arms) == (2, 8, {})
