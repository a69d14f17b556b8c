"""What the demo concludes from its trials."""

import ast
import time
from dataclasses import replace
from pathlib import Path

import pytest

from bso.domain.trial import Outcome, Trial
from bso_cli.demo import command, train
from bso_cli.demo.picture import draw
from bso_cli.demo.summary import DemoSummary, conclusion, summarize
from bso_cli.jobs_printed import kind_table
from tests.unit.cli.samples import arm, description, trial


def default_and_best() -> list[Trial]:
    return [
        trial(1, batch_size=32, cost=10.0),
        trial(2, batch_size=32, cost=12.0),
        trial(3, batch_size=16, cost=4.0),
        trial(4, batch_size=16, cost=7.0),
        trial(5, batch_size=16, cost=1.0, outcome=None),
    ]


def summed_up(trials: list[Trial], *, best: int | None = 16, control: tuple[Trial, ...] = ()) -> DemoSummary:
    summary = summarize(description(best=best), trials, control)
    assert summary is not None
    return summary


def test_the_saving_compares_whole_recurrences_with_trainings_with_the_default() -> None:
    failed = replace(trial(6, batch_size=8, cost=6.0, outcome=Outcome.COST_EXCEEDED), recurrence_id="night-3")
    summary = summed_up([*default_and_best(), failed])
    assert summary.saving is not None
    assert summary.saving.share == pytest.approx(1 - (10 + 12 + (4 + 6) + 7) / 4 / 11)
    assert summary.saving.error is not None
    assert 0 < summary.saving.error < 1
    assert "With all that was tried on the way, a recurrence cost" in conclusion(summary)


def test_the_best_batch_size_is_compared_by_what_converged() -> None:
    interrupted = trial(6, batch_size=16, cost=99.0, outcome=Outcome.INTERRUPTED)
    summary = summed_up([*default_and_best(), interrupted])
    assert summary.best_saving is not None
    assert summary.best_saving.share == pytest.approx(0.5)
    assert (summary.best_saving.count, summary.best_saving.others) == (2, 2)


def test_trainings_on_the_side_count_for_the_default() -> None:
    summary = summed_up(default_and_best(), control=(trial(1, batch_size=32, cost=23.0),))
    assert summary.default_cost == pytest.approx(15.0)
    assert summary.comparisons == 1
    words = "means of 4 recurrences and 3 trainings, 1 of them run to compare and not in the table"
    assert words in conclusion(summary)


def test_a_default_that_never_converged_leaves_nothing_to_compare() -> None:
    summary = summed_up([trial(1, batch_size=32, outcome=Outcome.COST_EXCEEDED), trial(2, batch_size=16)])
    assert summary.saving is None
    assert "nothing to compare" in conclusion(summary)


def test_what_costs_more_is_said_to_cost_more() -> None:
    summary = summed_up([trial(1, batch_size=32, cost=4.0), trial(2, batch_size=16, cost=5.0)])
    assert "a recurrence cost [bold]12% more[/] than" in conclusion(summary)
    assert "A training with it costs 25% more." in conclusion(summary)


def test_a_default_that_is_the_best_is_called_so() -> None:
    assert "The default is the best one known" in conclusion(summed_up([trial(1, batch_size=32)], best=32))


def test_without_a_convergence_there_is_no_best() -> None:
    summary = summed_up([trial(1, outcome=Outcome.NOT_CONVERGED)], best=None)
    assert "Nothing has converged yet" in conclusion(summary)


def test_without_an_ended_trial_there_is_no_summary() -> None:
    assert summarize(description(), [trial(1, outcome=None)]) is None


def test_the_table_has_a_line_for_each_batch_size() -> None:
    job = description(arm(8, "to explore", mean=None), arm(16), arm(32, "pruned"))
    assert len(kind_table(job.kinds[0], job, default_and_best()).rows) == 3


@pytest.mark.parametrize("best", [16, None])
def test_the_page_has_the_pictures_and_says_what_is_saved(best: int | None, tmp_path: Path) -> None:
    job = description(arm(8, "to explore", mean=None), arm(16), arm(32, "pruned"), best=best)
    summary = summarize(job, default_and_best())
    assert summary is not None
    path = draw(summary, tmp_path / "new" / "exploration.html")
    page = path.read_text(encoding="utf-8")
    assert page.count("<svg") == 3
    assert "than with the default 32, all that was tried included" in page


def test_the_script_trains_the_jobs_that_the_command_asks_about() -> None:
    named = {
        node.value for node in ast.walk(ast.parse(Path(train.__file__).read_text())) if isinstance(node, ast.Constant)
    }
    assert {command.JOB, command.CONTROL, command.DEFAULT} <= named


def test_energy_is_estimated_from_cpu_time() -> None:
    monitor = train.CpuTime()
    before = time.process_time()
    monitor.begin_window("key")
    sum(range(200_000))
    window = monitor.end_window("key")
    assert 0 < window.total_energy <= train.POWER_W * (time.process_time() - before)
    assert window.time > 0
