"""The audit: log, tables, stream of events, answers, and what trainings believe, held against each other."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import aio_pika

from bso.domain.commands import BeginTrial, FinishTrial, RegisterJob, ReportEpoch, ReportEpochCosts
from bso.domain.events import EpochCostsProbed, EpochReported, TrialEnded, TrialStarted
from bso.domain.log import RecordedEvent
from bso.domain.replies import KEPT, EpochJudged, Problem, Reply, TrialBegun, TrialFinished
from bso.domain.trial import Outcome, Trial, reason_code
from bso.replay.verification import verify
from bso.schema.codec import decode_event, encode_event, reply_payload
from bso.service.records import StoredEvent
from bso_broker.topology import DEAD_LETTERS, EVENT_LOG
from bso_client.delivery.flush import flush
from bso_client.delivery.left_behind import contents
from bso_client.transports import open_transport
from tests.faults.matrix.lanes import TRIAL_ENDED
from tests.faults.matrix.ledger import Asked, Ledger
from tests.faults.matrix.result import Result
from tests.faults.matrix.stage import Stage, Training
from tests.servers import eventually_async

_ASKED_AGAIN = 150
_STREAM_S = 30.0
_SETTLES_S = 90.0
_ERRORS = ("error", "critical")
_REPLACED = "replaced"  # the code of the reason in bso.domain.decide.begin
_RIGHT = ("dead_letter",)  # an operator is to see these


@dataclass(kw_only=True)
class Log:
    """The whole log of a scenario."""

    events: Sequence[StoredEvent]
    trials: dict[tuple[str, int], Trial]

    @property
    def recorded(self) -> list[RecordedEvent]:
        return [stored.recorded for stored in self.events]

    @property
    def command_ids(self) -> set[str]:
        return {event.command_id for event in self.recorded}

    @property
    def reported(self) -> dict[tuple[str, int, float], EpochReported]:
        return {
            (event.job_id, event.event.trial_number, event.event.epoch): event.event
            for event in self.recorded
            if isinstance(event.event, EpochReported)
        }


async def audit(stage: Stage, result: Result) -> None:
    """Hold everything against everything."""
    unanswered(stage.ledger, result, before_s=stage.recovered_s)
    await _journals_delivered(stage, result)
    await _settled(stage, result)
    await _asked_again(stage, result)
    log = await _read(stage)
    _count(stage, log, result)
    decided = [one for one in stage.ledger.changing if one.decision is not None and not one.is_forgotten]
    result.contradicted += len(differing := contradictions(decided, log))
    result.unexpected += differing[:5]
    _duplicates(log, result)
    _beliefs(stage, log, result)
    await _tables(stage, result)
    _processes(stage, result)
    result.unexpected += stage.surprises + stage.ledger.surprises
    if not stage.has_servers:
        _trials(stage, log, result)
        return
    await _outside(stage, log, result)


def unanswered(ledger: Ledger, result: Result, *, before_s: float) -> None:
    """What was sent before everything had recovered, and is not answered at the end. The end stops later senders."""
    found = ledger.unanswered(before_s=before_s)
    for one in found[:5]:
        words = f"never answered: {one.request}"[:300]
        put_off = f"put off {len(one.put_off)} times, at last by {one.put_off[-3:]}"
        result.unexpected.append(f"{words}, sent {before_s - one.sent_s:.1f} s before the recovery, {put_off}")
    if len(found) > 5:
        result.unexpected.append(f"never answered: {len(found)} commands in all")


async def _journals_delivered(stage: Stage, result: Result) -> None:
    """Deliver what trainings have kept on disk, as their next ones would."""
    for training in stage.trainings:
        for kept in contents(training.state_dir):
            transport = open_transport(stage.trainings_url)
            await transport.start()
            try:
                flushed = await flush(kept.folder, transport, timeout_s=_SETTLES_S)
            finally:
                await transport.close()
            result.figures["delivered_from_journals"] = (
                result.figures.get("delivered_from_journals", 0) + flushed.delivered
            )
            if flushed.obstacle is not None or flushed.set_aside:
                refused = [record["reason"] for one in contents(training.state_dir) for record in one.set_aside]
                result.unexpected.append(
                    f"the journal of {training.job_id} was not delivered: {flushed.obstacle}, refused {refused[:3]}"
                )


async def _settled(stage: Stage, result: Result) -> None:
    """Wait until nothing is parked, what was kept is decided, and all events are published."""

    async def is_settled() -> bool:
        if (await stage.store.unpublished(older_than_s=0.0)).events or await stage.store.parked_jobs.all():
            return False
        kept = [one for one in stage.ledger.changing if one.was_kept]
        return not lost(kept, await _read(stage)) if kept else True

    try:
        await eventually_async(is_settled, timeout_s=_SETTLES_S, what="an end of what was parked or unpublished")
    except AssertionError:
        parked = [job.job_id for job in await stage.store.parked_jobs.all()]
        unpublished = len((await stage.store.unpublished(older_than_s=0.0)).events)
        result.unexpected.append(
            f"not settled after {_SETTLES_S:g} s: {parked} parked, {unpublished} events unpublished"
        )


async def _asked_again(stage: Stage, result: Result) -> None:
    """Send some decided commands once more: the answer must be the same. Of those that were kept, it is the first."""
    recorded = [one for one in stage.ledger.changing if one.is_acknowledged]
    kept = [one for one in recorded if one.was_kept]
    decided = [one for one in recorded if not one.was_kept]
    some = [stage.rng.sample(group, min(_ASKED_AGAIN, len(group))) for group in (kept, decided)]
    try:
        async with asyncio.timeout(_SETTLES_S):
            await asyncio.gather(*(stage.sender.ask_again(one) for group in some for one in group))
    except TimeoutError:
        result.unexpected.append("commands that were decided are not answered again")
    undecided = [one for one in some[0] if isinstance(one.asked_again, Problem) and one.asked_again.type == KEPT]
    if undecided:
        result.unexpected.append(f"{len(undecided)} commands are kept for ever: {undecided[0].request}"[:500])


async def _read(stage: Stage) -> Log:
    events = await _events(stage)
    job_ids = {stored.recorded.job_id for stored in events}
    trials = {(job_id, trial.trial_number): trial for job_id in job_ids for trial in await stage.store.trials(job_id)}
    return Log(events=events, trials=trials)


async def _events(stage: Stage) -> list[StoredEvent]:
    events: list[StoredEvent] = []
    for job_id in await stage.store.job_ids():
        after = 0
        while page := await stage.store.history(job_id, after=after):
            events += page
            after = page[-1].event_id
    return events


def _count(stage: Stage, log: Log, result: Result) -> None:
    known = log.command_ids
    changing = stage.ledger.changing
    result.attempted = len(changing)
    result.acknowledged = sum(one.is_acknowledged for one in changing)
    result.applied = sum(one.request.command_id in known for one in changing)
    probing = [one for one in changing if isinstance(one.command, ReportEpochCosts)]
    result.figures["epoch_costs_acknowledged"] = sum(one.is_acknowledged for one in probing)
    missing = lost(changing, log)
    result.lost = len(missing)
    result.unexpected += [
        f"lost: answered {one.reply}, kept {one.was_kept}: {one.request}"[:500] for one in missing[:5]
    ]
    for one in changing:
        if one.asked_again is not None and one.reply is not None and one.request.command_id in known:
            first, second = (reply_payload(reply) for reply in (one.reply, one.asked_again))
            if first != second and not is_recorded_after_all(one, log):
                result.contradicted += 1
                result.unexpected.append(f"two answers to one command: {first!r} and {second!r}"[:500])


def contradictions(asked: Sequence[Asked], log: Log) -> list[str]:
    """Where a command was answered otherwise than it is recorded: the batch size of a trial, or the end of one.

    Also where probed epoch costs are recorded otherwise than they were sent.
    """
    started = {event.command_id: event.event for event in log.recorded if isinstance(event.event, TrialStarted)}
    probed = {event.command_id: event.event for event in log.recorded if isinstance(event.event, EpochCostsProbed)}
    found = []
    for one in asked:
        recorded = started.get(one.request.command_id)
        reply, command = one.decision, one.command
        is_as_recorded = True
        if isinstance(reply, TrialBegun) and recorded is not None:
            is_as_recorded = (reply.trial_number, reply.batch_size) == (recorded.trial_number, recorded.batch_size)
        elif isinstance(command, ReportEpoch | FinishTrial):
            trial = log.trials.get((one.request.job_id, command.trial_number))
            ends = (None,) if trial is None else (None, trial.outcome, trial.late_outcome)
            is_as_recorded = trial is None or _said_outcome(reply) in ends
        elif isinstance(command, ReportEpochCosts) and one.request.command_id in probed:
            is_as_recorded = _says_the_same(probed[one.request.command_id], command)
        if not is_as_recorded:
            found.append(f"answered {reply!r}, recorded otherwise: {one.request!r}"[:500])
    return found


def _says_the_same(event: EpochCostsProbed, command: ReportEpochCosts) -> bool:
    """Whether an event holds what a trial has sent, of batch sizes that its job has."""
    recorded = {probe.batch_size: probe.variance for probe in event.probes}
    sent = {probe.batch_size: probe.variance for probe in command.probes}
    totals = (event.trial_number, event.time_s, event.energy_j)
    return (recorded, *totals) == (sent, command.trial_number, command.time_s, command.energy_j or 0.0)


def _said_outcome(reply: Reply | None) -> Outcome | None:
    is_end = isinstance(reply, TrialFinished) or (isinstance(reply, EpochJudged) and reply.should_stop)
    return reply.outcome if is_end and isinstance(reply, TrialFinished | EpochJudged) else None


def is_recorded_after_all(one: Asked, log: Log) -> bool:
    """Whether a report was kept, sent again and refused then, as its trial had ended: the kept copy is recorded.

    A refusal records nothing. A lane sends kept reports again sooner than it is asked to; trainings do not.
    """
    was_refused = one.was_kept and isinstance(one.reply, Problem) and one.reply.type == TRIAL_ENDED
    own = [event.event for event in log.recorded if event.command_id == one.request.command_id]
    return was_refused and [getattr(event, "is_journalled", False) for event in own] == [True]


def lost(asked: Sequence[Asked], log: Log) -> list[Asked]:
    """Commands that are acknowledged and not recorded."""
    known, reported = log.command_ids, log.reported
    unjudged = {getattr(one.command, "trial_id", "") for one in asked if one.was_kept}
    return [
        one
        for one in asked
        if one.is_acknowledged
        and one.request.command_id not in known
        and not _is_elsewhere(one, log, reported)
        and not _had_ended_unseen(one, log, unjudged)
    ]


def _had_ended_unseen(one: Asked, log: Log, unjudged: Collection[str]) -> bool:
    """Whether a finish was answered with the end that its trial had before.

    Its sender could not know of that end: a report of the trial was answered ``kept`` though it had been judged, since
    the outcome of the commit was not known to the worker.
    """
    if not isinstance(one.command, FinishTrial) or one.command.trial_id not in unjudged:
        return False
    trial = log.trials.get((one.request.job_id, one.command.trial_number))
    return trial is not None and trial.outcome is not None and _said_outcome(one.decision) is trial.outcome


def _is_elsewhere(one: Asked, log: Log, reported: Mapping[tuple[str, int, float], EpochReported]) -> bool:
    """Whether what the command says is recorded by another one: it changed nothing then."""
    job_id, command = one.request.job_id, one.command
    if isinstance(command, RegisterJob):
        return any(event.job_id == job_id for event in log.recorded)
    if isinstance(command, ReportEpoch):
        same = reported.get((job_id, command.trial_number, command.epoch))
        said = (command.time_s, command.energy_j, command.metric)
        return same is not None and (same.time_s, same.energy_j, same.metric) == said
    if isinstance(command, FinishTrial):
        trial = log.trials.get((job_id, command.trial_number))
        return trial is not None and command.outcome in (trial.outcome, trial.late_outcome)
    return False


def _duplicates(log: Log, result: Result) -> None:
    """Count what is recorded twice."""
    twice = recorded_twice(log.recorded)
    result.duplicated = len(twice)
    result.unexpected += [f"recorded twice: {what}" for what in twice[:5]]


def recorded_twice(log: Sequence[RecordedEvent]) -> list[tuple[object, ...]]:
    """What one command, one epoch, or one trial may have left once only.

    A trial probes each other batch size once: a second probe of it is a copy of the first one.
    """
    counts: Counter[tuple[object, ...]] = Counter()
    for recorded in log:
        event = recorded.event
        counts["part", recorded.command_id, recorded.part] += 1
        if isinstance(event, TrialStarted):
            counts["a trial of one command", recorded.command_id] += 1
        elif isinstance(event, EpochReported):
            counts["an epoch", recorded.job_id, event.trial_number, event.epoch] += 1
        elif isinstance(event, TrialEnded):
            counts["an end", recorded.job_id, event.trial_number] += 1
        elif isinstance(event, EpochCostsProbed):
            others = [probe.batch_size for probe in event.probes if probe.batch_size != event.batch_size]
            counts.update(("a probe", recorded.job_id, event.trial_number, size) for size in others)
    return [what for what, count in counts.items() if count > 1]


def _beliefs(stage: Stage, log: Log, result: Result) -> None:
    """What trials have begun, and what trainings believe of theirs."""
    asked = {one.request.command_id for one in stage.ledger.asked if isinstance(one.command, BeginTrial)}
    asked |= stage.ledger.prepared
    own = {one.request.job_id for one in stage.ledger.asked}
    foreign = [
        event
        for event in log.recorded
        if isinstance(event.event, TrialStarted) and event.job_id in own and event.command_id not in asked
    ]
    if foreign:
        result.duplicated += len(foreign)
        result.unexpected.append(f"{len(foreign)} trials that nobody asked for")
    for training in stage.trainings:
        for fact in _remembered(stage, training):
            _compare(training, fact, log, result)
        result.unexpected += refusals(stage, training)
    trained = {one.job_id for one in stage.trainings}
    if not stage.forgotten_until_s:
        extra = [words for job_id in sorted(trained) for words in extra_trials(stage, job_id, log)]
        result.duplicated += len(extra)
        result.unexpected += extra
    result.unreported = sum(unreported(stage, job_id, log) for job_id in trained)
    missing = [words for job_id in sorted(trained) for words in unreported_evaluations(stage, job_id, log)]
    result.unreported += len(missing)
    result.unexpected += missing[:5]


def refusals(stage: Stage, training: Training) -> list[str]:
    """What a training raised, and what it was refused while there was no fault.

    CannotResume is right where a process was killed between the end of a trial and removing its checkpoint.
    """
    found = []
    for fact in training.facts:
        at_s = float(str(fact["at_s"]))
        is_fault = stage.struck_s <= at_s <= stage.trainings_recovered_s
        is_refusal = fact["did"] == "refused" and not is_fault and "CannotResume" not in str(fact["error"])
        if is_refusal or fact["did"] == "raised":
            found.append(f"a training, {at_s - stage.struck_s:.1f} s after the strike: {fact['error']}"[:500])
    return found


def extra_trials(stage: Stage, job_id: str, log: Log) -> list[str]:
    """Trials of a job of trainings that none of them has begun, and those that run though their training has ended.

    A process that was killed may have begun one more than it has noted, and may have left one running. A trial whose
    training had gone on alone, before it was answered, is cancelled when the training is registered.
    """
    noted = Counter(fact["did"] for one in stage.trainings if one.job_id == job_id for fact in one.facts)
    unfinished = noted["started"] - noted["ended"]
    replaced = [trial for (of, _), trial in log.trials.items() if of == job_id and is_replaced(trial)]
    own = [trial for (of, _), trial in log.trials.items() if of == job_id and trial not in replaced]
    active = sum(trial.is_active for trial in own)
    most = noted["trial_ended"] + noted["refused"] + unfinished
    found = []
    if len(own) > most:
        found.append(f"{len(own)} trials of {job_id}, whose trainings have begun {most} at most: {dict(noted)}, {own}")
    if active > unfinished:
        found.append(f"{active} trials of {job_id} still run, {unfinished} of its trainings were killed")
    return found


def is_replaced(trial: Trial) -> bool:
    """Whether its training had gone on with a batch size of its own when it was begun."""
    return trial.outcome is Outcome.CANCELLED and reason_code(trial.outcome_reason) == _REPLACED


def unreported(stage: Stage, job_id: str, log: Log) -> int:
    """How many trials have ended for the trainings of a job, and not for the optimizer.

    One that was registered late has no number in what its training has noted: any other trial with its outcome is it.
    """
    ended = [fact for fact in _noted(stage, job_id) if fact["did"] == "trial_ended"]
    own = {number: trial for (of, number), trial in log.trials.items() if of == job_id}
    noted = {fact["trial_number"] for fact in ended}
    unnamed = Counter(str(fact["outcome"]) for fact in ended if fact["trial_number"] is None)
    others = Counter(
        (trial.late_outcome or trial.outcome).value
        for number, trial in own.items()
        if number not in noted and trial.outcome is not None
    )
    named = sum(isinstance(number, int) and not _has_ended(own.get(number)) for number in noted)
    return named + (unnamed - others).total()


def unreported_evaluations(stage: Stage, job_id: str, log: Log) -> list[str]:
    """Which evaluations the trainings of a job have noted, and the optimizer has not recorded.

    A training notes an evaluation after it was answered or kept. One that was registered late has no number in its
    first notes: so many reports of any trial are taken for them.
    """
    evaluated = [fact for fact in _noted(stage, job_id) if fact["did"] == "evaluated"]
    noted = Counter((fact["trial_number"], fact["epoch"]) for fact in evaluated)
    reports: Counter[tuple[object, object]] = Counter({key[1:]: 1 for key in log.reported if key[0] == job_id})
    spare = Counter(epoch for _, epoch in (reports - noted).elements())
    unnamed = Counter({epoch: count for (number, epoch), count in noted.items() if number is None})
    missing = [(number, epoch) for number, epoch in noted if number is not None and not reports[number, epoch]]
    missing += [(None, epoch) for epoch in (unnamed - spare).elements()]
    return [f"never recorded: {job_id}, trial {number}, epoch {epoch}" for number, epoch in missing]


def _trials(stage: Stage, log: Log, result: Result) -> None:
    """Count trials in the place of commands, where there are no lanes: none that has ended may be missing."""
    ended = [fact for training in stage.trainings for fact in training.facts if fact["did"] == "trial_ended"]
    result.attempted = result.acknowledged = len(ended)
    result.applied = sum(trial.outcome is not None for trial in log.trials.values())
    result.lost += result.unreported


def _has_ended(trial: Trial | None) -> bool:
    return trial is not None and trial.outcome is not None


def _noted(stage: Stage, job_id: str) -> Iterator[dict[str, object]]:
    """What the trainings of a job have noted of trials that are not forgotten."""
    for training in stage.trainings:
        if training.job_id == job_id:
            yield from _remembered(stage, training)


def _remembered(stage: Stage, training: Training) -> Iterator[dict[str, object]]:
    """What a training has noted of trials; after a restore of those that began after it: numbers are given again."""
    began_at_s = 0.0
    for fact in training.facts:
        if fact["did"] == "began":
            began_at_s = float(str(fact["at_s"]))
        if not stage.forgotten_until_s or began_at_s > stage.forgotten_until_s:
            yield fact


def _compare(training: Training, fact: dict[str, object], log: Log, result: Result) -> None:
    number = fact.get("trial_number")
    trial = log.trials.get((training.job_id, number)) if isinstance(number, int) else None
    if fact["did"] != "trial_ended" or trial is None or trial.outcome is None:
        return
    if fact["outcome"] != (trial.late_outcome or trial.outcome).value:
        result.contradicted += 1
        result.unexpected.append(
            f"trial {number} of {training.job_id}: the training believes {fact['outcome']} ({fact['reason']}), "
            f"recorded is {trial.outcome} ({trial.outcome_reason}), late {trial.late_outcome}"
        )


async def _tables(stage: Stage, result: Result) -> None:
    for job_id in await stage.store.job_ids():
        verdict = await verify(stage.store, job_id)
        if not verdict.is_sound:
            sentences = [difference.sentence for difference in verdict.differences]
            result.unexpected.append(f"log and tables of {job_id} differ: {verdict.problem} {sentences}"[:500])


async def _outside(stage: Stage, log: Log, result: Result) -> None:
    """What the broker holds: dead letters, and every event at least once, but no other."""
    connection = await aio_pika.connect(stage.amqp_url)
    async with connection:
        channel = await connection.channel()
        found = (await channel.declare_queue(DEAD_LETTERS, passive=True)).declaration_result.message_count or 0
        if found != stage.dead_letters:
            result.unexpected.append(f"{found} dead letters, expected {stage.dead_letters}")
        streamed = await _streamed(connection)
    if streamed is None:
        result.unexpected.append(f"the stream of events could not be read to its end within {_STREAM_S:g} s")
        return
    forgotten = max((event.log_epoch for event in log.recorded), default=0) if stage.forgotten_until_s else 0
    needed = [stored.recorded for stored in log.events if stored.event_id > stage.events_forgotten_until]
    recorded = [stored.recorded for stored in await _events(stage)]  # workers may still decide what lanes have left
    result.unexpected += stream_findings(recorded, streamed, needed=needed, forgotten_before=forgotten)


def stream_findings(
    recorded: Sequence[RecordedEvent],
    streamed: Sequence[RecordedEvent],
    *,
    needed: Sequence[RecordedEvent] | None = None,
    forgotten_before: int = 0,
) -> list[str]:
    """Where the stream differs from the log; it may say the same several times.

    ``needed``: the stream may lack all other events. ``forgotten_before``: the log may lack those of earlier epochs.
    """
    log = {_place(event): encode_event(event) for event in recorded}
    stream = [(_place(event), event) for event in streamed]
    missing = {_place(event) for event in (recorded if needed is None else needed)} - {place for place, _ in stream}
    foreign = [event for place, event in stream if place not in log and event.log_epoch >= forgotten_before]
    altered = [event for place, event in stream if place in log and encode_event(event) != log[place]]
    findings = []
    if missing:
        findings.append(f"{len(missing)} of {len(log)} events never reached the stream")
    if foreign:
        findings.append(f"{len(foreign)} events of the stream are not in the log: {foreign[0]}"[:500])
    if altered:
        findings.append(f"{len(altered)} events of the stream say something else in the log: {altered[0]}"[:500])
    return findings


def _place(event: RecordedEvent) -> tuple[str, int, int]:
    """What identifies an event."""
    return event.job_id, event.log_epoch, event.seq


async def _streamed(connection: aio_pika.abc.AbstractConnection) -> list[RecordedEvent] | None:
    """All that the stream holds, up to a message that marks its end; None: it cannot be read so far."""
    channel = await connection.channel()
    await channel.set_qos(prefetch_count=500)
    queue = await channel.get_queue(EVENT_LOG, ensure=False)
    end = aio_pika.Message(b"", message_id=str(uuid.uuid4()))
    seen: list[RecordedEvent] = []
    is_read = asyncio.Event()

    async def on_message(message: aio_pika.abc.AbstractIncomingMessage) -> None:
        if message.message_id == end.message_id:
            is_read.set()
        else:
            seen.append(decode_event(message.body))
        await message.ack()

    try:
        async with asyncio.timeout(_STREAM_S):
            await eventually_async(lambda: _is_declared(connection, EVENT_LOG))  # who deleted it waits for the workers
            await channel.default_exchange.publish(end, EVENT_LOG)
            await queue.consume(on_message, arguments={"x-stream-offset": "first"})
            await is_read.wait()
    except TimeoutError:
        return None
    return seen


async def _is_declared(connection: aio_pika.abc.AbstractConnection, queue: str) -> bool:
    async with connection.channel() as channel:
        try:
            await channel.declare_queue(queue, passive=True)
        except aio_pika.exceptions.ChannelNotFoundEntity:
            return False
    return True


def _processes(stage: Stage, result: Result) -> None:
    for worker in stage.workers:
        code = worker.process.poll()
        if code is not None and worker not in stage.ended_on_purpose:
            result.unexpected.append(f"{worker.log.name} ended with {code}: {worker.text()[-500:]}")
        text = worker.log.read_text(encoding="utf-8", errors="replace")
        if "Traceback" in text:
            where = text.index("Traceback")
            result.unexpected.append(f"{worker.log.name} has a traceback: {text[max(0, where - 300) : where + 1200]}")
        errors = [line for line in worker.lines() if line["level"] in _ERRORS and line.get("action") not in _RIGHT]
        result.unexpected += [f"{worker.log.name} logged an error: {line}"[:500] for line in errors[:2]]
    for training in stage.trainings:
        printed = training.output
        if "Traceback" in printed:
            result.unexpected.append(f"a training has a traceback: {printed[printed.index('Traceback') :][:2500]}")
