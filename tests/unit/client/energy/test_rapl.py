"""Processors and memory by their energy counters, from a folder as Linux shows it."""

import math
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from bso_client import EnergyMethod, EnergyMonitor, InvalidSetting, NoMeter
from bso_client.energy.monitor import MeterFailed
from bso_client.energy.rapl import find_processors, find_zones
from tests.fakes.gpus import FakeGpus
from tests.fakes.powercap import FakePowercap
from tests.servers import eventually
from tests.unit.client.energy.conftest import MakeMonitor


def test_packages_and_their_memory_are_found_and_nothing_twice(powercap: FakePowercap) -> None:
    powercap.add_package(0)
    powercap.add_memory(0)
    powercap.add_package(1, name="psys")
    powercap.add_package(2, name="package-1-die-0", max_power_w=None)
    powercap.add_package(10, name="package-2")
    (powercap.root / "intel-rapl").mkdir()
    (powercap.root / "intel-rapl-mmio:0").mkdir()
    (powercap.root / "dtpm").mkdir()

    found = find_zones(powercap.root)

    assert [(zone.name, zone.package, zone.max_power_w) for zone in found] == [
        ("package-0", 0, 205.0),
        ("dram", 0, None),
        ("package-1-die-0", 2, None),
        ("package-2", 10, 205.0),
    ]
    assert found[0].range_j == pytest.approx(262143.32885)


def test_the_links_of_the_real_folder_are_followed(powercap: FakePowercap, tmp_path: Path) -> None:
    powercap.add_package(0)
    powercap.add_memory(0)
    links = tmp_path / "class"
    links.mkdir()
    for folder in (powercap.root / "intel-rapl:0", powercap.root / "intel-rapl:0" / "intel-rapl:0:1"):
        (links / folder.name).symlink_to(folder)
    (links / "intel-rapl:1").symlink_to(tmp_path / "masked by the container")

    assert [zone.name for zone in find_zones(links)] == ["package-0", "dram"]


def test_a_limit_of_zero_and_one_that_is_not_reported_are_unknown(powercap: FakePowercap) -> None:
    powercap.add_package(0, max_power_w=0.0)
    (powercap.root / "intel-rapl:0" / "constraint_1_max_power_uw").mkdir()  # reading it is an error

    assert [zone.max_power_w for zone in find_zones(powercap.root)] == [None]


def test_processors_and_memory_are_measured_together(powercap: FakePowercap, make_monitor: MakeMonitor) -> None:
    for package in (0, 1):
        powercap.add_package(package)
    powercap.add_memory(1)
    monitor = make_monitor()
    monitor.begin_window("w")
    powercap.consume(6.0)
    powercap.consume(4.0, package=1)
    powercap.consume(1.5, package=1, memory=True)

    measured = monitor.end_window("w")

    assert measured.cpu_energy == {0: 6.0, 1: 4.0}
    assert measured.dram_energy == {1: 1.5}
    assert (measured.gpu_energy, measured.total_energy, measured.method) == ({}, 11.5, EnergyMethod.RAPL)


def test_processors_are_listed_beside_gpus_and_do_not_count(
    gpus: FakeGpus, powercap: FakePowercap, make_monitor: MakeMonitor
) -> None:
    gpus.add()
    powercap.add_package()
    monitor = make_monitor()
    monitor.begin_window("w")
    gpus.consume(0, 50.0)
    powercap.consume(6.0)

    measured = monitor.end_window("w")

    assert (measured.gpu_energy, measured.cpu_energy, measured.dram_energy) == ({0: 50.0}, {0: 6.0}, None)
    assert (measured.total_energy, measured.method) == (50.0, EnergyMethod.NVML_COUNTER)


def test_a_processor_that_fails_beside_a_gpu_does_not_make_the_total_unknown(
    gpus: FakeGpus, powercap: FakePowercap, make_monitor: MakeMonitor, caplog: pytest.LogCaptureFixture
) -> None:
    gpus.add()
    powercap.add_package()
    monitor = make_monitor()
    for key in ("first", "second"):
        monitor.begin_window(key)
    powercap.lose()
    gpus.consume(0, 50.0)
    measured = [monitor.end_window(key) for key in ("first", "second")]

    assert [each.total_energy for each in measured] == [50.0, 50.0]
    assert [math.isnan((each.cpu_energy or {})[0]) for each in measured] == [True, True]
    assert [getattr(record, "device", "") for record in caplog.records] == ["CPU 0"]


def test_only_the_chosen_processors_are_measured(powercap: FakePowercap, make_monitor: MakeMonitor) -> None:
    for package in (0, 1):
        powercap.add_package(package)
        powercap.add_memory(package)

    assert [zone.package for zone in make_monitor(None, [1]).zones] == [1, 1]
    with pytest.raises(InvalidSetting, match=r"cpu_indices names \[7\]; there are 0, 1"):
        make_monitor(None, [7])


def test_a_counter_that_wraps_in_a_window_loses_nothing(powercap: FakePowercap, make_monitor: MakeMonitor) -> None:
    powercap.add_package()
    powercap.set(99_999.0, range_j=100_000.0)
    monitor = make_monitor()
    monitor.begin_window("w")
    powercap.set(5.0)

    assert monitor.end_window("w").total_energy == pytest.approx(6.0)


def test_a_counter_that_was_reset_in_a_window_makes_it_unmeasured(
    powercap: FakePowercap, make_monitor: MakeMonitor, caplog: pytest.LogCaptureFixture
) -> None:
    powercap.add_package(energy_j=131_000.0)
    monitor = make_monitor()
    monitor.begin_window("w")
    powercap.set(0.1)

    assert math.isnan(monitor.end_window("w").total_energy)
    assert "CPU 0" in caplog.text


def test_counters_are_read_between_the_ends_of_a_window(gpus: FakeGpus, powercap: FakePowercap) -> None:
    """Three ranges of the counter flow by: only who looks in between can know."""
    powercap.add_package()
    powercap.set(0.0, range_j=40.0)  # may wrap within 40 ms, as far as anybody knows
    path = powercap.root / "intel-rapl:0" / "energy_uj"
    with EnergyMonitor(environ={}, rapl_root=powercap.root, clock=lambda: 0.0) as monitor:
        monitor.begin_window("w")
        for _ in range(15):
            _when_read(path, lambda: powercap.consume(8.0))

        assert monitor.end_window("w").total_energy == pytest.approx(120.0)


def _when_read(path: Path, act: Callable[[], None]) -> None:
    """Act after somebody has read the file: a pipe takes its place until then."""
    value = path.read_bytes()
    path.unlink()
    os.mkfifo(path)
    replacement = path.with_name("next")
    replacement.write_bytes(value)
    with path.open("wb") as pipe:  # waits for a reader
        pipe.write(value)
        replacement.rename(path)
    act()


def test_the_background_reading_ends_with_its_monitor(powercap: FakePowercap, make_monitor: MakeMonitor) -> None:
    powercap.add_package()
    before = set(threading.enumerate())
    monitor = make_monitor()
    [reading] = set(threading.enumerate()) - before

    monitor.close()
    eventually(lambda: not reading.is_alive())


def test_the_background_reading_ends_with_a_monitor_that_nobody_keeps(gpus: FakeGpus, powercap: FakePowercap) -> None:
    powercap.add_package()
    before = set(threading.enumerate())
    EnergyMonitor(environ={}, rapl_root=powercap.root).begin_window("forgotten")

    eventually(lambda: set(threading.enumerate()) <= before)


def test_a_folder_without_counters_says_who_may_hide_them(powercap: FakePowercap) -> None:
    found = find_processors({"BSO_POWERCAP_DIR": str(powercap.root)})

    assert found.zones == ()
    assert f"no energy counters (RAPL) in {powercap.root}" in str(found.unreadable)
    assert "BSO_POWERCAP_DIR" in str(found.unreadable)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_counters_for_root_only_say_so(powercap: FakePowercap) -> None:
    powercap.add_package()
    (powercap.root / "intel-rapl:0" / "energy_uj").chmod(0o000)

    _says_for_root_only(powercap)


def test_counters_that_the_kernel_refuses_say_so(powercap: FakePowercap, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the test before, for those who run tests as root."""
    powercap.add_package()
    real = Path.read_text

    def refuse(path: Path, *arguments: str, **options: str) -> str:
        if path.name == "energy_uj":
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *arguments, **options)

    monkeypatch.setattr(Path, "read_text", refuse)

    _says_for_root_only(powercap)


def _says_for_root_only(powercap: FakePowercap) -> None:
    found = find_processors({}, root=powercap.root)

    assert found.zones == ()
    assert "energy_uj is readable by root only" in str(found.unreadable)
    assert f"sudo chmod a+r {powercap.root}/intel-rapl:*/energy_uj" in str(found.unreadable)


def test_an_unreadable_counter_is_a_meter_that_failed(powercap: FakePowercap) -> None:
    powercap.add_package()
    [zone] = find_zones(powercap.root)
    (zone.folder / "energy_uj").write_text("\n")

    with pytest.raises(MeterFailed, match="energy_uj cannot be read"):
        zone.energy_j()


def test_without_any_meter_all_that_was_looked_for_is_named(make_monitor: MakeMonitor) -> None:
    with pytest.raises(NoMeter, match=r"GPU: none is there; CPU: no energy counters \(RAPL\)"):
        make_monitor()


@pytest.mark.parametrize(("rank", "energy"), [("0", 6.0), ("1", 0.0)])
def test_the_first_rank_of_a_machine_counts_its_processors(
    powercap: FakePowercap, make_monitor: MakeMonitor, rank: str, energy: float
) -> None:
    powercap.add_package()
    monitor = make_monitor(LOCAL_RANK=rank, LOCAL_WORLD_SIZE="2")
    monitor.begin_window("w")
    powercap.consume(6.0)

    measured = monitor.end_window("w")

    assert (measured.total_energy, measured.method) == (energy, EnergyMethod.RAPL)
