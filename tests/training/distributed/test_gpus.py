from pathlib import Path

import pytest

from bso.domain.hardware import EnergyMethod
from tests.fakes.gpus import FakeGpus
from tests.training.distributed.torchrun import launch


@pytest.mark.parametrize("count", [1, 2], ids=["one for both", "one for each"])
def test_each_gpu_is_counted_once_whoever_measures_it(tmp_path: Path, count: int) -> None:
    machine = FakeGpus(tmp_path / "gpus.json")
    for _ in range(count):
        machine.add(name="NVIDIA H200", max_limit_w=700.0)
    environ = dict(machine.environment) | {"BSO_ENERGY": "auto", "BSO_POWERCAP_DIR": str(tmp_path / "none")}
    done = launch("gpus", tmp_path, count, environ=environ)
    assert done.codes == (0,), done.printed

    assert done.same("gpus") == [count, count]
    assert done.same("max_power_w") == [700.0 * count] * 2
    assert done.same("model") == ["NVIDIA H200", "NVIDIA H200"]
    [zeus], [own] = done.trials("zeus"), done.trials("own")
    assert (zeus.energy_j, zeus.hardware.energy_method) == (300.0, EnergyMethod.MONITOR)  # both ranks saw all GPUs
    assert (own.energy_j, own.hardware.energy_method) == (
        300.0,
        EnergyMethod.NVML_COUNTER,
    )  # each its own, if it has one
