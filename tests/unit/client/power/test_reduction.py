import math

import pytest

from bso.domain.commands import PowerMeasurement
from bso_client.power.agreement import Window, reduced


def window(limit_w: float, *, time_s: float = 10.0, energy_j: float = 1000.0, samples: float = 50.0) -> Window:
    return Window(limit_w=limit_w, time_s=time_s, energy_j=energy_j, samples=samples)


def test_a_single_rank_gives_power_and_throughput_per_limit() -> None:
    assert reduced([[window(300), window(200, time_s=20)]]) == (
        PowerMeasurement(power_limit_w=300, average_power_w=100, samples_per_s=5),
        PowerMeasurement(power_limit_w=200, average_power_w=50, samples_per_s=2.5),
    )


def test_power_is_summed_over_ranks_and_the_slowest_one_sets_the_pace() -> None:
    fast, slow = window(300, time_s=10, energy_j=1000), window(300, time_s=12.5, energy_j=1000)
    assert reduced([[fast], [slow]]) == (
        PowerMeasurement(power_limit_w=300, average_power_w=180, samples_per_s=8),  # 100 W + 80 W; 100 in 12.5 s
    )


def test_a_limit_that_one_rank_could_not_set_or_measure_is_left_out_for_all() -> None:
    good, unset = window(300), Window(limit_w=300, time_s=1, energy_j=1, samples=1, is_valid=False)
    assert reduced([[good, window(200)], [unset, window(200)]])[0].power_limit_w == 200


@pytest.mark.parametrize("broken", [{"energy_j": 0.0}, {"energy_j": math.nan}, {"time_s": 0.0}, {"samples": math.inf}])
def test_a_window_in_which_the_meter_measured_nothing_is_left_out(broken: dict[str, float]) -> None:
    assert reduced([[window(300, **broken)]]) == ()


def test_limits_that_not_all_ranks_have_reached_are_left_out() -> None:
    assert [each.power_limit_w for each in reduced([[window(300), window(200)], [window(300)]])] == [300]
