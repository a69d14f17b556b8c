"""The table and the words about a run of recurrences."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from rich.console import Console

from bso.domain.trial import Outcome
from bso_cli.recurring.recurrences import Launch, Occasion, RecurringRun
from bso_cli.recurring.summary import (
    called_off_in_words,
    saving,
    saving_in_words,
    several_jobs_in_words,
    summary_table,
    total_in_words,
    warnings_of_last,
)
from bso_cli.recurring.trials import SeenTrial

NOW = datetime(2026, 11, 21, 10, 0, tzinfo=UTC)
TRIAL = SeenTrial(
    job_id="nightly",
    trial_number=1,
    trial_id="t1",
    recurrence_id="r1",
    batch_size=16384,
    reason="exploring",
    attempt=1,
    energy_method="assumed",
    reports=3,
    cost=123456.0,
    time_s=3570.0,
    energy_j=123456.0,
    outcome=Outcome.CONVERGED,
)


def ended(number: int, *trials: SeenTrial, exit_code: int = 0, stopped_by: str | None = None) -> Occasion:
    launch = Launch(began_at=NOW, ended_at=NOW, exit_code=exit_code, stopped_by=stopped_by)
    closed_at = None if stopped_by is not None else NOW
    return Occasion(
        number=number, recurrence_id=f"r{number}", began_at=NOW, ended_at=closed_at, launches=(launch,), trials=trials
    )


def run(*recurrences: Occasion, count: int) -> RecurringRun:
    return RecurringRun(command=("train",), began_at=NOW, count=count, recurrences=recurrences)


CALLED_OFF = replace(TRIAL, outcome=Outcome.CANCELLED, outcome_reason="the [new] data are wrong")
INTERRUPTED = replace(TRIAL, outcome=Outcome.INTERRUPTED)


def shown(*recurrences: Occasion, width: int = 80) -> str:
    console = Console(width=width, color_system=None)
    with console.capture() as captured:
        console.print(summary_table(recurrences))
    return captured.get()


def test_a_training_that_was_called_off_is_shown_as_such_with_its_reason() -> None:
    recurrence = ended(1, CALLED_OFF)
    assert "16384–" in shown(recurrence)
    assert "called off" in shown(recurrence).partition("\n\n")[0]
    assert called_off_in_words([recurrence]) == ["recurrence 1 was called off: the [new] data are wrong"]


def test_what_somebody_stopped_is_interrupted_and_has_not_failed() -> None:
    recurrence = ended(1, INTERRUPTED, exit_code=130, stopped_by="SIGINT")
    assert "interrupted" in shown(recurrence).partition("✓ converged")[0]
    words = total_in_words(run(recurrence, count=3))
    assert words.startswith("0 of 3 recurrences done, 0 failed, 0 without a model, 1 interrupted")


@pytest.mark.parametrize("attempts", [1, 4])
def test_at_80_columns_no_word_is_broken(attempts: int) -> None:
    failed = replace(TRIAL, outcome=Outcome.NOT_CONVERGED)
    table = shown(
        ended(1, *[failed] * attempts, TRIAL),
        ended(20, failed, exit_code=1),
        ended(22, replace(TRIAL, outcome=None, cost=0.000293, time_s=0.000301, energy_j=0.000285), exit_code=137),
        ended(21, INTERRUPTED, exit_code=130, stopped_by="SIGINT"),
    )
    words = table.split()
    assert {"batch", "sizes", "time", "cost", "outcome", "interrupted", "SIGKILL", "16384✗"} <= set(words), table
    assert max(map(len, table.splitlines())) <= 80


def test_different_jobs_are_named() -> None:
    other = replace(TRIAL, job_id="train-2")
    assert several_jobs_in_words([ended(1, TRIAL), ended(2, TRIAL)]) is None
    assert several_jobs_in_words([ended(1, TRIAL, other), ended(2, other, TRIAL)]) is None
    words = several_jobs_in_words([ended(1, TRIAL), ended(2, other)])
    assert words is not None
    assert "(nightly, train-2)" in words


@pytest.mark.parametrize("method", ["assumed", "rapl"])
def test_assumed_energy_is_said_once_and_has_no_column(method: str) -> None:
    trial = replace(TRIAL, energy_method=method, default_batch_size=16384)
    recurrences = [ended(1, trial), ended(2, replace(trial, batch_size=64, cost=60000.0, energy_j=50000.0))]
    is_assumed = method == "assumed"
    table = shown(*recurrences)
    found = saving(recurrences)
    assert found is not None
    assert found.is_energy_assumed is is_assumed
    assert ("energy" not in table.splitlines()[1].split()) is is_assumed
    total = total_in_words(run(*recurrences, count=2))
    assert total.endswith("total cost 183 kJ")
    said = f"{table} {total} {saving_in_words(found)}".lower()
    assert said.count("assumed") == is_assumed


def test_where_only_some_energy_is_assumed_its_column_says_which() -> None:
    measured = replace(TRIAL, energy_method="rapl", energy_j=50000.0)
    [*_, first, second, _marks] = shown(ended(1, TRIAL), ended(2, measured)).splitlines()
    assert "assumed" in first.split()
    assert "50 kJ" in second


def test_a_run_without_trials_says_nothing_of_costs() -> None:
    assert shown(ended(1)).splitlines()[1].split() == ["no.", "began", "(UTC)", "outcome"]
    assert shown(ended(1)).split()[-2:] == ["no", "trial"]
    total = total_in_words(run(ended(1), count=2))
    assert total == "1 of 2 recurrences done, 0 failed, 0 without a model"


def test_where_one_recurrence_has_a_trial_costs_are_shown() -> None:
    recurrences = [ended(1), ended(2, TRIAL)]
    assert "cost" in shown(*recurrences).splitlines()[1].split()
    total = total_in_words(run(*recurrences, count=2))
    assert total.endswith("0 without a model, total cost 123 kJ")


def test_warnings_are_those_of_the_last_trial() -> None:
    warned = replace(TRIAL, warnings=("job nightly needs attention",))
    assert warnings_of_last([ended(1, TRIAL), ended(2, TRIAL, warned)]) == ("job nightly needs attention",)
    assert warnings_of_last([ended(1, TRIAL), ended(2, warned), ended(3, TRIAL)]) == ()
    assert warnings_of_last([ended(1, warned), ended(2)]) == warned.warnings, "the last one that began"
    assert warnings_of_last([]) == ()
