"""A trial in the user's hands: what its training has reached, and what the user says of it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Coroutine, Sequence
from types import TracebackType
from typing import Any, Self, SupportsFloat, TypeVar

from bso.domain.commands import PowerMeasurement
from bso.domain.hardware import HardwareKind
from bso.domain.job_spec import JobSpec
from bso.domain.replies import NearestPowerProfile
from bso.domain.trial import Outcome
from bso_client.distributed.ranks import Ranks
from bso_client.driver import Driver
from bso_client.errors import InvalidSetting, NotInThisProcess, TrainFailed
from bso_client.scaling import Accumulation, accumulate, largest_that_fits
from bso_client.training.checkpoint import checkpoint_of
from bso_client.training.state import TrainingState

T = TypeVar("T")


class TrialView:
    """What is known of a trial; it changes with each evaluation. A pickled or forked copy keeps what was known then."""

    def __init__(self, driver: Driver) -> None:
        self._driver: Driver | None = driver
        self._known = driver.state
        self._place = driver.place
        self._pid = os.getpid()

    @property
    def batch_size(self) -> int:
        """Train with this batch size: the samples of one step, of all processes together."""
        return self._state.batch_size

    @property
    def local_batch_size(self) -> int:
        """This process' share of the batch size; all of it where one process trains."""
        return self._place.local_batch_size

    @property
    def ranks(self) -> Ranks:
        """The processes that train together: to exchange values with them, as the optimizer does."""
        return self._here.ranks

    @property
    def reason(self) -> str:
        """Why this batch size, in a sentence."""
        return self._state.reason

    @property
    def trial_number(self) -> int | None:
        """The number of this trial in its job; None while it could not be registered yet."""
        return self._state.trial_number

    @property
    def recurrence_id(self) -> str | None:
        """The occasion that this trial belongs to; None while it could not be registered yet."""
        return self._state.recurrence_id

    @property
    def attempt(self) -> int:
        """Which attempt of its recurrence this is, from 1."""
        return self._state.attempt

    @property
    def is_last_attempt(self) -> bool:
        """Whether no other follows: this one is not stopped for its cost.

        So is the first one of a job that needs attention; there another follows only if the batch size does not fit.
        """
        return self._state.is_last_attempt

    @property
    def is_resumed(self) -> bool:
        """Whether it goes on from a state that was loaded: load the rest of that checkpoint, too."""
        return self._state.is_resumed

    @property
    def has_begun(self) -> bool:
        """Whether its training has begun: ``with trial:`` was entered, or on_train_begin called."""
        return self._state.has_started

    @property
    def finished(self) -> bool:
        """Whether to stop training: the target is reached, or the batch size has failed."""
        return self._state.has_ended

    @property
    def converged(self) -> bool:
        """Whether the training reached its target: there is a model."""
        return self._state.outcome is Outcome.CONVERGED

    @property
    def outcome(self) -> Outcome | None:
        """How the trial ended; None while it runs."""
        return self._state.outcome

    @property
    def outcome_reason(self) -> str:
        """Why it ended so, in a sentence; empty while it runs."""
        return self._state.outcome_reason

    @property
    def failure(self) -> TrainFailed | None:
        """What the flat methods raise when the batch size has failed; None as long as it has not."""
        return self._state.failure if self._state.has_failed else None

    @property
    def cost(self) -> float:
        """The cost so far [J], up to the last evaluation."""
        return self._state.cost

    @property
    def bound(self) -> float | None:
        """The cost [J] above which the training is stopped; None: there is none."""
        return self._state.bound

    @property
    def metric(self) -> float | None:
        """The metric of the last evaluation."""
        return self._state.metric

    @property
    def epoch(self) -> float:
        """Progress at the last evaluation, in epochs."""
        return self._state.epoch

    @property
    def spec(self) -> JobSpec:
        """What the job specifies, complete: target_metric, max_epochs and all."""
        return self._state.spec

    @property
    def hardware(self) -> HardwareKind:
        """The hardware kind that the trial runs on."""
        return self._state.hardware

    @property
    def power_profile(self) -> tuple[PowerMeasurement, ...]:
        """What is known of this batch size on this hardware kind, by power limit [W]; empty if nothing is."""
        return self._state.power_profile

    @property
    def nearest_power_profile(self) -> NearestPowerProfile | None:
        """Where ``power_profile`` is empty: that of the nearest batch size on this hardware kind; None if none has one.

        Its best power limit is a good one to start at.
        """
        return self._state.nearest_power_profile

    @property
    def learning_rate(self) -> float:
        """The learning rate for this batch size, by the rule of the optimizer's ``learning_rate=``.

        Raises InvalidSetting if none was given there.
        """
        rate = self._state.learning_rate
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
        memory, on any rank, smaller micro batches are taken. Raises InvalidSetting for micro batches if the ranks
        cannot have equal shares, and the GPU's own error if not even one sample fits.
        """
        ranks = self._place.data_parallel_size
        if max_micro_batch_size is None and fits is None:
            return Accumulation(batch_size=self.batch_size, micro_batch_size=self.local_batch_size, world_size=ranks)
        whole = accumulate(self.batch_size, world_size=ranks, max_micro_batch_size=max_micro_batch_size)
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
    def _state(self) -> TrainingState:
        return self._known if self._driver is None else self._driver.state

    @property
    def _is_copy(self) -> bool:
        return self._driver is None or self._pid != os.getpid()

    @property
    def _here(self) -> Driver:
        if self._driver is None or self._is_copy:
            raise NotInThisProcess(
                "this is a copy of a trial in another process (forked or spawned from the training): only the process "
                "that began the trial may evaluate and end it"
            )
        return self._driver

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_driver": None, "_known": self._state}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def __eq__(self, other: object) -> bool:
        """Whether it is the same training: ``bso.trial`` gives another object each time."""
        return isinstance(other, TrialView) and self._state.key == other._state.key

    def __hash__(self) -> int:
        return hash(self._state.key)

    def __repr__(self) -> str:
        ended = f", {self.outcome.value}" if self.outcome else ""
        return f"<{type(self).__name__} {self.trial_number}: batch size {self.batch_size}, epoch {self.epoch:g}{ended}>"

    def _repr_html_(self) -> str:
        """The training as a notebook shows it: figures, its metric and its cost over the epochs."""
        from bso_client.html import trial_as_html  # a training in a script needs no pictures

        return trial_as_html(self._state, () if self._driver is None else self._driver.evaluations)


class Trial(TrialView):
    """One training with one batch size, inside ``with trial:``.

    Leaving the block ends the trial: without convergence as not converged, with an exception as interrupted (and the
    exception goes on). A GPU out of memory is dealt with while another attempt is left: the loop goes on.

    Batch sizes are in samples, ``epoch`` in epochs, ``cost`` and ``bound`` in joules (eq. 2 of the Zeus paper). Its
    methods raise WrongOrder, NotInThisProcess, InvalidReport and InvalidSetting for wrong use, TrainFailed where
    training went on after the batch size had failed, and in data-parallel training RankLost and RanksOutOfStep:
    nothing because of the optimizer's absence.
    """

    def __init__(self, driver: Driver, wait: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        super().__init__(driver)
        self._wait = wait

    def on_evaluate(self, metric: SupportsFloat, *, epoch: float | None = None, samples: float | None = None) -> None:
        """Report an evaluation of the model; ``finished`` says afterwards whether to stop.

        Progress grows by one epoch for each call, or is given: ``epoch`` (a float), or ``samples`` seen since the
        beginning. NaN and infinity are valid metrics. Raises nothing because of the optimizer's absence; TrainFailed
        if the training went on after its batch size had failed. Threads that evaluate at once take turns.
        """
        driver = self._here
        with driver.turn:
            self._wait(driver.evaluated(driver.measured(metric, epoch=epoch, samples=samples)))
            driver.go_on()

    def report_power_profile(self, measurements: Sequence[PowerMeasurement]) -> None:
        """Keep what was measured under several power limits: later trials with this batch size receive it.

        Returns at once and raises nothing because of the optimizer's absence; it is delivered when that is back.
        """
        self._wait(_done(self._here.report_power_profile, measurements))

    def probe_epoch_costs(self, step: Callable[[int], object]) -> None:
        """Measure what epochs with other batch sizes would cost: later trials then need not try them one after another.

        Call it after each evaluation. It does nothing unless the optimizer wants to know more, and takes about
        ``probing_budget`` (5 %) of the training's time, which is no part of the trial's time, energy and cost. ``step``
        is called with a number of samples: it loads so many and trains one step with them, but updates nothing. For
        PyTorch, bso_client.integrations.probe_step makes such a step. What it raises ends the probing, and not the
        training; out of memory excludes that batch size, so do not probe where micro batches make up larger ones.
        In data-parallel training every rank calls it, and each makes steps with its part of a batch by itself: a step
        must not exchange anything with other ranks, or it would wait for them. What all ranks have probed is reported
        with the next evaluation, or with the end.
        """
        driver = self._here
        driver.probe(step)
        self._wait(_done(driver.report_probed))

    def call_off(self, reason: str) -> None:
        """End the trial as cancelled: its training says nothing about the batch size. The loop over trials ends, too.

        Without effect if the trial has ended before.
        """
        self._wait(self._here.call_off(Outcome.CANCELLED, reason))

    def interrupt(self, reason: str) -> None:
        """End the trial as interrupted, and the loop over trials: the process is about to end.

        It can be resumed if ``state_dict`` was asked for. Without effect if the trial has ended before.
        """
        self._wait(self._here.call_off(Outcome.INTERRUPTED, reason))

    def state_dict(self) -> dict[str, Any]:
        """The trial as plain data, for a checkpoint; BatchSizeOptimizer.load_state_dict takes it back.

        From now on an interruption leaves the trial to be resumed.
        """
        driver = self._here
        state: TrainingState = self._wait(_done(driver.checkpoint, driver.consumed_now()))
        return checkpoint_of(state)

    def __enter__(self) -> Self:
        """Begin to measure."""
        self._wait(_done(self._here.start))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        """End the trial."""
        if self._is_copy or sys.is_finalizing():  # then the end of the process has ended it (lifecycle)
            return False
        return bool(self._wait(self._here.leave(error)))

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_wait": None}


async def _done(change: Callable[..., T], *arguments: Any) -> T:
    """Change the state of a training on the event loop, where all else changes it."""
    return change(*arguments)
