"""A script that trains once per process, as with Zeus: its exit codes, and `bso recur` around it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bso.domain.trial import Outcome
from bso_client import RELAUNCH
from tests.integration.client.scripts import Script, recorded_trials
from tests.servers import PATIENCE_S

BODY = """
import torch
from torch.utils.data import TensorDataset
from bso_client.integrations.torch import EvaluationLoader, TrainingLoader

data = TensorDataset(torch.arange(100.0))

if __name__ == "__main__":
    train_loader = TrainingLoader(data, bso, max_epochs=3, shuffle=True)
    eval_loader = EvaluationLoader(data, train_loader)
    for epoch in train_loader.epochs():
        for (batch,) in train_loader:
            if sys.argv[1] == "memory" and len(batch) > 32:
                raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        for (batch,) in eval_loader:
            pass
        train_loader.report_metric(0.1 if sys.argv[1] == "slow" and train_loader.trial.batch_size == 64 else 0.95)
    print(f"there is a model with batch size {train_loader.trial.batch_size}")
"""


def recur(folder: Path, script: Script, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the script under `bso recur`, for one recurrence."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("BSO_")}
    environ |= {"BSO_STATE_DIR": str(folder / "state"), "BSO_ENERGY": "assumed"}
    bso = str(Path(sys.executable).with_name("bso"))
    command = [bso, "recur", "1", "--", sys.executable, str(script.path), *arguments]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=4 * PATIENCE_S, check=False)


def test_a_failed_batch_size_exits_with_75_and_the_next_launch_has_another(tmp_path: Path) -> None:
    script = Script(tmp_path, BODY)
    first = script.run("slow")
    second = script.run("slow")

    assert (first.returncode, second.returncode) == (RELAUNCH, 0)
    assert "batch size 64 failed (not_converged)" in first.stderr
    assert "Traceback" not in first.stderr
    assert "there is a model" not in first.stdout, "nothing after the loop runs"
    assert "there is a model with batch size" in second.stdout
    trials = recorded_trials(tmp_path)
    assert [(trial.outcome, trial.batch_size == 64) for trial in trials] == [
        (Outcome.NOT_CONVERGED, True),
        (Outcome.CONVERGED, False),
    ]
    assert trials[0].recurrence_id == trials[1].recurrence_id


@pytest.mark.parametrize(("trouble", "outcome"), [("slow", Outcome.NOT_CONVERGED), ("memory", Outcome.INFEASIBLE)])
def test_bso_recur_launches_again_until_there_is_a_model(tmp_path: Path, trouble: str, outcome: Outcome) -> None:
    done = recur(tmp_path, Script(tmp_path, BODY), trouble)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "there is a model with batch size" in done.stdout
    assert [trial.outcome for trial in recorded_trials(tmp_path)] == [outcome, Outcome.CONVERGED]
