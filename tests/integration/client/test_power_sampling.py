"""GPUs without an energy counter: a helper process samples their power, and lives and dies as it should."""

import math
import os
import selectors
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from bso_client import BatchSizeOptimizer, EnergyMethod, EnergyMonitor, JobSpec, NoMeter, Outcome
from bso_client.energy.sampling import PowerSampler
from tests.fakes import gpus as fake_gpus
from tests.fakes.gpus import FakeGpus
from tests.integration.client.scripts import recorded_trials
from tests.servers.waiting import eventually

POWER_W = 250.0


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeGpus:
    """A machine with one GPU from before Volta."""
    machine = fake_gpus.install(monkeypatch, tmp_path)
    machine.add(name="Tesla P100-PCIE-16GB", energy_j=None, power_w=POWER_W, mig_mode=None)
    return machine


@pytest.fixture
def monitor(gpus: FakeGpus, tmp_path: Path) -> Iterator[EnergyMonitor]:
    with EnergyMonitor(environ={}, rapl_root=tmp_path / "none") as opened:
        yield opened


def helper_of(parent: int) -> int:
    """The process id of the helper that a process has started."""
    [found] = [
        int(folder.name)
        for folder in Path("/proc").iterdir()
        if folder.name.isdecimal() and _is_helper(folder) and _status(folder, "PPid") == str(parent)
    ]
    return found


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that nobody has buried does not."""
    return _status(Path("/proc", str(pid)), "State")[:1] not in ("", "Z", "X")


def _is_helper(folder: Path) -> bool:
    try:
        return b"bso_client.energy.sampler" in (folder / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return False


def _status(folder: Path, name: str) -> str:
    try:
        lines = (folder / "status").read_text().splitlines()
    except OSError:
        return ""
    return next(line.partition(":")[2].strip() for line in lines if line.startswith(f"{name}:"))


def measured_until(monitor: EnergyMonitor, energy_j: float) -> float:
    """Open a window until so much was consumed; its mean power [W]."""
    monitor.begin_window("until")
    monitor.begin_window("look 0")
    seen_j, looks = 0.0, 0

    def is_reached() -> bool:
        nonlocal seen_j, looks
        seen_j += monitor.end_window(f"look {looks}").total_energy
        looks += 1
        monitor.begin_window(f"look {looks}")
        return seen_j >= energy_j

    eventually(is_reached)
    monitor.end_window(f"look {looks}", cancel=True)
    measured = monitor.end_window("until")
    assert measured.total_energy >= energy_j
    return measured.total_energy / measured.time


def test_sampled_power_becomes_energy(monitor: EnergyMonitor) -> None:
    assert monitor.method is EnergyMethod.NVML_POWER
    assert measured_until(monitor, 60.0) == pytest.approx(POWER_W, rel=0.05)


def test_the_helper_samples_while_nobody_asks(gpus: FakeGpus, monitor: EnergyMonitor) -> None:
    """What happens between the ends of a window counts: here the power is another one only in between."""
    monitor.begin_window("w")
    gpus.change(0, power_w=10_000.0)
    gpus.fail("nvmlDeviceGetPowerUsage", [0] * 10, index=0)
    eventually(lambda: not gpus.device(0)["errors"]["nvmlDeviceGetPowerUsage"], what="ten more samples")
    gpus.change(0, power_w=POWER_W)
    measured = monitor.end_window("w")

    assert measured.total_energy > 2 * POWER_W * measured.time


def test_a_killed_helper_leaves_energy_unmeasured_and_one_warning(
    gpus: FakeGpus, monitor: EnergyMonitor, caplog: pytest.LogCaptureFixture
) -> None:
    monitor.begin_window("before")
    os.kill(helper_of(os.getpid()), signal.SIGKILL)
    monitor.begin_window("after")

    for key in ("before", "after"):
        measured = monitor.end_window(key)
        assert math.isnan(measured.total_energy)
        assert measured.time > 0
    [warning] = caplog.records
    assert "the helper that samples the GPU's power is gone" in warning.getMessage()


def test_a_helper_that_does_not_answer_does_not_hold_the_training_up(
    gpus: FakeGpus, monitor: EnergyMonitor, caplog: pytest.LogCaptureFixture
) -> None:
    helper = helper_of(os.getpid())
    monitor.begin_window("w")
    os.kill(helper, signal.SIGSTOP)

    assert math.isnan(monitor.end_window("w").total_energy)
    assert "did not answer within 2 s" in caplog.text
    assert not is_alive(helper)


def test_a_gpu_that_cannot_be_sampled_for_a_while_is_measured_again_afterwards(
    gpus: FakeGpus, monitor: EnergyMonitor
) -> None:
    monitor.begin_window("w")
    gpus.fail("nvmlDeviceGetPowerUsage", [999, 999], index=0)
    eventually(lambda: not gpus.device(0)["errors"]["nvmlDeviceGetPowerUsage"], what="both failures")

    assert math.isnan(monitor.end_window("w").total_energy)
    assert measured_until(monitor, 20.0) == pytest.approx(POWER_W, rel=0.1)


def test_an_interrupted_question_does_not_mix_up_the_next_answers(
    gpus: FakeGpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Ctrl-C does, whose KeyboardInterrupt may arrive anywhere."""
    second = gpus.add(energy_j=None, power_w=1000 * POWER_W)
    sampler = PowerSampler([gpus.device(0)["uuid"], gpus.device(second)["uuid"]])
    try:
        with monkeypatch.context() as patch:
            patch.setattr(selectors, "DefaultSelector", _interrupt)
            with pytest.raises(KeyboardInterrupt):
                sampler.read(1)
        eventually(lambda: sampler.read(1).energy_j > 100 * POWER_W)

        assert sampler.read(0).energy_j < 0.01 * sampler.read(1).energy_j
    finally:
        sampler.close()


def _interrupt() -> None:
    raise KeyboardInterrupt


def test_a_helper_that_cannot_start_is_no_meter(
    gpus: FakeGpus, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(NoMeter, match="the helper that samples the GPU's power is gone"):
        EnergyMonitor(environ={}, rapl_root=tmp_path)

    monkeypatch.setattr(sys, "executable", str(tmp_path / "nothing"))
    with pytest.raises(NoMeter, match="cannot be started"):
        EnergyMonitor(environ={}, rapl_root=tmp_path)


def test_the_helper_ends_with_its_monitor(gpus: FakeGpus, monitor: EnergyMonitor) -> None:
    helper = helper_of(os.getpid())
    monitor.close()

    assert not is_alive(helper)


def test_a_training_whose_helper_dies_goes_on_and_says_that_its_energy_is_unknown(
    gpus: FakeGpus, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BSO_ENERGY", "auto")
    monkeypatch.setenv("BSO_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.delenv("BSO_URL", raising=False)
    spec = JobSpec(job_id="job", batch_sizes=[8, 16], default_batch_size=8, target_metric=0.9)
    with BatchSizeOptimizer(spec) as bso:
        for training in bso.trials():
            with training:
                training.on_evaluate(0.5)
                os.kill(helper_of(os.getpid()), signal.SIGKILL)
                training.on_evaluate(0.95)

    [trial] = recorded_trials(tmp_path)
    assert trial.outcome is Outcome.CONVERGED
    assert trial.hardware.energy_method is EnergyMethod.NVML_POWER
    assert not trial.is_energy_complete


SCRIPT = """
import os, signal, sys
from bso_client import EnergyMonitor

monitor = EnergyMonitor(environ={})
monitor.begin_window("training")
"""


def running(folder: Path, body: str) -> subprocess.Popen[str]:
    """A training with a monitor, in a session of its own, which has said that it is ready."""
    path = folder / "training_script.py"
    path.write_text(SCRIPT + textwrap.dedent(body))
    process = subprocess.Popen(
        [sys.executable, str(path)],
        env=dict(os.environ) | {"BSO_POWERCAP_DIR": str(folder / "none")},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_the_helper_dies_with_a_killed_training_although_a_forked_worker_lives_on(
    gpus: FakeGpus, tmp_path: Path
) -> None:
    with running(
        tmp_path,
        """
        if os.fork() == 0:  # it holds copies of all pipes
            signal.pause()
        print("ready", flush=True)
        signal.pause()
        """,
    ) as training:
        helper = helper_of(training.pid)
        training.kill()
        training.wait(10)

        eventually(lambda: not is_alive(helper))
        os.killpg(training.pid, signal.SIGKILL)  # the worker


def test_the_helper_ends_with_a_training_that_exits(gpus: FakeGpus, tmp_path: Path) -> None:
    with running(
        tmp_path,
        """
        signal.signal(signal.SIGUSR1, lambda number, frame: None)
        print("ready", flush=True)
        signal.pause()
        """,
    ) as training:
        helper = helper_of(training.pid)
        training.send_signal(signal.SIGUSR1)
        assert training.wait(10) == 0

    eventually(lambda: not is_alive(helper))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_of_the_terminal_and_the_scheduler_leave_the_last_reading_to_the_training(
    gpus: FakeGpus, tmp_path: Path, number: signal.Signals
) -> None:
    with running(
        tmp_path,
        """
        def stop(number, frame):
            print(monitor.end_window("training").total_energy >= 0, flush=True)
            sys.exit(3)

        signal.signal(signal.SIGINT, stop)
        signal.signal(signal.SIGTERM, stop)
        print("ready", flush=True)
        signal.pause()
        """,
    ) as training:
        helper = helper_of(training.pid)
        os.kill(helper, number)
        os.killpg(training.pid, number)
        assert training.stdout is not None
        assert training.stdout.readline() == "True\n"
        assert training.wait(10) == 3

    eventually(lambda: not is_alive(helper))
