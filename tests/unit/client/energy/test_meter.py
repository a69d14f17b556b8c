"""What a training has consumed, by whatever monitor measures it."""

import math
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from bso_client.meter import Meter, total_energy_j
from bso_client.training.state import Consumption
from tests.unit.client.doubles import Measured, ScriptedMonitor


@dataclass
class ZeusMeasurement:
    """The fields of a ZeusMonitor's measurement."""

    time: float = 1.0
    gpu_energy: dict[int, float] = field(default_factory=dict)
    cpu_energy: dict[int, float] | None = None
    dram_energy: dict[int, float] | None = None

    @property
    def total_energy(self) -> float:
        return sum(self.gpu_energy.values())


class Waiting(ScriptedMonitor):
    """Each of its calls takes 4 s; it measures this time [s]."""

    def __init__(self, time_s: Any) -> None:
        super().__init__(energy_j=7.0)
        self.now = 0.0
        self.time_s = time_s

    def begin_window(self, key: str, /) -> None:
        self.now += 4.0
        super().begin_window(key)

    def end_window(self, key: str, /) -> Measured:
        self.now += 4.0
        return Measured(time=self.time_s, total_energy=super().end_window(key).total_energy)


def consumption_over_10_s(monitor: Any) -> Consumption:
    meter = Meter(monitor, clock=lambda: monitor.now)
    meter.start()
    monitor.now += 10.0
    return meter.stop()


@pytest.mark.parametrize("time_s", [10.0, 12.5, 18.0])
def test_the_time_is_that_of_the_instants_between_which_the_monitor_measured_the_energy(time_s: float) -> None:
    assert consumption_over_10_s(Waiting(time_s)) == Consumption(time_s=time_s, energy_j=7.0)


@pytest.mark.parametrize("time_s", [math.nan, math.inf, -3590.0, 0.0, 9.9, 18.1, 3610.0, None])
def test_a_time_that_cannot_be_right_is_replaced_by_that_between_the_calls(time_s: float | None) -> None:
    """As that of a monitor whose clock was set meanwhile. What the GPU had still to do at the end belongs to it."""
    assert consumption_over_10_s(Waiting(time_s)) == Consumption(time_s=14.0, energy_j=7.0)


def test_a_monitor_that_measures_no_time_is_one_all_the_same() -> None:
    class Timeless(Waiting):
        def end_window(self, key: str, /) -> Any:
            return SimpleNamespace(total_energy=super().end_window(key).total_energy)

    assert consumption_over_10_s(Timeless(1.0)) == Consumption(time_s=14.0, energy_j=7.0)


def test_where_the_energy_is_not_known_the_time_is() -> None:
    monitor = Waiting(12.5)
    monitor.energy_j = math.nan

    assert consumption_over_10_s(monitor) == Consumption(time_s=12.5, energy_j=None)


@pytest.mark.parametrize(
    ("measured", "energy_j"),
    [
        (Measured(time=1.0, total_energy=5.0), 5.0),
        (ZeusMeasurement(gpu_energy={0: 2.0, 1: 3.0}, cpu_energy={0: 100.0}), 5.0),
        (ZeusMeasurement(gpu_energy={0: 0.0}), 0.0),
        (ZeusMeasurement(cpu_energy={0: 4.0, 1: 2.0}), 6.0),
        (ZeusMeasurement(cpu_energy={0: 4.0}, dram_energy={0: 1.0}), 5.0),
    ],
    ids=["plain", "GPUs", "idle GPU", "processors", "and memory"],
)
def test_the_energy_of_other_monitors_is_that_of_their_gpus_else_of_their_processors(
    measured: Any, energy_j: float
) -> None:
    assert total_energy_j(measured) == energy_j


def test_a_monitor_without_any_device_has_measured_nothing() -> None:
    assert math.isnan(total_energy_j(ZeusMeasurement()))


@pytest.mark.parametrize("energy_j", [math.nan, math.inf, -1.0])
def test_what_cannot_be_an_energy_is_unmeasured_with_one_warning(
    caplog: pytest.LogCaptureFixture, energy_j: float
) -> None:
    meter = Meter(ScriptedMonitor(energy_j), clock=lambda: 0.0)
    for _ in range(3):
        meter.start()
        meter.stop()

    assert meter.consumed.energy_j is None
    assert [getattr(record, "action", "") for record in caplog.records] == ["unmeasured"]
    for words in ("its cost is not learnt (unless eta_knob is 0)", "without monitor="):
        assert words in caplog.text
