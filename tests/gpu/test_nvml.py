"""What NVML says of a real GPU, and which GPUs a process sees, compared with what PyTorch and CUDA itself say."""

import os
import subprocess
import sys
from typing import Any

import pytest

from bso_client.energy.nvml import Gpu, Nvml
from tests.servers import PATIENCE_S, eventually

# Asks CUDA itself: what PyTorch counts, it reads from the variable as we do.
VISIBLE_TO_CUDA = """
import ctypes
cuda, count, uuids = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), []
if cuda.cuInit(0) == 0 and cuda.cuDeviceGetCount(ctypes.byref(count)) == 0:
    for index in range(count.value):
        device, uuid = ctypes.c_int(), (ctypes.c_ubyte * 16)()
        assert cuda.cuDeviceGet(ctypes.byref(device), index) == 0
        assert cuda.cuDeviceGetUuid_v2(uuid, device) == 0
        uuids.append(bytes(uuid).hex())
print(*uuids)
"""


def test_it_is_the_gpu_that_pytorch_trains_on(torch: Any, gpu: Gpu) -> None:
    of_torch = torch.cuda.get_device_properties(0)

    assert gpu.name == torch.cuda.get_device_name(0)
    assert gpu.memory_mib == pytest.approx(of_torch.total_memory / 2**20, rel=0.03)  # CUDA keeps some for itself
    assert gpu.uuid == f"GPU-{of_torch.uuid}"
    assert not gpu.is_partitioned


def test_its_power_limits_are_in_order(gpu: Gpu) -> None:
    least_w, most_w = gpu.power_limits_w

    assert 0 < least_w <= gpu.default_power_limit_w <= most_w
    assert least_w <= gpu.power_limit_w <= most_w


def test_its_energy_counter_grows(gpu: Gpu) -> None:
    before_j = gpu.energy_j()

    assert eventually(lambda: gpu.energy_j() > before_j, what="the energy counter to grow")


@pytest.mark.parametrize(
    "visible",
    [None, "0", "{uuid}", "{prefix}", " 0", "+0", "0th", "0,", "0,99", "99,0", "0,0", "", "-1", "none", "{lower}"],
)
def test_a_process_sees_the_gpus_that_cuda_shows_it(gpu: Gpu, visible: str | None) -> None:
    environ = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    if visible is not None:
        names = {"uuid": gpu.uuid, "prefix": gpu.uuid[:12], "lower": gpu.uuid.replace("GPU-", "gpu-")}
        visible = environ["CUDA_VISIBLE_DEVICES"] = visible.format(**names)
    command = [sys.executable, "-c", VISIBLE_TO_CUDA]
    to_cuda = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=PATIENCE_S, check=True)

    with Nvml() as nvml:
        seen = nvml.visible_gpus(visible)
        assert [each.uuid.removeprefix("GPU-").replace("-", "") for each in seen] == to_cuda.stdout.split()
