"""A Lightning data module that has its trial's batch size before its loaders are made."""

from __future__ import annotations

from typing import Self

from bso_client.errors import WrongOrder
from bso_client.integrations.reporter import check_trial
from bso_client.scaling import Accumulation, accumulate
from bso_client.trial import Trial


class TrialDataModule:
    """Gives a data module its trial's batch size before its loaders are made. To be named before LightningDataModule.

    class Digits(TrialDataModule, LightningDataModule):
        def train_dataloader(self):
            return DataLoader(self.digits, batch_size=self.batch_size, shuffle=True)

    data = Digits().use(trial)
    trainer = Trainer(accumulate_grad_batches=data.accumulate_grad_batches, ...)

    With a Trainer over several processes, each loader gets this process' share, in samples. Raises WrongOrder where the
    batch size is asked for before ``use(trial)``, or set otherwise.
    """

    _trial: Trial | None = None
    _accumulation: Accumulation | None = None

    def use(self, trial: Trial, *, max_micro_batch_size: int | None = None) -> Self:
        """Train with this trial's batch size; no more than ``max_micro_batch_size`` samples fit on a device at once.

        Raises InvalidSetting if the processes cannot have equal shares, or for anything but a trial.
        """
        check_trial(trial, asked_by="use(trial)")
        ranks = trial.accumulation().world_size
        self._accumulation = accumulate(  # by equal shares, which is how Lightning divides the samples
            trial.batch_size, world_size=ranks, max_micro_batch_size=max_micro_batch_size
        )
        self._trial = trial
        return self

    @property
    def trial(self) -> Trial:
        """The trial that is trained for. Raises WrongOrder before ``use``."""
        if self._trial is None:
            raise WrongOrder(f"{type(self).__name__} has no batch size yet: call use(trial) before the Trainer's fit")
        return self._trial

    @property
    def batch_size(self) -> int:
        """What a loader of this process takes at once. Raises WrongOrder before ``use``."""
        return self._share.micro_batch_size

    @batch_size.setter
    def batch_size(self, value: int) -> None:
        raise WrongOrder(
            f"batch_size={value!r} was set on {type(self).__name__}, whose trial decides it: leave that out, and call "
            "use(trial)"
        )

    @property
    def accumulate_grad_batches(self) -> int:
        """For Trainer(accumulate_grad_batches=...): batches of one update. Raises WrongOrder before ``use``."""
        return self._share.steps

    @property
    def _share(self) -> Accumulation:
        assert self.trial is not None
        assert self._accumulation is not None
        return self._accumulation
