"""Epoch costs of other batch sizes, probed in the course of a trial: recorded, left out of its cost, and used."""

import math
from datetime import timedelta
from typing import Any

import pytest

from bso.domain import commands as do
from bso.domain.events import EpochCostsProbed
from bso.domain.replies import EpochCostsRecorded, TrialBegun
from bso.domain.savings import saved_by_month
from bso.domain.trial import Outcome
from bso.policies.curve.memory import epoch_costs_on
from tests.unit.domain.builders import JobLife, expect, problem_of


def probe(batch_size: int, cost: float, variance: float = 0.0004) -> do.EpochCostProbe:
    """A probe of a job whose energies alone count, on hardware of which an epoch takes as many joules."""
    return do.EpochCostProbe(batch_size=batch_size, time_s=cost, energy_j=cost, variance=variance)


def report_costs(life: JobLife, trial: TrialBegun, *probes: do.EpochCostProbe, **more: Any) -> None:
    command = do.ReportEpochCosts(trial_number=trial.trial_number, trial_id=trial.trial_id, probes=probes, **more)
    expect(EpochCostsRecorded, life.send(command))


def a_life(**spec: Any) -> JobLife:
    life = JobLife()
    life.register(eta_knob=1.0, **spec)
    return life


def test_a_trial_is_asked_to_probe_what_nothing_is_known_of_the_nearest_first() -> None:
    life = a_life()
    assert life.begin().to_probe == (128, 32, 256, 16)


def test_what_was_probed_or_has_run_is_not_wanted_again() -> None:
    life = a_life()
    first = life.begin()
    report_costs(life, first, probe(128, 5.0), probe(32, 20.0))
    life.converge(first, 100.0)
    assert life.begin(batch_size=256).to_probe == (16,)


@pytest.mark.parametrize("spec", [{"policy": "pruning_thompson"}, {"probing_budget": 0.0}])
def test_no_probe_is_wanted(spec: dict[str, Any]) -> None:
    assert a_life(**spec).begin().to_probe == ()


def test_costs_are_recorded_with_their_logarithm_and_its_variance() -> None:
    life = a_life()
    report_costs(life, life.begin(), probe(128, 5.0, 0.01), time_s=1.0, energy_j=2.0)
    [event] = life.happened(EpochCostsProbed)
    [found] = event.probes
    assert (found.batch_size, found.cost, found.ln_cost, found.variance) == (128, 5.0, math.log(5.0), 0.01)
    assert (event.time_s, event.energy_j) == (1.0, 2.0)


def test_batch_sizes_that_the_job_does_not_have_are_left_out() -> None:
    life = a_life()
    report_costs(life, life.begin(), probe(100, 5.0), time_s=1.0)
    assert life.happened(EpochCostsProbed)[-1].probes == ()


def test_energy_that_was_not_measured_says_nothing_where_it_counts() -> None:
    unmeasured = do.EpochCostProbe(batch_size=128, time_s=5.0, energy_j=None, variance=0.0)
    life = a_life()
    report_costs(life, life.begin(), unmeasured, time_s=1.0)
    assert life.happened(EpochCostsProbed)[-1].probes == ()
    timed = JobLife()
    timed.register(eta_knob=0.0)
    report_costs(timed, timed.begin(), unmeasured)
    assert len(timed.happened(EpochCostsProbed)[-1].probes) == 1


def test_nothing_found_leaves_no_event() -> None:
    life = a_life()
    report_costs(life, life.begin())
    assert life.happened(EpochCostsProbed) == []


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"probes": (probe(128, 0.0),)}, "probes.0"),
        ({"probes": (probe(128, math.nan),)}, "probes.0"),
        ({"probes": (probe(128, 1.0, -0.1),)}, "probes.0"),
        ({"probes": (probe(128, 1.0, 1.1),)}, "probes.0"),
        ({"probes": (probe(128, 1.0),), "out_of_memory": (128,)}, "probes"),
        ({"out_of_memory": tuple(range(1, 1002))}, "probes"),
        ({"time_s": -1.0}, "time_s"),
        ({"time_s": math.inf}, "time_s"),
        ({"energy_j": math.nan}, "time_s"),
    ],
)
def test_values_out_of_range_are_refused(wrong: dict[str, Any], named: str) -> None:
    life = a_life()
    trial = life.begin()
    command = do.ReportEpochCosts(trial_number=trial.trial_number, trial_id=trial.trial_id, **wrong)
    problem = problem_of(life.send(command))
    assert problem.type == "invalid_epoch_costs"
    assert list(problem.fields) == [named]


def test_what_probing_took_is_no_part_of_the_trial_and_of_what_was_spent() -> None:
    life = a_life()
    trial = life.begin()
    report_costs(life, trial, probe(128, 8.0), time_s=3.0, energy_j=4.0)
    life.converge(trial, 100.0)
    row = life.rows[trial.trial_number]
    assert row.cost == 100.0
    assert life.job is not None
    assert sum(entry.trials for entry in life.job.ledger.entries) == 1
    assert sum(entry.time_s for entry in life.job.ledger.entries) == row.time_s + 3.0
    assert sum(entry.energy_j for entry in life.job.ledger.entries) == row.energy_j + 4.0


def test_what_was_probed_in_a_month_before_the_trial_ends_lessens_its_savings() -> None:
    life = a_life()
    for _ in range(3):
        life.converge(life.begin(batch_size=64), 100.0)
    life.now += timedelta(days=40)
    report_costs(life, life.begin(batch_size=64), probe(128, 8.0), time_s=3.0, energy_j=4.0)
    assert life.job is not None
    later = saved_by_month(life.job.ledger)[-1]
    assert later.saved_energy_j is not None
    assert later.saved_time_s is not None
    assert (later.trials, later.saved_energy_j.value, later.saved_time_s.value) == (0, -4.0, -3.0)


@pytest.mark.parametrize("batch_size", [32, 64])
def test_that_a_size_does_not_fit_is_not_believed_where_a_larger_one_runs(batch_size: int) -> None:
    life = a_life()
    report_costs(life, life.begin(), out_of_memory=(batch_size,))
    assert life.happened(EpochCostsProbed) == []


def test_what_a_second_training_probes_is_on_the_level_of_the_first() -> None:
    """Its run costs three times as much, and so does all that it probes."""
    life = a_life(batch_sizes=[64, 128, 256, 512], default_batch_size=64)
    first = life.begin()
    report_costs(life, first, probe(64, 10.0), probe(128, 8.0))
    life.converge(first, 100.0)
    second = life.begin(batch_size=128)
    report_costs(life, second, probe(128, 24.0), probe(256, 18.0))
    report_costs(life, second, probe(128, 24.0), probe(512, 15.0))
    assert life.job is not None
    [known] = life.job.version.knowledge.values()
    costs = {size: math.exp(one.value) for size, one in epoch_costs_on(known).probes.items()}
    assert costs == pytest.approx({64: 10.0, 128: 8.0, 256: 6.0, 512: 5.0})


def test_a_size_that_did_not_fit_is_not_tried_nor_any_larger_one() -> None:
    life = a_life()
    first = life.begin()
    report_costs(life, first, out_of_memory=(128,))
    life.converge(first, 100.0)
    sizes = set()
    for _ in range(12):
        trial = life.begin()
        sizes.add(trial.batch_size)
        life.converge(trial, 100.0)
    assert max(sizes) <= 64
    life.send(do.AllowBatchSize(batch_size=256))
    allowed = life.begin()
    assert 128 in (allowed.batch_size, *allowed.to_probe)


def test_what_comes_after_the_end_of_the_trial_counts_all_the_same() -> None:
    life = a_life()
    trial = life.begin()
    life.converge(trial, 100.0)
    report_costs(life, trial, probe(128, 5.0))
    assert 128 not in life.begin(batch_size=64).to_probe


def test_an_unknown_trial_is_refused() -> None:
    life = a_life()
    life.begin()
    assert problem_of(life.send(do.ReportEpochCosts(trial_number=9, trial_id="x"))).type == "unknown_trial"
    assert problem_of(life.send(do.ReportEpochCosts(trial_number=1, trial_id="x"))).type == "wrong_trial_id"


def test_a_probe_that_is_cheap_is_jumped_to_and_said_so() -> None:
    life = a_life(batch_sizes=[64, 128, 256, 512, 1024], default_batch_size=64)
    first = life.begin()
    costs = {128: 60.0, 256: 35.0, 512: 22.0, 1024: 15.0}
    report_costs(life, first, *(probe(size, cost) for size, cost in costs.items()))
    for epoch in range(1, 11):
        life.report(first, cost=100.0 * epoch, metric=0.1, epoch=float(epoch))
    life.converge(first, 1100.0)
    second = life.begin()
    assert second.batch_size > 128, second.reason
    assert "probed" in second.reason
    assert "less per epoch" in second.reason


def test_an_interrupted_trial_leaves_its_probes() -> None:
    life = a_life()
    trial = life.begin()
    report_costs(life, trial, probe(128, 5.0))
    life.finish(trial, Outcome.INTERRUPTED, "killed")
    assert 128 not in life.begin().to_probe
