"""Trainers over two processes: one batch size, one trial, one end."""

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bso.domain.events import EpochCostsProbed
from bso.domain.trial import Outcome
from tests.integration.client.scripts import recorded_events, recorded_trials
from tests.servers import PATIENCE_S

ROOT = Path(__file__).parents[3]

TORCHRUN = (str(Path(sys.executable).with_name("torchrun")), "--standalone", "--nproc-per-node", "2")

PREAMBLE = """
import json, os, sys
from pathlib import Path
import torch
from bso_client import *

folder = Path(sys.argv[1])
spec = JobSpec(job_id="job", policy="pruning_thompson",
    batch_sizes=[8, 16, 32], default_batch_size=16, target_metric=0.9, max_epochs=5)
options = {"learning_rate": LearningRate(0.1, reference_batch_size=8)}
noted = []

def note(trial, **more):
    noted.append({"batch_size": trial.batch_size, "outcome": trial.outcome.value, "number": trial.trial_number} | more)

def write():
    rank = torch.distributed.get_rank()
    (folder / f"rank-{rank}.json").write_text(json.dumps(noted))
"""

TRANSFORMERS = """
from bso_client.integrations.transformers import BsoCallback, apply_trial, resumable_trials
from tests.training.integrations.tiny import Accuracies, arguments, trainer_for
from tests.training.integrations.tiny_task import Classifier

base = arguments(folder, ddp_backend="gloo", eval_strategy="steps", eval_steps=4, save_strategy="steps", save_steps=4)
bso = BatchSizeOptimizer(spec, **options)
for trial in resumable_trials(bso, base):
    args = apply_trial(base, trial, max_micro_batch_size=4)
    model = Classifier(largest_batch=3 if trial.batch_size == 16 else None)
    with trial:
        trainer = trainer_for(args, BsoCallback(trial, metric="accuracy"), model=model,
                              compute_metrics=Accuracies(0.1, 0.95))
        trainer.train()
    note(trial, seen=model.batches_seen, step=trainer.state.global_step, rate=args.learning_rate,
         folder=Path(args.output_dir).name)
write()
"""

LIGHTNING = """
import lightning.pytorch as pl
from bso_client.integrations.lightning import BsoCallback, learning_rate_for, start_ranks
from tests.training.integrations.tiny_lightning import data_class, module_class, trainer_options

def make_trainer(**more):
    return pl.Trainer(**trainer_options(folder, devices=2, strategy="ddp", val_check_interval=0.5, **more))

start_ranks(make_trainer())
bso = BatchSizeOptimizer(spec, **options)
for trial in bso.trials():
    data = data_class(pl)().use(trial, max_micro_batch_size=4)
    rate = learning_rate_for(trial, otherwise=0.0)
    model = module_class(pl)(0.1, 0.95, largest_batch=3 if trial.batch_size == 16 else None, learning_rate=rate)
    with trial:
        trainer = make_trainer(callbacks=[BsoCallback(trial, monitor="val_acc")],
                               accumulate_grad_batches=data.accumulate_grad_batches)
        trainer.fit(model, data)
    note(trial, seen=model.batches_seen, step=trainer.global_step, rate=rate)
write()
"""

PROBING = """
import functools, itertools
import bso_client.prober, bso_client.session
from bso_client.integrations import lightning as for_lightning
from bso_client.integrations.transformers import BsoCallback, apply_trial
from tests.training.integrations.tiny import Accuracies, arguments, trainer_for
from tests.training.integrations.tiny_lightning import data_class, trainer_options
from tests.training.integrations.tiny_task import Classifier, FirstTokens
import lightning.pytorch as pl

clock = itertools.count(0.0, 1e-4).__next__
vars(bso_client.session)["Prober"] = functools.partial(bso_client.prober.Prober, clock=clock)
probing = {"policy": "curve", "batch_sizes": [8, 16, 32], "default_batch_size": 16, "target_metric": 0.9,
           "max_epochs": 100, "probing_budget": 0.5}

class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = Classifier()
    def training_step(self, batch, batch_idx):
        loss = self.net(**batch)["loss"]
        self.log("loss", loss, sync_dist=True)
        return loss
    def validation_step(self, batch, batch_idx):
        self.log("val_acc", 0.1, sync_dist=True)
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

base = arguments(folder, ddp_backend="gloo", num_train_epochs=8)
bso = BatchSizeOptimizer(JobSpec(job_id="transformers", **probing), **options)
for trial in bso.trials():
    with trial:
        trainer_for(apply_trial(base, trial), BsoCallback(trial, metric="accuracy", probes=True), model=Classifier(),
                    train_dataset=FirstTokens(256), compute_metrics=Accuracies(0.1)).train()
    break
bso.close()
bso = BatchSizeOptimizer(JobSpec(job_id="lightning", **probing), **options)
for trial in bso.trials():
    with trial:
        data = data_class(pl)().use(trial)
        callback = for_lightning.BsoCallback(trial, monitor="val_acc", probes=True)
        pl.Trainer(callbacks=[callback], **trainer_options(folder, devices=2, strategy="ddp", max_epochs=8)).fit(
            Model(), data)
    note(trial)
    break
bso.close()
write()
"""


def run(folder: Path, body: str, *launcher: str) -> list[list[dict[str, Any]]]:
    """Run a script as its launcher does; what each rank wrote about its trials."""
    script = folder / "train.py"
    script.write_text(PREAMBLE + textwrap.dedent(body))
    kept = {name: value for name, value in os.environ.items() if not name.startswith("BSO_")}
    environ = kept | {
        "BSO_STATE_DIR": str(folder / "state"),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        [*launcher, str(script), str(folder)],
        env=environ,
        capture_output=True,
        text=True,
        timeout=4 * PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(2)]


def outcomes(folder: Path) -> Sequence[tuple[int, Outcome | None, int]]:
    return [(trial.batch_size, trial.outcome, trial.reports) for trial in recorded_trials(folder)]


def test_torchrun_and_the_trainer_of_transformers(tmp_path: Path) -> None:
    first, second = run(tmp_path, TRANSFORMERS, *TORCHRUN)

    assert first == second
    assert [each["batch_size"] for each in first] == [16, 8]
    assert first[1]["seen"] == [4] * 8  # one epoch of eight updates, each of 2 x 4 samples
    assert (first[1]["step"], first[1]["rate"], first[1]["folder"]) == (8, 0.1, "trial-2")
    assert outcomes(tmp_path) == [(16, Outcome.INFEASIBLE, 0), (8, Outcome.CONVERGED, 2)]


@pytest.mark.parametrize("launcher", [(sys.executable,), TORCHRUN], ids=["lightning", "torchrun"])
def test_lightning_with_ddp(tmp_path: Path, launcher: tuple[str, ...]) -> None:
    first, second = run(tmp_path, LIGHTNING, *launcher)

    assert first == second
    assert [each["batch_size"] for each in first] == [16, 8]
    assert first[1]["seen"] == [4] * 8
    assert (first[1]["step"], first[1]["rate"]) == (8, 0.1)
    assert outcomes(tmp_path) == [(16, Outcome.INFEASIBLE, 0), (8, Outcome.CONVERGED, 2)]


def test_both_trainers_probe_on_all_ranks(tmp_path: Path) -> None:
    first, second = run(tmp_path, PROBING, *TORCHRUN)

    assert first == second
    for job_id in ("transformers", "lightning"):
        events = [each for each in recorded_events(tmp_path, job_id) if isinstance(each, EpochCostsProbed)]
        assert {probe.batch_size for each in events for probe in each.probes} == {8, 16, 32}, job_id
