"""What the demo concludes from its trials."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from bso.domain.trial import Outcome, Trial
from bso.schema.envelope import dump
from bso_cli.demo.picture import draw
from bso_cli.demo.summary import summarize
from bso_cli.demo.table import conclusion, results_table
from tests.unit.cli.samples import arm, description, trial

PNG = b"\x89PNG\r\n\x1a\n"


def default_and_best() -> list[Trial]:
    return [
        trial(1, batch_size=32, cost=10.0),
        trial(2, batch_size=32, cost=12.0),
        trial(3, batch_size=16, cost=4.0),
        trial(4, batch_size=16, cost=7.0),
        trial(5, batch_size=16, cost=99.0, outcome=Outcome.INTERRUPTED),
        trial(6, batch_size=16, cost=1.0, outcome=None),
    ]


def test_the_saving_compares_the_means_of_what_converged() -> None:
    summary = summarize(description(), default_and_best())
    assert summary is not None
    assert summary.saving is not None
    assert summary.saving.cost == pytest.approx(0.5)
    assert (summary.saving.default_trials, summary.saving.best_trials) == (2, 2)
    assert summary.saving.error is not None
    assert 0 < summary.saving.error < 1


def test_trainings_on_the_side_count_for_the_default() -> None:
    summary = summarize(description(), default_and_best(), [trial(1, batch_size=32, cost=23.0)])
    assert summary is not None
    assert summary.saving is not None
    assert summary.saving.default_mean_cost == pytest.approx(15.0)
    assert (summary.saving.default_trials, summary.saving.comparison_trials) == (3, 1)
    words = "means of 2 trainings with 16 and 3 with 32, 1 of them run to compare and not in the table"
    assert words in conclusion(summary)


def test_what_was_tried_on_the_way_is_told_beside_the_saving() -> None:
    failed = replace(trial(7, batch_size=8, cost=6.0, outcome=Outcome.COST_EXCEEDED), recurrence_id="night-3")
    summary = summarize(description(), [*default_and_best()[:4], failed])
    assert summary is not None
    assert summary.saving is not None
    assert summary.saving.cost == pytest.approx(0.5)
    assert summary.saving.whole_cost == pytest.approx(1 - (10 + 12 + 4 + 6 + 7) / 4 / 11)
    assert "With all that was tried on the way, a recurrence cost 11% less" in conclusion(summary)


def test_a_default_that_never_converged_leaves_nothing_to_compare() -> None:
    trials = [trial(1, batch_size=32, outcome=Outcome.COST_EXCEEDED), trial(2, batch_size=16)]
    summary = summarize(description(), trials)
    assert summary is not None
    assert summary.saving is None
    assert "nothing to compare" in conclusion(summary)


def test_a_best_batch_size_that_costs_more_is_said_to_cost_more() -> None:
    trials = [trial(1, batch_size=32, cost=4.0), trial(2, batch_size=16, cost=5.0)]
    summary = summarize(description(), trials)
    assert summary is not None
    assert "25%[/] more than with the default 32" in conclusion(summary)


def test_a_default_that_is_the_best_is_called_so() -> None:
    summary = summarize(description(best=32), [trial(1, batch_size=32)])
    assert summary is not None
    assert "default batch size 32 is the best" in conclusion(summary)


def test_without_a_convergence_there_is_no_best() -> None:
    summary = summarize(description(best=None), [trial(1, outcome=Outcome.NOT_CONVERGED)])
    assert summary is not None
    assert "Nothing has converged yet" in conclusion(summary)


def test_without_an_ended_trial_there_is_no_summary() -> None:
    assert summarize(description(), [trial(1, outcome=None)]) is None


def test_the_table_has_a_line_for_each_batch_size() -> None:
    summary = summarize(description(arm(8, "to explore", mean=None), arm(16), arm(32, "pruned")), default_and_best())
    assert summary is not None
    assert len(results_table(summary).rows) == 3


def test_a_summary_is_json() -> None:
    summary = summarize(description(), default_and_best())
    assert json.loads(dump(summary))["best_batch_size"] == 16


@pytest.mark.parametrize("best", [16, None])
def test_the_picture_is_a_png(best: int | None, tmp_path: Path) -> None:
    trials = default_and_best()
    summary = summarize(description(arm(8, "to explore", mean=None), arm(16), arm(32, "pruned"), best=best), trials)
    assert summary is not None
    path = draw(summary, trials, tmp_path / "new" / "exploration.png")
    assert path.read_bytes().startswith(PNG)
