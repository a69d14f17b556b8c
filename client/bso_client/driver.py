"""The driver of a training: the only writer of its state. It measures, sends, waits, and meets the other ranks.

All ranks hold the same state, since each applies the same steps to it: what all ranks have measured, and what rank 0,
which alone sends, has received. A training of one process is one of one rank, whose every exchange returns at once.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import SupportsFloat

from bso.domain.commands import Command, PowerMeasurement
from bso.domain.progress import undistorted
from bso.domain.replies import EpochJudged, Reply
from bso.domain.trial import EpochReport, Outcome
from bso_client.delivery.outbox import Letter, Outbox
from bso_client.distributed.endings import (
    Ending,
    Evaluated,
    Left,
    Received,
    Said,
    ending_of_all,
    notices_of_metrics,
    probed_by_all,
)
from bso_client.distributed.exchange import CarriedError, RankExchange, carried, raise_first
from bso_client.distributed.ranks import Ranks
from bso_client.errors import BsoError, RankLost, RanksOutOfStep, TrainFailed
from bso_client.failures import OUT_OF_MEMORY_REASON, described, ending_of
from bso_client.meter import PooledMeter
from bso_client.prober import Prober
from bso_client.training.state import Consumption, Notice, Probed, Step, TrainingState
from bso_client.training.transitions import (
    acknowledged,
    checked_evaluation,
    checkpointed,
    end_notices,
    ended,
    probed,
    profiled,
    received,
    reported,
    started,
    unanswered,
    why_left,
)

logger = logging.getLogger("bso")

REPORT_TIMEOUT_S = 5.0
"""How long a training is held up for a judgement before it goes on without."""

EVALUATION = "the training (on_evaluate)"
END = "the training (the end of the trial)"

_MOST_EVALUATIONS = 1000
_END_NOTE, _CHECKPOINT_NOTE, _ERROR_NOTE = "out-of-memory", "checkpoint", "error"
_MOST_AT_ONCE_S = 10.0  # ranks probe, which is far below the timeout of any exchange of theirs
_UNEVEN_STEPS = (
    "batch size {} has uneven shares: if the loaders give all ranks as many samples (DistributedSampler), these make "
    "different numbers of steps, and wait for each other: a ProportionalSampler (bso_client.integrations.torch) gives "
    "each rank its share"
)
_GRACE_S = 3.0  # for the others to come and learn of an error, before it goes its way


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A process' place in a training: how much of each batch it trains, and how it counts progress."""

    local_batch_size: int
    data_parallel_size: int = 1
    samples_per_epoch: float | None = None
    report_timeout_s: float = REPORT_TIMEOUT_S


class Driver:
    """One training in this process. Without an ``outbox`` another rank sends; without a ``prober`` nothing is probed.

    ``on_checkpoint`` learns of the first checkpoint that this rank took. ``on_orphaned`` lets the optimizer know how
    the trial has ended where the process of rank 0 has died.
    The state is changed on the event loop alone; ``measured``, ``paused`` and ``go_on``, which only measure, belong to
    the thread of the training.
    """

    def __init__(
        self,
        step: Step,
        *,
        meter: PooledMeter,
        exchange: RankExchange,
        place: Place,
        outbox: Outbox | None,
        on_end: Callable[[TrainingState], None],
        on_checkpoint: Callable[[TrainingState], None] = lambda _state: None,
        on_orphaned: Callable[[TrainingState, Consumption], Awaitable[None]] | None = None,
        prober: Prober | None = None,
    ) -> None:
        self._state = step.state
        self.place = place
        self.has_left: bool = False
        self.averages_metrics: bool = False
        self.turn: AbstractContextManager[object] = threading.RLock()
        """Held from measuring an evaluation to its end: threads that evaluate at once take turns."""
        self._meter = meter
        self._exchange = exchange
        self._outbox = outbox
        self._on_end = on_end
        self._on_checkpoint = on_checkpoint
        self._on_orphaned = on_orphaned
        self._prober = prober
        self._inbox: list[Received] = []  # what rank 0 has received, and not handed on to all ranks yet
        self._is_profiling = False
        self._probed = Probed()  # by this rank, and not by all yet
        self._pauses = 0
        self._evaluations: deque[tuple[float, float, float]] = deque(maxlen=_MOST_EVALUATIONS)
        self._is_end_announced = False
        self._ends_alone = False  # one of several ranks, without the others: no other trial follows in this launch
        self._apply(step)

    @property
    def state(self) -> TrainingState:
        """The training as it stands."""
        return self._state

    @property
    def evaluations(self) -> Sequence[tuple[float, float, float]]:
        """Epoch, metric and cost [J] at each evaluation in this process, the last ones where there are many."""
        return tuple(self._evaluations)

    @property
    def ranks(self) -> Ranks:
        """The processes that train together."""
        return self._exchange.ranks

    # ------------------------------------------------------------------ what the training does

    def start(self) -> None:
        """Begin to measure. Raises WrongOrder for a second time."""
        self._state = started(self.state)
        self._meter.start()

    def measured(self, metric: SupportsFloat, *, epoch: float | None = None, samples: float | None = None) -> Said:
        """Close the measuring window; what this rank reports, an error of its own included.

        A training of one process raises it at once: WrongOrder, InvalidReport.
        """
        try:
            number, reached = checked_evaluation(
                self.state,
                metric,
                epoch=epoch,
                samples=samples,
                samples_per_epoch=self.place.samples_per_epoch,
            )
        except Exception as error:
            if self._exchange.is_alone:
                raise
            return carried(error)
        self._meter.stop()
        return Evaluated(
            epoch=reached,
            metric=number,
            consumed=self._meter.own.consumed,
            is_profiling=self._is_profiling,
            is_resumable=self.state.is_resumable,
        )

    async def evaluated(self, mine: Said) -> None:
        """Meet the other ranks, report, and obey the verdict: the optimizer's or, without it, the training's own.

        Raises TrainFailed where the batch size had failed before, what any rank has raised, RankLost, RanksOutOfStep.
        """
        said = await self._gathered(mine, about=EVALUATION)
        if any(isinstance(each, Left) for each in said):
            await self._end_with(said, about=EVALUATION)
            return
        raise_first(said, rank=self.ranks.rank)
        evaluations = [each for each in said if isinstance(each, Evaluated)]
        if not self._exchange.is_alone and not self.averages_metrics and not self._exchange.has_warned_of_metrics:
            notices = notices_of_metrics(evaluations)
            self._exchange.has_warned_of_metrics = bool(notices)
            self._say(notices)
        self._is_profiling = False
        await self._take(reported(self.state, self._pooled(evaluations)), about=EVALUATION)
        if self.state.metric is not None:
            self._evaluations.append((self.state.epoch, self.state.metric, self.state.cost))
        self.acknowledge()

    def _pooled(self, said: Sequence[Evaluated]) -> EpochReport:
        metrics = [each.metric for each in said]
        consumed = self._meter.consumed
        return EpochReport(
            epoch=said[0].epoch,
            time_s=consumed.time_s,
            energy_j=consumed.energy_j,
            metric=sum(metrics) / len(metrics) if self.averages_metrics else metrics[0],
            is_profiling=any(each.is_profiling for each in said),
        )

    def go_on(self) -> None:
        """Measure again, if the training goes on."""
        if not self.state.has_ended and not self._pauses:
            self._meter.start()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave out what happens inside."""
        self._meter.stop(is_pause=True)
        self._pauses += 1
        try:
            yield
        finally:
            self._pauses -= 1
            if self.state.has_started and not self.has_left:
                self.go_on()

    def mark_profiling(self) -> None:
        """Mark the report now being measured: power limits are profiled meanwhile."""
        self._is_profiling = True

    def consumed_now(self) -> Consumption:
        """Time and energy up to this moment."""
        if not self._meter.is_running:
            return self._meter.consumed
        consumed = self._meter.stop()
        self._meter.start()
        return consumed

    def checkpoint(self, consumed: Consumption) -> TrainingState:
        """The state for a checkpoint; from now on an interruption leaves the trial to be resumed."""
        if not self.state.is_resumable:
            self._exchange.leave_note(f"{_CHECKPOINT_NOTE}-{self.state.key}")
            self._on_checkpoint(self.state)
        self._state = checkpointed(self.state, consumed)
        return replace(self.state, is_profiling=self.state.is_profiling or self._is_profiling)

    def acknowledge(self) -> None:
        """Acknowledge a stop that came late, at the latest when the next trial is due."""
        self._apply(acknowledged(self.state))
        self._settle()

    def report_power_profile(self, measurements: Sequence[PowerMeasurement]) -> None:
        """Keep what was measured under several power limits for the next trial with this batch size.

        That of rank 0 is sent. The ranks need not meet.
        """
        self._apply(profiled(self.state, measurements))

    def probe(self, step: Callable[[int], object]) -> None:
        """Probe what epochs with other batch sizes would cost, as far as the budget allows.

        It is no part of what is measured, and nothing is probed while power limits are profiled. Ranks probe for a
        short time at once: those that are done first wait for the others.
        """
        state = self.state
        usual = undistorted(state.totals, state.profiled)
        if self._prober is None or not self._may_probe or not usual.epoch:
            return
        energy_j = usual.energy_j / usual.epoch if state.is_energy_complete else None
        left_s = state.spec.probing_budget * state.time_s - state.probing_s - self._probed.time_s
        with self.paused():
            found = self._prober.probe(
                step,
                [size for size in state.to_probe if size not in self._probed.batch_sizes],
                own=state.batch_size,
                epoch=Consumption(time_s=usual.time_s / usual.epoch, energy_j=energy_j),
                allowance_s=min(left_s, math.inf if self._exchange.is_alone else _MOST_AT_ONCE_S),
            )
        self._probed = self._probed.plus(found)

    def report_probed(self) -> None:
        """Report what was probed, if one process trains; several meet at the next evaluation, or at the end."""
        if self._exchange.is_alone:
            self._report_probed([self._probed])

    @property
    def _may_probe(self) -> bool:
        state, last = self.state, self.state.last
        is_underway = state.has_started and not (state.has_ended or self.has_left or self._pauses)
        is_profiling = self._is_profiling or last is None or last.is_profiling
        is_behind = last is not None and state.is_known(last.epoch)
        return bool(state.to_probe) and is_underway and not (is_profiling or is_behind)

    async def leave(self, error: BaseException | None) -> bool:
        """End the trial with its ``with`` block, on all ranks; returns whether the exception is dealt with.

        A GPU out of memory on any rank makes the batch size infeasible for all. Any other exception goes its way when
        the others know of it or do not come.
        """
        self.has_left = True
        self._meter.stop()
        if self.state.has_ended:
            self.acknowledge()
            return isinstance(error, TrainFailed)
        if error is None:
            await self._leave_together(Outcome.NOT_CONVERGED, why_left(self.state))
            return False
        outcome, reason = ending_of(error)
        if outcome is Outcome.INFEASIBLE:
            return await self._leave_out_of_memory(reason, error)
        await self._leave_with_error(outcome, reason, error)
        return False

    async def call_off(self, outcome: Outcome, reason: str) -> None:
        """End the trial, and the loop over trials with it, on all ranks; without effect if it has ended before."""
        if not self.state.has_ended:
            self._state = replace(self.state, is_called_off=True)
            self._meter.stop()
            await self._leave_together(outcome, reason)

    async def finish(
        self, outcome: Outcome, reason: str, *, timeout_s: float | None = None, have_met: bool = False
    ) -> None:
        """End the trial without meeting the other ranks, which may be gone; without effect if it has ended before.

        Unless they ``have_met``, the reason is that of the rank which an error has ended first: what ends the others
        is that they have lost it, or that their launcher ends them.
        """
        if not (have_met or self.state.has_ended):
            reason = await self._exchange.first_left(f"{_ERROR_NOTE}-{self.state.key}") or reason
        is_out_of_memory = not self.state.has_ended and await self._has_note(_END_NOTE)
        self._absorb(tuple(self._inbox))
        if self.state.has_ended:
            self.acknowledge()
            return
        self._ends_alone = not (have_met or self._exchange.is_alone)
        consumed = self._meter.stop()
        if is_out_of_memory:
            outcome, reason = Outcome.INFEASIBLE, OUT_OF_MEMORY_REASON
        step = ended(self.state, outcome, reason, consumed=consumed)
        try:
            if self._outbox is None:
                await self._speak_for_rank_0(step.state)
                self._state = replace(step.state, should_retry=False)
            else:
                letters = self._apply(step)
                await self._outbox.answer(letters[-1], timeout_s=timeout_s or self.place.report_timeout_s)
                self._absorb(tuple(self._inbox))
        finally:
            self._settle()

    # ------------------------------------------------------------------ what the optimizer does

    def received(self, command: Command, reply: Reply) -> None:
        """Take a reply, awaited or late. Where several ranks train, it takes effect when they meet the next time."""
        self._inbox.append(Received(command=command, reply=reply))
        if self._exchange.is_alone:
            self._absorb(tuple(self._inbox))

    # ------------------------------------------------------------------ how the state changes

    def _apply(self, step: Step) -> Sequence[Letter]:
        """Make a step: its messages are on their way when this returns, their letters."""
        self._state = step.state
        self._say(step.notices)
        if self._outbox is None:
            return ()
        timeout_s = self.place.report_timeout_s
        return [self._outbox.post(message, self, timeout_s=timeout_s) for message in step.sends]

    async def _take(self, step: Step, *, about: str) -> None:
        """Make a step on all ranks. Where it waits for a reply, rank 0 does; all ranks receive what rank 0 has."""
        letters = self._apply(step)
        is_judged = False
        if step.is_awaited:
            answer = await self._exchange.lead(lambda: self._answer(letters), about=about)
            self._absorb(answer.received)
            is_judged = answer.is_judged
        if not is_judged:
            self._apply(unanswered(self.state))

    async def _answer(self, letters: Sequence[Letter]) -> _Answer:
        assert self._outbox is not None
        reply = await self._outbox.answer(letters[-1], timeout_s=self.place.report_timeout_s)
        return _Answer(received=tuple(self._inbox), is_judged=isinstance(reply, EpochJudged))

    def _absorb(self, replies: Sequence[Received]) -> None:
        """Let replies take effect. On rank 0 they come first in its inbox, and stay there until all ranks have them."""
        del self._inbox[: len(replies)]
        for each in replies:
            self._apply(received(self.state, each.command, each.reply))

    def _say(self, notices: Sequence[Notice]) -> None:
        if self.ranks.rank == 0:
            for notice in notices:
                say(notice)

    def _settle(self) -> None:
        """Announce an end, once, when all that can be known of it is."""
        if self.state.has_ended and not self._is_end_announced:
            self._is_end_announced = True
            self._meter.own.close()
            self._say(end_notices(self.state, ends_launch=self._ends_alone))
            self._on_end(self.state)

    # ------------------------------------------------------------------ how the ranks meet

    async def _gathered(self, mine: Said, *, about: str) -> Sequence[Said]:
        """What all ranks report; what rank 0 has received comes with it, and takes effect first."""
        if not isinstance(mine, CarriedError):
            mine = replace(mine, probed=self._probed, received=() if self._exchange.is_alone else tuple(self._inbox))
        try:
            said = await self._exchange.gather(mine, about=about)
        except RankLost as lost:
            if self.state.batch_size % self.place.data_parallel_size:
                raise RankLost(f"{lost}; {_UNEVEN_STEPS.format(self.state.batch_size)}") from lost
            raise
        if not self._exchange.is_alone and not isinstance(said[0], CarriedError):
            self._absorb(said[0].received)
        sound = [each for each in said if not isinstance(each, CarriedError)]
        if len(sound) == len(said) or any(isinstance(each, Left) for each in sound):
            self._state = replace(self.state, is_resumable=any(each.is_resumable for each in sound))
            self._meter.pool([each.consumed for each in sound])
            self._report_probed([each.probed for each in sound])
        return said

    def _report_probed(self, found: Sequence[Probed]) -> None:
        """Report what all ranks have probed; what only some have waits for the others."""
        if not any(each.time_s or each.probes for each in found):
            return
        all_have = probed_by_all(found)
        if all_have.time_s:
            self._apply(probed(self.state, all_have))
        is_ahead = not self._probed.batch_sizes <= all_have.batch_sizes
        self._probed = Probed(probes=self._probed.probes) if is_ahead else Probed()

    async def _leave_together(self, outcome: Outcome, reason: str) -> None:
        try:
            said = await self._gathered(self._left(outcome, reason), about=END)
            await self._end_with(said, about=END)
        except BsoError as lost:
            await self.finish(Outcome.INTERRUPTED, described(lost))
            raise

    async def _leave_out_of_memory(self, reason: str, error: BaseException) -> bool:
        self._exchange.leave_note(f"{_END_NOTE}-{self.state.key}")
        mine = self._left(Outcome.INFEASIBLE, reason, is_error=True)
        try:
            ending = await self._end_with(await self._gathered(mine, about=END), about=END)
        except BsoError as lost:
            await self.finish(Outcome.INFEASIBLE, reason)
            raise lost from error
        return ending is not None and ending.is_failure and self.state.should_retry

    async def _leave_with_error(self, outcome: Outcome, reason: str, error: BaseException) -> None:
        is_alone = self._exchange.is_alone or self._exchange.is_lost
        have_met = False
        if not is_alone and not isinstance(error, RankLost | RanksOutOfStep):
            self._exchange.leave_first(f"{_ERROR_NOTE}-{self.state.key}", f"{reason} (on rank {self.ranks.rank})")
            try:
                async with asyncio.timeout(_GRACE_S):
                    said = await self._gathered(self._left(outcome, reason, is_error=True), about=END)
                have_met = True
                if (ending := ending_of_all(said)) is not None:
                    outcome, reason = ending.outcome, ending.reason
            except (BsoError, TimeoutError) as lost:
                logger.debug("the other ranks did not learn of it: %s", lost, extra={"action": "rank_lost"})
        await self.finish(outcome, reason, have_met=have_met)

    async def _end_with(self, said: Sequence[Said], *, about: str) -> Ending | None:
        """End the trial if ranks have left it; those that evaluate learn of it, by an error where they must."""
        ending = ending_of_all(said)
        if ending is None:
            return None
        left = [rank for rank, each in enumerate(said) if isinstance(each, Left)]
        names = ", ".join(map(str, left))
        if ending.is_broken:
            await self.finish(ending.outcome, ending.reason, have_met=True)
            if self.ranks.rank not in left:
                raise RankLost(f"rank {names} has left the training: {ending.reason}")
        elif ending.is_failure or len(left) == self.ranks.size:
            step = ended(self.state, ending.outcome, ending.reason, consumed=self._meter.consumed)
            await self._take(step, about=about)
            self._settle()
        else:
            raise RanksOutOfStep(
                f"rank {names} has left the training ({ending.reason}) while others evaluate: call on_evaluate on "
                "every rank, and leave the training on every rank"
            )
        return ending

    def _left(self, outcome: Outcome, reason: str, *, is_error: bool = False) -> Left:
        return Left(
            outcome=outcome,
            reason=reason,
            consumed=self._meter.own.consumed,
            is_error=is_error,
            is_resumable=self.state.is_resumable,
        )

    async def _speak_for_rank_0(self, state: TrainingState) -> None:
        """Let the optimizer know how the trial ended, if the process of rank 0 has died."""
        if self._on_orphaned is None:
            return
        may_resume = state.is_resumable or await self._has_note(_CHECKPOINT_NOTE) is not False
        await self._on_orphaned(replace(state, is_resumable=may_resume), self._meter.consumed)

    async def _has_note(self, key: str) -> bool | None:
        return await self._exchange.has_note(f"{key}-{self.state.key}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """What rank 0 has received while it waited for a judgement, and whether the judgement was among it."""

    received: tuple[Received, ...]
    is_judged: bool


def say(notice: Notice) -> None:
    """Log a notice."""
    logger.log(notice.level, "%s", notice.words, extra={"action": notice.action, **notice.facts})
