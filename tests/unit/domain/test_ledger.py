"""What a job's trials took in each month, entered when they end."""

from dataclasses import replace
from datetime import timedelta

import pytest

from bso.domain import commands as do
from bso.domain.events import ChangePoint
from bso.domain.evolve import fold
from bso.domain.ledger import EARLIER, MOST_ENTRIES, OTHER_SIZES, UNKNOWN, Ledger, LedgerEntry, Sums
from bso.domain.trial import Outcome, TrialState
from bso.schema.codec import dump
from tests.unit.domain.builders import A100, V100, JobLife

MEASURED = (
    do.PowerMeasurement(power_limit_w=300.0, average_power_w=250.0, samples_per_s=10.0),
    do.PowerMeasurement(power_limit_w=200.0, average_power_w=100.0, samples_per_s=9.5),
    do.PowerMeasurement(power_limit_w=100.0, average_power_w=80.0, samples_per_s=1.0),
)


@pytest.fixture(params=[False, True], ids=["in memory", "through its stored form"])
def life(request: pytest.FixtureRequest) -> JobLife:
    life = JobLife(is_stateless=request.param)
    life.register(policy="pruning_thompson", max_attempts=3)
    return life


def entries(life: JobLife) -> tuple[LedgerEntry, ...]:
    assert life.job is not None
    assert dump(fold(life.job_id, life.history).ledger) == dump(life.job.ledger), "the log says something else"
    return life.job.ledger.entries


def test_whatever_ends_is_entered_with_all_that_it_took(life: JobLife) -> None:
    life.converge(life.begin("a"), 100.0)
    second = life.begin("b")
    life.report(second, cost=30.0)
    life.give_up(second)
    assert sum(one.trials for one in entries(life)) == 2
    assert sum(one.models for one in entries(life)) == 1
    assert sum(one.energy_j for one in entries(life)) == 130.0
    assert sum(one.time_s for one in entries(life)) == pytest.approx(130.0 / 400.0)
    [default] = [one for one in entries(life) if one.models]
    assert default.place == ("2026-01", 1, A100.key, 0, 64)
    assert default.default_batch_size == 64
    assert default.model_energy == Sums(total=100.0, squares=10_000.0)


def test_months_and_hardware_kinds_have_entries_of_their_own(life: JobLife) -> None:
    life.converge(life.begin("a"), 100.0)
    life.now += timedelta(days=31)
    life.converge(life.begin("b", hardware=V100), 90.0)
    assert [(one.month, one.hardware_key) for one in entries(life)] == [("2026-01", A100.key), ("2026-02", V100.key)]
    assert life.job is not None
    assert life.job.ledger.kinds == {A100.key: A100, V100.key: V100}


def test_a_running_trial_is_entered_at_its_end_only(life: JobLife) -> None:
    trial = life.begin("a")
    life.report(trial, cost=30.0)
    assert entries(life) == ()


def test_a_result_that_comes_late_adds_what_it_took_since(life: JobLife) -> None:
    trial = life.begin("a")
    life.report(trial, cost=30.0)
    life.lapse(trial)
    life.lapse(trial)
    [given_up] = entries(life)
    assert (given_up.trials, given_up.models, given_up.energy_j) == (1, 0, 30.0)
    life.now += timedelta(days=31)
    life.report(trial, cost=50.0)
    assert [one.energy_j for one in entries(life)] == [50.0]
    life.converge(trial, 80.0)
    [entry] = entries(life)
    assert (entry.trials, entry.models, entry.energy_j) == (1, 1, 80.0), "counted once, in the month of its end"
    assert entry.model_energy.total == 80.0
    assert entry.month == given_up.month


def test_the_trial_that_shows_a_change_point_counts_after_it(life: JobLife) -> None:
    for number in range(30):
        life.run(f"before-{number}", {16: 300.0, 32: 180.0, 64: 100.0, 128: 60.0, 256: 80.0})
    for number in range(30):
        life.run(f"after-{number}", {16: 900.0, 32: 540.0, 64: 300.0, 128: 180.0, 256: 240.0})
    assert any(isinstance(event, ChangePoint) for event in life.history), "nothing has changed"
    shown_by = next(event.trial_number for event in life.history if isinstance(event, ChangePoint))
    first = [one for one in entries(life) if not one.change_points]
    cheap = [row for row in life.rows.values() if row.trial_number < shown_by]
    assert sum(one.trials for one in first) == len(cheap)
    assert sum(one.energy_j for one in first) == pytest.approx(sum(row.energy_j for row in cheap))
    assert sum(one.trials for one in entries(life)) == len(life.rows)


def test_it_outlives_the_job(life: JobLife) -> None:
    life.converge(life.begin("a"), 100.0)
    running = life.begin("b")
    life.report(running, cost=20.0)
    life.send(do.DeleteJob())
    assert sum(one.energy_j for one in entries(life)) == 120.0
    life.register(batch_sizes=[32, 64], default_batch_size=64)
    assert sum(one.energy_j for one in entries(life)) == 120.0


def test_the_highest_and_the_best_power_limit_are_kept(life: JobLife) -> None:
    life.begin("a")
    for batch_size in (64, 128):
        life.send(do.ReportPowerProfile(batch_size=batch_size, hardware=A100, measurements=MEASURED))
    assert life.job is not None
    assert life.job.ledger.power[A100.key].keys() == {64, 128}
    choice = life.job.ledger.power[A100.key][64]
    assert (choice.highest.power_limit_w, choice.chosen.power_limit_w) == (300.0, 200.0)
    entries(life)


def test_what_profiling_took_counts_as_taken_and_not_as_usual(life: JobLife) -> None:
    trial = life.begin("a")
    life.report(trial, cost=50.0, is_profiling=True)
    life.converge(trial, 70.0)
    [entry] = entries(life)
    assert entry.energy_j == 70.0
    assert entry.model_energy.total == pytest.approx(40.0), "two epochs of 20 J"


def test_energy_that_was_not_measured_is_counted_as_such(life: JobLife) -> None:
    trial = life.begin("a")
    command = life.reporting(trial, 100.0, metric=trial.spec.target_metric)
    life.send(replace(command, energy_j=None))
    [entry] = entries(life)
    assert (entry.trials, entry.measured, entry.models, entry.measured_models) == (1, 0, 1, 0)
    assert (entry.energy_j, entry.model_energy.total) == (0.0, 0.0)
    assert entry.model_time.total > 0.0


def test_time_that_passes_without_energy_before_the_end_is_not_measured(life: JobLife) -> None:
    trial = life.begin("a")
    life.finish(trial, Outcome.INFEASIBLE, "out_of_memory: CUDA out of memory", time_s=3600.0)
    [entry] = entries(life)
    assert (entry.trials, entry.measured, entry.time_s) == (1, 0, 3600.0)


def filled(life: JobLife, count: int, *, days: int = 0, versions: bool = False) -> Ledger:
    """A ledger of so many trials of 100 J: of three batch sizes, ``days`` apart, or each of a version of its own."""
    life.converge(life.begin("a"), 100.0)
    row, ledger = life.rows[1], Ledger()
    for number in range(count):
        size = (16, 32, 64)[number % 3]
        ended = replace(
            row,
            ended_at=life.now + timedelta(days=days * number),
            batch_size=size,
            version_number=number + 1 if versions else 1,
        )
        active = replace(ended, outcome=None, state=TrialState.RUNNING)
        ledger = ledger.with_ended(active, ended, batch_size=size, default_batch_size=64, change_points=0)
    return ledger


def test_old_months_are_added_up_and_nothing_is_lost(life: JobLife) -> None:
    ledger = filled(life, 900, days=10)
    assert len(ledger.entries) <= MOST_ENTRIES
    assert {one.batch_size for one in ledger.entries if one.month == EARLIER} == {OTHER_SIZES, 64}
    assert sum(one.trials for one in ledger.entries) == 900
    assert sum(one.energy_j for one in ledger.entries) == 90_000.0
    assert len(dump(ledger)) < 40_000


def test_old_versions_are_added_up_and_nothing_is_lost(life: JobLife) -> None:
    """As many as are made by deleting and registering a job again and again."""
    ledger = filled(life, 900, versions=True)
    assert len(ledger.entries) <= MOST_ENTRIES
    assert ledger.entries[0].version_number == UNKNOWN
    assert sum(one.trials for one in ledger.entries) == 900
    assert ledger.kinds.keys() <= {A100.key}


def test_a_batch_size_that_the_job_never_had_has_no_entry_of_its_own(life: JobLife) -> None:
    life.converge(life.begin("a", batch_size=1000), 100.0)
    assert [one.batch_size for one in entries(life)] == [OTHER_SIZES]


def test_deleting_the_job_while_the_default_runs_forgets_no_default(life: JobLife) -> None:
    life.converge(life.begin("a"), 100.0)
    life.begin("b")
    life.send(do.DeleteJob())
    assert {one.default_batch_size for one in entries(life) if one.models} == {64}


def test_a_cancelled_training_took_what_it_took(life: JobLife) -> None:
    trial = life.begin("a")
    life.report(trial, cost=40.0)
    life.finish(trial, Outcome.CANCELLED, "called off")
    [entry] = entries(life)
    assert (entry.trials, entry.models, entry.energy_j) == (1, 0, 40.0)
