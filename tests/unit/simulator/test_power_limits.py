"""How trainings profile power limits in the simulator, epoch by epoch."""

import pytest

from bso.domain.commands import PowerMeasurement
from bso.simulator.power_limits import LimitChooser, LimitSweep, steps_per_epoch


def measured(limit_w: float, power_w: float, samples_per_s: float) -> PowerMeasurement:
    return PowerMeasurement(power_limit_w=limit_w, average_power_w=power_w, samples_per_s=samples_per_s)


LIMITS = (measured(100, 95, 60), measured(200, 170, 100), measured(300, 280, 110))
CHOOSER = LimitChooser(eta_knob=0.5, max_power_w=300)


def sweep_of(steps: int, *nearest: PowerMeasurement, chooser: LimitChooser = CHOOSER) -> LimitSweep:
    return LimitSweep(LIMITS, nearest=nearest, chooser=chooser, steps=steps)


def epochs_of(steps: int) -> list[dict[float, int]]:
    """How many steps each profiling epoch has under which limit."""
    sweep = sweep_of(steps)
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


def test_a_limit_that_is_not_finished_in_an_epoch_begins_again_in_the_next() -> None:
    assert epochs_of(130) == [{300.0: 51, 200.0: 50, 100.0: 29}, {100.0: 50, 200.0: 80}]
    assert epochs_of(70) == [{300.0: 51, 200.0: 19}, {200.0: 50, 100.0: 20}, {100.0: 50, 200.0: 20}]


def test_epochs_shorter_than_a_profile_of_one_limit_have_shorter_ones_once_that_is_known() -> None:
    """The first epoch waits for a step, the second finds out how many steps there are."""
    assert epochs_of(30) == [{300.0: 30}] * 3 + [{200.0: 30}, {100.0: 30}]


def test_an_epoch_may_have_a_single_step() -> None:
    assert epochs_of(1) == [*[{300.0: 1}] * 4, {200.0: 1}, {100.0: 1}]


@pytest.mark.parametrize(("batch_size", "steps"), [(10, 10), (30, 4), (100, 1), (1000, 1)])
def test_the_last_batch_of_an_epoch_may_be_smaller(batch_size: int, steps: int) -> None:
    assert steps_per_epoch(batch_size, 100) == steps


@pytest.mark.parametrize(("eta_knob", "limit_w"), [(0.0, 300.0), (0.5, 200.0), (1.0, 100.0)])
def test_a_training_starts_at_the_limit_that_is_best_for_the_nearest_batch_size_and_waits_for_its_evaluation(
    eta_knob: float, limit_w: float
) -> None:
    sweep = sweep_of(1000, *LIMITS, chooser=LimitChooser(eta_knob=eta_knob, max_power_w=300))
    first, second = sweep.next_epoch(), sweep.next_epoch()
    assert (first.shares, first.is_profiling) == ({limit_w: 1.0}, False)
    assert second.is_profiling
    assert set(second.shares) == {100.0, 200.0, 300.0}
    assert (sweep.is_done, sweep.best_w, sorted(sweep.measured, key=lambda one: one.power_limit_w)) == (
        True,
        limit_w,
        list(LIMITS),
    )


def test_without_a_limit_that_is_known_to_be_good_its_own_are_measured_at_once() -> None:
    for nearest in ((), (measured(150, 140, 80),)):
        first = sweep_of(1000, *nearest).next_epoch()
        assert first.is_profiling
        assert first.shares[300.0] == pytest.approx(0.051)


def test_limits_that_are_of_no_use_are_not_measured() -> None:
    limits = (*LIMITS[1:], measured(150, 145, 80), measured(100, 98, 40), measured(50, 49, 5))
    sweep = LimitSweep(limits, nearest=(), chooser=CHOOSER, steps=1000)
    assert set(sweep.next_epoch().shares) == {300.0, 200.0, 150.0, 100.0}
    assert (sweep.is_done, sweep.best_w) == (True, 200.0)
