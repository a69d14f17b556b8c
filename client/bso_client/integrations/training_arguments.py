"""Hugging Face TrainingArguments for one trial: the batch size before Trainer, loader and schedule exist."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transformers import TrainingArguments

from bso_client.errors import InvalidSetting
from bso_client.integrations.reporter import check_trial, learning_rate_for, warn_of_doubts
from bso_client.integrations.transformers_checkpoints import folder_of, newest_checkpoint
from bso_client.scaling import Accumulation, accumulate
from bso_client.trial import Trial


def apply_trial(args: TrainingArguments, trial: Trial, *, max_micro_batch_size: int | None = None) -> TrainingArguments:
    """New arguments, with which a Trainer trains with the trial's batch size. Those given stay as they are.

    Set are ``per_device_train_batch_size`` and ``gradient_accumulation_steps``: their product, times the devices that
    train with different samples, is trial.batch_size. ``max_micro_batch_size`` is what fits on one device; without it,
    accumulation steps that ``args`` ask for are kept. Further ``learning_rate``, if the optimizer was given one to
    scale; ``output_dir``, to a folder per trial, since a checkpoint fits one batch size; ``resume_from_checkpoint``,
    for ``trainer.train(...)``: the newest checkpoint of a trial that is resumed, else None.

    Warns where arguments counted in steps mean something else for each batch size. Raises InvalidSetting where they
    contradict the trial, the batch size cannot be divided, or something else was given.
    """
    if not isinstance(args, TrainingArguments):
        raise InvalidSetting(f"apply_trial(args, trial) needs TrainingArguments first, got {type(args).__name__}")
    check_trial(trial, asked_by="apply_trial(args, trial)")
    _check(args)
    _check_together(args, processes=trial.ranks.size)
    if args.process_index == 0:
        warn_of_doubts(_doubts(args, trial))
    devices = data_parallel_size(args) * max(1, args.n_gpu)
    share = _share(trial.batch_size, devices, args.gradient_accumulation_steps, max_micro_batch_size)
    folder = folder_of(trial, Path(args.output_dir))
    checkpoint = newest_checkpoint(folder)
    changed: TrainingArguments = dataclasses.replace(
        args,
        per_device_train_batch_size=share.micro_batch_size,
        gradient_accumulation_steps=share.steps,
        learning_rate=learning_rate_for(trial, otherwise=args.learning_rate),
        output_dir=str(folder),
        resume_from_checkpoint=None if checkpoint is None else str(checkpoint),
    )
    return changed


def data_parallel_size(args: TrainingArguments, model: Any = None) -> int:
    """The number of processes that train with different samples: those of one tensor- or context-parallel group do not.

    A model that transformers has sharded for tensor parallelism knows it itself.
    """
    parallelism = args.parallelism_config
    sizes = [1 if parallelism is None else getattr(parallelism, f"{kind}_size", 1) for kind in ("tp", "cp", "sp")]
    sharded_over = getattr(model, "_tp_size", None)
    if sharded_over is not None:
        sizes[0] = sharded_over
    size: int = args.world_size
    for each in sizes:
        size //= each
    return max(1, size)


def batch_size_of(args: TrainingArguments, *, samples_per_process: int, model: Any = None) -> int:
    """The samples of one update of the weights, as the Trainer counts them."""
    return samples_per_process * int(args.gradient_accumulation_steps) * data_parallel_size(args, model)


def _share(batch_size: int, devices: int, steps: int, max_micro_batch_size: int | None) -> Accumulation:
    whole = accumulate(batch_size, world_size=devices, max_micro_batch_size=max_micro_batch_size)
    if max_micro_batch_size is not None or steps == 1:
        return whole
    if whole.micro_batch_size % steps:
        raise InvalidSetting(
            f"batch size {batch_size} on {devices} devices cannot be divided into gradient_accumulation_steps={steps} "
            "equal micro batches: give apply_trial a max_micro_batch_size=, which finds a number of steps that fits"
        )
    return dataclasses.replace(whole, micro_batch_size=whole.micro_batch_size // steps, steps=steps)


def _check(args: TrainingArguments) -> None:
    if args.auto_find_batch_size:
        raise InvalidSetting(
            "auto_find_batch_size=True makes the Trainer choose another batch size than the trial's when memory runs "
            "out: leave it out; a trial that runs out of memory is followed by a smaller one, and with "
            "apply_trial(..., max_micro_batch_size=...) a large batch size needs little memory"
        )
    accelerator = args.accelerator_config
    if getattr(accelerator, "split_batches", False) and args.world_size > 1:
        raise InvalidSetting(
            "accelerator_config split_batches=True divides per_device_train_batch_size once more among the processes: "
            "leave it out; apply_trial divides the trial's batch size among them"
        )
    if (getattr(accelerator, "gradient_accumulation_kwargs", None) or {}).get("num_steps") is not None:
        raise InvalidSetting(
            "accelerator_config gradient_accumulation_kwargs has num_steps, which overrides the accumulation that "
            "apply_trial sets: leave it out, and give apply_trial a max_micro_batch_size= where memory is short"
        )


def _check_together(args: TrainingArguments, *, processes: int) -> None:
    if args.world_size == 1 < processes:
        raise InvalidSetting(
            f"{processes} processes were launched to train together, but TrainingArguments knows of one: each would "
            "train by itself, with the whole batch and all data. On CPUs pass use_cpu=True to TrainingArguments; to "
            "train in one process, launch it without torchrun"
        )


def _doubts(args: TrainingArguments, trial: Trial) -> Iterator[str]:
    """What is legal, and rarely meant: each in a sentence that says what to do."""
    if args.max_steps > 0:
        yield (
            f"max_steps={args.max_steps} gives a large batch size more samples than a small one, which makes their "
            "costs hard to compare: set num_train_epochs, or compute max_steps from trial.batch_size"
        )
    elif args.num_train_epochs != trial.spec.max_epochs:
        yield _epochs_differ(args.num_train_epochs, trial.spec.max_epochs)
    if args.warmup_steps >= 1:
        yield (
            f"warmup_steps={args.warmup_steps:g} warms up over more samples the larger the batch size is: "
            "a number below 1 is a share of the training"
        )
    if args.eval_strategy == "steps" and args.eval_steps is not None and args.eval_steps >= 1:
        yield (
            f"eval_steps={args.eval_steps:g} evaluates more rarely the larger the batch size is, so that reaching the "
            'target is noticed later: a number below 1 is a share of the training; or set eval_strategy="epoch"'
        )


def _epochs_differ(num_train_epochs: float, max_epochs: int) -> str:
    if num_train_epochs < max_epochs:
        return (
            f"num_train_epochs={num_train_epochs:g} ends each training before the job's max_epochs={max_epochs}: "
            "one that has not reached the target by then counts as not converged; set both to the same number"
        )
    return (
        f"the job's max_epochs={max_epochs} ends each training before num_train_epochs={num_train_epochs:g}, for which "
        "the learning rate schedule is made; set both to the same number"
    )
