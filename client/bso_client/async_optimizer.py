"""The optimizer for asynchronous training scripts."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Self, SupportsFloat, Unpack

from bso_client.core import OptimizerCore
from bso_client.distributed import Ranks
from bso_client.job_spec import JobSpec
from bso_client.lifecycle import CLOSE_TIMEOUT_S
from bso_client.options import OptimizerOptions
from bso_client.trial import AsyncTrial
from bso_client.trials import TrialLoop


class AsyncBatchSizeOptimizer:
    """As BatchSizeOptimizer, on the running event loop; takes the same arguments.

    Use it as ``async with AsyncBatchSizeOptimizer(...) as bso:``. Signals and the end of the interpreter are not
    watched: a process that ends without closing it leaves its trial to its lease. Units and errors are the same.
    """

    def __init__(self, spec: JobSpec | None = None, **options: Unpack[OptimizerOptions]) -> None:
        self._core = OptimizerCore(spec, os.environ, **options)

    @property
    def job_id(self) -> str | None:
        """The job's name; None before the first use if none was given."""
        return self._core.job_id

    async def trials(self) -> AsyncGenerator[AsyncTrial, None]:
        """Train until there is a model, each trial inside ``async with trial:``; as BatchSizeOptimizer.trials.

        A loop that may be left early belongs inside ``async with contextlib.aclosing(bso.trials()) as trials:``.
        """
        loop = TrialLoop()
        while True:
            trial = AsyncTrial(await self._core.begin())
            try:
                yield trial
            finally:
                await self._core.end_unstarted()
            if not loop.goes_on_after(self._core.current("trials()")):
                return

    async def get_batch_size(self) -> int:
        """Begin a trial and return its batch size. Next: on_train_begin()."""
        return (await self._core.begin()).progress.batch_size

    async def on_train_begin(self) -> None:
        """Begin to measure. Next: on_evaluate after each epoch, until training_finished."""
        self._core.current("on_train_begin()").start()

    async def on_evaluate(
        self, metric: SupportsFloat, *, epoch: float | None = None, samples: float | None = None
    ) -> None:
        """Report an evaluation; raises TrainFailed when the batch size has failed: nothing after it should run."""
        run = self._core.current("on_evaluate()")
        await AsyncTrial(run).on_evaluate(metric, epoch=epoch, samples=samples)
        if run.progress.has_failed:
            raise run.failure()

    @property
    def training_finished(self) -> bool:
        """Whether the training has reached its target (a failure raises TrainFailed instead)."""
        return self._core.current("training_finished").progress.has_ended

    @property
    def trial(self) -> AsyncTrial | None:
        """The current or last trial."""
        run = self._core.run
        return None if run is None else AsyncTrial(run)

    @property
    def ranks(self) -> Ranks:
        """The processes that train together, to exchange values with them. Raises DistributedNotReady."""
        return self._core.ranks

    def paused(self) -> AbstractContextManager[None]:
        """Leave out of time and energy what happens inside ``with bso.paused():``."""
        return self._core.paused()

    def state_dict(self) -> dict[str, Any]:
        """The running trial as plain data, for a checkpoint. An interruption then leaves the trial to be resumed."""
        return self._core.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume the trial of a checkpoint: before get_batch_size() or trials()."""
        self._core.load_state_dict(state)

    async def aclose(self, *, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """End what runs as interrupted, deliver what is left within ``timeout`` seconds, and disconnect."""
        await self._core.close(timeout_s=timeout, reason="the optimizer was closed")

    async def __aenter__(self) -> Self:
        """Nothing is connected yet."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close it; a training that an exception has left ends accordingly."""
        run = self._core.run
        if error is not None and run is not None and not self._core.is_copy:
            await run.leave(error)
        await self.aclose()
