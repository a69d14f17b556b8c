"""Training steps of PyTorch for Trial.probe_epoch_costs, after which the training is as it was before, bit by bit.

step = ProbeStep(model, lambda batch: loss_function(model(batch[0]), batch[1]), train_loader)
for epoch in range(most):
    ...
    trial.on_evaluate(accuracy)
    trial.probe_epoch_costs(step)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Any, Self

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset, RandomSampler

from bso_client.errors import InvalidSetting
from bso_client.integrations.kept_state import KeptModel, random_numbers_kept, remembered_kept
from bso_client.integrations.kept_values import NotPutBack
from bso_client.prober import MOST_STEPS
from bso_client.trial import Trial

__all__ = ["ProbeStep", "TrainerProbes"]

logger = logging.getLogger("bso")

_SEED = 0
_CHANGES_PARAMETERS = "a forward pass of the model changes parameters that are trained"
_LOADING_TIMEOUT_S = 120.0  # a worker process that hangs must not hold up a training for ever


class ProbeStep:
    """Loads samples and trains one step with them, forwards and backwards; no optimizer takes a step.

    ``loss_of(batch)`` gives the loss of a batch, as in the training, and runs no module that is not in ``model``.
    ``loader`` is the training's: its dataset, workers and the like are used, by a loader of the step's own that draws
    samples at random. Gradients are computed and dropped. What the model holds, the generators of random numbers of
    PyTorch, numpy and Python, what ``loss_of`` closes over, and what the attributes of dataset and ``collate_fn`` hold
    are kept before the first step and put back after the last; docs/pytorch.md says what that includes. Objects
    ``beside`` the model, to which modules refer, are not kept: a trainer, for example.

    In data-parallel training each rank makes steps by itself: inside them, a DistributedDataParallel runs its module
    alone, so that no rank waits for another.

    Raises InvalidSetting for the loader of an IterableDataset, whose samples come once. What could not be put back, and
    a model whose steps need the other ranks, raise TypeError when the step is entered, or after its first call: nothing
    more is probed then.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        loss_of: Callable[[Any], torch.Tensor],
        loader: DataLoader[Any],
        *,
        beside: Sequence[object] = (),
    ) -> None:
        if isinstance(loader.dataset, IterableDataset):
            raise InvalidSetting(
                f"the samples of this {type(loader.dataset).__name__} come once, and a probe would take some from the "
                "training: pass the loader of a dataset with an index, or leave the probing out"
            )
        is_wrapped = isinstance(model, DistributedDataParallel)
        self._wrapper: torch.nn.Module | None = model if is_wrapped else None
        self._model: torch.nn.Module = model.module if is_wrapped else model
        self._loss_of = loss_of
        self._loader = loader
        self._beside = beside
        self._batches: Iterator[Any] | None = None
        self._batch_size = 0
        self._leaves_parameters = False
        self._entered: KeptModel | None = None
        self._stack = ExitStack()

    def __call__(self, batch_size: int) -> None:
        """One step with so many samples. On an accelerator it waits for the end of the step."""
        if batch_size != self._batch_size or self._batches is None:
            self._batches, self._batch_size = iter(self._batches_of(batch_size)), batch_size
        loss = self._loss_of(next(self._batches))
        trained = [each for each in self._model.parameters() if each.requires_grad]
        torch.autograd.grad(loss, trained, allow_unused=True)  # backward() would run what hangs on gradients
        if loss.device.type != "cpu":
            torch.accelerator.synchronize()
        if not self._leaves_parameters and self._entered is not None:
            if self._entered.changes_parameters:
                raise TypeError(_CHANGES_PARAMETERS)
            self._entered.forget_many()
            self._leaves_parameters = True

    def __enter__(self) -> Self:
        """Keep what a step changes."""
        _check_local(self._model, self._wrapper)
        with ExitStack() as stack:
            stack.enter_context(random_numbers_kept())
            loader = self._loader
            data = [] if loader.num_workers else [loader.dataset, loader.collate_fn]  # worker processes have copies
            stack.enter_context(remembered_kept(self._loss_of, data=data, model=self._model))
            if self._wrapper is not None:
                stack.enter_context(_unwrapped(self._wrapper))
            self._entered = KeptModel(self._model, with_many=not self._leaves_parameters, beside=self._beside)
            stack.callback(self._put_back, self._entered)
            self._model.train()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Put it back. Raises NotPutBack."""
        self._batches, self._entered = None, None
        self._stack.close()

    def _put_back(self, kept: KeptModel) -> None:
        changes_parameters = kept.changes_parameters
        try:
            kept.put_back()
        except NotPutBack as error:
            extra = {"action": "probe_not_put_back"}
            logger.error("probing has changed the training: %s", error, extra=extra)
            raise
        if changes_parameters:
            raise TypeError(_CHANGES_PARAMETERS)

    def _batches_of(self, batch_size: int) -> DataLoader[Any]:
        loader, dataset = self._loader, self._loader.dataset
        generator = torch.Generator()
        generator.manual_seed(_SEED)
        of_workers: dict[str, Any] = {}
        if loader.num_workers:
            of_workers = {
                "num_workers": loader.num_workers,
                "prefetch_factor": 1,  # the training's own workers may hold batches, too
                "multiprocessing_context": loader.multiprocessing_context,
                "worker_init_fn": loader.worker_init_fn,
                "timeout": loader.timeout or _LOADING_TIMEOUT_S,
            }
        return DataLoader(
            dataset,
            batch_size=batch_size,
            sampler=RandomSampler(dataset, replacement=True, num_samples=batch_size * MOST_STEPS, generator=generator),
            collate_fn=loader.collate_fn,
            pin_memory=loader.pin_memory,
            generator=generator,
            **of_workers,
        )


class TrainerProbes:
    """Probes for a trial whose training somebody's trainer runs: nothing is raised out of them."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        self._step: ProbeStep | None = None
        self._trained_by: object = None

    def probe(self, make_step: Callable[[], ProbeStep], *, trainer: object) -> None:
        """Probe between two steps of the training. The step is made once for each trainer that goes on with it."""
        try:
            if trainer is not self._trained_by:
                self._step, self._trained_by = None, trainer
            self._step = self._step or make_step()
            self._trial.probe_epoch_costs(self._step)
        except Exception as error:  # noqa: BLE001  # a trainer still has to load its best model and to save
            logger.warning("epoch costs are not probed: %s", error, extra={"action": "probe_failed"})


def _check_local(model: torch.nn.Module, wrapper: torch.nn.Module | None) -> None:
    """Raise TypeError where a step of one rank would wait for the others, or its wrapper is compiled."""
    if getattr(wrapper, "_compiled_call_impl", None) is not None:
        raise TypeError("the model is compiled, and would be compiled again for each batch size")
    if any(isinstance(module, torch.nn.SyncBatchNorm) for module in model.modules()) and _is_one_of_several():
        raise TypeError("SyncBatchNorm waits for the other ranks in each step")
    is_sharded = any("FullySharded" in type(module).__name__ for module in model.modules())
    if is_sharded or any(hasattr(each, "device_mesh") for each in model.parameters()):  # which a DTensor has
        raise TypeError("the model is divided among the ranks, and each step waits for the others")


def _is_one_of_several() -> bool:
    distributed = torch.distributed
    return bool(distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1)


@contextmanager
def _unwrapped(wrapper: torch.nn.Module) -> Iterator[None]:
    """The wrapper runs its module alone: it neither broadcasts buffers nor prepares to reduce gradients."""
    vars(wrapper)["forward"] = wrapper.module.__call__
    try:
        yield
    finally:
        del vars(wrapper)["forward"]
