from dataclasses import replace
from typing import Any

import pytest

from bso.domain.hardware import EnergyMethod, HardwareKind
from bso_client import InvalidSetting, InvalidSpec, RanksOutOfStep
from bso_client.distributed.devices import counting, devices_of
from bso_client.distributed.membership import Member, check_joined, counted_devices, hardware_of_all, is_energy_assumed
from bso_client.distributed.shares import Share

A100 = HardwareKind(gpu_model="A100", max_power_w=400.0, memory_mib=40960, energy_method=EnergyMethod.NVML_COUNTER)


def rank(*devices: str, hardware: HardwareKind = A100, **more: Any) -> Member:
    count = len(devices) or 1
    several = replace(hardware, number_of_gpus=count, max_power_w=hardware.max_power_w * count)
    fields: dict[str, Any] = {"hardware": several, "devices": devices, "share_size": 2}
    return Member(**fields | more)


def test_ranks_with_gpus_of_their_own_add_up() -> None:
    ranks = [rank("GPU-a"), rank("GPU-b", hardware=replace(A100, memory_mib=20480, gpu_model="A30"))]
    whole = hardware_of_all(ranks)
    assert (whole.gpu_model, whole.number_of_gpus, whole.max_power_w, whole.memory_mib) == ("A100", 2, 800.0, 20480)
    assert [counted_devices(ranks, each) for each in range(2)] == [("GPU-a",), ("GPU-b",)]


def test_a_gpu_that_every_rank_measures_is_counted_once_by_the_lowest() -> None:
    ranks = [rank("GPU-a", "GPU-b"), rank("GPU-a", "GPU-b"), rank("GPU-b", "GPU-c")]
    whole = hardware_of_all(ranks)
    assert (whole.number_of_gpus, whole.max_power_w) == (3, 1200.0)
    assert [counted_devices(ranks, each) for each in range(3)] == [("GPU-a", "GPU-b"), (), ("GPU-c",)]


def test_ranks_that_do_not_say_what_they_measure_are_summed() -> None:
    whole = hardware_of_all([rank(), rank(), rank()])
    assert (whole.number_of_gpus, whole.max_power_w) == (3, 1200.0)


def test_a_rank_whose_gpus_others_count_adds_nothing() -> None:
    processor = replace(A100, gpu_model="EPYC", max_power_w=1.0, memory_mib=None)
    measured = rank("GPU-a", hardware=replace(A100, energy_method=EnergyMethod.MONITOR))
    ranks = [measured, rank(hardware=processor, is_counted_elsewhere=True)]
    assert hardware_of_all(ranks) == measured.hardware


def test_what_the_user_says_of_the_whole_training_counts_as_it_is() -> None:
    given = replace(A100, number_of_gpus=16, max_power_w=6400.0)
    whole = hardware_of_all([rank(hardware=A100, is_given=True) for _ in range(2)])
    assert whole.number_of_gpus == 1
    ranks = [Member(hardware=given, is_given=True, share_size=2) for _ in range(2)]
    assert hardware_of_all(ranks) == given


def test_measured_and_assumed_energy_are_never_mixed() -> None:
    ranks = [rank("GPU-a"), rank(hardware=replace(A100, energy_method=EnergyMethod.ASSUMED))]
    assert is_energy_assumed(ranks)
    assert hardware_of_all(ranks).energy_method is EnergyMethod.ASSUMED


def test_ranks_of_different_opinions_cannot_join() -> None:
    with pytest.raises(InvalidSetting, match=r"as many members on every rank, got \[2, 4\]"):
        check_joined([rank(), rank(share_size=4)])
    with pytest.raises(RanksOutOfStep, match="load_state_dict was given another state on rank 1"):
        check_joined([rank(), rank(resumes="trial 3 of job a")])
    check_joined([rank(resumes="trial 3 of job a"), rank()])


class Zeus:
    """What is known of a ZeusMonitor from outside."""

    def __init__(self, gpu_indices: list[int], cpu_indices: list[int]) -> None:
        self.gpu_indices, self.cpu_indices = gpu_indices, cpu_indices
        self.windows: list[str] = []

    def begin_window(self, key: str, /) -> None:
        self.windows.append(key)

    def end_window(self, key: str, /) -> Any:
        self.windows.remove(key)
        energies = {index: 10.0 * (index + 1) for index in self.gpu_indices}
        return type("Measured", (), {"time": 1.0, "gpu_energy": energies, "total_energy": sum(energies.values())})


@pytest.mark.parametrize(
    ("counted", "energy_j"),
    [(["m GPU 0", "m GPU 1", "m GPU 2"], 60.0), (["m GPU 1", "m GPU 2"], 50.0), ([], 0.0)],
    ids=["all", "some", "none"],
)
def test_a_monitor_counts_only_what_no_other_rank_counts(counted: list[str], energy_j: float) -> None:
    zeus = Zeus([0, 1, 2], [0])
    devices = ["m GPU 0", "m GPU 1", "m GPU 2"]
    monitor = counting(zeus, devices, counted)
    monitor.begin_window("epoch")
    assert monitor.end_window("epoch").total_energy == energy_j
    assert not zeus.windows


def test_without_gpus_it_is_processors_that_are_measured() -> None:
    zeus = Zeus([], [0, 1])
    assert devices_of(zeus, {}, machine="m") == ("m CPU 0", "m CPU 1")
    assert counting(zeus, ["m CPU 0"], ["m CPU 0"]) is zeus
    with pytest.raises(InvalidSetting, match="measure the same processors"):
        counting(zeus, ["m CPU 0", "m CPU 1"], ["m CPU 1"])


def test_a_monitor_that_says_nothing_is_its_ranks_own() -> None:
    assert devices_of(object(), {}, machine="m") == ()  # type: ignore[arg-type]  # anything that a user passes


@pytest.mark.parametrize(("size", "shares"), [(32, [8, 8, 8, 8]), (31, [8, 8, 8, 7]), (4, [1, 1, 1, 1])])
def test_shares_add_up(size: int, shares: list[int]) -> None:
    assert [Share(position=each, size=4, is_uneven=True).of(size) for each in range(4)] == shares


def test_a_batch_size_that_gives_a_rank_nothing_is_refused() -> None:
    with pytest.raises(InvalidSpec, match="expected at least 4, got 3"):
        Share(position=0, size=4, is_uneven=True).of(3)
    with pytest.raises(InvalidSpec, match="expected multiples of 4, got 6, 31"):
        Share(position=0, size=4).check([4, 6, 31])
