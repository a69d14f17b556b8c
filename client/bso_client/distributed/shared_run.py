"""One training of several ranks, as each of them sees it: measured here, agreed on together, told by rank 0."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import SupportsFloat

from bso.domain.commands import PowerMeasurement
from bso.domain.trial import EpochReport, Outcome
from bso_client.distributed.carried import CarriedError, carried, raise_first
from bso_client.distributed.endings import Ending, Evaluated, Left, Said, ending_of_all
from bso_client.distributed.exchange import Exchange
from bso_client.distributed.leader import LastWords, LeaderWatch, say_for
from bso_client.distributed.pool import PooledMeter
from bso_client.errors import BsoError, RankLost, RanksOutOfStep, TrainFailed
from bso_client.failures import OUT_OF_MEMORY_REASON, described, ending_of
from bso_client.meter import Consumption
from bso_client.progress import Progress
from bso_client.run import TrialRun
from bso_client.training import Training
from bso_client.transports.transport import Transport

logger = logging.getLogger("bso")

EVALUATION = "the training (on_evaluate)"
END = "the training (the end of the trial)"

_END_NOTE, _CHECKPOINT_NOTE = "out-of-memory", "checkpoint"
_GRACE_S = 3.0  # for the others to come and hear of an error, before it goes its way


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What a rank is in one training: ``led`` is the training as the optimizer knows it, on rank 0 only."""

    job_id: str
    data_parallel_size: int
    local_batch_size: int
    samples_per_epoch: float | None
    led: TrialRun | None
    leader: LeaderWatch
    open_transport: Callable[[], Transport]


class SharedRun(Training):
    """What a user sees of the training changes only where all ranks meet, so that all ranks see the same."""

    def __init__(self, exchange: Exchange, place: Place, *, progress: Progress, meter: PooledMeter) -> None:
        self._is_resumable = False
        self._exchange = exchange
        super().__init__(job_id=place.job_id, progress=progress, meter=meter, samples_per_epoch=place.samples_per_epoch)
        self.ranks = exchange.ranks
        self.data_parallel_size = place.data_parallel_size
        self.local_batch_size = place.local_batch_size
        self._place = place
        self._led = place.led
        self._pool = meter
        if self._led is not None:
            self._led.meter = meter

    def start(self) -> None:
        """Begin to measure."""
        super().start()
        if self._led is not None:
            self._led.has_started = True

    def measure(self, metric: SupportsFloat, *, epoch: float | None = None, samples: float | None = None) -> Said:
        """Close the measuring window; what this rank has to say, an error of its own included."""
        try:
            number, reached = self.checked(metric, epoch=epoch, samples=samples)
        except Exception as error:  # noqa: BLE001  # raised on every rank
            return carried(error)
        self._pool.stop()
        return Evaluated(
            epoch=reached,
            metric=number,
            consumed=self._pool.own.consumed,
            is_profiling=self.progress.is_profiling,
            is_resumable=self.is_resumable,
        )

    async def report(self, mine: Said, /) -> None:
        """Meet the other ranks, let rank 0 report, and heed the verdict. Raises what any rank has raised, RankLost."""
        said = await self._exchange.gather(mine, about=EVALUATION)
        if any(isinstance(each, Left) for each in said):
            await self._end_with(said, about=EVALUATION)
            return
        raise_first(said, rank=self.ranks.rank)
        evaluated = [each for each in said if isinstance(each, Evaluated)]
        self._warn_of_metrics(evaluated)
        if self.progress.has_ended:
            self._heed_end(self._metric_of_all(evaluated))
            return
        self._hear(evaluated)
        self.progress.is_profiling = False
        await self._lead(lambda led: led.report(self._pooled_report(evaluated)), about=EVALUATION)

    async def report_power_profile(self, measurements: Sequence[PowerMeasurement]) -> None:
        """Keep what was measured under several power limits; that of rank 0 is told. The ranks need not meet."""
        self.progress.power_profile = tuple(measurements)
        if self._led is not None:
            await self._led.report_power_profile(measurements)

    async def leave(self, error: BaseException | None) -> bool:
        """End the trial with the ``with`` blocks of all ranks; returns whether the exception is dealt with.

        A GPU out of memory on any rank makes the batch size infeasible for all. Any other exception goes its way, when
        the others have heard of it or do not come.
        """
        self.has_left = True
        self._pool.stop()
        if self.progress.has_ended:
            if self._led is not None:
                self._led.acknowledge_stop()
            return isinstance(error, TrainFailed)
        if error is None:
            await self._leave_together(Outcome.NOT_CONVERGED, self._left_early())
            return False
        outcome, reason = ending_of(error)
        if outcome is Outcome.INFEASIBLE:
            return await self._leave_out_of_memory(reason, error)
        await self._leave_with_error(outcome, reason, error)
        return False

    async def call_off(self, outcome: Outcome, reason: str) -> None:
        """End the trial, and the loop over trials with it, on all ranks; without effect if it has ended before."""
        if not self.progress.has_ended:
            self.is_called_off = True
            self._pool.stop()
            await self._leave_together(outcome, reason)

    async def finish(self, outcome: Outcome, reason: str, *, timeout_s: float | None = None) -> None:
        """End the trial without meeting the others: they may be gone. Rank 0 says so to the optimizer."""
        if self.progress.has_ended:
            return
        self._pool.stop()
        if self._notes(_END_NOTE):
            outcome, reason = Outcome.INFEASIBLE, OUT_OF_MEMORY_REASON
        if self._led is not None:
            self._led.is_resumable |= self.is_resumable
            await self._led.finish(outcome, reason, timeout_s=timeout_s)
            self.progress.become(self._led.progress)
        else:
            await self._say_for_leader(outcome, reason)
            self.progress.end(outcome, reason, should_retry=False)

    @property
    def is_resumable(self) -> bool:
        """Whether an interruption leaves the trial to be resumed. What one rank asked for holds for all."""
        return self._is_resumable

    @is_resumable.setter
    def is_resumable(self, value: bool) -> None:
        if value and not self._is_resumable:
            self._exchange.ranks.leave_note(f"{_CHECKPOINT_NOTE}-{self.progress.trial_id}", "saved")
        self._is_resumable = value

    async def _say_for_leader(self, outcome: Outcome, reason: str) -> None:
        leader = self._place.leader
        has_died = leader.has_died or (self._exchange.ranks.is_lost and await leader.has_died_soon())
        if not has_died:
            return
        saved = self._notes(_CHECKPOINT_NOTE)
        words = LastWords(
            job_id=self.job_id,
            progress=self.progress,
            consumed=self._pool.consumed,
            outcome=outcome,
            reason=reason if outcome is Outcome.INFEASIBLE else f"the process of rank 0 has died ({reason})",
            may_resume=saved is None or bool(saved) or self.is_resumable,
        )
        await say_for(leader.leader, words, self._place.open_transport)

    def _notes(self, key: str) -> dict[int, str] | None:
        return self._exchange.ranks.notes(f"{key}-{self.progress.trial_id}")

    async def _leave_together(self, outcome: Outcome, reason: str) -> None:
        try:
            await self._end_with(await self._exchange.gather(self._left(outcome, reason), about=END), about=END)
        except BsoError as lost:
            await self.finish(Outcome.INTERRUPTED, described(lost))
            raise

    async def _leave_out_of_memory(self, reason: str, error: BaseException) -> bool:
        self._exchange.ranks.leave_note(f"{_END_NOTE}-{self.progress.trial_id}", reason)
        mine = self._left(Outcome.INFEASIBLE, reason, is_error=True)
        try:
            ending = await self._end_with(await self._exchange.gather(mine, about=END), about=END)
        except BsoError as lost:
            await self.finish(Outcome.INFEASIBLE, reason)
            raise lost from error
        return ending.is_failure and self.progress.should_retry

    async def _leave_with_error(self, outcome: Outcome, reason: str, error: BaseException) -> None:
        if not isinstance(error, RankLost | RanksOutOfStep) and not self._exchange.ranks.is_lost:
            try:
                async with asyncio.timeout(_GRACE_S):
                    said = await self._exchange.gather(self._left(outcome, reason, is_error=True), about=END)
                ending = _found_in(said)
                outcome, reason = ending.outcome, ending.reason
            except (BsoError, TimeoutError) as lost:
                logger.debug("the other ranks did not hear of it: %s", lost, extra={"action": "rank_lost"})
        await self.finish(outcome, reason)

    async def _end_with(self, said: Sequence[Said], *, about: str) -> Ending:
        """The end of the trial, which ranks have left; those that evaluate hear of it, by an error where they must."""
        ending = _found_in(said)
        self._hear([each for each in said if not isinstance(each, CarriedError)])
        left = [rank for rank, each in enumerate(said) if isinstance(each, Left)]
        if ending.is_broken:
            await self.finish(ending.outcome, ending.reason)
            if self.ranks.rank not in left:
                raise RankLost(f"rank {', '.join(map(str, left))} has left the training: {ending.reason}")
        elif ending.is_failure or len(left) == self.ranks.size:
            await self._lead(lambda led: led.finish(ending.outcome, ending.reason), about=about)
        else:
            raise RanksOutOfStep(
                f"rank {', '.join(map(str, left))} has left the training ({ending.reason}) while others evaluate: call "
                "on_evaluate on every rank, and leave the training on every rank"
            )
        return ending

    async def _lead(self, talk: Callable[[TrialRun], Awaitable[None]], *, about: str) -> None:
        led = self._led

        async def make() -> Progress:
            assert led is not None
            await talk(led)
            return led.progress

        self.progress.become(await self._exchange.lead(make, about=about))

    def _left(self, outcome: Outcome, reason: str, *, is_error: bool = False) -> Left:
        return Left(
            outcome=outcome,
            reason=reason,
            consumed=self._pool.own.consumed,
            is_error=is_error,
            is_resumable=self.is_resumable,
        )

    def _hear(self, said: Sequence[Evaluated | Left]) -> Consumption:
        self.is_resumable = any(each.is_resumable for each in said)
        if self._led is not None:
            self._led.is_resumable = self.is_resumable
        return self._pool.pool(self._pool.own.consumed, [each.consumed for each in said])

    def _pooled_report(self, said: Sequence[Evaluated]) -> EpochReport:
        consumed = self._pool.consumed
        return EpochReport(
            epoch=said[0].epoch,
            time_s=consumed.time_s,
            energy_j=consumed.energy_j,
            metric=self._metric_of_all(said),
            is_profiling=any(each.is_profiling for each in said),
        )

    def _metric_of_all(self, said: Sequence[Evaluated]) -> float:
        metrics = [each.metric for each in said]
        return sum(metrics) / len(metrics) if self.averages_metrics else metrics[0]

    def _warn_of_metrics(self, said: Sequence[Evaluated]) -> None:
        metrics = sorted({str(each.metric) for each in said})
        if self.averages_metrics:
            return
        if len(metrics) > 1 and self.ranks.rank == 0 and not self._exchange.was_told_of_metrics:
            self._exchange.was_told_of_metrics = True
            logger.warning(
                "ranks evaluate to different metrics (%s): that of rank 0 counts; reduce it over the ranks first if "
                "each evaluates a part of the data",
                ", ".join(str(each.metric) for each in said[:8]),
                extra={"action": "metrics_differ"},
            )


def _found_in(said: Sequence[Said]) -> Ending:
    ending = ending_of_all(said)
    assert ending is not None, "a rank has left"
    return ending
