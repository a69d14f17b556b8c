"""The table and the sentences about a run of recurrences."""

import signal
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from rich.console import Console

from bso.domain.replies import TrialBegun, TrialFinished
from bso.domain.trial import Outcome
from bso_cli.recurring.recurrences import RecurringRun, ScheduledRun
from bso_cli.recurring.summary import saving, saving_in_words, several_jobs_in_words, summary_table, total_in_words
from bso_cli.recurring.trials import SeenTrial
from tests.unit.cli.samples import SPEC

NOW = datetime(2026, 11, 21, 10, 0, tzinfo=UTC)


def trial(
    outcome: Outcome | None = Outcome.CONVERGED,
    *,
    job_id: str = "nightly",
    batch_size: int = 16384,
    cost: float = 123456.0,
    method: str = "assumed",
    energy_j: float = 123456.0,
    reason: str = "",
) -> SeenTrial:
    begun = TrialBegun(
        trial_number=1,
        trial_id="t1",
        recurrence_id="r1",
        attempt=1,
        batch_size=batch_size,
        reason="exploring",
        is_last_attempt=False,
        bound=None,
        lease_s=600.0,
        spec=replace(SPEC, batch_sizes=(64, 16384), default_batch_size=16384),
    )
    end = None if outcome is None else TrialFinished(outcome=outcome, reason=reason, cost=cost, should_retry=False)
    return SeenTrial(job_id=job_id, begun=begun, last=end, energy_method=method, time_s=3570.0, energy_j=energy_j)


TRIAL = trial()
INTERRUPTED = trial(Outcome.INTERRUPTED)


def ended(number: int, *trials: SeenTrial, exit_code: int = 0, stopped_by: int | None = None) -> ScheduledRun:
    return ScheduledRun(
        number=number,
        recurrence_id=f"r{number}",
        began_at=NOW,
        ended_at=None if stopped_by is not None else NOW,
        launches=1,
        exit_code=exit_code,
        stopped_by=stopped_by,
        trials=trials,
    )


def run(*recurrences: ScheduledRun, count: int) -> RecurringRun:
    return RecurringRun(command=("train",), count=count, recurrences=recurrences)


def shown(*recurrences: ScheduledRun, width: int = 80) -> str:
    console = Console(width=width, color_system=None)
    with console.capture() as captured:
        console.print(summary_table(recurrences))
    return captured.get()


def test_a_training_that_was_called_off_is_shown_as_such_with_its_reason() -> None:
    recurrence = ended(1, trial(Outcome.CANCELLED, reason="the [new] data are wrong"))
    assert "16384–" in shown(recurrence)
    assert "called off" in shown(recurrence).partition("\n\n")[0]
    assert recurrence.called_off == "the [new] data are wrong"


def test_what_somebody_stopped_is_interrupted_and_has_not_failed() -> None:
    recurrence = ended(1, INTERRUPTED, exit_code=130, stopped_by=signal.SIGINT)
    assert "interrupted" in shown(recurrence).partition("✓ converged")[0]
    words = total_in_words(run(recurrence, count=3))
    assert words.startswith("0 of 3 recurrences done, 0 failed, 0 without a model, 1 interrupted")


@pytest.mark.parametrize("attempts", [1, 4])
def test_at_80_columns_no_word_is_broken(attempts: int) -> None:
    failed = trial(Outcome.NOT_CONVERGED)
    table = shown(
        ended(1, *[failed] * attempts, TRIAL),
        ended(20, failed, exit_code=1),
        ended(22, replace(trial(None), time_s=0.000301), exit_code=137),
        ended(21, INTERRUPTED, exit_code=130, stopped_by=signal.SIGINT),
    )
    words = table.split()
    assert {"batch", "sizes", "time", "cost", "outcome", "interrupted", "SIGKILL", "16384✗"} <= set(words), table
    assert max(map(len, table.splitlines())) <= 80


def test_different_jobs_are_named() -> None:
    other = trial(job_id="train-2")
    assert several_jobs_in_words([ended(1, TRIAL), ended(2, TRIAL)]) == ""
    assert several_jobs_in_words([ended(1, TRIAL, other), ended(2, other, TRIAL)]) == ""
    assert "(nightly, train-2)" in several_jobs_in_words([ended(1, TRIAL), ended(2, other)])


@pytest.mark.parametrize("method", ["assumed", "rapl"])
def test_assumed_energy_is_said_once_and_has_no_column(method: str) -> None:
    recurrences = [
        ended(1, trial(method=method)),
        ended(2, trial(method=method, batch_size=64, cost=60000.0, energy_j=50000.0)),
    ]
    is_assumed = method == "assumed"
    table = shown(*recurrences)
    recurrences += recurrences[1:] * 3
    assert ("energy" not in table.splitlines()[1].split()) is is_assumed
    total = total_in_words(run(*recurrences[:2], count=2))
    assert total.endswith("total cost 183 kJ")
    assert saving_in_words(recurrences)
    printed = f"{table} {total} {saving_in_words(recurrences)}".lower()
    assert printed.count("assumed") == is_assumed


def test_where_only_some_energy_is_assumed_its_column_says_which() -> None:
    [*_, first, second, _marks] = shown(ended(1, TRIAL), ended(2, trial(method="rapl", energy_j=50000.0))).splitlines()
    assert "assumed" in first.split()
    assert "50 kJ" in second


def test_a_run_without_trials_has_no_total_cost() -> None:
    assert "no trial" in shown(ended(1))
    assert total_in_words(run(ended(1), count=2)) == "1 of 2 recurrences done, 0 failed, 0 without a model"


def test_where_one_recurrence_has_a_trial_costs_are_shown() -> None:
    total = total_in_words(run(ended(1), ended(2, TRIAL), count=2))
    assert total.endswith("0 without a model, total cost 123 kJ")


def test_a_saving_counts_failures_and_what_was_explored() -> None:
    cheap = trial(batch_size=64, cost=60000.0)
    found = saving([ended(1, TRIAL), ended(2, trial(Outcome.NOT_CONVERGED, cost=3456.0), cheap)])
    assert found is not None
    assert (round(found.share * 123456), found.count, found.others) == (30000, 2, 1)


def test_a_saving_is_said_from_five_recurrences_on() -> None:
    recurrences = [ended(number, TRIAL) for number in range(1, 6)]
    assert saving(recurrences[:4]) is not None
    assert saving_in_words(recurrences[:4]) == ""
    assert "means of 5 recurrences" in saving_in_words(recurrences)


def test_a_resumed_trial_is_marked_and_counted_in_the_recurrence_that_resumed_it() -> None:
    resumed = replace(trial(cost=200000.0), is_resumed=True)
    recurrences = [ended(1, INTERRUPTED, exit_code=137), ended(2, resumed), ended(3, trial(job_id="other", cost=1.0))]
    table = shown(*recurrences)
    assert {"16384?", "16384↻✓", "16384✓", "123", "200"} <= set(table.split()), table
    assert "↻ resumed" in table
    assert "↻" not in shown(ended(1, TRIAL))
    assert total_in_words(run(*recurrences, count=3)).endswith("total cost 200 kJ")


def test_nothing_is_compared_over_several_jobs_or_before_the_default_has_converged() -> None:
    cheap = trial(batch_size=64, cost=60000.0)
    assert saving([ended(1, cheap), ended(2, cheap)]) is None
    assert saving([ended(1, TRIAL), ended(2, trial(job_id="other"))]) is None
    assert saving([ended(1, TRIAL)]) is None
    assert saving_in_words([ended(1)]) == ""
