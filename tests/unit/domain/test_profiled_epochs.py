"""What profiling power limits adds to an epoch is kept out of the cost that is judged and learnt."""

import math
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bso.domain.events import EpochReported, TrialEnded
from bso.domain.progress import cost_of
from bso.domain.replies import EpochJudged
from bso.domain.trial import Outcome
from tests.unit.domain.builders import A100, JobLife, as_json, expect, problem_of, searching


@pytest.fixture
def life() -> JobLife:
    job = JobLife()
    job.register(policy="pruning_thompson", beta_knob=1.5, max_epochs=1000)
    return job


def test_a_marked_epoch_costs_what_the_others_cost_in_the_mean(life: JobLife) -> None:
    trial = life.begin()
    reply = [
        life.report(trial, cost=10.0).cost,
        life.report(trial, cost=60.0, is_profiling=True).cost,
        life.report(trial, cost=74.0).cost,
    ]
    assert reply == [10.0, 20.0, 36.0]
    row = life.row(trial)
    assert (row.energy_j, row.time_s) == (74.0, 74.0 / row.hardware.max_power_w), "what it took stays recorded"
    assert [event.energy_j for event in life.happened(EpochReported)] == [10.0, 60.0, 74.0]


def test_while_all_epochs_are_marked_they_cost_what_they_took(life: JobLife) -> None:
    trial = life.begin()
    assert life.report(trial, cost=50.0, is_profiling=True).cost == 50.0
    assert life.report(trial, cost=90.0, is_profiling=True).cost == 90.0
    assert life.report(trial, cost=100.0).cost == pytest.approx(30.0)


def test_progress_is_counted_in_epochs_not_in_reports(life: JobLife) -> None:
    trial = life.begin()
    life.report(trial, cost=40.0, epoch=0.5, is_profiling=True)
    assert life.report(trial, cost=56.0, epoch=2.5).cost == pytest.approx(20.0)


def test_profiling_stops_no_trial_and_the_same_cost_without_it_does(life: JobLife) -> None:
    life.converge(life.begin("a"), 10.0)
    profiled = life.begin("b")
    assert profiled.bound == 15.0
    life.report(profiled, cost=3.0)
    assert not life.report(profiled, cost=33.0, is_profiling=True).should_stop
    plain = life.begin("c")
    life.report(plain, cost=3.0)
    assert life.report(plain, cost=33.0).outcome is Outcome.COST_EXCEEDED


def test_no_cost_stops_a_trial_before_its_first_epoch_without_profiling(life: JobLife) -> None:
    life.converge(life.begin("a"), 10.0)
    trial = life.begin("b")
    assert trial.bound == 15.0
    assert not life.report(trial, cost=40.0, is_profiling=True).should_stop
    assert not life.report(trial, cost=44.0).should_stop, "two epochs of 4 each"
    assert life.report(trial, cost=64.0).outcome is Outcome.COST_EXCEEDED, "three epochs of 12 in the mean"


def test_what_is_learnt_is_the_cost_without_profiling(life: JobLife) -> None:
    trial = life.begin("a")
    life.report(trial, cost=4.0)
    life.report(trial, cost=104.0, is_profiling=True)
    life.report(trial, cost=108.0, metric=0.9)
    [ended] = life.happened(TrialEnded)
    assert ended.learnt_cost == ended.cost == pytest.approx(12.0)
    assert ended.energy_j == 108.0
    assert life.known().arm(trial.batch_size).cheapest_converged == ended.cost
    assert life.begin("b").bound == pytest.approx(18.0)


def test_the_end_of_a_training_counts_as_it_is(life: JobLife) -> None:
    trial = life.begin()
    life.report(trial, cost=10.0)
    life.report(trial, cost=100.0, is_profiling=True)
    watts = life.row(trial).hardware.max_power_w
    reply = life.finish(trial, Outcome.INTERRUPTED, "killed", time_s=104.0 / watts, energy_j=104.0)
    assert reply.cost == pytest.approx(24.0)


def test_a_late_report_of_a_lower_epoch_changes_no_cost(life: JobLife) -> None:
    trial = life.begin()
    life.report(trial, cost=10.0)
    life.report(trial, cost=30.0, epoch=3.0)
    before = life.row(trial)
    fill_in = life.report(trial, cost=20.0, epoch=2.0, is_profiling=True, is_journalled=True)
    assert fill_in.cost == 30.0
    assert (life.row(trial).profiled, life.row(trial).cost) == (before.profiled, before.cost)


def test_marks_of_journalled_reports_count(life: JobLife) -> None:
    trial = life.begin()
    life.report(trial, cost=10.0, is_journalled=True)
    assert life.report(trial, cost=90.0, is_profiling=True, is_journalled=True).cost == 20.0


def test_unmeasured_energy_stays_unmeasured(life: JobLife) -> None:
    trial = life.begin()
    command = life.reporting(trial, 10.0, is_profiling=True)
    unmeasured = type(command)(
        trial_number=command.trial_number,
        trial_id=command.trial_id,
        epoch=1.0,
        time_s=command.time_s,
        energy_j=None,
        metric=0.0,
        is_profiling=True,
    )
    expect(EpochJudged, life.send(unmeasured))
    life.report(trial, cost=20.0, metric=0.9)
    assert life.happened(TrialEnded)[0].learnt_cost is None


def test_totals_never_fall_whatever_is_marked(life: JobLife) -> None:
    trial = life.begin()
    life.report(trial, cost=10.0)
    life.report(trial, cost=60.0, is_profiling=True)
    assert problem_of(life.send(life.reporting(trial, 30.0))).type == "report_goes_backwards"


@dataclass(frozen=True)
class Step:
    epochs: float
    cost: float
    is_profiling: bool


steps = st.lists(
    st.builds(
        Step,
        epochs=st.sampled_from((0.001, 0.1, 0.5, 1.0, 7.0)),
        cost=st.sampled_from((0.0, 0.1, 1.0, 30.0, 1e6)),
        is_profiling=st.booleans(),
    ),
    min_size=1,
    max_size=30,
)


@searching(150)
@given(steps=steps)
def test_the_cost_is_that_of_every_marked_increment_replaced_by_the_mean_of_the_others(steps: list[Step]) -> None:
    life = JobLife(is_stateless=True)
    life.register(early_stopping=False, max_epochs=10**6)
    trial = life.begin()
    for count in range(1, len(steps) + 1):
        seen = steps[:count]
        totals = {"cost": math.fsum(one.cost for one in seen), "epoch": math.fsum(one.epochs for one in seen)}
        reply = life.report(trial, **totals, is_profiling=seen[-1].is_profiling)
        assert reply.cost == pytest.approx(_expected(seen), rel=1e-6, abs=1e-6)
        if not any(one.is_profiling for one in seen):
            row = life.row(trial)
            plain = cost_of(energy_j=row.energy_j, time_s=row.time_s, eta_knob=0.5, max_power_w=A100.max_power_w)
            assert reply.cost == plain, "without marks nothing is computed anew, to the last bit"
    assert as_json(life.folded().trials[1].profiled) == as_json(life.row(trial).profiled)


def _expected(seen: list[Step]) -> float:
    """The definition, summed up from the beginning."""
    others = [one for one in seen if not one.is_profiling]
    if not others:
        return math.fsum(one.cost for one in seen)
    mean = math.fsum(one.cost for one in others) / math.fsum(one.epochs for one in others)
    return math.fsum(mean * one.epochs if one.is_profiling else one.cost for one in seen)
