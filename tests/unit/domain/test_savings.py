"""What recurrences have saved, from a job's trials."""

from dataclasses import replace

import pytest

from bso.domain.savings import saved, saving_of
from bso.domain.trial import Outcome
from bso_cli.jobs_printed import savings
from tests.unit.cli.samples import HARDWARE, SPEC, description, trial

DEFAULT = [trial(1, batch_size=32, cost=10.0), trial(2, batch_size=32, cost=12.0)]


def test_a_recurrence_is_compared_with_all_its_trials() -> None:
    stopped = replace(trial(3, batch_size=8, cost=2.0, outcome=Outcome.COST_EXCEEDED), recurrence_id="night-4")
    found = saved([*DEFAULT, stopped, trial(4, cost=4.0)], SPEC, version_number=1, hardware_key=HARDWARE.key)
    assert found is not None
    assert found.share == pytest.approx(1 - (10 + 12 + 6) / 3 / 11)
    assert (found.count, found.others) == (3, 2)


def test_what_ran_on_other_hardware_or_in_another_version_does_not_count() -> None:
    trials = [*DEFAULT, replace(trial(3, cost=1.0), version_number=2)]
    found = saved(trials, SPEC, version_number=1, hardware_key=HARDWARE.key)
    assert found is not None
    assert found.share == pytest.approx(0.0)
    assert saved(trials, SPEC, version_number=1, hardware_key="another") is None


def test_without_the_default_or_an_energy_nothing_is_said() -> None:
    assert saved([trial(1), trial(2)], SPEC, version_number=1, hardware_key=HARDWARE.key) is None
    bare = [*DEFAULT, replace(trial(3), is_energy_complete=False)]
    assert saved(bare, SPEC, version_number=1, hardware_key=HARDWARE.key) is None
    assert saving_of([1.0], [0.0]) is None


def test_bso_jobs_show_says_it_in_a_sentence() -> None:
    [said] = savings(description(), [*DEFAULT, trial(3, cost=4.0)])
    assert "a recurrence cost 21%" in said
    assert "than a training with the default batch size 32 (means of 3 recurrences and 2 trainings)" in said
    assert list(savings(description(), [])) == []
