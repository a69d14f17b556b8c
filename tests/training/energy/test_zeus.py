"""A real ZeusMonitor, passed where an EnergyMonitor may be. It asks the fake NVML in a process of its own."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from bso.domain.trial import Trial
from bso_client import EnergyMethod
from tests.fakes.gpus import FakeGpus
from tests.integration.client.scripts import recorded_trials
from tests.servers import PATIENCE_S

PREAMBLE = """
import os, sys
from types import ModuleType, SimpleNamespace

sys.path.append({root!r})
cupy = ModuleType("cupy")  # what Zeus waits with in its place: the PyTorch of these tests knows no CUDA
cupy.cuda = SimpleNamespace(Device=lambda index: SimpleNamespace(synchronize=lambda: None))
sys.modules["cupy"] = cupy

from pathlib import Path
from zeus.monitor import ZeusMonitor
from bso_client import BatchSizeOptimizer, EnergyMonitor, JobSpec
from tests.fakes.gpus import FakeGpus

spec = JobSpec(job_id="job", policy="pruning_thompson", batch_sizes=[8, 16], default_batch_size=8, target_metric=0.9)
gpus = FakeGpus(Path(os.environ["BSO_FAKE_NVML"]))

def train(monitor, *consumed):
    with BatchSizeOptimizer(spec, monitor=monitor) as bso:
        for trial in bso.trials():
            with trial:
                for index, energy_j in consumed:
                    gpus.consume(index, energy_j)
                trial.on_evaluate(0.95)

if __name__ == "__main__":
"""


@pytest.fixture
def gpus(tmp_path: Path) -> FakeGpus:
    machine = FakeGpus(tmp_path / "gpus.json")
    machine.add(name="NVIDIA L4", max_limit_w=72.0)
    machine.add(name="NVIDIA H200", max_limit_w=700.0)
    machine.add(name="NVIDIA H200", max_limit_w=700.0)
    return machine


def run(folder: Path, gpus: FakeGpus, body: str, **environ: str) -> str:
    """Run a training, and return what it says on standard error."""
    root = str(Path(__file__).parents[3])
    script = folder / "training_script.py"
    script.write_text(PREAMBLE.format(root=root) + textwrap.indent(textwrap.dedent(body), "    "))
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("BSO_", "CUDA_"))}
    settings = {"BSO_STATE_DIR": str(folder / "state"), "BSO_POWERCAP_DIR": str(folder / "none")}
    done = subprocess.run(
        [sys.executable, str(script)],
        env=kept | gpus.environment | settings | environ,
        capture_output=True,
        text=True,
        timeout=4 * PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def the_trial(folder: Path) -> Trial:
    [trial] = recorded_trials(folder)
    return trial


def test_a_zeus_monitor_is_accepted_as_it_is(gpus: FakeGpus, tmp_path: Path) -> None:
    run(
        tmp_path,
        gpus,
        'train(ZeusMonitor(gpu_indices=[1, 2], sync_execution_with="cupy"), (0, 1.0), (1, 20.0), (2, 300.0))',
    )

    trial = the_trial(tmp_path)
    assert trial.energy_j == 320.0
    assert trial.hardware.energy_method is EnergyMethod.MONITOR
    assert (trial.hardware.gpu_model, trial.hardware.number_of_gpus) == ("NVIDIA H200", 2)
    assert trial.hardware.max_power_w == 1400.0


def test_zeus_and_bso_count_visible_devices_alike(gpus: FakeGpus, tmp_path: Path) -> None:
    run(
        tmp_path,
        gpus,
        """
        ours, theirs = EnergyMonitor(clock=lambda: 0.0), ZeusMonitor(sync_execution_with="cupy")
        for monitor in (ours, theirs):
            monitor.begin_window("w")
        for index, energy_j in enumerate((1.0, 20.0, 300.0)):
            gpus.consume(index, energy_j)
        ours, theirs = ours.end_window("w"), theirs.end_window("w")
        assert ours.gpu_energy == theirs.gpu_energy == {0: 300.0, 1: 1.0}, (ours, theirs)
        assert ours.total_energy == theirs.total_energy == 301.0
        """,
        CUDA_VISIBLE_DEVICES="2,0",
    )


def test_zeus_and_bso_measure_the_same_time(gpus: FakeGpus, tmp_path: Path) -> None:
    run(
        tmp_path,
        gpus,
        """
        ours, theirs = EnergyMonitor(), ZeusMonitor(sync_execution_with="cupy")
        ours.begin_window("around")
        theirs.begin_window("w")
        ours.begin_window("within")
        within = ours.end_window("within").time
        time = theirs.end_window("w").time
        assert 0 < within <= time <= ours.end_window("around").time
        """,
    )


def test_a_zeus_monitor_that_fails_leaves_energy_unknown_and_the_training_alone(gpus: FakeGpus, tmp_path: Path) -> None:
    said = run(tmp_path, gpus, 'train(ZeusMonitor(gpu_indices=[0], sync_execution_with="torch"), (0, 1.0))')

    trial = the_trial(tmp_path)
    assert trial.outcome is not None
    assert trial.outcome.value == "converged"
    assert not trial.is_energy_complete
    assert "PyTorch is available but does not have CUDA support" in said


def test_a_zeus_monitor_without_any_device_measures_nothing_rather_than_zero(tmp_path: Path) -> None:
    no_gpu = FakeGpus(tmp_path / "gpus.json")
    no_gpu.fail("nvmlInit", 9)
    said = run(tmp_path, no_gpu, "train(ZeusMonitor())")

    trial = the_trial(tmp_path)
    assert not trial.is_energy_complete
    assert trial.hardware.energy_method is EnergyMethod.MONITOR
    assert "measured nan J" in said
