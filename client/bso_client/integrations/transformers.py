"""Hugging Face Trainer: a trial's batch size in its arguments, a callback that reports, stops and resumes.

for trial in resumable_trials(bso, base_args):
    args = apply_trial(base_args, trial)
    with trial:
        trainer = Trainer(model, args, ..., callbacks=[BsoCallback(trial, metric="accuracy")])
        trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

try:
    from transformers import TrainerControl, TrainerState, TrainingArguments
    from transformers.trainer_utils import has_length
except ImportError as error:
    raise ImportError(
        "bso_client.integrations.transformers needs Hugging Face transformers with its Trainer: "
        "pip install 'transformers[torch]'"
    ) from error

from bso.domain.trial import Outcome
from bso_client.integrations.power_hooks import PowerLimit
from bso_client.integrations.reporter import Reporter, is_to_probe, warn_of_doubts
from bso_client.integrations.training_arguments import apply_trial, batch_size_of
from bso_client.integrations.transformers_checkpoints import forget_trial, keep_trial, resumable_trials
from bso_client.integrations.transformers_power import PowerLimitCallback
from bso_client.integrations.transformers_probes import TransformersProbes
from bso_client.trial import Trial

__all__ = ["BsoCallback", "PowerLimitCallback", "apply_trial", "resumable_trials"]


class BsoCallback(PowerLimitCallback):
    """Reports each evaluation of a Trainer to a trial, and stops the training when the optimizer says so.

    ``metric``        what the job's target is about: "accuracy" and "eval_accuracy" are the same. With several
                      evaluation data sets, that of one of them: "eval_<name>_accuracy"
    ``power_limit``   a PowerLimitOptimizer to drive: it profiles over training steps, evaluations left out
    ``samples_per_epoch`` count progress in samples: for training data without a length, where the Trainer's epochs
                      are shares of max_steps
    ``probes``        after an evaluation, probe what epochs with other batch sizes would cost, where the optimizer
                      wants to know it; see ProbeStep. None: where one process trains. True: in several processes, too,
                      whose model must not exchange anything with others in a forward pass

    Nothing is raised out of the Trainer, whatever happens: what is wrong is logged, the best model is loaded, and
    models are saved. Afterwards ``outcome`` says how the trial ended, and so does the trial itself.

    An evaluation before the first step, and that of ``trainer.evaluate()`` outside of ``train()``, are not reported.
    With each checkpoint of the Trainer the trial is kept, so that ``resumable_trials`` can go on with it
    in another process. In data-parallel training each rank has this callback; all of them stop at the same step.
    """

    def __init__(
        self,
        trial: Trial,
        *,
        metric: str,
        power_limit: PowerLimit | None = None,
        samples_per_epoch: float | None = None,
        probes: bool | None = None,
    ) -> None:
        super().__init__(power_limit)
        self.trial = trial
        self._reporter = Reporter(trial, metric, names=_names_of(metric), samples_per_epoch=samples_per_epoch)
        self._probes = TransformersProbes(trial) if is_to_probe(trial, asked=probes) else None
        self._is_training = False
        self._kept_at_step = -1

    @property
    def outcome(self) -> Outcome | None:
        """How the trial ended; None while it runs, which it does until the end of ``with trial:``."""
        return self.trial.outcome

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Check what the Trainer is about to do, and count progress from here."""
        super().on_train_begin(args, state, control, **kwargs)
        self._is_training = True
        self._kept_at_step = -1
        self._reporter.begin(is_resumed=state.global_step > 0)
        trained_with = _batch_size(args, state, kwargs.get("model"))
        if trained_with != self.trial.batch_size:
            self._reporter.refuse(
                f"the Trainer trains with batch size {trained_with}, but the trial is about {self.trial.batch_size}: "
                "make the Trainer with the arguments that apply_trial(args, trial) returns"
            )
        if args.process_index == 0:
            warn_of_doubts(self._doubts(args, kwargs.get("train_dataloader")))

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Warn of a metric that the last evaluation lacked."""
        self._reporter.say_if_missing()
        super().on_step_begin(args, state, control, **kwargs)

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> TrainerControl:
        """Report, and stop the training if its trial has ended. A model that has converged is saved first."""
        if not self._is_training:
            return control
        samples = state.global_step * self.trial.batch_size
        if not self._reporter.evaluated(metrics or {}, epoch=state.epoch or 0.0, samples=samples):
            if self._probes is not None and not control.should_training_stop:
                self._probes.evaluated(args, kwargs.get("model"), kwargs.get("train_dataloader"))
            return control
        control.should_training_stop = True
        if self.trial.converged and args.save_strategy == "steps":
            control.should_save = True  # else load_best_model_at_end would load an older, worse one
        return control

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Keep the trial with the checkpoint, so that both can be resumed."""
        self._kept_at_step = state.global_step
        if not self._reporter.should_stop:
            keep_trial(self.trial, _checkpoint(args, state.global_step), should_write=args.should_save)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """The Trainer has come to its end, by itself or because somebody stopped it."""
        super().on_train_end(args, state, control, **kwargs)
        self._is_training = False
        unannounced = self._unannounced_checkpoint(args, state)
        if unannounced is not None:
            keep_trial(self.trial, unannounced, should_write=args.should_save)
            self._reporter.preempted("the process received SIGTERM; it saved a checkpoint")
            return
        self._reporter.end()
        if args.should_save:
            forget_trial(Path(args.output_dir))

    def _unannounced_checkpoint(self, args: TrainingArguments, state: TrainerState) -> Path | None:
        """The checkpoint that the Trainer has saved because of SIGTERM, before it stopped: no callback is called."""
        if not args.enable_jit_checkpoint or self._reporter.should_stop or state.global_step >= state.max_steps:
            return None
        for step in (state.global_step, state.global_step - 1):
            if step != self._kept_at_step and _checkpoint(args, step).is_dir():
                return _checkpoint(args, step)
        return None

    def _doubts(self, args: TrainingArguments, train_dataloader: Any) -> Iterator[str]:
        """What is legal, and rarely meant: each in a sentence that says what to do."""
        metric = self._reporter.metric
        if args.eval_strategy == "no":
            yield (
                'eval_strategy="no": the Trainer evaluates nothing, so nothing is reported; '
                'set eval_strategy="epoch" (or "steps")'
            )
        yield from self._reporter.doubts()
        best = args.metric_for_best_model
        if args.load_best_model_at_end and best is not None and not set(_names_of(metric)) & set(_names_of(best)):
            yield (
                f"load_best_model_at_end loads the model of the best {best}, which need not have reached the target of "
                f"{metric}: set metric_for_best_model={metric!r}"
            )
        if not has_length(train_dataloader) and not self._reporter.counts_samples:
            yield (
                "the training data have no length, so the Trainer counts progress as a share of max_steps: "
                "give BsoCallback samples_per_epoch=, so that max_epochs means epochs"
            )


def _names_of(metric: str) -> tuple[str, ...]:
    """How a metric may be called: the Trainer puts eval_ before what compute_metrics returns."""
    return (metric, metric.removeprefix("eval_")) if metric.startswith("eval_") else (f"eval_{metric}", metric)


def _batch_size(args: TrainingArguments, state: TrainerState, model: Any) -> int:
    """The batch size that the Trainer is about to train with, however it came to it."""
    samples = state.train_batch_size if args.auto_find_batch_size else args.train_batch_size
    return batch_size_of(args, samples_per_process=samples or args.train_batch_size, model=model)


def _checkpoint(args: TrainingArguments, step: int) -> Path:
    return Path(args.output_dir) / f"checkpoint-{step}"
