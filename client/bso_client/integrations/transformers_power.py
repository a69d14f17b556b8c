"""Hugging Face Trainer with a power limit alone: for trainings that do not recur, and so need no batch size."""

from __future__ import annotations

from typing import Any

try:
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
except ImportError as error:
    raise ImportError(
        "bso_client.integrations.transformers_power needs Hugging Face transformers with its Trainer: "
        "pip install 'transformers[torch]'"
    ) from error

from bso_client.integrations.power_hooks import PowerHooks, PowerLimit

__all__ = ["PowerLimitCallback"]


class PowerLimitCallback(TrainerCallback):  # type: ignore[misc]  # transformers has no types here
    """Reports a Trainer's steps to a PowerLimitOptimizer; works with every Trainer, TRL's SFTTrainer among them.

    power_limit = PowerLimitOptimizer(profile_key="gemma-sft")
    trainer = Trainer(..., callbacks=[PowerLimitCallback(power_limit)])

    The samples of a step are those of the TrainingArguments, where the optimizer was not given any. Evaluations and
    checkpoints are left out of what is profiled. What the optimizer raises is logged, and the training
    goes on. Where a job recurs, BsoCallback does this, too.
    """

    def __init__(self, power_limit: PowerLimit | None) -> None:
        self._power = PowerHooks(power_limit)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Say how many samples a step has."""
        batch_size = state.train_batch_size if args.auto_find_batch_size else args.train_batch_size
        self._power.step_has((batch_size or args.train_batch_size) * args.gradient_accumulation_steps)

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """A training step begins."""
        self._power.step_begins()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """It is over; an evaluation or a checkpoint may come before the next one."""
        self._power.step_ends()
        if control.should_evaluate or control.should_save:
            self._power.row_ends()

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """An epoch is over."""
        self._power.row_ends()

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """The training is over."""
        self._power.row_ends()
