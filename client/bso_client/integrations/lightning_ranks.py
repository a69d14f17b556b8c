"""The processes of a Lightning Trainer, started before the first trial: they have to agree on its batch size."""

from __future__ import annotations

from typing import Any

from bso_client.errors import InvalidSetting


def start_ranks(trainer: Any) -> None:
    """Start the processes that this Trainer would start in ``fit``, and wait until they have found each other.

    To be called before ``bso.trials()`` where Trainer(devices=2, strategy="ddp") starts its processes itself: each of
    them runs the script from its beginning, as Lightning does it. Then every process has its share of the batch size
    before it makes a loader. Any Trainer of the same devices and strategy may train afterwards. Under torchrun, Slurm
    and the like it only waits; with one process it does nothing.

    Raises InvalidSetting for a strategy that trains in forked or spawned processes, such as ddp_spawn: what they learn
    does not come back to the loop over trials.
    """
    launcher = trainer.strategy.launcher
    if launcher is None or not hasattr(trainer.strategy, "cluster_environment"):
        return
    if not hasattr(launcher, "cluster_environment"):  # a _MultiProcessingLauncher or the like
        raise InvalidSetting(
            f"{type(trainer.strategy).__name__} trains in forked or spawned processes, which cannot report to a trial "
            'of this one: choose strategy="ddp", or start the script with torchrun'
        )
    launcher.launch(trainer.strategy.setup_environment, trainer=trainer)
