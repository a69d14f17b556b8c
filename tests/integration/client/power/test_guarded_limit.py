import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from bso_client.energy.gpus import NoSuchGpu
from bso_client.power.guard import LockFile
from bso_client.power.limits import GuardedLimit, LimitNotSet
from tests.fakes.gpus import FakeGpus
from tests.integration.client.power.conftest import MakePowerLimit

MakeLimit = Callable[..., GuardedLimit]


@pytest.fixture
def make_limit(gpus: FakeGpus, tmp_path: Path) -> Iterator[MakeLimit]:
    gpus.add(limit_w=650.0)
    made: list[GuardedLimit] = []

    def make(timeout_s: float = 5.0) -> GuardedLimit:
        made.append(GuardedLimit({}, lock_folder=tmp_path, timeout_s=timeout_s))
        return made[-1]

    yield make
    for limit in made:
        limit.close()


def guard() -> int:
    """The process that restores the limits of this one: its only child that runs the module."""
    children = Path("/proc/self/task").glob("*/children")
    [found] = [
        int(pid)
        for pid in " ".join(path.read_text(encoding="ascii") for path in children).split()
        if b"bso_client.power.guard" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    return found


def kill_guard() -> None:
    """Return when it has gone, and leave it to its parent to find out."""
    pid = guard()
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def test_a_limit_is_set_and_what_was_found_is_restored(gpus: FakeGpus, make_limit: MakeLimit) -> None:
    limit = make_limit()
    limit.set(400.5)
    assert gpus.device(0)["limit_w"] == 400.5
    limit.close()
    limit.close()
    assert gpus.device(0)["limit_w"] == 650.0


def test_a_limit_that_was_never_set_is_not_touched(gpus: FakeGpus, make_limit: MakeLimit) -> None:
    make_limit().close()
    assert gpus.limits_set == [(0, 650.0)]  # whether limits may be set is tried with the one that is set


@pytest.mark.parametrize("code", [2, 4, 15])
def test_what_nvml_refuses_is_raised_and_the_next_limit_may_be_set(
    gpus: FakeGpus, make_limit: MakeLimit, code: int
) -> None:
    limit = make_limit()
    gpus.fail("nvmlDeviceSetPowerManagementLimit", [code, 0, 0])
    with pytest.raises(LimitNotSet, match=f"NVML error {code}") as refused:
        limit.set(300)
    assert refused.value.needs_permission == (code == 4)
    limit.set(400)
    assert gpus.device(0)["limit_w"] == 400.0


def test_a_guard_that_was_killed_is_replaced_by_one_that_knows_what_to_restore(
    gpus: FakeGpus, make_limit: MakeLimit, caplog: pytest.LogCaptureFixture
) -> None:
    limit = make_limit()
    limit.set(400)
    kill_guard()
    limit.set(300)
    kill_guard()
    limit.keep_guarded()
    assert gpus.device(0)["limit_w"] == 300.0
    assert caplog.text.count("another one takes its place") == 2
    kill_guard()
    limit.close()
    assert gpus.device(0)["limit_w"] == 650.0


def test_a_guard_that_is_frozen_holds_nobody_up(gpus: FakeGpus, make_limit: MakeLimit) -> None:
    limit = make_limit(timeout_s=0.1)
    limit.set(400)
    frozen = guard()
    os.kill(frozen, signal.SIGSTOP)
    limit.set(300)
    assert gpus.device(0)["limit_w"] == 300.0
    limit.close()
    assert gpus.device(0)["limit_w"] == 650.0
    assert not Path(f"/proc/{frozen}").exists()
    make_limit()  # the lock is free


def test_what_a_training_cannot_restore_is_left_to_its_guard(
    gpus: FakeGpus, make_limit: MakeLimit, caplog: pytest.LogCaptureFixture
) -> None:
    limit = make_limit()
    limit.set(400)
    gpus.fail("nvmlDeviceSetPowerManagementLimit", [15, 0])
    limit.close()
    assert "a power limit may not be restored" in caplog.text
    assert gpus.device(0)["limit_w"] == 650.0
    make_limit().set(300)  # the guard has left no lock behind


def test_without_a_guard_no_limit_is_touched(
    gpus: FakeGpus, make_limit: MakeLimit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(LimitNotSet, match="cannot be started"):
        make_limit()
    assert gpus.limits_set == []


def test_a_gpu_that_is_not_there_is_an_error(gpus: FakeGpus, tmp_path: Path) -> None:
    gpus.add()
    with pytest.raises(NoSuchGpu, match="there is no GPU that this process sees"):
        GuardedLimit({"CUDA_VISIBLE_DEVICES": "GPU-gone"}, lock_folder=tmp_path)
    with pytest.raises(NoSuchGpu, match=r"expected GPUs \[1\], of the 1 that this process sees"):
        GuardedLimit({}, [1], lock_folder=tmp_path)


def test_gpus_are_driven_between_the_limits_that_all_of_them_take(gpus: FakeGpus, tmp_path: Path) -> None:
    gpus.add(min_limit_w=100.0, max_limit_w=300.0, limit_w=250.0, default_limit_w=250.0)
    gpus.add(min_limit_w=150.0, max_limit_w=280.0, limit_w=250.0, default_limit_w=250.0)
    with closing(GuardedLimit({}, lock_folder=tmp_path)) as limit:
        assert (limit.highest_w, limit.lowest_w, limit.max_power_w) == (280.0, 150.0, 580.0)


def test_a_cap_below_the_default_is_respected(gpus: FakeGpus, tmp_path: Path) -> None:
    gpus.add(limit_w=700.0, default_limit_w=700.0)
    gpus.add(limit_w=500.0, default_limit_w=700.0)
    with closing(GuardedLimit({}, lock_folder=tmp_path)) as limit:
        assert limit.highest_w == 500.0


def test_several_gpus_are_taken_together_or_not_at_all(gpus: FakeGpus, tmp_path: Path) -> None:
    uuids = [gpus.device(gpus.add())["uuid"] for _ in range(2)]
    with LockFile(tmp_path, uuids[1]):
        with pytest.raises(LimitNotSet, match="sets the power limit of the same GPU already"):
            GuardedLimit({}, lock_folder=tmp_path)
        LockFile(tmp_path, uuids[0]).close()
    assert gpus.limits_set == []


def test_a_limit_is_restored_by_its_holder_although_a_forked_child_lives_on(
    gpus: FakeGpus, make_limit: MakeLimit
) -> None:
    limit = make_limit()
    limit.set(400)
    child = os.fork()
    if child == 0:
        signal.pause()
    limit.close()
    assert gpus.device(0)["limit_w"] == 650.0
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def test_a_power_limit_optimizer_that_cannot_replace_its_guard_gives_up(
    gpus: FakeGpus,
    make_power_limit: MakePowerLimit,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    gpus.add()
    power_limit = make_power_limit()
    list(power_limit.steps(range(2)))
    kill_guard()
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert list(power_limit.steps("abc")) == ["a", "b", "c"]
    assert "no power limit is tuned: " in caplog.text
    assert not power_limit.is_profiling
