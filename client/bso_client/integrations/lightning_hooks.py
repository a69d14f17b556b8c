"""Lightning without Lightning: what the callback does and checkpoints hold, for either of its import names.

``lightning.pytorch`` and ``pytorch_lightning`` are two packages with classes of their own, and a Trainer of one refuses
callbacks of the other: bso_client.integrations.lightning and .pytorch_lightning make the classes for each.
"""

from __future__ import annotations

import logging
import math
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bso.domain.trial import Outcome
from bso_client.errors import CannotResume
from bso_client.integrations.lightning_probes import LightningProbes
from bso_client.integrations.power_hooks import PowerHooks, PowerLimit
from bso_client.integrations.reporter import Reporter, is_of, is_to_probe, warn_of_doubts
from bso_client.optimizer import BatchSizeOptimizer
from bso_client.trial import Trial

logger = logging.getLogger("bso")

STATE_KEY = "BsoCallback"
"""The name of the callback's state in a checkpoint."""


class TrialHooks:
    """Reports each validation of a Lightning Trainer to a trial, and stops the training when the optimizer says so.

    ``monitor``       the logged metric that the job's target is about, "val_acc" for example
    ``power_limit``   a PowerLimitOptimizer to drive: it profiles over updates of the weights, validations left out
    ``samples_per_epoch`` count progress in samples: for training data without a length
    ``probes``        after a validation, probe what epochs with other batch sizes would cost, where the optimizer wants
                      to know it; see ProbeStep. None: where one process trains. True: in several processes, too, whose
                      training_step must not exchange anything with others

    A validation in the middle of an epoch reports a fraction of it. A metric that is logged without any validation is
    reported when each training epoch ends. The sanity check, and trainer.validate() or .test(), are not reported.

    Nothing is raised out of the Trainer, whatever happens: what is wrong is logged, and checkpoints are saved.
    Afterwards ``outcome`` says how the trial ended, and so does the trial itself. Each checkpoint holds the trial, for
    ``resumable_trials``. With several processes each has this callback; all of them stop at the same batch.
    """

    def __init__(
        self,
        trial: Trial,
        *,
        monitor: str,
        power_limit: PowerLimit | None = None,
        samples_per_epoch: float | None = None,
        probes: bool | None = None,
    ) -> None:
        super().__init__()
        self.trial = trial
        self._reporter = Reporter(trial, monitor, samples_per_epoch=samples_per_epoch)
        self._power = PowerHooks(power_limit)
        self._probes = LightningProbes(trial) if is_to_probe(trial, asked=probes) else None
        self._is_probe_due = False
        self._batches_in_epoch = 0
        self._reports_after_epochs = False
        self._has_begun = False

    @property
    def state_key(self) -> str:
        """Where checkpoints hold this callback's state."""
        return STATE_KEY

    @property
    def outcome(self) -> Outcome | None:
        """How the trial ended; None while it runs, which it does until the end of ``with trial:``."""
        return self.trial.outcome

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Check what the Trainer is about to do, and count progress from here."""
        self._has_begun = True
        self._batches_in_epoch = 0
        self._reports_after_epochs = not trainer.enable_validation
        self._reporter.begin(is_resumed=trainer.global_step > 0)
        problem = _wrong_batch_size(trainer, self.trial)
        if trainer.fast_dev_run:
            self._reporter.refuse("fast_dev_run tries the script out with a few batches, and is no training")
        elif problem:
            self._reporter.refuse(problem)
        elif trainer.is_global_zero:
            warn_of_doubts(_doubts(trainer, self.trial, self._reporter))

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Warn if the last epoch's evaluations lacked the metric."""
        self._reporter.say_if_missing()

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Probe, if a validation came before; report the first batch of an update to the power limit optimizer."""
        if self._is_probe_due and self._probes is not None:  # a validation itself runs without autograd
            self._probes.validated(trainer, pl_module)
        self._is_probe_due = False
        if batch_idx % trainer.accumulate_grad_batches == 0:
            self._power.step_begins()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Report an update to the power limit optimizer; count the batch."""
        self._batches_in_epoch = batch_idx + 1
        is_last = self._batches_in_epoch == trainer.num_training_batches
        if is_last or self._batches_in_epoch % trainer.accumulate_grad_batches == 0:
            self._power.step_ends()

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Report to the power limit optimizer that training pauses."""
        self._power.row_ends()

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Report, and stop the training if its trial has ended."""
        if trainer.sanity_checking or trainer.state.fn != "fit" or self._reports_after_epochs:
            return
        metrics = trainer.callback_metrics
        progress = _epochs_done(trainer, self._batches_in_epoch)
        if progress is None and not self._reporter.counts_samples:
            warn_of_doubts([_NO_FRACTION])
            return
        self._evaluated(trainer, metrics, progress or 0.0)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Report a metric that validation does not log."""
        self._power.row_ends()
        metrics = trainer.callback_metrics
        if self._reporter.is_missing:  # validation has been asked first: such a metric is logged by training
            self._reports_after_epochs = self._reporter.knows(metrics)
        if self._reports_after_epochs or self._reporter.is_missing:
            self._evaluated(trainer, metrics, trainer.current_epoch + self._share_of_epoch(trainer))

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """The Trainer has come to its end, by itself or because somebody stopped it."""
        self._power.row_ends()
        self._reporter.end()

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """A Trainer that found no batch did not begin to train; nor did one whose checkpoint is of its last epoch."""
        if not self._has_begun and trainer.num_training_batches == 0:
            batch_size = self.trial.batch_size
            self._reporter.refuse(
                f"the training data have no batch: with batch size {batch_size} a loader with drop_last needs as many "
                "samples; take batch sizes that are larger than the data out of the job"
            )
            self._reporter.end()

    def state_dict(self) -> dict[str, Any]:
        """The trial, for the checkpoint that is being saved; nothing once it has ended."""
        if self._reporter.should_stop:
            return {}
        try:
            return self.trial.state_dict()
        except Exception:  # a checkpoint is saved all the same
            logger.exception("the trial is not in the checkpoint", extra={"action": "trial_not_kept"})
            return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Check that the checkpoint is one of this trial."""
        kept, mine = state.get("trial_number"), self.trial.trial_number
        if kept != mine:
            logger.warning(
                "the checkpoint is one of trial %s, but this is trial %s: loop over resumable_trials(bso, checkpoint), "
                "and fit with ckpt_path=checkpoint_of(trial, checkpoint)",
                kept,
                mine,
                extra={"action": "foreign_checkpoint"},
            )

    def _share_of_epoch(self, trainer: Any) -> float:
        total = trainer.num_training_batches
        return 1.0 if not math.isfinite(total) else self._batches_in_epoch / total

    def _evaluated(self, trainer: Any, metrics: Mapping[str, Any], epoch: float) -> None:
        samples = trainer.global_step * self.trial.batch_size
        if self._reporter.evaluated(metrics, epoch=epoch, samples=samples):
            trainer.should_stop = True
        else:
            self._is_probe_due = True


def _wrong_batch_size(trainer: Any, trial: Trial) -> str:
    """What is wrong with the batch size that the Trainer is about to train with; empty if nothing is known to be."""
    per_loader = getattr(trainer.train_dataloader, "batch_size", None)
    if not isinstance(per_loader, int):
        return ""
    accumulated = int(trainer.accumulate_grad_batches)
    sampling: Mapping[str, Any] = getattr(trainer.strategy, "distributed_sampler_kwargs", None) or {}
    processes = int(sampling.get("num_replicas", 1))
    trained_with = per_loader * accumulated * processes
    if abs(trained_with - trial.batch_size) < processes:  # shares may differ by one sample
        return ""
    return (
        f"the Trainer trains with batch size {trained_with} (loader {per_loader} x accumulate_grad_batches "
        f"{accumulated} x {processes} processes), but the trial is about {trial.batch_size}: let the data module be "
        "a TrialDataModule, or make the loader with trial.local_batch_size"
    )


_NO_FRACTION = (
    "the training data have no length, so a validation in the middle of an epoch is not reported: "
    "give BsoCallback samples_per_epoch="
)


def _epochs_done(trainer: Any, batches_in_epoch: int) -> float | None:
    """Progress in epochs; None in the middle of an epoch whose length is not known."""
    total = trainer.num_training_batches
    if math.isfinite(total):
        return float(trainer.current_epoch + batches_in_epoch / total)
    is_over = trainer.fit_loop.epoch_loop.batch_progress.is_last_batch
    return trainer.current_epoch + 1.0 if is_over else None


def _doubts(trainer: Any, trial: Trial, reporter: Reporter) -> Iterator[str]:
    """What is legal, and rarely meant: each in a sentence that says what to do."""
    max_epochs, min_epochs = trainer.max_epochs, trainer.min_epochs or 0
    if trainer.max_steps > 0:
        yield (
            f"max_steps={trainer.max_steps} gives a large batch size more samples than a small one, which makes their "
            "costs hard to compare: set max_epochs"
        )
    elif max_epochs is not None and 0 <= max_epochs < trial.spec.max_epochs:
        yield (
            f"Trainer(max_epochs={max_epochs}) ends each training before the job's max_epochs={trial.spec.max_epochs}: "
            "one that has not reached the target by then counts as not converged; set both to the same number"
        )
    if min_epochs > 1 or trainer.min_steps:
        yield (
            f"min_epochs={min_epochs}, min_steps={trainer.min_steps} make a Trainer go on after its trial has ended, "
            "at a cost that nobody counts: leave them out"
        )
    yield from reporter.doubts()


def resumable_trials(bso: BatchSizeOptimizer, checkpoint: str | Path) -> Iterator[Trial]:
    """``bso.trials()``, beginning with the trial in a Lightning checkpoint, if the file is there and it goes on.

    Then ``trainer.fit(..., ckpt_path=checkpoint_of(trial, checkpoint))``. A trial that has ended meanwhile is not
    resumed: training begins anew, with a warning.
    """
    yield from bso.resumable_trials(_trial_in(Path(checkpoint)) or None)


def checkpoint_of(trial: Trial, checkpoint: str | Path) -> str | None:
    """The checkpoint's path for ``trainer.fit(ckpt_path=...)`` if it is one of this trial; else None: begin anew."""
    state = _trial_in(Path(checkpoint))
    return str(checkpoint) if state and is_of(trial, state) else None


def _trial_in(checkpoint: Path) -> Mapping[str, Any]:
    import torch

    if not checkpoint.is_file():
        return {}
    try:
        data = torch.load(checkpoint, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:
        raise CannotResume(
            f"{checkpoint} cannot be read: {_why_unreadable(checkpoint, error)}; to train anew, leave it out"
        ) from error
    state: Mapping[str, Any] = data.get("callbacks", {}).get(STATE_KEY, {})
    return state


def _why_unreadable(checkpoint: Path, error: Exception) -> str:
    if not checkpoint.stat().st_size:
        return "the file is empty"
    if not zipfile.is_zipfile(checkpoint):
        return "the file is damaged or cut off"
    words = " ".join(str(error).split())[:300]
    return f"it has to hold plain data, and objects of your own classes among the hyperparameters are not ({words})"
