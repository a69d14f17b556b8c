"""Costs of recurrences, with all their trials."""

from dataclasses import replace

import pytest

from bso.domain.recurrence_costs import converged_costs, recurrence_costs, saving_of
from bso.domain.trial import Outcome
from tests.unit.cli.samples import trial

DEFAULT = [trial(1, batch_size=32, cost=10.0), trial(2, batch_size=32, cost=12.0)]


def test_a_recurrence_is_compared_with_all_its_trials() -> None:
    stopped = replace(trial(3, batch_size=8, cost=2.0, outcome=Outcome.COST_EXCEEDED), recurrence_id="night-4")
    trials = [*DEFAULT, stopped, trial(4, cost=4.0)]
    found = saving_of(recurrence_costs(trials), converged_costs(trials, 32))
    assert found is not None
    assert found.share == pytest.approx(1 - (10 + 12 + 6) / 3 / 11)
    assert (found.count, found.others) == (3, 2)


def test_there_is_nothing_to_compare_with_what_cost_nothing() -> None:
    assert saving_of([1.0], [0.0]) is None
    assert saving_of([], [1.0]) is None
