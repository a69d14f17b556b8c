"""GPUs without an energy counter: a helper process samples their power, and lives and dies as it should."""

import math
import os
import selectors
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from bso_client import BatchSizeOptimizer, EnergyMethod, EnergyMonitor, JobSpec, Measurement, NoMeter, Outcome
from bso_client.energy.counters import Reading, energy_between
from bso_client.energy.errors import MeterFailed
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


class Instants:
    """A monitor's clock. What is to happen after an instant was taken, and before the monitor goes on, happens once."""

    def __init__(self) -> None:
        self.then: Callable[[], object] | None = None
        self.taken_s: list[float] = []

    def __call__(self) -> float:
        now_s = time.monotonic()
        self.taken_s.append(now_s)
        then, self.then = self.then, None
        if then is not None:
            then()
        return now_s


@pytest.fixture
def instants() -> Instants:
    return Instants()


@pytest.fixture
def monitor_by(gpus: FakeGpus, instants: Instants, tmp_path: Path) -> Iterator[EnergyMonitor]:
    with EnergyMonitor(environ={}, rapl_root=tmp_path / "none", clock=instants) as opened:
        yield opened


def measured_until(monitor: EnergyMonitor, energy_j: float) -> list[Measurement]:
    """A window until so much was consumed, and those within it, one after the other."""
    looks: list[Measurement] = []
    monitor.begin_window("until")
    monitor.begin_window("look 0")

    def is_reached() -> bool:
        looks.append(monitor.end_window(f"look {len(looks)}"))
        monitor.begin_window(f"look {len(looks)}")
        return sum(look.total_energy for look in looks) >= energy_j

    eventually(is_reached, timeout_s=60)
    monitor.end_window(f"look {len(looks)}", cancel=True)
    return [monitor.end_window("until"), *looks]


def is_exact(measured: Measurement, *powers_w: float) -> bool:
    """Whether the energies are power times time, as under constant power."""
    exact_j = {index: pytest.approx(power_w * measured.time, rel=1e-6) for index, power_w in enumerate(powers_w)}
    return measured.time > 0 and measured.gpu_energy == exact_j


def let_sample(gpus: FakeGpus, times: int) -> None:
    """Wait until the helper has asked the GPU for its power so many times."""
    wanted = len(gpus.device(0)["power_reads"]) + times
    eventually(lambda: len(gpus.device(0)["power_reads"]) >= wanted, timeout_s=60)


def stop_for_a_while(helper: int) -> None:
    """Stop the helper, and let it go on later."""
    os.kill(helper, signal.SIGSTOP)
    eventually(lambda: _status(Path("/proc", str(helper)), "State").startswith("T"))
    threading.Timer(0.3, os.kill, (helper, signal.SIGCONT)).start()


def test_constant_power_becomes_power_times_time(monitor: EnergyMonitor) -> None:
    assert monitor.method is EnergyMethod.NVML_POWER
    for measured in measured_until(monitor, 60.0):
        assert is_exact(measured, POWER_W)


def test_all_gpus_are_measured_between_the_same_instants(gpus: FakeGpus, tmp_path: Path) -> None:
    gpus.add(energy_j=None, power_w=40.0)
    with EnergyMonitor(environ={}, rapl_root=tmp_path / "none") as monitor:
        for measured in measured_until(monitor, 60.0):
            assert is_exact(measured, POWER_W, 40.0)


@pytest.mark.parametrize("end", ["begin", "end"])
def test_a_helper_that_runs_late_tells_the_energy_of_the_instant_all_the_same(
    monitor_by: EnergyMonitor, instants: Instants, end: str
) -> None:
    helper = helper_of(os.getpid())
    for each, go in (("begin", monitor_by.begin_window), ("end", monitor_by.end_window)):
        if each == end:
            instants.then = lambda: stop_for_a_while(helper)
        measured = go("w")

    assert isinstance(measured, Measurement)
    assert is_exact(measured, POWER_W)


@pytest.mark.parametrize("end", ["begin", "end"])
def test_a_training_that_is_held_up_before_it_asks_is_told_the_energy_of_the_instant(
    gpus: FakeGpus, monitor_by: EnergyMonitor, instants: Instants, end: str
) -> None:
    gpus.change(0, power_reads=[])
    for each, go in (("begin", monitor_by.begin_window), ("end", monitor_by.end_window)):
        if each == end:
            instants.then = lambda: let_sample(gpus, 10)
        measured = go("w")

    assert isinstance(measured, Measurement)
    assert is_exact(measured, POWER_W)


def test_steps_of_power_count_where_they_are(gpus: FakeGpus, monitor_by: EnergyMonitor, instants: Instants) -> None:
    """What happens while nobody asks counts, and what happens before and after the window does not."""

    def step_to(power_w: float) -> None:
        gpus.change(0, power_w=power_w)
        let_sample(gpus, 20)

    gpus.change(0, power_w=1000.0, power_reads=[])
    let_sample(gpus, 5)
    instants.then = lambda: step_to(250.0)
    monitor_by.begin_window("w")
    for power_w in (500.0, 100.0):
        step_to(power_w)
    instants.then = lambda: step_to(1000.0)
    measured = monitor_by.end_window("w")

    begin_s, end_s = instants.taken_s[-2:]
    least_j, most_j = energies(gpus.device(0)["power_reads"], begin_s=begin_s, end_s=end_s)
    assert measured.time == end_s - begin_s
    assert 0.999 * least_j <= measured.total_energy <= 1.001 * most_j


def energies(reads: Sequence[tuple[float, float]], *, begin_s: float, end_s: float) -> tuple[float, float]:
    """The least and the most energy [J] between two instants, as far as readings (instant, power) tell.

    Where two readings differ, the step may lie in an interval beside theirs, since each took a while.
    """
    least_j = most_j = 0.0
    for number, ((from_s, _), (to_s, _)) in enumerate(pairwise(reads)):
        within_s = max(0.0, min(to_s, end_s) - max(from_s, begin_s))
        powers_w = [power_w for _, power_w in reads[max(0, number - 1) : number + 3]]
        least_j += min(powers_w) * within_s
        most_j += max(powers_w) * within_s
    return least_j, most_j


@pytest.mark.parametrize("off_s", [-1000.0, 1000.0], ids=["before the first sample", "in the future"])
def test_an_instant_of_which_no_sample_tells_is_not_known(gpus: FakeGpus, off_s: float) -> None:
    sampler = PowerSampler([gpus.device(0)["uuid"]])
    try:
        [unknown], [known] = sampler.read(time.monotonic() + off_s), sampler.read(time.monotonic())
    finally:
        sampler.close()

    assert isinstance(unknown, MeterFailed)
    assert isinstance(known, Reading)


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
    assert "did not answer within 5 s" in caplog.text
    assert not is_alive(helper)


def test_a_gpu_that_cannot_be_sampled_for_a_while_is_measured_again_afterwards(
    gpus: FakeGpus, monitor: EnergyMonitor
) -> None:
    monitor.begin_window("w")
    gpus.fail("nvmlDeviceGetPowerUsage", [999, 999], index=0)
    eventually(lambda: not gpus.device(0)["errors"]["nvmlDeviceGetPowerUsage"], what="both failures")

    assert math.isnan(monitor.end_window("w").total_energy)
    assert all(is_exact(measured, POWER_W) for measured in measured_until(monitor, 20.0))


def test_an_interrupted_question_does_not_mix_up_the_next_answers(
    gpus: FakeGpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Ctrl-C does, whose KeyboardInterrupt may arrive anywhere."""
    sampler = PowerSampler([gpus.device(0)["uuid"]])
    at_s: list[float] = []
    readings: list[Reading | MeterFailed] = []

    def read() -> None:
        at_s.append(time.monotonic())
        readings.extend(sampler.read(at_s[-1]))

    try:
        read()
        with monkeypatch.context() as patch:
            patch.setattr(selectors, "DefaultSelector", _interrupt)
            with pytest.raises(KeyboardInterrupt):
                read()
        read()
    finally:
        sampler.close()

    begin, end = readings
    assert isinstance(begin, Reading)
    assert isinstance(end, Reading)
    assert energy_between(begin, end) == pytest.approx(POWER_W * (at_s[2] - at_s[0]), rel=1e-6)


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


def test_the_energy_of_a_trial_is_that_of_its_time(
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
                with bso.paused():
                    pass
                training.on_evaluate(0.95)

    [trial] = recorded_trials(tmp_path)
    assert trial.hardware.energy_method is EnergyMethod.NVML_POWER
    assert trial.energy_j == pytest.approx(POWER_W * trial.time_s, rel=1e-6)


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
        training.wait(60)

        eventually(lambda: not is_alive(helper))
        os.killpg(training.pid, signal.SIGKILL)  # the worker


def test_the_helper_ends_with_a_training_that_exits(gpus: FakeGpus, tmp_path: Path) -> None:
    with running(
        tmp_path,
        """
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
        print("ready", flush=True)
        signal.sigwait([signal.SIGUSR1])
        """,
    ) as training:
        helper = helper_of(training.pid)
        training.send_signal(signal.SIGUSR1)
        assert training.wait(60) == 0

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
        assert training.wait(60) == 3

    eventually(lambda: not is_alive(helper))
