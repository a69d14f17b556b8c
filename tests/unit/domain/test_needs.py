"""What deciding needs beside the job: asked for in two steps, and answered by what was loaded and what came since."""

import math
from dataclasses import replace

import pytest

from bso.domain import commands as do
from bso.domain.decide import Facts, Known, Needs, facts_for, needs
from bso.domain.events import EpochReported, Event, JobDeleted, PowerProfiled
from bso.domain.job import Job
from bso.domain.replies import TrialBegun
from bso.domain.trial import EpochReport
from tests.unit.domain.builders import A100, V100, JobLife

MEASURED = (do.PowerMeasurement(power_limit_w=200.0, average_power_w=180.0, samples_per_s=10.0),)
NOTHING = Known()


@pytest.fixture
def life() -> JobLife:
    job = JobLife()
    job.register()
    return job


@pytest.fixture
def ended(life: JobLife) -> TrialBegun:
    """A trial that has reported one epoch and ended."""
    trial = life.begin("a")
    life.report(trial, cost=100.0, epoch=2.0)
    life.give_up(trial)
    return trial


def stored(life: JobLife) -> Job:
    """The job as it is loaded: with its active trials."""
    assert life.job is not None
    return life.job.without_ended_trials()


def test_a_trial_comes_first_and_shows_what_else_is_needed(life: JobLife, ended: TrialBegun) -> None:
    job, command = stored(life), life.reporting(ended, 50.0, epoch=1.0)
    assert needs(job, command) == Needs(trial=ended.trial_number)
    assert needs(job.with_trial(life.row(ended)), command) == Needs(earlier_report=(ended.trial_number, 1.0))


def test_a_trial_that_the_job_never_had_is_not_asked_for(life: JobLife, ended: TrialBegun) -> None:
    command = life.reporting(ended, 50.0)
    for number in (-1, 0, ended.trial_number + 1, 2**70):
        assert needs(stored(life), replace(command, trial_number=number)) == Needs()


@pytest.mark.parametrize(
    ("epoch", "is_needed"), [(1.0, True), (2.0, True), (3.0, False), (-math.inf, False), (math.nan, False)]
)
def test_an_earlier_report_is_needed_where_the_trial_is_past_it(life: JobLife, epoch: float, is_needed: bool) -> None:
    trial = life.begin("a")
    life.report(trial, cost=100.0, epoch=2.0)
    key = (trial.trial_number, epoch) if is_needed else None
    assert needs(stored(life), life.reporting(trial, 50.0, epoch=epoch)) == Needs(earlier_report=key)


def test_another_job_is_needed_where_its_name_can_be_one(life: JobLife) -> None:
    found = {
        like: needs(stored(life), do.RegisterJob(spec={}, like=like)).other_job for like in ("b", "job", "?", None)
    }
    assert found == {"b": "b", "job": None, "?": None, None: None}


def test_facts_are_what_was_loaded_and_what_came_since(life: JobLife, ended: TrialBegun) -> None:
    job, row, command = stored(life), life.row(ended), life.reporting(ended, 50.0, epoch=1.0)
    key = (ended.trial_number, 1.0)
    report = EpochReport(epoch=1.0, time_s=1.0, energy_j=1.0, metric=0.5)
    known = Known(trials={(job.job_id, ended.trial_number): row}, reports={(job.job_id, key): report})
    assert facts_for(job, command, known, since=()) == Facts(trial=row, earlier_report=report)
    later = EpochReported(
        trial_number=ended.trial_number, epoch=1.0, time_s=2.0, energy_j=2.0, metric=0.5, cost=2.0, bound=None
    )
    assert facts_for(job, command, known, since=[later]).earlier_report == report, "it came first"
    known = replace(known, reports={})
    assert facts_for(job, command, known, since=[later]).earlier_report == later.report
    assert facts_for(job, command, known, since=[]).earlier_report is None
    assert facts_for(job, command, NOTHING, since=[later]) == Facts(), "without its trial nobody knows"


def test_power_profiles_end_with_their_job(life: JobLife) -> None:
    job = replace(stored(life), has_power_profiles=True)
    command = do.BeginTrial(hardware=A100)
    known = Known(power_profiles={job.job_id: {(64, A100.key): MEASURED}})
    since: list[Event] = []
    assert facts_for(job, command, known, since=since).power_profiles == {(64, A100.key): MEASURED}
    since += [PowerProfiled(batch_size=128, hardware=kind, measurements=MEASURED) for kind in (A100, V100)]
    both = {(64, A100.key): MEASURED, (128, A100.key): MEASURED}
    assert facts_for(job, command, known, since=since).power_profiles == both
    since.append(JobDeleted())
    assert facts_for(job, command, known, since=since).power_profiles == {}
