"""What may be asked about a trial, in whichever way its training waits."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from bso.domain.commands import PowerMeasurement
from bso.domain.hardware import HardwareKind
from bso.domain.job_spec import JobSpec
from bso.domain.trial import Outcome
from bso_client.distributed.ranks import Ranks
from bso_client.errors import InvalidSetting, NotInThisProcess, TrainFailed
from bso_client.progress import Progress
from bso_client.scaling import Accumulation, accumulate, largest_that_fits
from bso_client.training import Training


class TrialFacts:
    """What is known of a trial; it changes with each evaluation. A pickled or forked copy keeps what was known then."""

    def __init__(self, run: Training) -> None:
        self._progress: Progress = run.progress
        self._run: Training | None = run
        self._local_batch_size = run.local_batch_size
        self._data_parallel_size = run.data_parallel_size
        self._pid = os.getpid()

    @property
    def batch_size(self) -> int:
        """Train with this batch size: the samples of one step, of all processes together."""
        return self._progress.batch_size

    @property
    def local_batch_size(self) -> int:
        """This process' share of the batch size; all of it where one process trains."""
        return self._local_batch_size

    @property
    def ranks(self) -> Ranks:
        """The processes that train together: to exchange values with them, as the optimizer does."""
        return self._here.ranks

    @property
    def reason(self) -> str:
        """Why this batch size, in a sentence."""
        return self._progress.reason

    @property
    def trial_number(self) -> int | None:
        """The number of this trial in its job; None while it could not be registered yet."""
        return self._progress.trial_number

    @property
    def recurrence_id(self) -> str | None:
        """The occasion that this trial belongs to; None while it could not be registered yet."""
        return self._progress.recurrence_id

    @property
    def attempt(self) -> int:
        """Which attempt of its recurrence this is, from 1."""
        return self._progress.attempt

    @property
    def is_last_attempt(self) -> bool:
        """Whether no other follows: this one is not stopped for its cost.

        So is the first one of a job that needs attention; there another follows only if the batch size does not fit.
        """
        return self._progress.is_last_attempt

    @property
    def has_begun(self) -> bool:
        """Whether its training has begun: ``with trial:`` was entered, or on_train_begin called."""
        return self._run is not None and self._run.has_started

    @property
    def finished(self) -> bool:
        """Whether to stop training: the target is reached, or the batch size has failed."""
        return self._progress.has_ended

    @property
    def converged(self) -> bool:
        """Whether the training reached its target: there is a model."""
        return self._progress.outcome is Outcome.CONVERGED

    @property
    def outcome(self) -> Outcome | None:
        """How the trial ended; None while it runs."""
        return self._progress.outcome

    @property
    def outcome_reason(self) -> str:
        """Why it ended so, in a sentence; empty while it runs."""
        return self._progress.outcome_reason

    @property
    def failure(self) -> TrainFailed | None:
        """What the flat methods raise when the batch size has failed; None as long as it has not."""
        return self._here.failure() if self._progress.has_failed else None

    @property
    def cost(self) -> float:
        """The cost so far [J], up to the last evaluation."""
        return self._progress.cost

    @property
    def bound(self) -> float | None:
        """The cost [J] above which the training is stopped; None: there is none."""
        return self._progress.bound

    @property
    def metric(self) -> float | None:
        """The metric of the last evaluation."""
        return self._progress.metric

    @property
    def epoch(self) -> float:
        """Progress at the last evaluation, in epochs."""
        return self._progress.epoch

    @property
    def spec(self) -> JobSpec:
        """What the job specifies, complete: target_metric, max_epochs and all."""
        return self._progress.spec

    @property
    def hardware(self) -> HardwareKind:
        """The hardware kind that the trial runs on."""
        return self._progress.hardware

    @property
    def power_profile(self) -> tuple[PowerMeasurement, ...]:
        """What is known of this batch size on this hardware kind, by power limit [W]; empty if nothing is."""
        return self._progress.power_profile

    @property
    def learning_rate(self) -> float:
        """The learning rate for this batch size, by the rule of the optimizer's ``learning_rate=``.

        Raises InvalidSetting if none was given there.
        """
        rate = self._progress.learning_rate
        if rate is None:
            raise InvalidSetting(
                "no learning rate was given to scale: BatchSizeOptimizer(..., learning_rate=LearningRate(0.1, "
                "reference_batch_size=256)), with the rate that suits that batch size"
            )
        return rate.at(self.batch_size)

    def accumulation(
        self, max_micro_batch_size: int | None = None, *, fits: Callable[[int], object] | None = None
    ) -> Accumulation:
        """How to train with this batch size where no more than so many samples fit in a rank's memory at once.

        ``fits(micro_batch_size)`` trains one step with so many samples, for a try: as long as it runs out of GPU
        memory, on any rank, smaller micro batches are taken. Raises InvalidSetting if the ranks cannot have equal
        shares, and the GPU's own error if not even one sample fits.
        """
        whole = accumulate(
            self.batch_size, world_size=self._data_parallel_size, max_micro_batch_size=max_micro_batch_size
        )
        if fits is None:
            return whole
        return largest_that_fits(whole, fits, agree=lambda here: all(self.ranks.gather(here, about="accumulation")))

    def average_metrics(self) -> None:
        """From now on report the mean of all ranks' metrics instead of rank 0's: each evaluates a part of the data."""
        self._here.averages_metrics = True

    def mark_profiling(self) -> None:
        """Say that power limits are profiled before the next evaluation: its distortion is kept out of the cost."""
        self._here.mark_profiling()

    @property
    def _is_copy(self) -> bool:
        return self._run is None or self._pid != os.getpid()

    @property
    def _here(self) -> Training:
        if self._run is None or self._is_copy:
            raise NotInThisProcess(
                "this is a copy of a trial in another process (forked or spawned from the training): only the process "
                "that began the trial may evaluate and end it"
            )
        return self._run

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_run": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def __eq__(self, other: object) -> bool:
        """Whether it is the same training: ``bso.trial`` gives another object each time."""
        return isinstance(other, TrialFacts) and self._progress is other._progress

    def __hash__(self) -> int:
        return id(self._progress)

    def __repr__(self) -> str:
        ended = f", {self.outcome.value}" if self.outcome else ""
        return f"<{type(self).__name__} {self.trial_number}: batch size {self.batch_size}, epoch {self.epoch:g}{ended}>"
