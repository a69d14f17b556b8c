"""What a training has consumed, by whatever monitor measures it."""

import math
from dataclasses import dataclass, field
from typing import Any

import pytest

from bso_client.energy.measurement import total_energy_j
from bso_client.meter import Consumption, Meter
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
    """Its end_window waits for the GPU."""

    now = 0.0

    def end_window(self, key: str, /) -> Measured:
        self.now += 3.0
        return super().end_window(key)


def test_the_time_holds_what_the_gpu_had_still_to_do() -> None:
    monitor = Waiting(energy_j=7.0)
    meter = Meter(monitor, clock=lambda: monitor.now)
    meter.start()
    monitor.now += 10.0

    assert meter.stop() == Consumption(time_s=13.0, energy_j=7.0)


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
