"""What the rows of Zeus' server mean, and which jobs cannot be taken over, and why."""

import time
from datetime import datetime
from typing import Any

import pytest

from bso.domain.trial import Outcome
from bso_cli.importing.zeus_database import ZeusRows
from bso_cli.importing.zeus_history import NotTransferable, ZeusHistory, history_of

JOB: dict[str, Any] = {
    "job_id": "nightly",
    "job_id_prefix": "night",
    "default_batch_size": 64,
    "higher_is_better_metric": 1,
    "eta_knob": 0.5,
    "beta_knob": 2.0,
    "target_metric": 0.9,
    "max_epochs": 50,
    "num_pruning_rounds": 2,
    "window_size": 0,
    "max_power": 300.0,
    "number_of_gpus": 1,
    "gpu_model": "A40",
    "mab_prior_mean": 0.0,
    "mab_prior_precision": 0.0,
    "mab_num_explorations": 2,
    "mab_seed": None,
}


def trial(number: int, **changes: Any) -> dict[str, Any]:
    """A row as SQLite gives it: the cost is 250 J for each second."""
    row = {
        "job_id": "nightly",
        "batch_size": 64,
        "trial_number": number,
        "start_timestamp": f"2026-01-01 00:{number:02d}:00.000000",
        "end_timestamp": f"2026-01-01 00:{number:02d}:30.000000",
        "type": "Exploration",
        "status": "Succeeded",
        "time": 100.0,
        "energy": 20_000.0,
        "converged": 1,
    }
    return {**row, **changes}


def history(
    *trials: dict[str, Any], job: dict[str, Any] | None = None, sizes: tuple[Any, ...] = (32, 64)
) -> ZeusHistory:
    return history_of(ZeusRows(job=job or JOB, batch_sizes=sizes, trials=trials), policy=None, is_strict=False)


def refused(*trials: dict[str, Any], job: dict[str, Any] | None = None, sizes: tuple[Any, ...] = (32, 64)) -> str:
    with pytest.raises(NotTransferable) as caught:
        history(*trials, job=job, sizes=sizes)
    return str(caught.value)


def test_trials_come_by_number_and_those_that_run_are_left_out() -> None:
    running = trial(2, status="Dispatched", end_timestamp=None, time=None, energy=None, converged=None)
    found = history(trial(3), running, trial(1))
    assert [one.number for one in found.trials] == [1, 3]
    assert found.running == [2]
    assert found.registration.spec["batch_sizes"] == [32, 64]


@pytest.mark.parametrize(
    ("cost_s", "beta", "outcome", "bound"),
    [
        (201.0, 2.0, Outcome.COST_EXCEEDED, 50_000.0),
        (200.0, 2.0, Outcome.NOT_CONVERGED, None),
        (900.0, None, Outcome.NOT_CONVERGED, None),
    ],
)
def test_a_trial_that_missed_its_target_was_stopped_if_it_cost_more_than_the_bound(
    cost_s: float, beta: float | None, outcome: Outcome, bound: float | None
) -> None:
    missed = trial(2, time=cost_s, energy=cost_s * 200.0, converged=0)
    found = history(trial(1), missed, job={**JOB, "beta_knob": beta}).trials[1]
    assert (found.outcome, found.bound) == (outcome, bound)


def test_the_bound_was_that_of_the_trials_that_had_ended_before() -> None:
    late = trial(1, end_timestamp="2026-01-01 05:00:00.000000")
    missed = trial(2, time=900.0, energy=180_000.0, converged=0)
    assert history(late, missed).trials[1].outcome is Outcome.NOT_CONVERGED


def test_a_training_that_failed_was_interrupted() -> None:
    failed = history(trial(1, status="Failed", time=None, energy=None, converged=None)).trials[0]
    assert (failed.outcome, failed.time_s, failed.energy_j) == (Outcome.INTERRUPTED, None, None)


def test_values_are_read_as_every_driver_gives_them() -> None:
    start, end = (datetime.fromisoformat(f"2026-01-01 0{hour}:00:00") for hour in (0, 1))
    given = trial(1, start_timestamp=start, end_timestamp=end, converged=True)
    assert history(given).trials[0].outcome is Outcome.CONVERGED


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"status": "Paused"}, "trial 1 in table Trial has status: expected 'Dispatched'"),
        ({"type": "Other"}, "has type: "),
        ({"batch_size": 16}, "has batch size 16, which is not one of its job"),
        ({"end_timestamp": None}, "is Succeeded, and has no end_timestamp"),
        ({"end_timestamp": "2025-01-01 00:00:00"}, "before its start"),
        ({"end_timestamp": "yesterday"}, "has end_timestamp: "),
        ({"start_timestamp": "0001-01-01 00:00:00"}, "has start_timestamp: "),
        ({"energy": None}, "is Succeeded, and has no time, energy or converged"),
        ({"time": -1.0}, "has time: "),
        ({"time": float("inf")}, "has time: "),
        ({"energy": "much"}, "has energy: expected a number, got 'much'"),
        ({"converged": 7}, "has converged: "),
        ({"trial_number": None}, "trial None in table Trial has trial_number: "),
    ],
)
def test_a_row_that_cannot_be_is_named(changes: dict[str, Any], said: str) -> None:
    found = refused(trial(1, **changes))
    assert said in found
    assert found.endswith("correct or delete the row")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"job_id": "my job", "job_id_prefix": "my"}, "its job_id must begin with a letter or digit"),
        ({"job_id": "x" * 121, "job_id_prefix": "x"}, "may have at most 120 characters"),
        ({"job_id": None}, "its job_id must be a string"),
        ({"window_size": 1}, "out of bso's ranges: window_size "),
        ({"beta_knob": 0.5}, "out of bso's ranges: beta_knob "),
        ({"default_batch_size": 48}, "Default BS(48) not in batch_sizes"),
        ({"max_epochs": 0}, "has max_epochs: "),
        ({"eta_knob": "half"}, "has eta_knob: "),
        ({"gpu_model": "A\u202e40"}, "hardware.gpu_model must not hold hidden characters"),
    ],
)
def test_a_job_that_bso_cannot_have_is_refused_with_the_reason(changes: dict[str, Any], said: str) -> None:
    assert said in refused(job={**JOB, **changes})


def test_a_job_without_batch_sizes_is_refused() -> None:
    assert "batch_sizes: " in refused(sizes=())


def test_a_trial_may_end_in_the_hour_that_summer_time_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        moments = {"start_timestamp": "2026-10-25 02:50:00.000000", "end_timestamp": "2026-10-25 02:10:00.000000"}
        [taken] = history(trial(1, **moments)).trials
        assert (taken.ended_at - taken.started_at).total_seconds() == 20 * 60
    finally:
        monkeypatch.undo()
        time.tzset()
