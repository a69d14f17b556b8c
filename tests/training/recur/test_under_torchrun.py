"""``bso recur`` with torchrun, whose exit code hides that of the training."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.servers import PATIENCE_S

BIN = Path(sys.executable).parent
_FAILING_ONCE = """
from bso_client import BatchSizeOptimizer, JobSpec

spec = JobSpec(job_id="toy", policy="pruning_thompson",
    batch_sizes=[8, 16], default_batch_size=16, target_metric=0.9, max_epochs=2,
               beta_knob=None)
bso = BatchSizeOptimizer(spec)
with bso.relaunching():
    batch_size = bso.get_batch_size()
    bso.on_train_begin()
    while not bso.training_finished:
        bso.on_evaluate(0.1 if batch_size == 16 else 0.95)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(_FAILING_ONCE)
    return path


def run(tmp_path: Path, *words: object) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("BSO_", "PET_"))}
    return subprocess.run(
        [*map(str, words)],
        env=environment | {"BSO_STATE_DIR": str(tmp_path / "state"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=4 * PATIENCE_S,
        check=False,
    )


def test_torchrun_makes_every_failure_a_1(tmp_path: Path, script: Path) -> None:
    done = run(tmp_path, BIN / "torchrun", "--nproc-per-node", 1, script)
    assert done.returncode == 1
    assert "exitcode  : 75" in done.stderr


def test_a_failed_batch_size_is_launched_again_under_torchrun(tmp_path: Path, script: Path) -> None:
    torchrun = (BIN / "torchrun", "--nproc-per-node", 1, script)
    done = run(tmp_path, BIN / "bso", "recur", 1, "--json", "--log-dir", tmp_path / "run", "--", *torchrun)
    assert done.returncode == 0, done.stderr
    shown: dict[str, Any] = json.loads(done.stdout)
    [recurrence] = shown["recurrences"]
    assert [trial["outcome"] for trial in recurrence["trials"]] == ["not_converged", "converged"]
    assert recurrence["launches"] == 2
    assert "exitcode  : 75" in (tmp_path / "run/recurrence-0001/launch-1.log").read_text()
