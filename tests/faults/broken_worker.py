"""A worker that breaks a promise, to show that the fault matrix notices: ``broken_worker.py HOW``.

``acknowledges_early``: commands are answered and acknowledged before their decisions are committed.
``ignores_command_id``: a command that comes again is decided again.
``publishes_early``: events are published before they are committed.
``loses_epoch_costs``: probed epoch costs are acknowledged and not recorded.
``doubles_epoch_costs``: probed epoch costs are recorded twice.
"""

import asyncio
import sys
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, ClassVar

from bso.domain import decide
from bso.domain.commands import ReportEpochCosts, Request
from bso.domain.decide.contract import Context, Decision, unchanged
from bso.domain.decide.probes import report_epoch_costs
from bso.domain.errors import BsoError
from bso.domain.evolve import apply
from bso.domain.job import Job
from bso.domain.replies import EpochCostsRecorded
from bso.domain.trial import Trial
from bso.service import engine
from bso.service.answers import Answer, Undecided
from bso.service.batch import Batches
from bso.service.ports import UnitOfWork
from bso.service.records import ChangeSet
from bso_broker.messages import Delivery
from bso_broker.ports import EventSink
from bso_workers import bootstrap
from bso_workers.__main__ import main
from bso_workers.admission import Admission, Admitted, Undecidable
from bso_workers.outbox import EventOutbox, publish
from bso_workers.settlement import Settlement

_COMMITS_AFTER_S = 0.1
_early: dict[str, Admitted] = {}
_settled: set[str] = set()
_settlement: list[Settlement] = []
_sinks: list[EventSink] = []


class ReadingBatches(Batches):
    """Reads before each decision, so that all of them come through here."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.optimistic = None


class EarlyBatches(ReadingBatches):
    """Answers what it has decided, and is committed a while later."""

    async def run(self, uow: UnitOfWork, requests: Sequence[Request], *, waits: bool) -> list[Answer | Undecided]:
        later = _CommitsLater(uow)
        answers = await super().run(later, requests, waits=waits)  # type: ignore[arg-type]  # it passes all else on
        ready = [one for one in answers if isinstance(one, Answer) and one.request.command_id in _early]
        admitted = [_early.pop(one.request.command_id) for one in ready]
        _settled.update(one.request.command_id for one in ready)
        await AnswersOnce.answer_early(admitted, ready)
        await asyncio.sleep(_COMMITS_AFTER_S)  # noqa: TID251  time to be killed in
        await uow.commit(later.changes)
        return answers


class _CommitsLater:
    """A unit of work that only notes what it is to commit, and makes event_ids up."""

    def __init__(self, uow: UnitOfWork) -> None:
        self._uow = uow
        self.changes: ChangeSet | None = None

    def __getattr__(self, name: str) -> object:
        return getattr(self._uow, name)

    async def commit(self, changes: ChangeSet, *, above: int = 0) -> Mapping[tuple[str, int], int]:
        self.changes = changes
        return {(new.job_id, new.seq): above + 1 for new in changes.events}


class NotesAdmitted(Admission):
    """Notes who is to be answered."""

    def admit(self, delivery: Delivery) -> Admitted | Undecidable:
        verdict = super().admit(delivery)
        if isinstance(verdict, Admitted):
            _early[verdict.request.command_id] = verdict
        return verdict


class AnswersOnce(Settlement):
    """Leaves out what was answered before it was committed."""

    def __init__(self, **parts: object) -> None:
        super().__init__(**parts)  # type: ignore[arg-type]  # as it is called
        _settlement.append(self)

    @staticmethod
    async def answer_early(admitted: Sequence[Admitted], answers: Sequence[Answer]) -> None:
        await Settlement.answer(_settlement[0], admitted, answers)

    async def answer(self, admitted: Sequence[Admitted], answers: Sequence[Answer]) -> None:
        late = [
            (one, answer)
            for one, answer in zip(admitted, answers, strict=True)
            if one.request.command_id not in _settled
        ]
        _settled.difference_update(one.request.command_id for one in admitted)
        await super().answer([one for one, _ in late], [answer for _, answer in late])


class ForgetsCommandIds(Admission):
    """Gives each delivery of a command but the first one a command_id of its own."""

    _known: ClassVar[set[str]] = set()

    def admit(self, delivery: Delivery) -> Admitted | Undecidable:
        verdict = super().admit(delivery)
        if isinstance(verdict, Undecidable):
            return verdict
        if not (delivery.redelivered or verdict.request.command_id in self._known):
            self._known.add(verdict.request.command_id)
            return verdict
        return replace(verdict, request=replace(verdict.request, command_id=str(uuid.uuid4())))


class PublishingBatches(ReadingBatches):
    """Publishes what it has decided, and is committed a while later."""

    async def run(self, uow: UnitOfWork, requests: Sequence[Request], *, waits: bool) -> list[Answer | Undecided]:
        later = _CommitsLater(uow)
        answers = await super().run(later, requests, waits=waits)  # type: ignore[arg-type]  # it passes all else on
        events = [event for one in answers if isinstance(one, Answer) for event in one.events]
        with suppress(BsoError):  # the relay publishes them
            await publish(events, sink=_sinks[0])
        await asyncio.sleep(_COMMITS_AFTER_S)  # noqa: TID251  time to be killed in
        event_ids = await uow.commit(later.changes)
        return [_numbered(one, event_ids) if isinstance(one, Answer) else one for one in answers]


def _numbered(answer: Answer, event_ids: Mapping[tuple[str, int], int]) -> Answer:
    events = (replace(one, event_id=event_ids[one.recorded.job_id, one.recorded.seq]) for one in answer.events)
    return replace(answer, events=tuple(events))


class NotesSink(EventOutbox):
    """Notes where events are published."""

    def __init__(self, *, sink: EventSink, **parts: Any) -> None:
        super().__init__(sink=sink, **parts)
        _sinks.append(sink)


def loses_epoch_costs(job: Job, _trial: Trial, _command: ReportEpochCosts, _context: Context) -> Decision:
    """Acknowledges them, and records nothing."""
    return unchanged(job, EpochCostsRecorded())


def doubles_epoch_costs(job: Job, trial: Trial, command: ReportEpochCosts, context: Context) -> Decision:
    """Records the same event twice."""
    decision = report_epoch_costs(job, trial, command, context)
    return replace(decision, job=apply(decision.job, decision.events), events=decision.events * 2)


BROKEN: dict[str, tuple[tuple[object, str, object], ...]] = {
    "acknowledges_early": (
        (engine, "Batches", EarlyBatches),
        (bootstrap, "Admission", NotesAdmitted),
        (bootstrap, "Settlement", AnswersOnce),
    ),
    "ignores_command_id": ((bootstrap, "Admission", ForgetsCommandIds),),
    "publishes_early": ((engine, "Batches", PublishingBatches), (bootstrap, "EventOutbox", NotesSink)),
    "loses_epoch_costs": ((decide, "report_epoch_costs", loses_epoch_costs),),
    "doubles_epoch_costs": ((decide, "report_epoch_costs", doubles_epoch_costs),),
}
for module, name, part in BROKEN[sys.argv[1]]:
    setattr(module, name, part)
sys.exit(main())
