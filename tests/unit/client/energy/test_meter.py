"""What a training has consumed, by whatever monitor measures it."""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from bso_client import EnergyMonitor
from bso_client.meter import Meter, total_energy_j
from bso_client.training.state import Consumption
from tests.fakes.gpus import FakeGpus
from tests.unit.client.doubles import Measured, ScriptedMonitor
from tests.unit.client.energy.conftest import Clock, MakeMonitor


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


POWER_W = 700.0
STEP_S = 0.1  # an H200 brings its counter up to date so often


def stepping(monkeypatch: pytest.MonkeyPatch, clock: Clock, *, idle: Sequence[tuple[float, float]] = ()) -> None:
    """Let the counter of a GPU under constant load grow in steps; it draws nothing in the intervals ``idle`` [s]."""

    def millijoules(_handle: object) -> float:
        updated_s = math.floor((clock.now - 1000.0) / STEP_S + 1e-9) * STEP_S
        idle_s = sum(max(0.0, min(updated_s, end) - begin) for begin, end in idle)
        return 1000.0 * POWER_W * (updated_s - idle_s)

    monkeypatch.setattr(sys.modules["pynvml"], "nvmlDeviceGetTotalEnergyConsumption", millijoules)


def consumed(monitor: EnergyMonitor, clock: Clock, epochs: Sequence[tuple[float, float]], *, is_pause: bool) -> float:
    """The energy of a training whose epochs take so long, each with what comes after it [s]; its time is right."""
    meter = Meter(monitor, clock=clock)
    energies = [0.0]
    for epoch_s, after_s in epochs:
        meter.start()
        clock.now += epoch_s
        energy_j = meter.stop(is_pause=is_pause).energy_j
        assert energy_j is not None
        energies.append(energy_j)
        clock.now += after_s
    assert energies == sorted(energies), "a report must not go backwards"
    assert meter.consumed.time_s == pytest.approx(sum(epoch_s for epoch_s, _ in epochs))
    return energies[-1]


@pytest.mark.parametrize("epoch_s", [0.02, 0.0861, 0.3])
def test_what_a_counter_grows_by_between_two_epochs_is_no_energy_lost(
    monkeypatch: pytest.MonkeyPatch, gpus: FakeGpus, make_monitor: MakeMonitor, clock: Clock, epoch_s: float
) -> None:
    """With 86.1 ms and 13.9 ms the counter grows in each gap, or in none, if windows end and begin there."""
    gpus.add()
    stepping(monkeypatch, clock)
    for phase_s in (0.0, 0.05, 0.09):
        clock.now = 1000.0 + phase_s
        energy_j = consumed(make_monitor(), clock, [(epoch_s, 0.0139)] * 100, is_pause=False)
        assert energy_j == pytest.approx(POWER_W * epoch_s * 100, abs=POWER_W * STEP_S)


def test_what_is_consumed_in_a_pause_is_left_out_however_short_it_is(
    monkeypatch: pytest.MonkeyPatch, gpus: FakeGpus, make_monitor: MakeMonitor, clock: Clock
) -> None:
    gpus.add()
    stepping(monkeypatch, clock)
    energy_j = consumed(make_monitor(), clock, [(0.2, 0.1)] * 10, is_pause=True)
    assert energy_j == pytest.approx(POWER_W * 2.0)


def test_a_gpu_that_idles_while_a_judgement_is_waited_for_counts_nothing(
    monkeypatch: pytest.MonkeyPatch, gpus: FakeGpus, make_monitor: MakeMonitor, clock: Clock
) -> None:
    gpus.add()
    stepping(monkeypatch, clock, idle=[(1.0, 5.0)])
    energy_j = consumed(make_monitor(), clock, [(1.0, 4.0), (1.0, 0.0)], is_pause=False)
    assert energy_j == pytest.approx(POWER_W * 2.0)


def test_a_counter_that_fails_leaves_the_energy_unknown(
    gpus: FakeGpus, make_monitor: MakeMonitor, clock: Clock
) -> None:
    gpus.add()
    meter = Meter(make_monitor(), clock=clock)
    for change_j in (100.0, -50.0, 100.0):
        meter.start()
        gpus.consume(0, change_j)
        clock.now += 1.0
        meter.stop()
    assert meter.consumed == Consumption(time_s=3.0, energy_j=None)
