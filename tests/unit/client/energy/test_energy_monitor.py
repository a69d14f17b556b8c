"""Windows over the meters of a process: which devices, what they measure, and what happens when one fails."""

import gc
import math
import os
import sys
import threading
from collections.abc import Sequence
from types import ModuleType, SimpleNamespace

import pytest

from bso_client import EnergyMethod, EnergyMonitor, InvalidSetting, NoMeter, NotInThisProcess, WrongOrder
from bso_client.distributed.devices import devices_of, is_counted_elsewhere
from bso_client.meter import total_energy_j
from tests.fakes.gpus import FakeGpus
from tests.fakes.powercap import FakePowercap
from tests.unit.client.energy.conftest import Clock, MakeMonitor


@pytest.fixture
def two(gpus: FakeGpus) -> FakeGpus:
    gpus.add()
    gpus.add()
    return gpus


def test_a_window_holds_what_was_consumed_in_it(two: FakeGpus, make_monitor: MakeMonitor, clock: Clock) -> None:
    monitor = make_monitor()
    two.consume(0, 100.0)
    monitor.begin_window("epoch")
    two.consume(0, 30.0)
    two.consume(1, 12.5)
    clock.now += 0.25
    measured = monitor.end_window("epoch")

    assert measured.gpu_energy == {0: 30.0, 1: 12.5}
    assert (measured.total_energy, measured.method) == (42.5, EnergyMethod.NVML_COUNTER)
    assert (measured.cpu_energy, measured.dram_energy) == (None, None)
    assert measured.time == 0.25


def draw(
    monkeypatch: pytest.MonkeyPatch, clock: Clock, powers_w: Sequence[float], *lost_s: tuple[float, float]
) -> None:
    """Let the counters grow with the clock; so much time [s] passes before and after one of them is read."""
    remaining_s = iter(lost_s)

    def millijoules(handle: SimpleNamespace) -> float:
        before_s, after_s = next(remaining_s)
        clock.now += before_s
        energy_mj = 1000 * powers_w[int(handle.index)] * clock.now
        clock.now += after_s
        return energy_mj

    monkeypatch.setattr(sys.modules["pynvml"], "nvmlDeviceGetTotalEnergyConsumption", millijoules)


@pytest.mark.parametrize(
    ("lost_s", "time_s"),
    [
        ([(0.0, 0.0)] * 4, 0.25),
        ([(0.0, 0.0), (0.0, 0.0), (0.0004, 0.0004), (0.0002, 0.0002)], 0.2504),
        ([(3.0, 0.0), (0.0, 0.0), (0.0, 0.0), (0.0, 0.0), (0.0, 0.0)], 0.25),
        ([(0.0, 0.0), (0.0, 0.0), (0.0, 0.0), (0.0, 5.0), (0.0, 0.0)], 0.25),
        ([(0.0, 2.0), (0.0, 0.0), (0.0, 2.0), (0.0, 0.0), (7.0, 0.0), (0.0, 0.0), (0.0, 1.0), (0.0, 0.0)], 7.25),
    ],
    ids=["undisturbed", "slow", "preempted at first", "preempted at last", "preempted always"],
)
def test_time_and_energy_belong_together_wherever_the_process_was_preempted(
    two: FakeGpus,
    make_monitor: MakeMonitor,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    *,
    lost_s: list[tuple[float, float]],
    time_s: float,
) -> None:
    monitor = make_monitor()
    draw(monkeypatch, clock, [100.0, 300.0], *lost_s)
    monitor.begin_window("w")
    clock.now += 0.25
    measured = monitor.end_window("w")

    assert measured.time == pytest.approx(time_s)
    assert measured.gpu_energy == pytest.approx({0: 100.0 * measured.time, 1: 300.0 * measured.time})


def test_windows_nest_and_overlap(two: FakeGpus, make_monitor: MakeMonitor) -> None:
    monitor = make_monitor([0])

    def consume() -> None:
        two.consume(0, 1.0)

    monitor.begin_window("outer")
    consume()
    monitor.begin_window("inner")
    consume()
    monitor.begin_window("overlapping")
    consume()
    inner = monitor.end_window("inner")
    consume()
    outer = monitor.end_window("outer")
    consume()
    overlapping = monitor.end_window("overlapping")

    assert [each.total_energy for each in (inner, outer, overlapping)] == [2.0, 4.0, 3.0]


def test_a_key_may_be_used_again(two: FakeGpus, make_monitor: MakeMonitor) -> None:
    monitor = make_monitor()
    for energy_j in (1.0, 2.0):
        monitor.begin_window("again")
        two.consume(1, energy_j)
        assert monitor.end_window("again").total_energy == energy_j


def test_a_cancelled_window_measures_nothing_and_is_gone(two: FakeGpus, make_monitor: MakeMonitor) -> None:
    monitor = make_monitor()
    monitor.begin_window("w")
    two.consume(0, 5.0)
    measured = monitor.end_window("w", cancel=True)

    assert (measured.time, measured.gpu_energy, measured.total_energy) == (0.0, {0: 0.0, 1: 0.0}, 0.0)
    with pytest.raises(WrongOrder):
        monitor.end_window("w")


def test_windows_begin_and_end_once(two: FakeGpus, make_monitor: MakeMonitor) -> None:
    monitor = make_monitor()
    monitor.begin_window("w")
    with pytest.raises(WrongOrder, match="'w' is open already"):
        monitor.begin_window("w")
    with pytest.raises(WrongOrder, match=r"begin_window\('v'\) comes first"):
        monitor.end_window("v")


def test_all_windows_may_be_forgotten_at_once(two: FakeGpus, make_monitor: MakeMonitor) -> None:
    monitor = make_monitor()
    monitor.begin_window("epoch")
    monitor.begin_window("step")
    monitor.reset_windows()

    with pytest.raises(WrongOrder, match="no window 'step' is open"):
        monitor.end_window("step")
    monitor.begin_window("epoch")
    assert monitor.end_window("epoch").total_energy == 0


def test_a_window_may_be_begun_again(two: FakeGpus, make_monitor: MakeMonitor) -> None:
    """As in a notebook whose cell failed before the window's end."""
    monitor = make_monitor([0])
    monitor.begin_window("cell")
    two.consume(0, 5.0)
    monitor.begin_window("cell", restart=True)
    two.consume(0, 2.0)

    assert monitor.end_window("cell").total_energy == 2.0


@pytest.mark.parametrize(
    ("visible", "indices", "energies"),
    [
        ("1", None, {0: 10.0}),
        ("2,0", None, {0: 100.0, 1: 1.0}),
        ("GPU-00000002", None, {0: 100.0}),
        ("2,0", [1], {1: 1.0}),
        (None, [2, 0], {2: 100.0, 0: 1.0}),
    ],
)
def test_indices_count_as_the_training_counts(
    gpus: FakeGpus,
    make_monitor: MakeMonitor,
    visible: str | None,
    indices: list[int] | None,
    energies: dict[int, float],
) -> None:
    for _ in range(3):
        gpus.add()
    monitor = make_monitor(indices, visible=visible)
    monitor.begin_window("w")
    for index, energy_j in enumerate((1.0, 10.0, 100.0)):
        gpus.consume(index, energy_j)

    assert monitor.gpu_indices == list(energies)
    assert monitor.end_window("w").gpu_energy == energies


@pytest.mark.parametrize(
    ("environ", "indices", "is_certain"),
    [
        ({}, None, True),
        ({}, [1], False),
        ({"CUDA_VISIBLE_DEVICES": "1"}, None, False),
        ({"CUDA_VISIBLE_DEVICES": "GPU-00000001"}, None, True),
        ({"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, None, True),
    ],
)
def test_where_gpus_differ_it_is_said_that_cuda_may_count_them_otherwise(
    gpus: FakeGpus,
    make_monitor: MakeMonitor,
    caplog: pytest.LogCaptureFixture,
    *,
    environ: dict[str, str],
    indices: list[int] | None,
    is_certain: bool,
) -> None:
    gpus.add(name="NVIDIA L4")
    gpus.add(name="NVIDIA H200")
    make_monitor(indices, **environ)

    actions = [getattr(record, "action", "") for record in caplog.records]
    assert actions == ([] if is_certain else ["device_order_unknown"])


def test_equal_gpus_may_be_counted_in_any_order(
    two: FakeGpus, make_monitor: MakeMonitor, caplog: pytest.LogCaptureFixture
) -> None:
    make_monitor(visible="1")

    assert caplog.records == []


@pytest.mark.parametrize(
    ("environ", "indices"),
    [
        ({"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}, [1]),
        ({"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}, [0, 1]),
        ({"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "CUDA_VISIBLE_DEVICES": "1"}, [0]),
        ({"LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "4"}, []),
        ({"LOCAL_RANK": "one", "LOCAL_WORLD_SIZE": "4"}, [0, 1]),
    ],
    ids=["its own", "alone", "sees its own", "shares", "unreadable"],
)
def test_a_rank_measures_its_own_gpu(
    two: FakeGpus, make_monitor: MakeMonitor, environ: dict[str, str], indices: list[int]
) -> None:
    assert make_monitor(**environ).gpu_indices == indices


def test_ranks_that_share_gpus_count_each_once(two: FakeGpus, make_monitor: MakeMonitor) -> None:
    monitors = [make_monitor(LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE="3") for rank in range(3)]
    for monitor in monitors:
        monitor.begin_window("w")
    two.consume(0, 3.0)
    two.consume(1, 4.0)
    measured = [monitor.end_window("w") for monitor in monitors]

    assert [each.total_energy for each in measured] == [3.0, 4.0, 0.0]
    assert [total_energy_j(each) for each in measured] == [3.0, 4.0, 0.0]
    assert {each.method for each in measured} == {EnergyMethod.NVML_COUNTER}
    assert [monitor.is_counted_elsewhere for monitor in monitors] == [False, False, True]


@pytest.mark.parametrize("has_processors", [True, False])
def test_a_rank_whose_gpus_others_count_names_no_device(
    two: FakeGpus, powercap: FakePowercap, make_monitor: MakeMonitor, has_processors: bool
) -> None:
    if has_processors:
        powercap.add_package()
    monitor = make_monitor(LOCAL_RANK="2", LOCAL_WORLD_SIZE="3")
    monitor.begin_window("w")
    if has_processors:
        powercap.consume(6.0)

    assert total_energy_j(monitor.end_window("w")) == 0.0
    assert devices_of(monitor, {}, machine="m") == ()
    assert is_counted_elsewhere(monitor)


def test_an_index_that_is_not_there_is_refused(two: FakeGpus, make_monitor: MakeMonitor) -> None:
    with pytest.raises(InvalidSetting, match=r"gpu_indices names \[2\]; there are 0, 1"):
        make_monitor([0, 2])
    with pytest.raises(InvalidSetting, match=r"there are none .*CUDA_VISIBLE_DEVICES= leaves none visible"):
        make_monitor([0], visible="")


def test_without_gpu_indices_processors_count(two: FakeGpus, powercap: FakePowercap, make_monitor: MakeMonitor) -> None:
    powercap.add_package()
    monitor = make_monitor([])

    assert (monitor.gpus, monitor.method) == ((), EnergyMethod.RAPL)


@pytest.mark.parametrize("visible", ["MIG-41b3e3c5", None])
def test_a_slice_is_refused_although_processors_are_readable(
    gpus: FakeGpus, powercap: FakePowercap, make_monitor: MakeMonitor, visible: str | None
) -> None:
    gpus.add(mig_mode=1)
    powercap.add_package()

    with pytest.raises(NoMeter, match=r"cannot be distinguished.*train on a whole GPU"):
        make_monitor(visible=visible)
    assert make_monitor([]).method is EnergyMethod.RAPL


def test_gpus_of_others_are_not_measured_by_the_processors_meter(
    gpus: FakeGpus, powercap: FakePowercap, make_monitor: MakeMonitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus.fail("nvmlInit", 9)
    powercap.add_package()
    torch = ModuleType("torch")
    torch.version = SimpleNamespace(hip="6.2.41133")  # type: ignore[attr-defined]  # PyTorch for AMD's GPUs
    monkeypatch.setitem(sys.modules, "torch", torch)

    with pytest.raises(NoMeter, match=r"this PyTorch is for AMD's GPUs \(pass a monitor of your own"):
        make_monitor()


@pytest.mark.parametrize("power_w", [40.0, None], ids=["from before Volta", "virtual"])
def test_a_gpu_without_an_energy_counter_is_refused(
    gpus: FakeGpus, powercap: FakePowercap, make_monitor: MakeMonitor, power_w: float | None
) -> None:
    gpus.add(name="Tesla P4", energy_j=None, power_w=power_w)
    powercap.add_package()

    with pytest.raises(NoMeter, match=r"GPU 0 \(Tesla P4\).*Not Supported.*pass a monitor of your own"):
        make_monitor()


@pytest.mark.parametrize("code", [15, 16, 999, 1])
def test_a_gpu_that_fails_makes_its_windows_unmeasured_and_is_complained_of_once(
    two: FakeGpus, make_monitor: MakeMonitor, caplog: pytest.LogCaptureFixture, code: int
) -> None:
    monitor = make_monitor()
    monitor.begin_window("begun before")
    two.fail("nvmlDeviceGetTotalEnergyConsumption", code, index=1)
    monitor.begin_window("begun after")
    two.consume(0, 3.0)
    before, after = monitor.end_window("begun before"), monitor.end_window("begun after")

    for measured in (before, after):
        assert measured.gpu_energy[0] == 3.0
        assert math.isnan(measured.gpu_energy[1])
        assert math.isnan(measured.total_energy)
    [warning] = caplog.records
    assert getattr(warning, "action", "") == "meter_failed"
    assert f"NVML error {code}" in warning.getMessage()


def test_a_gpu_that_answers_again_is_measured_again(two: FakeGpus, make_monitor: MakeMonitor) -> None:
    monitor = make_monitor([0])
    two.fail("nvmlDeviceGetTotalEnergyConsumption", [10], index=0)  # one timeout
    monitor.begin_window("unlucky")
    monitor.begin_window("lucky")
    two.consume(0, 2.0)

    assert math.isnan(monitor.end_window("unlucky").total_energy)
    assert monitor.end_window("lucky").total_energy == 2.0


def test_a_counter_that_goes_backwards_makes_its_windows_unmeasured(
    two: FakeGpus, make_monitor: MakeMonitor, caplog: pytest.LogCaptureFixture
) -> None:
    monitor = make_monitor([0])
    monitor.begin_window("driver loaded anew")
    two.consume(0, -900.0)
    monitor.begin_window("afterwards")
    two.consume(0, 5000.0)  # beyond where it was: the window's two ends alone would not show it

    assert math.isnan(monitor.end_window("driver loaded anew").total_energy)
    assert monitor.end_window("afterwards").total_energy == 5000.0
    assert [getattr(record, "device", "") for record in caplog.records] == ["GPU 0"]


def test_several_monitors_are_independent(two: FakeGpus, powercap: FakePowercap, make_monitor: MakeMonitor) -> None:
    powercap.add_package()
    all_gpus, one_gpu, processors = make_monitor(), make_monitor([1]), make_monitor([])
    for monitor in (all_gpus, one_gpu, processors):
        monitor.begin_window("same key")
    two.consume(0, 1.0)
    two.consume(1, 2.0)
    powercap.consume(4.0)

    assert all_gpus.end_window("same key").total_energy == 3.0
    all_gpus.close()
    assert one_gpu.end_window("same key").total_energy == 2.0
    assert processors.end_window("same key").total_energy == 4.0


def test_a_closed_monitor_measures_nothing_and_raises_nothing(two: FakeGpus, make_monitor: MakeMonitor) -> None:
    monitor = make_monitor()
    monitor.begin_window("w")
    monitor.close()
    monitor.close()

    assert math.isnan(monitor.end_window("w").total_energy)


def test_threads_may_share_a_monitor(two: FakeGpus, make_monitor: MakeMonitor) -> None:
    monitor = make_monitor([0])
    energies: list[float] = []

    def measure(name: str) -> None:
        for number in range(20):
            monitor.begin_window(f"{name} {number}")
            two.consume(0, 1.0)
            energies.append(monitor.end_window(f"{name} {number}").total_energy)

    threads = [threading.Thread(target=measure, args=(str(number),)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(energies) == 80
    assert all(energy_j >= 1.0 for energy_j in energies)


def test_a_forked_copy_measures_nothing_and_takes_nothing_away(
    two: FakeGpus, powercap: FakePowercap, make_monitor: MakeMonitor
) -> None:
    """As a worker of a DataLoader is: it has a copy of everything, and ends before the training does."""
    powercap.add_package()
    monitor = make_monitor()
    monitor.begin_window("w")
    child = os.fork()
    if child == 0:
        try:
            monitor.end_window("w")
        except NotInThisProcess:
            monitor.close()
            del monitor
            gc.collect()
            os._exit(7)
        finally:
            os._exit(1)
    two.consume(0, 5.0)
    two.consume(1, 2.0)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert monitor.end_window("w").gpu_energy == {0: 5.0, 1: 2.0}


def test_a_monitor_is_a_context_manager(two: FakeGpus) -> None:
    with EnergyMonitor(environ={}) as monitor:
        monitor.begin_window("w")
    assert math.isnan(monitor.end_window("w").total_energy)


def test_a_window_rests_while_it_is_paused(two: FakeGpus, make_monitor: MakeMonitor, clock: Clock) -> None:
    monitor = make_monitor()
    monitor.begin_window("epoch")
    two.consume(0, 30.0)
    clock.now += 1.0
    assert monitor.pause_window("epoch").total_energy == 30.0
    two.consume(0, 1000.0)
    clock.now += 5.0
    assert monitor.pause_window("epoch").total_energy == 30.0, "it is paused already"
    monitor.resume_window("epoch")
    two.consume(1, 12.0)
    clock.now += 1.0
    measured = monitor.end_window("epoch")
    assert (measured.total_energy, measured.time) == (42.0, 2.0)


def test_pauses_of_windows_come_in_their_order(two: FakeGpus, make_monitor: MakeMonitor) -> None:
    monitor = make_monitor()
    for call in (monitor.pause_window, monitor.resume_window):
        with pytest.raises(WrongOrder, match="no window 'epoch' is open"):
            call("epoch")
    monitor.begin_window("epoch")
    with pytest.raises(WrongOrder, match="is not paused"):
        monitor.resume_window("epoch")
