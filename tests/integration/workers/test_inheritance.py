"""A script that names another job to inherit from, through RabbitMQ, a worker and MariaDB."""

import os
import subprocess
import sys
from pathlib import Path

from bso.storage import SqlStore
from tests.integration.workers.fixtures import StartWorker
from tests.servers import PATIENCE_S

BEST = 128

SCRIPT = """
import sys
from types import SimpleNamespace
from bso_client import *

class Meter:
    def begin_window(self, key, /):
        pass

    def end_window(self, key, /):
        return SimpleNamespace(time=1.0, total_energy=10.0)

job_id, like, recurrences = sys.argv[1], sys.argv[2] or None, int(sys.argv[3])
epochs = {32: 9, 64: 6, 128: 3}
spec = JobSpec(job_id=job_id, batch_sizes=[32, 64, 128], default_batch_size=64, target_metric=0.9, eta_knob=1.0)
hardware = HardwareKind(gpu_model="A100", max_power_w=400.0, energy_method=EnergyMethod.MONITOR)
with BatchSizeOptimizer(spec, like=like, hardware=hardware, monitor=Meter()) as bso:
    for _ in range(recurrences):
        for trial in bso.trials():
            with trial:
                for epoch in range(1, epochs[trial.batch_size] + 1):
                    trial.on_evaluate(0.95 if epoch == epochs[trial.batch_size] else 0.1)
                    if trial.finished:
                        break
"""


def train(folder: Path, amqp_url: str, job_id: str, *, like: str = "", recurrences: int = 1) -> str:
    """Run the script in a process, and a state directory, of its own; returns what it said."""
    script = folder / "training_script.py"
    script.write_text(SCRIPT)
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("CUDA_", "BSO_"))}
    environ |= {"BSO_URL": amqp_url, "BSO_STATE_DIR": str(folder / job_id)}
    command = [sys.executable, str(script), job_id, like, str(recurrences)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stderr


async def test_a_job_like_another_begins_with_its_best_batch_size(
    store: SqlStore, start_worker: StartWorker, amqp_url: str, tmp_path: Path
) -> None:
    start_worker().ready()
    train(tmp_path, amqp_url, "known", recurrences=6)
    assert (await store.trials("known"))[-1].batch_size == BEST

    said = train(tmp_path, amqp_url, "new", like="known")
    [first] = await store.trials("new")
    assert first.batch_size == BEST
    assert first.reason == f"no run of this version has converged yet; by inherited knowledge {BEST} is best"
    assert "nothing is inherited" not in said

    said = train(tmp_path, amqp_url, "lonely", like="nobody")
    assert "nothing is inherited from job nobody: it is not registered" in said
    assert (await store.trials("lonely"))[0].batch_size == 64
