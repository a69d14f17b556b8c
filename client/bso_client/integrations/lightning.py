"""``import lightning``: a data module with its trial's batch size, a callback that reports and stops.

    for trial in bso.trials():
        data = Digits().use(trial)
        callback = BsoCallback(trial, monitor="val_acc")
        with trial:
            Trainer(callbacks=[callback], accumulate_grad_batches=data.accumulate_grad_batches).fit(Model(), data)

bso_client.integrations.pytorch_lightning has the same for ``import pytorch_lightning``.
"""

from __future__ import annotations

try:
    from lightning.pytorch import Callback
except ImportError as error:
    raise ImportError("bso_client.integrations.lightning needs Lightning: pip install lightning") from error

from bso_client.integrations.lightning_data import TrialDataModule
from bso_client.integrations.lightning_hooks import TrialHooks, checkpoint_of, resumable_trials
from bso_client.integrations.lightning_ranks import start_ranks
from bso_client.integrations.reporter import learning_rate_for

__all__ = ["BsoCallback", "TrialDataModule", "checkpoint_of", "learning_rate_for", "resumable_trials", "start_ranks"]


class BsoCallback(TrialHooks, Callback):  # type: ignore[misc]  # lightning has no types here
    __doc__ = TrialHooks.__doc__
