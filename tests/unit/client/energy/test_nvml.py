"""The adapter over pynvml: errors, slices, and GPUs of others."""

import pytest

from bso.domain.errors import Misconfigured
from bso_client.energy.nvml import MigSlice, NoNvml, NoPermission, NotSupported, Nvml, NvmlError
from tests.fakes.gpus import FakeGpus


@pytest.mark.parametrize(
    ("code", "kind", "said"),
    [
        (2, NvmlError, "Invalid Argument"),
        (3, NotSupported, "Not Supported"),
        (4, NoPermission, "Insufficient Permissions"),
        (8, NvmlError, "Insufficient External Power"),
        (13, NotSupported, "Function Not Found"),
        (15, NvmlError, "GPU is lost"),
        (16, NvmlError, "GPU requires restart"),
        (999, NvmlError, "Unknown Error"),
    ],
)
def test_errors_say_which_gpu_and_what_to_expect_of_it(
    gpus: FakeGpus, code: int, kind: type[NvmlError], said: str
) -> None:
    gpus.add(name="NVIDIA L4")
    with Nvml() as nvml:
        [gpu] = nvml.gpus()
        gpus.fail("nvmlDeviceGetTotalEnergyConsumption", code)

        with pytest.raises(NvmlError) as caught:
            gpu.energy_j()

    assert type(caught.value) is kind
    assert caught.value.code == code
    assert str(caught.value) == f"GPU 0 (NVIDIA L4): nvmlDeviceGetTotalEnergyConsumption: {said} (NVML error {code})"
    assert isinstance(caught.value, Misconfigured)


@pytest.mark.parametrize(("code", "kind"), [(9, NoNvml), (12, NoNvml), (18, NoNvml), (999, NvmlError)])
def test_a_driver_that_does_not_answer_differs_from_other_errors(
    gpus: FakeGpus, code: int, kind: type[NvmlError]
) -> None:
    gpus.fail("nvmlInit", code)

    with pytest.raises(NvmlError) as caught:
        Nvml()
    assert type(caught.value) is kind


def test_a_missing_package_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pynvml", None)

    with pytest.raises(NoNvml, match=r"pip install 'bso-optimizer\[gpu\]'"):
        Nvml()


def test_a_package_that_is_too_old_says_so(gpus: FakeGpus, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus.add()
    with Nvml() as nvml:
        [gpu] = nvml.gpus()
        monkeypatch.delattr("pynvml.nvmlDeviceGetTotalEnergyConsumption")

        with pytest.raises(NotSupported, match="upgrade it"):
            gpu.energy_j()


def test_a_lost_gpu_harms_only_those_who_see_it(gpus: FakeGpus) -> None:
    gpus.add(errors={"nvmlDeviceGetHandleByIndex": 15})
    good = gpus.add()
    with Nvml() as nvml:
        assert [gpu.index for gpu in nvml.visible_gpus("1")] == [good]
        assert [gpu.index for gpu in nvml.visible_gpus("GPU-00000001")] == [good]
        with pytest.raises(NvmlError, match="GPU 0"):
            nvml.visible_gpus(None)


@pytest.mark.parametrize("visible", [None, "0", "GPU-0000", "MIG-GPU-1/2/3", "MIG-41b3e3c5"])
def test_slices_are_refused_with_an_explanation(gpus: FakeGpus, visible: str | None) -> None:
    gpus.add(mig_mode=1)
    with Nvml() as nvml, pytest.raises(MigSlice, match="reports the energy of the whole GPU only"):
        nvml.visible_gpus(visible)


def test_gpus_that_know_no_slices_are_whole(gpus: FakeGpus) -> None:
    gpus.add(mig_mode=None)
    gpus.add(mig_mode=0)
    with Nvml() as nvml:
        assert [gpu.is_partitioned for gpu in nvml.visible_gpus(None)] == [False, False]


def test_a_power_limit_is_set_for_root_only(gpus: FakeGpus) -> None:
    gpus.add(min_limit_w=200.0, max_limit_w=700.0)
    with Nvml() as nvml:
        [gpu] = nvml.gpus()
        gpu.set_power_limit_w(312.5)
        with pytest.raises(NvmlError, match="Invalid Argument"):
            gpu.set_power_limit_w(900.0)
        gpus.forbid_limits()
        with pytest.raises(NoPermission):
            gpu.set_power_limit_w(400.0)

        assert (gpu.power_limit_w, gpu.default_power_limit_w, gpu.power_limits_w) == (312.5, 700.0, (200.0, 700.0))
    assert gpus.limits_set == [(0, 312.5)]


def test_connections_are_counted(gpus: FakeGpus) -> None:
    gpus.add()
    with Nvml() as one:
        Nvml().close()
        assert len(one.gpus()) == 1
        one.close()
        one.close()
        with pytest.raises(NvmlError, match="Uninitialized"):
            one.gpus()
