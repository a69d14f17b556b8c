"""What GPUs promise: the same for those that are faked and for those that are really there."""

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bso_client import EnergyMethod, EnergyMonitor
from bso_client.energy.nvml import Gpu, NotSupported, Nvml
from tests.fakes import gpus as fake_gpus
from tests.servers import eventually


@pytest.fixture(params=["fake", "real"])
def nvml(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Nvml]:
    """A machine with GPUs. The real ones are left as they are: no test here changes a setting."""
    if request.param == "fake":
        machine = fake_gpus.install(monkeypatch, tmp_path)
        for power_w in (120.0, 80.0):
            machine.run(machine.add(), power_w=power_w)
    elif not _has_real_gpu():
        pytest.skip("no NVIDIA GPU")
    with Nvml() as opened:
        _skip_without_counter(opened)
        yield opened


def _skip_without_counter(nvml: Nvml) -> None:
    try:
        for gpu in nvml.gpus():
            gpu.energy_j()
    except NotSupported as error:
        pytest.skip(f"a GPU from before Volta: {error}")


def _has_real_gpu() -> bool:
    try:
        pynvml: Any = importlib.import_module("pynvml")
    except ImportError:
        return False
    try:
        pynvml.nvmlInit()
        return bool(pynvml.nvmlDeviceGetCount())
    except pynvml.NVMLError:
        return False


@pytest.fixture
def gpu(nvml: Nvml) -> Gpu:
    return nvml.gpus()[0]


@pytest.fixture
def make_monitor(nvml: Nvml, tmp_path: Path) -> Iterator[Callable[..., EnergyMonitor]]:
    made: list[EnergyMonitor] = []

    def make(indices: list[int] | None = None, **environ: str) -> EnergyMonitor:
        made.append(EnergyMonitor(indices, environ=environ, rapl_root=tmp_path / "none"))
        return made[-1]

    yield make
    for monitor in made:
        monitor.close()


def test_a_gpu_says_what_it_is(gpu: Gpu) -> None:
    least_w, most_w = gpu.power_limits_w

    assert gpu.uuid.startswith("GPU-")
    assert gpu.name
    assert gpu.memory_mib > 1000
    assert 0 < least_w <= gpu.default_power_limit_w <= most_w
    assert least_w <= gpu.power_limit_w <= most_w


def test_the_counter_grows(gpu: Gpu) -> None:
    before_j = gpu.energy_j()

    eventually(lambda: gpu.energy_j() > before_j)


def test_gpus_are_found_by_index_and_by_the_beginning_of_their_uuid(nvml: Nvml) -> None:
    every = nvml.gpus()

    assert [gpu.uuid for gpu in nvml.visible_gpus(None)] == [gpu.uuid for gpu in every]
    assert [gpu.uuid for gpu in nvml.visible_gpus("0")] == [every[0].uuid]
    assert [gpu.uuid for gpu in nvml.visible_gpus(every[-1].uuid)] == [every[-1].uuid]
    assert [gpu.uuid for gpu in nvml.visible_gpus(every[-1].uuid[:-4])] == [every[-1].uuid]
    assert nvml.visible_gpus("") == ()


def test_a_window_measures_what_the_gpus_consume(make_monitor: Callable[..., EnergyMonitor], nvml: Nvml) -> None:
    monitor = make_monitor()
    before_j = [gpu.energy_j() for gpu in nvml.gpus()]
    monitor.begin_window("window")
    eventually(lambda: all(gpu.energy_j() > j for gpu, j in zip(nvml.gpus(), before_j, strict=True)))
    measured = monitor.end_window("window")
    after_j = [gpu.energy_j() for gpu in nvml.gpus()]

    assert measured.method is EnergyMethod.NVML_COUNTER
    assert list(measured.gpu_energy) == monitor.gpu_indices == list(range(len(before_j)))
    for index, energy_j in measured.gpu_energy.items():
        assert 0 < energy_j <= after_j[index] - before_j[index] + 0.002
    assert measured.total_energy == sum(measured.gpu_energy.values())
    assert measured.time > 0


def test_an_inner_window_is_part_of_the_outer_one(make_monitor: Callable[..., EnergyMonitor], gpu: Gpu) -> None:
    monitor = make_monitor([0])
    before_j = gpu.energy_j()
    monitor.begin_window("outer")
    monitor.begin_window("inner")
    eventually(lambda: gpu.energy_j() > before_j)
    inner, outer = monitor.end_window("inner"), monitor.end_window("outer")

    assert 0 <= inner.total_energy <= outer.total_energy
    assert 0 < inner.time < outer.time
