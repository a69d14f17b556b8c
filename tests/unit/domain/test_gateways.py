"""Commands of gateways: their clients know no trial_id and renew no lease, and every rank of theirs reports."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from bso.domain import commands as do
from bso.domain.commands import OnConflict
from bso.domain.events import JobRegistered
from bso.domain.replies import EpochJudged, JobDescription, LeaseRenewed, Registered, TrialBegun, TrialFinished
from bso.domain.trial import Outcome, TrialState
from tests.unit.domain.builders import A100, V100, JobLife, expect, problem_of

SPEC = {"batch_sizes": [32, 64], "default_batch_size": 64, "target_metric": 0.9}


@pytest.fixture
def life() -> JobLife:
    """A job that was registered by a gateway, with the hardware of its trials."""
    life = JobLife()
    expect(Registered, life.send(registering()))
    return life


def registering(**more: Any) -> do.RegisterJob:
    given: dict[str, Any] = {"spec": SPEC, "on_conflict": OnConflict.REFUSE_CHANGES, "hardware": A100, **more}
    return do.RegisterJob(**given)


def begun(life: JobLife) -> TrialBegun:
    return expect(TrialBegun, life.send(do.BeginTrial(hardware=A100, renews_lease=False)))


def report(life: JobLife, number: int, epoch: float, time_s: float, **more: Any) -> object:
    command: dict[str, Any] = {"energy_j": 100.0 * time_s, "metric": 0.1} | more
    reporting = do.ReportEpoch(trial_number=number, trial_id="", epoch=epoch, time_s=time_s, **command)
    return life.send(reporting, is_from_gateway=True)


def test_a_job_says_with_what_hardware_it_was_registered(life: JobLife) -> None:
    assert expect(JobDescription, life.send(do.DescribeJob())).hardware == A100
    assert life.folded().hardware == A100


def test_the_same_registration_again_changes_nothing(life: JobLife) -> None:
    before = len(life.history)
    again = expect(Registered, life.send(registering()))
    assert (again.is_new, again.job_id) == (False, "job")
    assert len(life.history) == before


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"spec": SPEC | {"batch_sizes": [64]}}, "batch_sizes"),
        ({"spec": SPEC | {"beta_knob": 3.0}}, "beta_knob"),
        ({"spec": SPEC | {"target_metric": 0.95}}, "target_metric"),
        ({"hardware": replace(A100, gpu_model=V100.gpu_model)}, "hardware.gpu_model"),
        ({"hardware": replace(A100, number_of_gpus=2)}, "hardware.number_of_gpus"),
        ({"hardware": replace(A100, max_power_w=A100.max_power_w + 1e-9)}, "hardware.max_power_w"),
        ({"job_id_prefix": "another"}, "job_id_prefix"),
        ({"hardware": None}, "hardware"),
    ],
)
def test_whatever_differs_is_refused(life: JobLife, more: dict[str, Any], field: str) -> None:
    before = len(life.history)
    problem = problem_of(life.send(registering(**more)))
    assert problem.type == "job_conflict"
    assert list(problem.fields) == [field]
    assert len(life.history) == before


def test_defaults_are_for_a_new_job_only(life: JobLife) -> None:
    assert expect(Registered, life.send(registering(defaults={"policy": "pruning_thompson"}))).spec.policy == "curve"
    other = JobLife()
    assert expect(Registered, other.send(registering(defaults={"policy": "pruning_thompson"}))).spec.policy == (
        "pruning_thompson"
    )


def test_hardware_that_cannot_be_is_refused() -> None:
    life = JobLife()
    problem = problem_of(life.send(registering(hardware=replace(A100, max_power_w=0.0))))
    assert list(problem.fields) == ["hardware.max_power_w"]
    assert not life.happened(JobRegistered)


def test_a_gateway_names_a_trial_by_its_number(life: JobLife) -> None:
    trial = begun(life)
    assert not expect(EpochJudged, report(life, trial.trial_number, 1.0, 10.0)).should_stop
    assert not expect(EpochJudged, report(life, 1, 2.0, 20.0, batch_size=trial.batch_size)).should_stop
    assert life.row(trial).epoch == 2.0


def test_nobody_else_does(life: JobLife) -> None:
    begun(life)
    reporting = do.ReportEpoch(trial_number=1, trial_id="", epoch=1.0, time_s=1.0, energy_j=1.0, metric=0.1)
    assert problem_of(life.send(reporting)).type == "wrong_trial_id"


def test_a_trial_of_another_batch_size_is_another_trial(life: JobLife) -> None:
    begun(life)
    assert problem_of(report(life, 1, 1.0, 10.0, batch_size=32)).type == "unknown_trial"


def test_of_several_ranks_the_first_report_of_an_epoch_counts(life: JobLife) -> None:
    trial = begun(life)
    report(life, 1, 1.0, 10.0)
    before = len(life.history)
    assert not expect(EpochJudged, report(life, 1, 1.0, 11.0, energy_j=5.0)).should_stop
    assert len(life.history) == before
    assert life.row(trial).time_s == 10.0


def test_totals_go_on_from_the_highest_where_another_rank_is_first(life: JobLife) -> None:
    trial = begun(life)
    report(life, 1, 1.0, 10.0, energy_j=900.0)
    assert not expect(EpochJudged, report(life, 1, 2.0, 9.0, energy_j=850.0)).should_stop
    row = life.row(trial)
    assert (row.epoch, row.time_s, row.energy_j) == (2.0, 10.0, 900.0)


def test_after_the_end_the_refusal_says_how_it_ended(life: JobLife) -> None:
    begun(life)
    assert expect(EpochJudged, report(life, 1, 1.0, 10.0, metric=0.95)).outcome is Outcome.CONVERGED
    problem = problem_of(report(life, 1, 1.0, 10.0, metric=0.95))
    assert (problem.type, problem.context) == ("trial_ended", {"outcome": "converged", "is_over_bound": False})


def test_a_target_reached_above_the_bound_is_marked(life: JobLife) -> None:
    life.send(do.RegisterJob(spec={"beta_knob": 1.5, "policy": "pruning_thompson"}))
    begun(life)
    report(life, 1, 1.0, 10.0, metric=0.95)
    begun(life)
    judged = expect(EpochJudged, report(life, 2, 1.0, 40.0, metric=0.95))
    assert (judged.outcome, judged.is_over_bound) == (Outcome.CONVERGED, True)
    assert problem_of(report(life, 2, 2.0, 50.0)).context["is_over_bound"] is True


def test_a_training_that_ends_before_its_first_report_has_failed(life: JobLife) -> None:
    begun(life)
    finishing = do.FinishTrial(trial_number=1, trial_id="", outcome=Outcome.INTERRUPTED)
    assert expect(TrialFinished, life.send(finishing, is_from_gateway=True)).outcome is Outcome.NOT_CONVERGED
    assert begun(life).batch_size == 32, "another size is tried for the same recurrence"


def test_one_that_ends_later_was_interrupted(life: JobLife) -> None:
    begun(life)
    report(life, 1, 1.0, 10.0)
    finishing = do.FinishTrial(trial_number=1, trial_id="", outcome=Outcome.INTERRUPTED)
    assert expect(TrialFinished, life.send(finishing, is_from_gateway=True)).outcome is Outcome.INTERRUPTED
    assert begun(life).batch_size == 64


def test_without_renewals_a_trial_may_stay_silent_for_three_of_its_longest_epochs(life: JobLife) -> None:
    trial = begun(life)
    assert trial.lease_s == 3600.0

    def silence() -> timedelta:
        ends = life.row(trial).lease_expires_at
        assert ends is not None
        return ends - life.now

    assert silence() == timedelta(hours=1)
    report(life, 1, 1.0, 600.0)
    assert silence() == timedelta(hours=1)
    report(life, 1, 2.0, 600.0 + 7200.0)
    assert silence() == timedelta(hours=6)
    report(life, 1, 3.0, 600.0 + 7300.0)
    assert silence() == timedelta(hours=6)
    renewed = expect(LeaseRenewed, life.send(do.RenewLease(trial_number=1, trial_id=trial.trial_id)))
    assert renewed.lease_s == 6 * 3600.0
    report(life, 1, 4.0, 1e17, energy_j=1e6)
    assert silence() == timedelta(days=30), "not for ever"
    life.lapse(trial)
    assert life.row(trial).state is TrialState.SUSPENDED
    assert life.folded().trials[1].silence_s == 30 * 86400.0
