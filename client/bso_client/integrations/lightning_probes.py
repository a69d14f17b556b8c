"""Probing epoch costs in a Lightning Trainer, by itself: after a validation, before the next step."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

from bso_client.integrations.probe_step import ProbeStep, TrainerProbes


class LightningProbes(TrainerProbes):
    """Probes for a trial whose training a Lightning Trainer runs.

    A Trainer that accumulates gradients, divides the model or reads a stream probes nothing, and neither does a module
    that optimizes by itself. A step may read numbers and words of its Trainer, and nothing else: what it changed there
    would stay changed.
    """

    def validated(self, trainer: Any, module: Any) -> None:
        """The model was validated, and its training goes on."""
        if _is_fit(trainer, module):
            loss_of = partial(_loss, trainer, module)
            loader = trainer.train_dataloader
            self.probe(lambda: ProbeStep(module, loss_of, loader, beside=(trainer,)), trainer=trainer)


def _is_fit(trainer: Any, module: Any) -> bool:
    """Whether a step of the module alone is what the Trainer makes now."""
    loader = trainer.train_dataloader
    if _changes_batches(trainer.datamodule):
        return False
    is_whole = trainer.model is module or isinstance(trainer.model, DistributedDataParallel)
    if not (is_whole and module.automatic_optimization and trainer.accumulate_grad_batches == 1):
        return False
    return isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterableDataset)


def _loss(trainer: Any, module: Any, batch: Any) -> Tensor:
    """The loss that the module's own training step gives, as precisely as in the training."""
    precision = trainer.precision_plugin
    before = module.on_before_batch_transfer(precision.convert_input(batch), 0)
    moved = trainer.strategy.batch_to_device(before)
    with _nothing_logged(trainer, module), _only_read(trainer, module), precision.train_step_context():
        found = module.training_step(moved, 0) if _takes_index(module.training_step) else module.training_step(moved)
    loss: Tensor = found["loss"] if isinstance(found, Mapping) else found
    return loss


def _changes_batches(datamodule: Any) -> bool:
    """Whether a data module changes batches by itself, and so may have a state of its own."""
    if datamodule is None:
        return False
    hooks = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")
    return any(getattr(type(datamodule), hook).__module__.partition(".")[0] not in _LIGHTNING for hook in hooks)


def _takes_index(training_step: Any) -> bool:
    """Whether a training step takes a batch's index, too."""
    parameters = inspect.signature(training_step).parameters.values()
    return len(parameters) > 1 or any(each.kind is inspect.Parameter.VAR_POSITIONAL for each in parameters)


@contextmanager
def _nothing_logged(trainer: Any, module: Any) -> Iterator[None]:
    """What is logged meanwhile is no part of the training. A step that uses a logger itself finds none, and fails."""
    loggers, trainer.loggers = trainer.loggers, []
    logging_modules = [each for each in module.modules() if hasattr(each, "log_dict")]
    before = [{name: vars(each)[name] for name in _LOGS if name in vars(each)} for each in logging_modules]
    for each in logging_modules:
        vars(each).update(dict.fromkeys(_LOGS, _ignore))
    try:
        yield
    finally:
        trainer.loggers = loggers
        for each, own in zip(logging_modules, before, strict=True):
            for name in _LOGS:
                del vars(each)[name]
            vars(each).update(own)


_LOGS = ("log", "log_dict")
_LIGHTNING = ("lightning", "pytorch_lightning")


class _OnlyRead:
    """A Trainer of which numbers and words can be read."""

    def __init__(self, trainer: Any) -> None:
        vars(self)["_trainer"] = trainer

    def __getattr__(self, name: str) -> Any:
        """Raises TypeError for anything that could be changed."""
        value = getattr(vars(self)["_trainer"], name)
        if value is None or isinstance(value, bool | int | float | str | Enum | torch.device):
            return value
        raise TypeError(f"the training step uses its Trainer's {name}, which a probe could change")

    def __setattr__(self, name: str, value: object) -> None:
        """Raises TypeError."""
        raise TypeError(f"the training step changes its Trainer's {name}")


@contextmanager
def _only_read(trainer: Any, module: Any) -> Iterator[None]:
    """The module, and those in it, know a Trainer that they cannot change."""
    attached = [vars(each) for each in module.modules() if vars(each).get("_trainer") is trainer]
    reader = _OnlyRead(trainer)
    for held in attached:
        held["_trainer"] = reader
    try:
        yield
    finally:
        for held in attached:
            held["_trainer"] = trainer


def _ignore(*_arguments: Any, **_options: Any) -> None:
    """Log nothing."""
