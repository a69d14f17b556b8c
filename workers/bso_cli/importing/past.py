"""Recording what has happened elsewhere: ordinary commands, decided by the optimizer's own rules as of that time.

The ids of commands follow from what they are about, so nothing is recorded twice, however often it is sent.
"""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from bso.domain.commands import BeginTrial, FinishTrial, Request
from bso.domain.decide import Context, Decision, Facts, Rules, decide
from bso.domain.decide.contract import with_lease
from bso.domain.events import TrialStarted
from bso.domain.evolve import apply
from bso.domain.frozen_values import replace
from bso.domain.identifiers import trial_id_for
from bso.domain.job import Job
from bso.domain.replies import Problem, Registered, TrialBegun
from bso.schema.codec import job_from_state
from bso.service.engine import Engine, Patience
from bso.service.log_epochs import LogWatch
from bso_cli.importing.zeus_history import SOURCE, NotTransferable, ZeusHistory, ZeusTrial

if TYPE_CHECKING:
    from bso.domain.commands import Command
    from bso.domain.trial import Trial
    from bso.service.ports import Store

_IDS = uuid.UUID("0f1c2f0a-6f1e-5c55-9d6b-3d0f5b6f4f0e")
_TOGETHER = 20
"""Trials in one transaction: each is there with its end, or not at all."""
_PATIENCE = Patience(deciding_s=math.inf, attempt_s=60.0, total_s=120.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenOver:
    """What an import has done to a job: so many trials were ``added``, so many ``known`` before.

    ``running`` are the numbers of those that have not ended elsewhere.
    """

    job_id: str
    is_new: bool
    added: int
    known: int
    running: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sent:
    """The commands that record one trial."""

    begin_id: str
    finish_id: str
    trial: ZeusTrial

    @property
    def trial_id(self) -> str:
        """The trial_id that it has here."""
        return trial_id_for(self.begin_id)

    def finish(self, number: int) -> FinishTrial:
        """Its end; ``number`` is its trial_number here."""
        trial = self.trial
        return FinishTrial(
            trial_number=number,
            trial_id=self.trial_id,
            outcome=trial.outcome,
            reason=trial.reason,
            time_s=trial.time_s,
            energy_j=trial.energy_j,
            bound=trial.bound,
            is_journalled=True,
        )


@dataclass(slots=True)
class _AsOfThen:
    """The optimizer's rules, for which it is the time at which a command of the past was due."""

    moments: dict[str, datetime] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)

    def __call__(self, job: Job, command: Command, facts: Facts, context: Context) -> Decision:
        """Decide a command; a trial begins for the reason that is known of it."""
        now = self.moments.get(context.command_id, context.now)
        decision = decide(job, command, facts, replace(context, now=now))
        reason = self.reasons.get(context.command_id)
        if reason is None or not isinstance(decision.reply, TrialBegun):
            return decision
        return _with_reason(job, decision, decision.reply, reason)


def _with_reason(before: Job, decision: Decision, reply: TrialBegun, reason: str) -> Decision:
    events = tuple(
        replace(event, reason=reason) if isinstance(event, TrialStarted) else event for event in decision.events
    )
    number = reply.trial_number
    after = with_lease(apply(before, events), number, decision.job.trials[number].lease_expires_at)
    return Decision(job=after, events=events, reply=replace(reply, reason=reason))


class Past:
    """Records histories in a store. ``owner`` becomes the owner of new jobs; None: they belong to nobody."""

    def __init__(self, store: Store, *, owner: str | None = None) -> None:
        self._store = store
        self._owner = owner
        self._rules = _AsOfThen()
        self._engine = Engine(store, rule=self._rules, patience=_PATIENCE, watch=LogWatch(store.log_epochs))

    async def missing(self, history: ZeusHistory) -> TakenOver:
        """What ``record`` would do. Raises NotTransferable where the optimizer would refuse the job."""
        await self._require_acceptable(history)
        found = await self._store.summary(history.job_id)
        known = await self._known(history.job_id)
        every = _all_sent(history, await self._first_version(history.job_id))
        new = [one for one in every if not _has_ended(known.get(one.trial_id))]
        return TakenOver(
            job_id=history.job_id,
            is_new=found is None or found.is_deleted,
            added=len(new),
            known=len(history.trials) - len(new),
            running=history.running,
        )

    async def record(self, history: ZeusHistory, *, progress: Callable[[int], None]) -> TakenOver:
        """Register a job, unless it is known, and record those of its trials that are not there yet.

        ``progress`` is called with the number of trials that were done. Raises NotTransferable where the optimizer
        refuses the job.
        """
        registered = await self._register(history)
        known = await self._known(history.job_id)
        every = _all_sent(history, await self._first_version(history.job_id))
        new = [one for one in every if not _has_ended(known.get(one.trial_id))]
        progress(len(every) - len(new))
        for some in _in_batches(new):
            await self._send(history, some)
            progress(len(some))
        return TakenOver(
            job_id=history.job_id,
            is_new=registered.is_new,
            added=len(new),
            known=len(every) - len(new),
            running=history.running,
        )

    async def _register(self, history: ZeusHistory) -> Registered:
        command_id = str(uuid.uuid4())  # it changes nothing where the job is known
        request = Request(command_id=command_id, job_id=history.job_id, command=history.registration, user=self._owner)
        [answer] = await self._engine.execute([request])
        if isinstance(answer.reply, Registered):
            return answer.reply
        raise _refusal(answer.reply)

    async def _first_version(self, job_id: str) -> int:
        """The number of the job's first version since it was last deleted; where there is none yet, of the next one."""
        job = await self._job(job_id)
        return min(job.versions, default=job.current_version + 1)

    async def _job(self, job_id: str) -> Job:
        stored = await self._store.job(job_id)
        if stored is None:
            return Job(job_id=job_id)
        return job_from_state(job_id, stored.last_seq, json.loads(stored.state))

    async def _require_acceptable(self, history: ZeusHistory) -> None:
        """Decide the registration, and record nothing."""
        job = await self._job(history.job_id)
        context = Context(command_id=str(uuid.uuid4()), user=None, now=datetime.now(UTC), rules=Rules())
        reply = decide(job, history.registration, Facts(), context).reply
        if not isinstance(reply, Registered):
            raise _refusal(reply)

    async def _known(self, job_id: str) -> Mapping[str, Trial]:
        return {trial.trial_id: trial for trial in await self._store.trials(job_id)}

    async def _send(self, history: ZeusHistory, some: Sequence[_Sent]) -> None:
        """Record some trials, each with its end, in one transaction."""
        found = await self._store.summary(history.job_id)
        number = 0 if found is None else found.last_trial_number
        requests: list[Request] = []
        for expected, one in enumerate(some, number + 1):
            requests += [self._begin(history, one), self._finish(history, one, expected)]
        answers = await self._engine.execute(requests)
        for begun, finished, one in zip(answers[::2], answers[1::2], some, strict=True):
            if not isinstance(begun.reply, TrialBegun):
                raise _refusal(begun.reply)
            if isinstance(finished.reply, Problem):  # a trial that began meanwhile has the number that was expected
                await self._end(history, one, begun.reply.trial_number)

    async def _end(self, history: ZeusHistory, one: _Sent, number: int) -> None:
        [answer] = await self._engine.execute([self._finish(history, one, number)])
        if isinstance(answer.reply, Problem):
            raise _refusal(answer.reply)

    def _begin(self, history: ZeusHistory, one: _Sent) -> Request:
        self._rules.moments[one.begin_id] = one.trial.started_at
        self._rules.reasons[one.begin_id] = f"{SOURCE}: its trial {one.trial.number} ({one.trial.stage})"
        command = BeginTrial(hardware=history.hardware, batch_size=one.trial.batch_size)
        return Request(command_id=one.begin_id, job_id=history.job_id, command=command)

    def _finish(self, history: ZeusHistory, one: _Sent, number: int) -> Request:
        self._rules.moments[one.finish_id] = one.trial.ended_at
        return Request(command_id=one.finish_id, job_id=history.job_id, command=one.finish(number))


def _all_sent(history: ZeusHistory, version: int) -> list[_Sent]:
    """The commands for all trials; ``version`` is the job's first one, another where it was deleted meanwhile."""
    names = [f"{history.job_id} {version} {trial.name}" for trial in history.trials]
    return [
        _Sent(
            begin_id=str(uuid.uuid5(_IDS, f"{name} begin")),
            finish_id=str(uuid.uuid5(_IDS, f"{name} finish")),
            trial=trial,
        )
        for name, trial in zip(names, history.trials, strict=True)
    ]


def _has_ended(trial: Trial | None) -> bool:
    return trial is not None and not trial.is_active


def _in_batches(sent: Sequence[_Sent]) -> Iterator[Sequence[_Sent]]:
    for first in range(0, len(sent), _TOGETHER):
        yield sent[first : first + _TOGETHER]


def _refusal(reply: object) -> NotTransferable:
    words = f"{reply.title}: {reply.detail}" if isinstance(reply, Problem) else f"unexpected answer {reply}"
    return NotTransferable(words)
