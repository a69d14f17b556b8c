"""Lanes: senders of commands, each with one recurrence after another, that take every answer as a client does."""

from __future__ import annotations

import asyncio
import itertools
import random
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from bso.domain.commands import (
    BeginTrial,
    Command,
    DescribeJob,
    FinishTrial,
    PowerMeasurement,
    RegisterJob,
    RenewLease,
    ReportPowerProfile,
    Request,
)
from bso.domain.errors import Misconfigured
from bso.domain.replies import KEPT, EpochJudged, Problem, Reply, TrialBegun
from bso.domain.trial import Outcome
from bso.schema.codec import decode_reply, encode_command
from bso_broker.errors import BrokerClosed, CallTimeout, NoCommandQueue
from bso_broker.rpc import RpcClient
from tests.faults.matrix.ledger import Asked, Ledger
from tests.integration.workers.recurrences import EPOCH_S, HARDWARE, SPEC, probed, report

_CALL_TIMEOUT_S = 30.0  # then the same command is sent again
_PROBING = 0.3  # of the trials
_LONGEST_PAUSE_S = 5.0  # sooner than they are asked to: a scenario ends when each lane has gone on
TRIAL_ENDED = "trial_ended"
_AFTER_A_RESTORE = frozenset(
    {TRIAL_ENDED, "unknown_trial", "wrong_trial_id", "conflicting_report", "report_goes_backwards"}
)


class Over(Exception):
    """The scenario is over: what is under way ends."""


@dataclass(kw_only=True)
class Sender:
    """Sends commands until each is decided, under one command_id, and writes all of it down."""

    caller: RpcClient
    ledger: Ledger
    rng: random.Random
    is_over: asyncio.Event = field(default_factory=asyncio.Event)
    _is_restored: bool = False
    _reported_unjudged: set[str] = field(default_factory=set)

    def expect_a_restore(self) -> None:
        """Trials may be gone from now on, and their numbers given again."""
        self._is_restored = True

    def expects(self, problem: Problem, command: Command) -> bool:
        """Whether a command may be refused so. The end of a trial was judged unseen where a report of it was kept."""
        if self._is_restored and problem.type in _AFTER_A_RESTORE:
            return True
        return problem.type == TRIAL_ENDED and getattr(command, "trial_id", None) in self._reported_unjudged

    async def ask(self, job_id: str, command: Command, *, is_others: bool, lane: str = "") -> Reply:
        """The decision; a problem of type ``kept`` where the optimizer has taken the command over. Raises Over."""
        request = Request(
            command_id=str(uuid.UUID(int=self.rng.getrandbits(128), version=4)), job_id=job_id, command=command
        )
        asked = Asked(request=request, sent_s=_now_s(), is_others=is_others, lane=lane)
        self.ledger.asked.append(asked)
        reply = await self._answered(asked)
        asked.answered_s = _now_s()
        if isinstance(reply, Problem) and reply.type == KEPT:
            asked.was_kept = True
        if asked.was_kept:
            self._reported_unjudged.add(getattr(command, "trial_id", ""))
        if isinstance(reply, Problem) and reply.type == KEPT:
            return reply
        asked.reply = reply
        if isinstance(reply, Problem) and not self.expects(reply, command):
            self.ledger.surprises.append(
                f"{type(command).__name__} of {job_id} was answered {reply.type}: {reply.detail}"
            )
        return reply

    async def ask_again(self, asked: Asked) -> None:
        """Send an answered command once more, unchanged: the answer must be the same."""
        asked.asked_again = await self._answered(asked, is_patient=True)

    async def _answered(self, asked: Asked, *, is_patient: bool = False) -> Reply:
        body = encode_command(asked.request)
        while True:
            if self.is_over.is_set() and not is_patient:
                raise Over
            try:
                reply = decode_reply(
                    await self.caller.call(body, message_id=asked.request.command_id, timeout_s=_CALL_TIMEOUT_S)
                )
            except (CallTimeout, NoCommandQueue, Misconfigured) as error:
                asked.put_off.append(type(error).__name__)
                await asyncio.sleep(0.2)
                continue
            except BrokerClosed as error:
                raise Over from error
            if not isinstance(reply, Problem) or reply.retry_after_s is None:
                return reply
            if reply.type == KEPT and (asked.was_kept or self.rng.random() < 0.5):
                return reply
            asked.was_kept |= reply.type == KEPT
            asked.put_off.append(reply.type)
            with suppress(TimeoutError):
                async with asyncio.timeout(min(_LONGEST_PAUSE_S, reply.retry_after_s)):
                    await self.is_over.wait()


@dataclass(kw_only=True)
class Lane:
    """One row of recurrences of a job: begins trials, reports, finishes, renews, describes, registers again."""

    name: str
    job_id: str
    sender: Sender
    is_others: bool
    pause_s: float = 0.03
    spec: dict[str, object] = field(default_factory=lambda: dict(SPEC))

    async def run(self) -> None:
        """Recurrences of the job, which it registers first, until the scenario is over."""
        with suppress(Over):
            await self.register()
            for number in itertools.count(1):
                await self._recur(f"{self.name}-{number}")

    async def register(self) -> None:
        """Register the job."""
        await self._ask(RegisterJob(spec=self.spec))

    async def _ask(self, command: Command) -> Reply:
        return await self.sender.ask(self.job_id, command, is_others=self.is_others, lane=self.name)

    async def _recur(self, recurrence_id: str) -> None:
        wants_more = True
        while wants_more:
            begun = await self._ask(BeginTrial(hardware=HARDWARE, recurrence_id=recurrence_id))
            if not isinstance(begun, TrialBegun):
                await asyncio.sleep(1.0)
                return
            wants_more = await self._train(begun)

    async def _train(self, begun: TrialBegun) -> bool:
        """Report epochs until a judgement stops the trial, or finish it; whether the recurrence still wants a model.

        A share of the trials probes other batch sizes, one after each epoch, the last epoch included.
        """
        others = [size for size in EPOCH_S if size != begun.batch_size]
        to_probe = others if self.sender.rng.random() < _PROBING else []
        for epoch in range(1, 8):
            await asyncio.sleep(self.pause_s * self.sender.rng.uniform(0.5, 1.5))
            reply = await self._ask(report(begun, epoch))
            if to_probe:
                await self._ask(probed(begun, to_probe.pop()))
            if isinstance(reply, EpochJudged) and reply.should_stop:
                return reply.should_retry
            if isinstance(reply, Problem) and reply.type != KEPT:
                return False  # its trial is no longer there, or has ended
            await self._do_something_else(begun)
        finish = FinishTrial(trial_number=begun.trial_number, trial_id=begun.trial_id, outcome=Outcome.NOT_CONVERGED)
        await self._ask(finish)
        return False

    async def _do_something_else(self, begun: TrialBegun) -> None:
        chance = self.sender.rng.random()
        if chance < 0.1:
            await self._ask(RenewLease(trial_number=begun.trial_number, trial_id=begun.trial_id))
        elif chance < 0.15:
            await self._ask(DescribeJob())
        elif chance < 0.2:
            await self._ask(RegisterJob(spec=self.spec))
        elif chance < 0.25:
            measured = PowerMeasurement(power_limit_w=200.0, average_power_w=180.0, samples_per_s=900.0)
            await self._ask(
                ReportPowerProfile(batch_size=begun.batch_size, hardware=HARDWARE, measurements=(measured,))
            )


@dataclass(kw_only=True)
class Pulse:
    """Describes a job ten times a second, whether earlier questions are answered or not.

    A frozen worker takes many commands with it; these show whether another one goes on.
    """

    job_id: str
    sender: Sender
    interval_s: float = 0.1
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def run(self) -> None:
        """Ask until the scenario is over."""
        try:
            while not self.sender.is_over.is_set():
                task = asyncio.create_task(self._beat())
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
                await asyncio.sleep(self.interval_s)
        finally:
            if self._tasks:
                await asyncio.wait(self._tasks)

    async def _beat(self) -> None:
        with suppress(Over):
            await self.sender.ask(self.job_id, DescribeJob(), is_others=True)


def new_jobs(rng: random.Random, count: int) -> Sequence[str]:
    """Names that no other scenario uses."""
    return [f"job-{rng.getrandbits(32):08x}" for _ in range(count)]


def lanes_of(job_id: str, sender: Sender, *, at_once: int, is_others: bool) -> Iterator[Lane]:
    """Several lanes of one job."""
    for number in range(at_once):
        yield Lane(name=f"{job_id}-lane-{number}", job_id=job_id, sender=sender, is_others=is_others)


def _now_s() -> float:
    return asyncio.get_running_loop().time()
