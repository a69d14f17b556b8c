"""What the trainings of each batch size came to."""

from dataclasses import replace

import pytest

from bso.domain.hardware import EnergyMethod
from bso.domain.tally import LAST, Tally, tallies
from bso.domain.trial import Outcome, Trial
from tests.unit.cli.samples import HARDWARE, SPEC, trial


def counted(*trials: Trial, eta_knob: float = 0.5) -> dict[int, Tally]:
    return tallies(trials, replace(SPEC, eta_knob=eta_knob), version_number=1, hardware_key=HARDWARE.key)


def test_the_mean_is_of_the_last_that_converged() -> None:
    converged = [trial(number, cost=float(number)) for number in range(1, LAST + 3)]
    failed = trial(99, cost=1000.0, outcome=Outcome.COST_EXCEEDED)
    running = trial(100, cost=1000.0, outcome=None)
    assert counted(*converged, failed, running) == {16: Tally(ended=LAST + 3, converged=LAST + 2, mean_cost=5.0)}


def test_other_versions_and_other_hardware_do_not_count() -> None:
    elsewhere = replace(HARDWARE, energy_method=EnergyMethod.ASSUMED)
    ours = trial(3, batch_size=8, cost=7.0, outcome=Outcome.NOT_CONVERGED)
    found = counted(replace(trial(1), version_number=2), replace(trial(2), hardware=elsewhere), ours)
    assert found == {8: Tally(ended=1, converged=0, mean_cost=None)}


@pytest.mark.parametrize(("eta_knob", "mean"), [(0.5, None), (0.0, 5.0)])
def test_a_cost_whose_energy_is_incomplete_counts_only_where_energy_does_not(
    eta_knob: float, mean: float | None
) -> None:
    incomplete = replace(trial(1), is_energy_complete=False)
    assert counted(incomplete, eta_knob=eta_knob) == {16: Tally(ended=1, converged=1, mean_cost=mean)}


def test_a_result_that_came_late_counts() -> None:
    late = replace(trial(1, outcome=Outcome.INTERRUPTED), late_outcome=Outcome.CONVERGED)
    assert counted(late) == {16: Tally(ended=1, converged=1, mean_cost=5.0)}
