"""The energy of windows, measured by a real counter while the GPU does real work."""

import itertools
import time
from typing import Any

import pytest

from bso_client import EnergyMethod, EnergyMonitor
from bso_client.energy.nvml import Gpu
from tests.gpu.load import Products
from tests.servers import eventually


@pytest.fixture
def products(torch: Any) -> Products:
    load = Products(torch)
    load.run(50)  # NVML's power is the mean of about a second: from now on it is that of the load
    return load


def power_w(gpu: Gpu) -> float:
    import pynvml  # pyright: ignore[reportMissingImports]  # it need not be installed

    handle = pynvml.nvmlDeviceGetHandleByIndex(gpu.index)
    return float(pynvml.nvmlDeviceGetPowerUsage(handle)) / 1000


def test_a_window_has_the_energy_that_sampled_power_adds_up_to(products: Products, gpu: Gpu) -> None:
    samples: list[tuple[float, float]] = []

    def sample() -> None:
        samples.append((time.monotonic(), power_w(gpu)))  # noqa: TID251  # power over time is what is compared

    with EnergyMonitor() as monitor:
        monitor.begin_window("load")
        products.run(100, after_each=sample)
        measured = monitor.end_window("load")

    between = itertools.pairwise(samples)
    sampled_j = sum((after_s - at_s) * (before_w + after_w) / 2 for (at_s, before_w), (after_s, after_w) in between)
    sampled_w = sampled_j / (samples[-1][0] - samples[0][0])
    # on an H200: 695.5 W beside 690.7 W, 696.5 W beside 690.7 W; one update of the counter is 2.4 % of the window
    assert measured.total_energy / measured.time == pytest.approx(sampled_w, rel=0.05)
    assert measured.method is EnergyMethod.NVML_COUNTER
    assert list(measured.gpu_energy) == [0]


def test_windows_in_a_row_add_up_to_the_window_around_them(products: Products) -> None:
    with EnergyMonitor() as monitor:
        monitor.begin_window("around")
        parts = []
        for _ in range(5):
            monitor.begin_window("part")
            products.run(20)
            parts.append(monitor.end_window("part"))
        around = monitor.end_window("around")

    assert sum(part.time for part in parts) == pytest.approx(around.time, rel=0.02)
    # an update of the counter that falls between two of them is in neither: on an H200, each is 2.3 % of it all
    assert sum(part.total_energy for part in parts) == pytest.approx(around.total_energy, rel=0.1)
    assert sum(part.total_energy for part in parts) <= around.total_energy


def test_a_window_ends_when_what_was_launched_in_it_is_done(torch: Any) -> None:
    torch.cuda.synchronize()
    with EnergyMonitor() as monitor:
        ended: dict[bool, list[bool]] = {}
        for is_waited_for in (False, True):
            other = torch.cuda.Stream()
            monitor.begin_window("kernels")
            torch.cuda._sleep(2_000_000_000)  # cycles: a second or more, of which the call takes none
            with torch.cuda.stream(other):
                torch.cuda._sleep(2_000_000_000)
            monitor.end_window("kernels", sync_execution=is_waited_for)
            ended[is_waited_for] = [torch.cuda.current_stream().query(), other.query()]
            torch.cuda.synchronize()

    assert ended == {False: [False, False], True: [True, True]}


def test_a_busy_gpu_consumes_more_than_an_idle_one(products: Products, gpu: Gpu) -> None:
    with EnergyMonitor() as monitor:
        monitor.begin_window("busy")
        products.run(25)
        busy = monitor.end_window("busy")

        monitor.begin_window("idle")
        enough_j = gpu.energy_j() + busy.total_energy / 4
        eventually(lambda: gpu.energy_j() > enough_j, what="an idle GPU to consume as much")
        idle = monitor.end_window("idle")

    assert busy.total_energy / busy.time > 1.5 * idle.total_energy / idle.time
