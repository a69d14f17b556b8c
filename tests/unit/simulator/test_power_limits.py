"""How trainings profile power limits in the simulator, epoch by epoch."""

import pytest

from bso.domain.commands import PowerMeasurement
from bso.domain.replies import NearestPowerProfile
from bso.simulator.power_limits import LimitSweep, starting_limit_w, steps_per_epoch

LIMITS_W = (100.0, 200.0, 300.0)


def epochs_of(steps: int, *, resting_w: float = 300.0, best_w: float = 200.0) -> list[dict[float, int]]:
    """How many steps each profiling epoch has under which limit."""
    sweep = LimitSweep(LIMITS_W, resting_w=resting_w, best_w=best_w, steps=steps)
    epochs = []
    while not sweep.is_done:
        swept = sweep.next_epoch()
        assert swept.is_profiling or steps == 1
        assert sum(swept.shares.values()) == pytest.approx(1.0)
        epochs.append({limit_w: round(share * steps) for limit_w, share in swept.shares.items()})
    return epochs


def test_each_limit_has_fifty_steps_from_the_second_one_on_and_the_rest_is_at_the_best() -> None:
    assert epochs_of(1000) == [{300.0: 51, 200.0: 50 + 849, 100.0: 50}]
    assert epochs_of(151) == [{300.0: 51, 200.0: 50, 100.0: 50}]


def test_the_first_step_is_under_the_limit_that_a_training_starts_at() -> None:
    assert epochs_of(1000, resting_w=100.0) == [{100.0: 1 + 50, 300.0: 50, 200.0: 50 + 849}]


def test_a_limit_that_is_not_finished_in_an_epoch_begins_again_in_the_next() -> None:
    assert epochs_of(130) == [{300.0: 51, 200.0: 50, 100.0: 29}, {100.0: 50, 200.0: 80}]
    assert epochs_of(70) == [{300.0: 51, 200.0: 19}, {200.0: 50, 100.0: 20}, {100.0: 50, 200.0: 20}]


def test_epochs_shorter_than_a_profile_of_one_limit_have_shorter_ones_once_that_is_known() -> None:
    """The first epoch waits for a step, the second finds out how many steps there are."""
    assert epochs_of(30) == [{300.0: 30}] * 3 + [{200.0: 30}, {100.0: 30}]


def test_an_epoch_may_have_a_single_step() -> None:
    assert epochs_of(1, resting_w=100.0) == [{100.0: 1}, *[{300.0: 1}] * 3, {200.0: 1}, {100.0: 1}]


@pytest.mark.parametrize(("batch_size", "steps"), [(10, 10), (30, 4), (100, 1), (1000, 1)])
def test_the_last_batch_of_an_epoch_may_be_smaller(batch_size: int, steps: int) -> None:
    assert steps_per_epoch(batch_size, 100) == steps


def measured(limit_w: float, power_w: float, samples_per_s: float) -> PowerMeasurement:
    return PowerMeasurement(power_limit_w=limit_w, average_power_w=power_w, samples_per_s=samples_per_s)


@pytest.mark.parametrize(("eta_knob", "limit_w"), [(0.0, 300.0), (0.5, 200.0), (1.0, 100.0)])
def test_a_training_starts_at_the_limit_that_is_best_for_the_nearest_batch_size(
    eta_knob: float, limit_w: float
) -> None:
    nearest = NearestPowerProfile(
        batch_size=64, measurements=(measured(100, 95, 60), measured(200, 170, 100), measured(300, 280, 110))
    )
    assert starting_limit_w(nearest, LIMITS_W, eta_knob=eta_knob, max_power_w=300) == limit_w


def test_without_a_limit_that_is_known_to_be_good_it_starts_at_the_highest() -> None:
    elsewhere = NearestPowerProfile(batch_size=64, measurements=(measured(150, 140, 80),))
    for nearest in (None, elsewhere):
        assert starting_limit_w(nearest, LIMITS_W, eta_knob=0.5, max_power_w=300) == 300.0
