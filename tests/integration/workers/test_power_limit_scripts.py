"""Power limits of training scripts, through RabbitMQ, a worker and MariaDB."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bso.storage import SqlStore
from tests.fakes import gpus as fake_gpus
from tests.fakes.gpus import FakeGpus
from tests.integration.workers.fixtures import StartWorker
from tests.servers import PATIENCE_S

ROOT = Path(__file__).parents[3]

SCRIPT = """
import os, sys
from pathlib import Path
from bso_client import *
from tests.fakes.gpus import FakeGpus
from tests.fakes.simulated_training import SimulatedTraining

gpus = FakeGpus.__new__(FakeGpus)
gpus.path = Path(os.environ["BSO_FAKE_NVML"])
training = SimulatedTraining(gpus)
spec = JobSpec(job_id="job", batch_sizes=[64], default_batch_size=64, target_metric=0.9, max_epochs=9)
hardware = HardwareKind(gpu_model="H100", max_power_w=700.0, energy_method=EnergyMethod.NVML_COUNTER)
with BatchSizeOptimizer(spec, hardware=hardware, monitor=training) as bso:
    options = {"warmup_steps": 1, "profile_steps": 2, "step_w": 100, "lock_folder": sys.argv[1]}
    power_limit = PowerLimitOptimizer(bso, monitor=training, **options)
    for trial in bso.trials():
        with trial:
            for epoch in range(4):
                for _ in power_limit.steps(range(20)):
                    training.step()
                trial.on_evaluate(0.95 if epoch == 3 else 0.1)
"""


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeGpus:
    gpus = fake_gpus.install(monkeypatch, tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=":")
    gpus.add()
    return gpus


def train(folder: Path, amqp_url: str, *, name: str) -> str:
    """One recurrence in a process, and a state directory, of its own; returns what it said."""
    script = folder / "training_script.py"
    script.write_text(SCRIPT)
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("CUDA_", "BSO_"))}
    environ |= {"BSO_FAKE_NVML": os.environ["BSO_FAKE_NVML"], "BSO_URL": amqp_url, "BSO_STATE_DIR": str(folder / name)}
    command = [sys.executable, str(script), str(folder)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stderr


async def test_the_second_recurrence_starts_at_the_best_limit_in_another_process(
    gpus: FakeGpus, store: SqlStore, start_worker: StartWorker, amqp_url: str, tmp_path: Path
) -> None:
    start_worker().ready()
    train(tmp_path, amqp_url, name="first")
    profiled = [limit_w for _, limit_w in gpus.limits_set]
    assert profiled == [700.0, 700.0, 700.0, 600.0, 500.0, 400.0, 300.0, 200.0, 400.0, 700.0]
    # as found, the highest; its profile and the others'; the best; as found

    train(tmp_path, amqp_url, name="second")
    assert [limit_w for _, limit_w in gpus.limits_set[len(profiled) :]] == [700.0, 400.0, 700.0]

    [profile] = await store.power_profiles("job")
    assert [measured.power_limit_w for measured in profile.measurements] == [700, 600, 500, 400, 300, 200]
    first, second = await store.trials("job")
    assert first.profiled.time_s > 0
    assert second.profiled.time_s == 0
    assert first.batch_size == second.batch_size == profile.batch_size
