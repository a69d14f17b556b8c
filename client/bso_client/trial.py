"""A trial in the user's hands."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from types import TracebackType
from typing import Any, Self, SupportsFloat

from bso.domain.commands import PowerMeasurement
from bso.domain.trial import Outcome
from bso_client.saved_state import saved_state_of
from bso_client.training import Training
from bso_client.trial_facts import TrialFacts


class Trial(TrialFacts):
    """One training with one batch size, inside ``with trial:``.

    Leaving the block ends the trial: without convergence as not converged, with an exception as interrupted (and the
    exception goes on). A GPU out of memory is dealt with while another attempt is left: the loop goes on.

    Batch sizes are in samples, ``epoch`` in epochs, ``cost`` and ``bound`` in joules (eq. 2 of the Zeus paper). Its
    methods raise WrongOrder, NotInThisProcess, InvalidReport and InvalidSetting for wrong use, TrainFailed where
    training went on after the batch size had failed, and in data-parallel training RankLost and RanksOutOfStep:
    nothing because of the optimizer's absence.
    """

    def __init__(self, run: Training, wait: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        super().__init__(run)
        self._wait = wait

    def on_evaluate(self, metric: SupportsFloat, *, epoch: float | None = None, samples: float | None = None) -> None:
        """Report an evaluation of the model; ``finished`` says afterwards whether to stop.

        Progress grows by one epoch for each call, or is given: ``epoch`` (a float), or ``samples`` seen since the
        beginning. NaN and infinity are valid metrics. Raises nothing because of the optimizer's absence; TrainFailed
        if the training went on after its batch size had failed.
        """
        run = self._here
        report = run.measure(metric, epoch=epoch, samples=samples)
        if report is not None:
            self._wait(run.report(report))
        run.go_on()

    def report_power_profile(self, measurements: Sequence[PowerMeasurement]) -> None:
        """Keep what was measured under several power limits: trials to come with this batch size are told it.

        Returns at once and raises nothing because of the optimizer's absence; it is delivered when that is back.
        """
        self._wait(self._here.report_power_profile(measurements))

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
        run = self._here
        run.is_resumable = True
        return saved_state_of(run.job_id, run.progress, run.consumed_now()).as_dict()

    def __enter__(self) -> Self:
        """Begin to measure."""
        self._here.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        """End the trial."""
        if self._is_copy:
            return False
        return bool(self._wait(self._here.leave(error)))

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_wait": None}


class AsyncTrial(TrialFacts):
    """One training with one batch size, inside ``async with trial:``; as Trial, with its units and errors."""

    async def on_evaluate(
        self, metric: SupportsFloat, *, epoch: float | None = None, samples: float | None = None
    ) -> None:
        """Report an evaluation of the model; as Trial.on_evaluate."""
        run = self._here
        report = run.measure(metric, epoch=epoch, samples=samples)
        if report is not None:
            await run.report(report)
        run.go_on()

    async def report_power_profile(self, measurements: Sequence[PowerMeasurement]) -> None:
        """Keep what was measured under several power limits; as Trial.report_power_profile."""
        await self._here.report_power_profile(measurements)

    async def __aenter__(self) -> Self:
        """Begin to measure."""
        self._here.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        """End the trial."""
        if self._is_copy:
            return False
        return await self._here.leave(error)
