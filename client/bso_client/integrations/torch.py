"""Data loaders that drive the optimizer by themselves, with the contract of Zeus' ZeusDataLoader.

for trial in bso.trials():
    train_loader = TrainingLoader(train_set, trial, shuffle=True)
    eval_loader = EvaluationLoader(eval_set, train_loader)
    with trial:
        for epoch in train_loader.epochs():
            for batch in train_loader:
                ...
            for batch in eval_loader:
                ...
            train_loader.report_metric(accuracy)
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, SupportsFloat

from torch import Tensor
from torch.nn import Module
from torch.utils.data import DataLoader, IterableDataset

from bso_client.errors import InvalidSetting, WrongOrder
from bso_client.integrations.driven_trial import DrivenTrial
from bso_client.integrations.power_hooks import PowerHooks, PowerLimit
from bso_client.integrations.probe_step import ProbeStep
from bso_client.integrations.samplers import ProportionalSampler, divided_among_ranks
from bso_client.optimizer import BatchSizeOptimizer
from bso_client.scaling import Accumulation
from bso_client.trial import Trial

__all__ = ["EvaluationLoader", "ProportionalSampler", "TrainingLoader"]

_BATCH_SIZE_TWICE = (
    "TrainingLoader takes no batch_size: the optimizer chooses it. Leave it out; those to choose from, and the one "
    "used until now, stand in JobSpec(batch_sizes=..., default_batch_size=...)"
)


class TrainingLoader(DataLoader):  # type: ignore[misc]  # torch is Any where it need not be installed
    """A DataLoader of the trial's batch size, whose epochs() begins, reports and ends the trial.

    ``optimizer`` is a trial of ``bso.trials()``: a failure ends the epochs, and the loop over trials goes on with
    another batch size. Or it is a BatchSizeOptimizer, for a script that trains once per process: a failure exits with
    75, which asks ``bso recur`` to launch again.

    ``max_epochs``           end the training after so many epochs, if the job's max_epochs does not end it before
    ``power_limit``          a PowerLimitOptimizer, which counts every step
    ``max_micro_batch_size`` samples that fit in a rank's memory at once: micro batches are loaded, see ``accumulation``
    ``samples_per_epoch``    the length of an epoch of an IterableDataset, over all ranks
    ``probe``                the model and a function of a batch that gives its loss, as in the training: what epochs
                             with other batch sizes would cost is then probed between epochs, see ProbeStep
    ``loading``              every other argument of a DataLoader but batch_size and batch_sampler

    In data-parallel training each rank loads its own part with its share of the batch size, by a DistributedSampler
    that is made here, or a ProportionalSampler for uneven shares; every rank makes the same calls. Time and energy
    count from epochs() (or ``with trial:``) to the last report_metric(), evaluations included. Raises InvalidSetting
    for arguments that do not go together.
    """

    def __init__(
        self,
        dataset: Any,
        optimizer: BatchSizeOptimizer | Trial | None = None,
        *,
        max_epochs: int | None = None,
        power_limit: PowerLimit | None = None,
        max_micro_batch_size: int | None = None,
        samples_per_epoch: int | None = None,
        probe: tuple[Module, Callable[[Any], Tensor]] | None = None,
        **loading: Any,
    ) -> None:
        if isinstance(optimizer, int):
            raise InvalidSetting(_BATCH_SIZE_TWICE)
        if "batch_size" in loading:
            raise InvalidSetting(_BATCH_SIZE_TWICE)
        _check_no_batch_sampler("TrainingLoader", loading)
        _check_samples_per_epoch(dataset, samples_per_epoch)
        self._training = DrivenTrial(optimizer, asked_by="TrainingLoader(dataset, ...)")
        self.max_epochs = max_epochs
        self.accumulation: Accumulation = self.trial.accumulation(max_micro_batch_size)
        self._power = PowerHooks(power_limit)
        self._drives_power = power_limit is not None
        self._samples_per_epoch = samples_per_epoch
        self._stream: Iterator[Any] | None = None  # made at first use: it holds the loader
        self._has_begun = False
        self._epoch: int | None = None
        self._is_reported = False
        arguments = divided_among_ranks(dataset, self.trial, loading, batch_size=self.trial.batch_size)
        super().__init__(dataset, batch_size=self.accumulation.micro_batch_size, **arguments)
        if self.drop_last:
            _check_not_empty(len(self), batch_size=self.trial.batch_size, dataset=dataset)
        self._probe: ProbeStep | None = None
        if probe is not None and max_micro_batch_size is None:  # micro batches may make up those that do not fit
            self._probe = ProbeStep(*probe, self)

    @property
    def trial(self) -> Trial:
        """The trial that is trained."""
        return self._training.trial

    def epochs(self) -> Iterator[int]:
        """The numbers of the epochs to train, from 0 (a resumed trial goes on where it was), until the trial has ended.

        Raises WrongOrder where the last epoch was not reported. With a BatchSizeOptimizer a failure ends the process
        here, after the body of the last epoch.
        """
        if self._has_begun:
            raise WrongOrder("epochs() trains once: for another trial, make another TrainingLoader, and a new model")
        self._has_begun = True
        self._training.begin()
        self.trial.average_metrics()
        try:
            yield from self._epochs()
        finally:
            self._epoch = None
        self._training.end()
        self._training.exit_if_failed()

    def report_metric(self, metric: SupportsFloat) -> None:
        """Report the evaluation of this epoch, once per epoch; then epochs() goes on or ends.

        In data-parallel training each rank reports the metric of its part, and the mean of all ranks counts.
        """
        if self._epoch is None:
            raise WrongOrder(
                "report_metric() belongs inside `for epoch in train_loader.epochs():`, after the evaluation"
            )
        if self._is_reported:
            raise WrongOrder(f"epoch {self._epoch} was reported already: report_metric() comes once per epoch")
        self._training.report(metric, epoch=self._epoch + 1)
        self._is_reported = True

    def __iter__(self) -> Any:  # an iterator, of whatever class
        """The batches of this epoch; micro batches where ``max_micro_batch_size`` was given.

        Raises WrongOrder outside of epochs().
        """
        if self._epoch is None:
            raise WrongOrder(
                "the training loader is read inside `for epoch in train_loader.epochs():`, which measures and reports "
                "the training; to look at one batch, use a DataLoader of its own"
            )
        return self._steps() if self._drives_power else self._loaded()

    def __len__(self) -> int:
        """The batches of an epoch on this rank; micro batches where ``max_micro_batch_size`` was given."""
        if self._samples_per_epoch is not None:
            updates = self._samples_per_epoch / self.accumulation.batch_size
            return max(1, math.floor(updates) if self.drop_last else math.ceil(updates)) * self.accumulation.steps
        if self.drop_last and self.accumulation.steps > 1:
            samples: Any = self.sampler
            return len(samples) // self.accumulation.local_batch_size * self.accumulation.steps
        return int(super().__len__())

    def _epochs(self) -> Iterator[int]:
        for epoch in itertools.count(int(self.trial.epoch)):
            if self.trial.finished or (self.max_epochs is not None and epoch >= self.max_epochs):
                return
            set_epoch = getattr(self.sampler, "set_epoch", None)
            if set_epoch is not None:
                set_epoch(epoch)
            self._epoch, self._is_reported = epoch, False
            yield epoch
            if not self._is_reported and not self.trial.finished:
                raise WrongOrder(
                    f"epoch {epoch} ended without train_loader.report_metric(metric): evaluate the model in each epoch "
                    "and report it, otherwise the optimizer knows neither when to stop nor what it cost"
                )
            if self._probe is not None:
                self.trial.probe_epoch_costs(self._probe)

    def _loaded(self) -> Iterator[Any]:
        if self._samples_per_epoch is not None:
            self._stream = self._stream or self._endless()
            return itertools.islice(self._stream, len(self))
        if self.drop_last and self.accumulation.steps > 1:
            return itertools.islice(super().__iter__(), len(self))
        return iter(super().__iter__())

    def _endless(self) -> Iterator[Any]:
        while True:
            is_empty = True
            for batch in super().__iter__():
                is_empty = False
                yield batch
            if is_empty:
                raise InvalidSetting(f"this {type(self.dataset).__name__} yields no sample on this rank")

    def _steps(self) -> Iterator[Any]:
        try:
            for step, batch in enumerate(self._loaded()):
                if step % self.accumulation.steps == 0:
                    self._power.step_begins()
                yield batch
                if self.accumulation.is_last(step):
                    self._power.step_ends()
        finally:
            self._power.row_ends()


class EvaluationLoader(DataLoader):  # type: ignore[misc]  # as above
    """A DataLoader for the evaluation beside a TrainingLoader; what it loads counts as part of the training's cost.

    ``batch_size`` is the TrainingLoader's (micro) batch size unless given; it changes the cost, never the metric. All
    other arguments are a DataLoader's. In data-parallel training each rank evaluates its own part, by a
    DistributedSampler made here, which repeats a few samples where the ranks' parts would differ in length;
    ``report_metric`` takes the mean. Raises InvalidSetting without a TrainingLoader.
    """

    def __init__(
        self,
        dataset: Any,
        training: TrainingLoader | None = None,
        *,
        batch_size: int | None = None,
        **loading: Any,
    ) -> None:
        if not isinstance(training, TrainingLoader):
            raise InvalidSetting(
                "EvaluationLoader(dataset, train_loader) stands beside a TrainingLoader: make that one first and pass "
                f"it, got {type(training).__name__}"
            )
        _check_no_batch_sampler("EvaluationLoader", loading)
        arguments = divided_among_ranks(dataset, training.trial, loading)
        super().__init__(dataset, batch_size=batch_size or _largest_share(training.accumulation), **arguments)


def _check_no_batch_sampler(loader: str, arguments: Mapping[str, Any]) -> None:
    """Raise InvalidSetting for a batch_sampler."""
    if arguments.get("batch_sampler") is not None:
        raise InvalidSetting(
            f"{loader} takes no batch_sampler, which decides the batch size itself: pass sampler=, which decides the "
            "order of the samples only"
        )


def _check_samples_per_epoch(dataset: Any, samples_per_epoch: int | None) -> None:
    """Raise InvalidSetting where the length of an epoch is unknown, or known twice."""
    is_stream = isinstance(dataset, IterableDataset)
    if is_stream and samples_per_epoch is None:
        raise InvalidSetting(
            "an IterableDataset has no epoch length: TrainingLoader(..., samples_per_epoch=50_000). The "
            "stream goes on from epoch to epoch, and begins again when it ends"
        )
    if not is_stream and samples_per_epoch is not None:
        raise InvalidSetting(
            f"samples_per_epoch is for an IterableDataset; an epoch of this {type(dataset).__name__} is one pass over "
            "it: leave the argument out, or pass a sampler that draws fewer samples"
        )
    if samples_per_epoch is not None and not samples_per_epoch >= 1:
        raise InvalidSetting(f"samples_per_epoch must be a number of samples of 1 or more, got {samples_per_epoch!r}")


def _largest_share(accumulation: Accumulation) -> int:
    """The (micro) batch size of rank 0, with which all ranks evaluate: equal parts then have as many batches."""
    return math.ceil(accumulation.batch_size / accumulation.world_size / accumulation.steps)


def _check_not_empty(batches: int, *, batch_size: int, dataset: Any) -> None:
    """Raise InvalidSetting where an epoch would be over before it began."""
    if batches == 0:
        raise InvalidSetting(
            f"there is no batch in an epoch: {len(dataset)} samples, batch size {batch_size}, and drop_last drops what "
            f"is left. Take {batch_size} out of batch_sizes, or drop_last=True out of the loader"
        )
