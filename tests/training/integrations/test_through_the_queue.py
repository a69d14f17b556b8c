"""Both trainers with an optimizer of several machines: RabbitMQ, a worker process, MariaDB or MySQL."""

from pathlib import Path

import lightning.pytorch

from bso_client import BatchSizeOptimizer
from bso_client.integrations.lightning import BsoCallback as LightningCallback
from bso_client.integrations.transformers import BsoCallback, apply_trial
from tests.acceptance.conftest import Command, bso, state_dir
from tests.servers import eventually
from tests.training.integrations.tiny import Accuracies, arguments, trainer_for
from tests.training.integrations.tiny_lightning import data_class, module_class, trainer_options
from tests.unit.client.doubles import HARDWARE, ScriptedMonitor, job_spec

__all__ = ["bso", "state_dir"]  # the installed command as a fixture


def test_trainings_of_both_trainers_are_in_the_database(
    bso: Command, amqp_url: str, mysql_url: str, monitor: ScriptedMonitor, tmp_path: Path
) -> None:
    bso.environment |= {"BSO_URL": amqp_url, "BSO_DATABASE_URL": mysql_url, "BSO_HEALTH_PORT": "0"}
    bso.ok("migrate")
    bso.start("worker", stdout=-3)
    eventually(lambda: bso("doctor").returncode == 0, what="a worker that answers")

    spec = job_spec(policy="pruning_thompson", batch_sizes=[8, 16, 32], default_batch_size=16)
    with BatchSizeOptimizer(spec, url=amqp_url, monitor=monitor, hardware=HARDWARE) as optimizer:
        for trial in optimizer.trials():
            with trial:
                args = apply_trial(arguments(tmp_path), trial)
                callback = BsoCallback(trial, metric="accuracy")
                trainer_for(args, callback, compute_metrics=Accuracies(0.1, 0.95)).train()
        for trial in optimizer.trials():
            with trial:
                callbacks = [LightningCallback(trial, monitor="val_acc")]
                trainer = lightning.pytorch.Trainer(callbacks=callbacks, **trainer_options(tmp_path))
                trainer.fit(module_class(lightning.pytorch)(0.1, 0.95), data_class(lightning.pytorch)().use(trial))

    trials = bso.lines("jobs", "export", "job")
    assert [(trial["batch_size"], trial["outcome"]) for trial in trials] == [(16, "converged"), (8, "converged")]
    assert [trial["epoch"] for trial in trials] == [2.0, 2.0]
