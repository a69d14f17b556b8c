"""Trainers whose process is killed, or gets SIGTERM: the next process goes on with the trial and its checkpoint."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

from bso.domain.trial import Outcome, TrialState
from tests.integration.client.scripts import recorded_trials
from tests.servers import PATIENCE_S

ROOT = Path(__file__).parents[3]

PREAMBLE = """
import json, os, signal, sys
from pathlib import Path
from bso_client import *

folder, word = Path(sys.argv[1]), sys.argv[2]
spec = JobSpec(job_id="job", policy="pruning_thompson",
    batch_sizes=[8, 16, 32], default_batch_size=16, target_metric=0.9, max_epochs=5)
bso = BatchSizeOptimizer(spec)

def end_at(step, at):
    if step == at and word != "goes":
        os.kill(os.getpid(), {"killed": signal.SIGKILL, "noted": signal.SIGTERM}[word])
"""

TRANSFORMERS = """
from transformers import TrainerCallback
from bso_client.integrations.transformers import BsoCallback, apply_trial, resumable_trials
from tests.training.integrations.tiny import Accuracies, arguments, trainer_for

class EndAt(TrainerCallback):
    def on_step_begin(self, args, state, control, **kwargs):
        end_at(state.global_step, 10)

base = arguments(folder, save_strategy="epoch")
for trial in resumable_trials(bso, base):
    args = apply_trial(base, trial)
    with trial:
        trainer = trainer_for(args, BsoCallback(trial, metric="accuracy"), EndAt(),
                              compute_metrics=Accuracies(*([0.95] if word == "goes" else [0.1])))
        began_at = []
        class Began(TrainerCallback):
            def on_train_begin(self, args, state, control, **kwargs):
                began_at.append(state.global_step)
        trainer.add_callback(Began())
        trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
print(json.dumps({"began_at": began_at[0], "epoch": trainer.state.epoch}))
"""

LIGHTNING = """
import lightning.pytorch as pl
from lightning.pytorch.callbacks import ModelCheckpoint
from bso_client.integrations.lightning import BsoCallback, checkpoint_of, resumable_trials
from tests.training.integrations.tiny_lightning import data_class, module_class, trainer_options

class EndAt(pl.Callback):
    def on_train_start(self, trainer, pl_module):
        began_at.append(trainer.global_step)

    def on_train_batch_start(self, trainer, *arguments):
        end_at(trainer.global_step, 10)

last, began_at = folder / "last.ckpt", []
for trial in resumable_trials(bso, last):
    with trial:
        saving = ModelCheckpoint(dirpath=folder, save_last=True, enable_version_counter=False)
        callbacks = [BsoCallback(trial, monitor="val_acc"), EndAt(), saving]
        trainer = pl.Trainer(callbacks=callbacks, **trainer_options(folder, enable_checkpointing=True))
        model = module_class(pl)(*([0.95] if word == "goes" else [0.1]))
        trainer.fit(model, data_class(pl)().use(trial), ckpt_path=checkpoint_of(trial, last))
print(json.dumps({"began_at": began_at[0], "epoch": float(trainer.current_epoch)}))
"""


def run(folder: Path, body: str, word: str) -> subprocess.CompletedProcess[str]:
    script = folder / "train.py"
    script.write_text(PREAMBLE + textwrap.dedent(body))
    kept = {name: value for name, value in os.environ.items() if not name.startswith("BSO_")}
    environ = kept | {"BSO_STATE_DIR": str(folder / "state"), "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(script), str(folder), word]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=4 * PATIENCE_S, check=False)


def resumed(folder: Path, body: str) -> Any:
    done = run(folder, body, "goes")
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_killed_trainer_of_transformers_goes_on_at_its_checkpoint(tmp_path: Path) -> None:
    assert run(tmp_path, TRANSFORMERS, "killed").returncode == -signal.SIGKILL

    assert resumed(tmp_path, TRANSFORMERS) == {"began_at": 8, "epoch": 3.0}
    assert [(trial.outcome, trial.reports) for trial in recorded_trials(tmp_path)] == [(Outcome.CONVERGED, 3)]


def test_a_trainer_of_lightning_that_gets_sigterm_suspends_its_trial_and_goes_on(tmp_path: Path) -> None:
    assert run(tmp_path, LIGHTNING, "noted").returncode != 0
    assert [trial.state for trial in recorded_trials(tmp_path)] == [TrialState.SUSPENDED]

    assert resumed(tmp_path, LIGHTNING) == {"began_at": 8, "epoch": 3.0}
    assert [(trial.outcome, trial.reports) for trial in recorded_trials(tmp_path)] == [(Outcome.CONVERGED, 3)]
