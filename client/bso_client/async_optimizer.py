"""The optimizer for asynchronous training scripts, and its trials."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, aclosing
from types import TracebackType
from typing import Any, Self, SupportsFloat, Unpack

from bso.domain.commands import PowerMeasurement
from bso.domain.trial import Outcome
from bso_client.distributed import Ranks
from bso_client.errors import CannotResume
from bso_client.job_spec import JobSpec
from bso_client.lifecycle import CLOSE_TIMEOUT_S
from bso_client.options import OptimizerOptions
from bso_client.session import Session
from bso_client.training.checkpoint import checkpoint_of
from bso_client.trial import TrialView

logger = logging.getLogger("bso")


class AsyncTrial(TrialView):
    """One training with one batch size, inside ``async with trial:``; as Trial, with its units and errors."""

    async def on_evaluate(
        self, metric: SupportsFloat, *, epoch: float | None = None, samples: float | None = None
    ) -> None:
        """Report an evaluation of the model; as Trial.on_evaluate. Await each one before the next begins."""
        driver = self._here
        await driver.evaluated(driver.measured(metric, epoch=epoch, samples=samples))
        driver.go_on()

    async def report_power_profile(self, measurements: Sequence[PowerMeasurement]) -> None:
        """Keep what was measured under several power limits; as Trial.report_power_profile."""
        self._here.report_power_profile(measurements)

    async def probe_epoch_costs(self, step: Callable[[int], object]) -> None:
        """Measure what epochs with other batch sizes would cost, which blocks the loop; as Trial.probe_epoch_costs."""
        driver = self._here
        driver.probe(step)
        driver.report_probed()

    async def call_off(self, reason: str) -> None:
        """End the trial as cancelled, and the loop over trials; as Trial.call_off."""
        await self._here.call_off(Outcome.CANCELLED, reason)

    async def interrupt(self, reason: str) -> None:
        """End the trial as interrupted, and the loop over trials; as Trial.interrupt."""
        await self._here.call_off(Outcome.INTERRUPTED, reason)

    def state_dict(self) -> dict[str, Any]:
        """The trial as plain data, for a checkpoint; as Trial.state_dict."""
        driver = self._here
        return checkpoint_of(driver.checkpoint(driver.consumed_now()))

    async def __aenter__(self) -> Self:
        """Begin to measure."""
        self._here.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        """End the trial."""
        return False if self._is_copy else await self._here.leave(error)


class AsyncBatchSizeOptimizer:
    """As BatchSizeOptimizer, on the running event loop; takes the same arguments.

    Use it as ``async with AsyncBatchSizeOptimizer(...) as bso:``. Signals and the end of the interpreter are not
    watched: a process that ends without closing it leaves its trial to its lease. Units and errors are the same.
    """

    def __init__(self, spec: JobSpec | None = None, **options: Unpack[OptimizerOptions]) -> None:
        self._session = Session(spec, os.environ, **options)

    @property
    def job_id(self) -> str | None:
        """The job's name; None before the first use if none was given."""
        return self._session.job_id

    async def trials(self) -> AsyncGenerator[AsyncTrial, None]:
        """Train until there is a model, each trial inside ``async with trial:``; as BatchSizeOptimizer.trials.

        A loop that may be left early belongs inside ``async with contextlib.aclosing(bso.trials()) as trials:``.
        """
        interruptions = 0
        while True:
            trial = AsyncTrial(await self._session.begin())
            try:
                yield trial
            finally:
                await self._session.end_unstarted()
            interruptions += trial.outcome is Outcome.INTERRUPTED
            if not self._session.another_follows(interruptions=interruptions):
                return

    async def resumable_trials(self, state: Mapping[str, Any] | None) -> AsyncGenerator[AsyncTrial, None]:
        """``trials()``, beginning with the trial of a checkpoint; as BatchSizeOptimizer.resumable_trials."""
        if state is not None:
            self._session.load_state_dict(state)
        try:
            async with aclosing(self.trials()) as trials:
                async for trial in trials:
                    yield trial
        except CannotResume as error:
            logger.warning("training begins anew: %s", error, extra={"action": "checkpoint_not_resumed"})
            async with aclosing(self.trials()) as trials:
                async for trial in trials:
                    yield trial

    async def get_batch_size(self) -> int:
        """Begin a trial and return its batch size. Next: on_train_begin()."""
        return (await self._session.begin()).state.batch_size

    async def on_train_begin(self) -> None:
        """Begin to measure. Next: on_evaluate after each epoch, until training_finished."""
        self._session.current("on_train_begin()").start()

    async def on_evaluate(
        self, metric: SupportsFloat, *, epoch: float | None = None, samples: float | None = None
    ) -> None:
        """Report an evaluation; raises TrainFailed when the batch size has failed: nothing after it should run."""
        trial = AsyncTrial(self._session.current("on_evaluate()"))
        await trial.on_evaluate(metric, epoch=epoch, samples=samples)
        if trial.failure is not None:
            raise trial.failure

    @property
    def training_finished(self) -> bool:
        """Whether the training has reached its target (a failure raises TrainFailed instead)."""
        return self._session.current("training_finished").state.has_ended

    @property
    def trial(self) -> AsyncTrial | None:
        """The current or last trial."""
        driver = self._session.driver
        return None if driver is None else AsyncTrial(driver)

    @property
    def ranks(self) -> Ranks:
        """The processes that train together, to exchange values with them. Raises DistributedNotReady."""
        return self._session.ranks

    def paused(self) -> AbstractContextManager[None]:
        """Leave out of time and energy what happens inside ``with bso.paused():``."""
        return self._session.current("paused()").paused()

    def state_dict(self) -> dict[str, Any]:
        """The running trial as plain data, for a checkpoint. An interruption then leaves the trial to be resumed."""
        return AsyncTrial(self._session.current("state_dict()")).state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume the trial of a checkpoint: before get_batch_size() or trials()."""
        self._session.load_state_dict(state)

    async def aclose(self, *, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """End what runs as interrupted, deliver what is left within ``timeout`` seconds, and disconnect."""
        await self._session.close(timeout_s=timeout, reason="the optimizer was closed")

    async def __aenter__(self) -> Self:
        """Nothing is connected yet."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close it; a training that an exception has left ends accordingly."""
        driver = self._session.driver
        if error is not None and driver is not None and not self._session.is_copy:
            await driver.leave(error)
        await self.aclose()
