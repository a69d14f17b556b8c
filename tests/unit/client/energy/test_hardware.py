"""What a training runs on, and how its energy is labelled."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from bso_client import EnergyMethod, EnergyMonitor, HardwareKind, InvalidSetting
from bso_client.energy.gpus import find_gpus
from bso_client.hardware import cpu_kind, hardware_for
from tests.fakes.gpus import FakeGpus
from tests.fakes.powercap import FakePowercap
from tests.unit.client.doubles import HARDWARE, ScriptedMonitor
from tests.unit.client.energy.conftest import MakeMonitor

MIG_UUID = "MIG-41b3e3c5-6f05-5d5d-a1c4-1e8a5e8f5b0a"


class MonitorOfGpus(ScriptedMonitor):
    """A foreign monitor that says which GPUs it measures, as a ZeusMonitor does."""

    def __init__(self, *indices: int) -> None:
        super().__init__()
        self.gpu_indices = list(indices)


def assumed(environ: Mapping[str, str], *, constant_power_w: float | None = 25.0) -> HardwareKind:
    return hardware_for(None, monitor=None, constant_power_w=constant_power_w, environ=environ)


def test_the_cpu_is_named_after_its_model(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("processor\t: 0\nmodel name\t: Some  CPU @ 2 GHz\nprocessor\t: 1\n")

    assert cpu_kind(30.0, cpu_info=info).gpu_model == "Some CPU @ 2 GHz"
    assert cpu_kind(30.0, cpu_info=tmp_path / "missing").gpu_model
    assert cpu_kind(30.0).max_power_w == 30.0


def test_energy_is_labelled_as_what_it_is(make_monitor: MakeMonitor, gpus: FakeGpus) -> None:
    gpus.add()
    counter = replace(HARDWARE, energy_method=EnergyMethod.NVML_COUNTER)
    unknown = replace(HARDWARE, energy_method=EnergyMethod.ASSUMED)

    def method(given: HardwareKind, monitor: EnergyMonitor | ScriptedMonitor | None) -> EnergyMethod:
        return hardware_for(given, monitor=monitor, constant_power_w=1.0, environ={}).energy_method

    assert method(counter, None) is EnergyMethod.ASSUMED
    assert method(counter, ScriptedMonitor()) is EnergyMethod.NVML_COUNTER
    assert method(unknown, ScriptedMonitor()) is EnergyMethod.MONITOR
    assert method(HARDWARE, make_monitor()) is EnergyMethod.NVML_COUNTER


def test_hardware_out_of_range_is_refused() -> None:
    with pytest.raises(InvalidSetting, match=r"hardware\.max_power_w must be a positive number"):
        hardware_for(replace(HARDWARE, max_power_w=-1.0), monitor=ScriptedMonitor(), constant_power_w=1.0, environ={})


def test_the_hardware_is_all_gpus_that_are_measured(gpus: FakeGpus, make_monitor: MakeMonitor) -> None:
    gpus.add(name="NVIDIA L4", max_limit_w=72.0, memory_mib=23034)
    for _ in range(3):
        gpus.add(name="NVIDIA H200", max_limit_w=700.0, memory_mib=143771)

    found = hardware_for(None, monitor=make_monitor(visible="1,2"), constant_power_w=None, environ={})

    assert found == HardwareKind(
        gpu_model="NVIDIA H200",
        memory_mib=143771,
        number_of_gpus=2,
        max_power_w=1400.0,
        energy_method=EnergyMethod.NVML_COUNTER,
    )


def test_different_gpus_are_a_kind_of_their_own(gpus: FakeGpus) -> None:
    gpus.add(name="NVIDIA L4", max_limit_w=72.0, memory_mib=23034)
    gpus.add(name="NVIDIA H200", max_limit_w=700.0, memory_mib=143771)

    found = assumed({})

    assert (found.gpu_model, found.number_of_gpus) == ("NVIDIA H200 + NVIDIA L4", 2)
    assert (found.max_power_w, found.memory_mib) == (772.0, 23034)


def test_a_rank_runs_on_the_gpu_of_its_own(gpus: FakeGpus) -> None:
    for model in ("A", "B", "C"):
        gpus.add(name=model)
    rank_1 = {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}

    assert assumed(rank_1).gpu_model == "B"
    assert assumed(rank_1 | {"CUDA_VISIBLE_DEVICES": "2"}).gpu_model == "C"


def test_a_foreign_monitor_names_the_gpus_it_measures(gpus: FakeGpus) -> None:
    for model in ("A", "B", "C"):
        gpus.add(name=model)

    found = hardware_for(None, monitor=MonitorOfGpus(1, 2), constant_power_w=None, environ={})

    assert (found.gpu_model, found.number_of_gpus, found.energy_method) == ("B + C", 2, EnergyMethod.MONITOR)


@pytest.mark.parametrize("visible", [None, "", "-1"])
def test_without_a_visible_gpu_it_is_the_cpu(gpus: FakeGpus, visible: str | None) -> None:
    if visible is not None:
        gpus.add()

    found = assumed({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})

    assert (found.gpu_model, found.max_power_w, found.memory_mib) == (cpu_kind(1.0).gpu_model, 25.0, None)


def test_a_slice_of_a_gpu_is_no_cpu_and_no_whole_gpu(gpus: FakeGpus) -> None:
    gpus.add(name="NVIDIA A100", mig_mode=1, slices=[{"uuid": MIG_UUID, "name": "MIG 1g.5gb", "memory_mib": 4864}])

    by_uuid = assumed({"CUDA_VISIBLE_DEVICES": MIG_UUID})
    by_mode = assumed({})
    unknown = assumed({"CUDA_VISIBLE_DEVICES": "MIG-unknown"})

    assert (by_uuid.gpu_model, by_uuid.memory_mib) == ("NVIDIA A100 MIG 1g.5gb", 4864)
    assert by_mode.gpu_model == "NVIDIA A100 MIG"
    assert unknown.gpu_model == "slice of a GPU (MIG)"
    assert {each.energy_method for each in (by_uuid, by_mode, unknown)} == {EnergyMethod.ASSUMED}


def test_a_gpu_that_nobody_can_ask_is_no_cpu(gpus: FakeGpus, tmp_path: Path) -> None:
    gpus.fail("nvmlInit", 9)
    device = tmp_path / "nvidiactl"

    there_is_none = find_gpus({}, nvidia_device=device).unreadable
    device.touch()
    there_is_one = find_gpus({}, nvidia_device=device).unreadable
    it_is_hidden = find_gpus({"CUDA_VISIBLE_DEVICES": ""}, nvidia_device=device).unreadable

    in_use = [found is not None and found.is_in_use for found in (there_is_none, there_is_one, it_is_hidden)]
    assert in_use == [False, True, False]


def test_a_gpu_without_a_readable_power_limit_has_the_constant_power(
    gpus: FakeGpus, caplog: pytest.LogCaptureFixture
) -> None:
    gpus.add(min_limit_w=None, max_limit_w=None)

    assert assumed({}, constant_power_w=80.0).max_power_w == 80.0
    assert "nvmlDeviceGetPowerManagementLimitConstraints: Not Supported" in caplog.text


def test_the_largest_power_of_processors_is_their_own(powercap: FakePowercap, make_monitor: MakeMonitor) -> None:
    powercap.add_package(0, max_power_w=205.0)
    powercap.add_package(1, max_power_w=205.0)
    powercap.add_memory(0)

    found = hardware_for(None, monitor=make_monitor(), constant_power_w=30.0, environ={})

    assert (found.max_power_w, found.energy_method) == (410.0, EnergyMethod.RAPL)


def test_a_processor_that_does_not_report_its_largest_power_has_the_constant_power(
    powercap: FakePowercap, make_monitor: MakeMonitor, caplog: pytest.LogCaptureFixture
) -> None:
    powercap.add_package(0, max_power_w=205.0)
    powercap.add_package(1, max_power_w=None)

    noted = hardware_for(None, monitor=make_monitor(), constant_power_w=280.0, environ={})
    assert (noted.max_power_w, caplog.records) == (280.0, [])

    hardware_for(None, monitor=make_monitor(), constant_power_w=None, environ={})
    assert [getattr(record, "action", "") for record in caplog.records] == ["max_power_unknown"]
