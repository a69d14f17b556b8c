"""Queries: what a login asks to see of jobs through the broker, and the pages that it gets. They change nothing.

They travel as commands do, in the same envelope, through a queue of their own.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast, get_args

from bso.domain.decide import Rules, describe_job, lacking
from bso.domain.errors import Misconfigured, Rejected, Retryable
from bso.domain.frozen_values import replace
from bso.domain.identifiers import identifier_problem
from bso.domain.job import Job
from bso.domain.policies import PolicyMissing
from bso.domain.replies import JobDescription, Problem
from bso.domain.rights import Reader, Right
from bso.domain.tokens import Token
from bso.domain.trial import Trial
from bso.schema.codec import decode_event, dump, encode_event, wire_name
from bso.schema.envelope import MAX_ANSWER_BYTES, Envelope, unseal, validated
from bso.schema.errors import MalformedMessage, StateTooNew
from bso.service.ports import Reads, Tokens
from bso.service.records import JobOverview, ParkedJob, PowerProfile, StoredEvent, StoredJob
from bso.service.serialization import read_snapshot
from bso.service.tokens import USED_EVERY_S, is_same

MOST_JOBS, MOST_TRIALS, MOST_EVENTS = 10, 200, 100
"""Rows of one page, few enough to hold up no decision; fewer still where they would not fit into a message."""
MOST_FOLLOWED = 50
"""Jobs whose logs are read together."""
THE_END = -1
"""In place of an event_id: nothing that is there already is wanted."""
_PRUNED = 0  # in place of the last event_id: then all events before it were pruned, too


@dataclass(frozen=True, slots=True, kw_only=True)
class ListJobs:
    """The jobs that the login may read, by id, after this one."""

    after: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowJob:
    """One job, as the command describe_job has it described, without taking part in its decisions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListTrials:
    """The trials of a job, after this number."""

    after: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ListEvents:
    """The log of a job, after this event_id; THE_END: nothing yet, and ``next_after`` is where the log ends."""

    after: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowJobs:
    """The logs of several jobs: of each what comes after an event_id, 0 for all of it."""

    after: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListPowerProfiles:
    """What was measured of a job's batch sizes under several power limits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckToken:
    """What a token lets its bearer do. Only gateways may ask; ``digest`` is that of the secret which was shown."""

    token_id: str
    digest: str


Query = ListJobs | ShowJob | ListTrials | ListEvents | FollowJobs | ListPowerProfiles | CheckToken


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsPage:
    """Jobs, those of them that are in trouble, and after which id the next page begins; None: this is the last."""

    jobs: tuple[JobOverview, ...]
    parked: tuple[ParkedJob, ...]
    next_after: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownJob:
    """A job as far as it can be shown: ``job`` is None where it cannot be read, ``unreadable`` says why.

    ``parked``: it is in trouble.
    """

    job: JobDescription | None
    parked: ParkedJob | None
    unreadable: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialsPage:
    """Trials, without their trial_ids."""

    trials: tuple[Trial, ...]
    next_after: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedEvent:
    """An event, as it is published, with its place in the log."""

    event_id: int
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EventsPage:
    """Events of the log. Of several jobs it has no ``next_after``: it is the last page when it has no events."""

    events: tuple[ListedEvent, ...]
    next_after: int | None = None

    @property
    def stored(self) -> Sequence[StoredEvent]:
        """The events as a store gives them. Raises MalformedMessage."""
        return [StoredEvent(event_id=one.event_id, recorded=decode_event(one.message.encode())) for one in self.events]


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerProfilesPage:
    """All power profiles of a job."""

    profiles: tuple[PowerProfile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedToken:
    """A token; None: there is none of this id and digest, or it opens nothing any more."""

    token: Token | None


Page = JobsPage | ShownJob | TrialsPage | EventsPage | PowerProfilesPage | CheckedToken

_TYPES: dict[str, type] = {wire_name(member): member for member in (*get_args(Query), *get_args(Page), Problem)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A query with its address. ``job_id`` is None where it is not about one job; ``user``: the login that asks.

    A gateway asks ``on_behalf_of`` one of its users; where it is believed, ``user`` is that one.
    """

    query: Query
    query_id: str
    job_id: str | None = None
    user: str | None = None
    on_behalf_of: str | None = None


def encode_query(asked: Asked) -> bytes:
    """A query as a message."""
    name = wire_name(type(asked.query))
    return dump(
        Envelope(
            type=name,
            command_id=asked.query_id,
            job_id=asked.job_id,
            on_behalf_of=asked.on_behalf_of,
            body=asked.query,
        )
    )


def decode_query(message: bytes, *, user: str | None, gateways: Container[str] = frozenset()) -> Asked:
    """Read a query of a login; ``gateways`` are believed when they ask for others, and alone may check tokens.

    Raises MalformedMessage, UnsupportedSchema.
    """
    envelope = unseal(message)
    query = _read(envelope, get_args(Query))
    if isinstance(query, FollowJobs) and not 1 <= len(query.after) <= MOST_FOLLOWED:
        raise MalformedMessage(f"after must name 1 to {MOST_FOLLOWED} jobs, got {len(query.after)}")
    if (problem := next(filter(None, map(identifier_problem, _jobs_of(query, envelope.job_id))), None)) is not None:
        raise MalformedMessage(f"job_id {problem}")
    is_gateway = user is not None and user in gateways
    if not is_gateway and (isinstance(query, CheckToken) or envelope.on_behalf_of is not None):
        raise MalformedMessage(f"only a gateway may ask this; login {user} is none of the workers' BSO_GATEWAYS")
    asker = envelope.on_behalf_of or user
    return Asked(query=query, job_id=envelope.job_id, query_id=envelope.command_id, user=asker)


def _jobs_of(query: Query, job_id: str | None) -> Sequence[str | None]:
    """The jobs that a query names, or has to."""
    match query:
        case ListJobs() | CheckToken():
            return ()
        case FollowJobs():
            return tuple(query.after)
        case _:
            return (job_id,)


def decode_page(message: bytes) -> Page | Problem:
    """Read the answer to a query. Raises MalformedMessage, UnsupportedSchema."""
    answer: Page | Problem = _read(unseal(message, most_bytes=MAX_ANSWER_BYTES), (*get_args(Page), Problem))
    return answer


async def answered(reads: Reads, asked: Asked, *, rules: Rules) -> bytes:
    """The answer to a query as a message: a page of what the login may see, or why not. Raises what a store raises."""
    answer: Page | Problem | None = await _denied(reads, asked, rules=rules)
    most = {ListJobs: MOST_JOBS, ListTrials: MOST_TRIALS, ListEvents: MOST_EVENTS, FollowJobs: MOST_EVENTS}
    limit = most.get(type(asked.query), 1)
    while answer is None or len(message := _encoded(answer, asked)) > MAX_ANSWER_BYTES:
        answer = await _page(reads, asked, rules=rules, limit=limit)
        limit //= 4
    return message


async def _denied(reads: Reads, asked: Asked, *, rules: Rules) -> Problem | None:
    """Why the login may not see a job."""
    if asked.job_id is None:
        return None
    stored = await reads.job(asked.job_id)
    if stored is None:
        return _unknown(asked.job_id)
    job = _readable(stored)
    if job is None:  # then nobody knows to whom it is granted either
        summary = await reads.summary(asked.job_id)
        job = Job(job_id=asked.job_id, owner=None if summary is None else summary.owner)
    return lacking(job, Right.READ, user=asked.user, rules=rules)


def _unknown(job_id: str, *, was: str = "is not registered") -> Problem:
    return Problem(type="unknown_job", title="The job is unknown", detail=f"job {job_id} {was}")


def _readable(stored: StoredJob) -> Job | None:
    try:
        return read_snapshot(stored)
    except (Rejected, StateTooNew):
        return None


async def shown_job(reads: Reads, job_id: str) -> ShownJob | Problem:
    """A job as far as it can be read. Rights are not checked here."""
    stored = await reads.job(job_id)
    if stored is None:
        return _unknown(job_id)
    parked = next((one for one in await reads.parked_jobs.all() if one.job_id == job_id), None)
    try:
        job = read_snapshot(stored)
        if not job.is_registered:
            return _unknown(job_id, was="was deleted")
        active = {trial.trial_number: trial for trial in await reads.active_trials(job_id)}
        return ShownJob(job=describe_job(replace(job, trials=active)), parked=parked)
    except (PolicyMissing, Rejected, StateTooNew) as error:
        return ShownJob(job=None, parked=parked, unreadable=str(error))


async def _page(reads: Reads, asked: Asked, *, rules: Rules, limit: int) -> Page | Problem:
    query, job_id = asked.query, asked.job_id
    if limit < 1:
        return Problem(type="too_large", title="The answer is too large", detail="one row alone fits into no message")
    match query:
        case ListJobs():
            return await _jobs(reads, query, user=asked.user, rules=rules, limit=limit)
        case ShowJob():
            return await shown_job(reads, cast(str, job_id))
        case ListTrials():
            trials = await reads.trials(cast(str, job_id), after=query.after, limit=limit)
            last = trials[-1].trial_number if len(trials) == limit else None
            return TrialsPage(trials=tuple(replace(trial, trial_id="") for trial in trials), next_after=last)
        case ListEvents(after=after) if after <= THE_END:
            return EventsPage(events=(), next_after=await reads.last_event_id(job_id))
        case ListEvents():
            events = await reads.history(job_id, after=query.after, limit=limit)
            return EventsPage(events=_listed(events), next_after=events[-1].event_id if len(events) == limit else None)
        case FollowJobs():
            return await _followed(reads, query, asked, rules=rules, limit=limit)
        case CheckToken():
            return CheckedToken(token=await checked(reads.tokens, query))
        case ListPowerProfiles():
            return PowerProfilesPage(profiles=tuple(await reads.power_profiles(cast(str, job_id))))


def _listed(events: Sequence[StoredEvent]) -> tuple[ListedEvent, ...]:
    return tuple(ListedEvent(event_id=one.event_id, message=encode_event(one.recorded).decode()) for one in events)


async def _followed(reads: Reads, query: FollowJobs, asked: Asked, *, rules: Rules, limit: int) -> EventsPage | Problem:
    """What is new in the logs of several jobs, an equal part of each.

    That a job has changed, too, is for those alone who may read it.
    """
    last = await reads.last_event_ids(tuple(query.after), reader=_reader(asked.user, rules))
    if (hidden := next((job_id for job_id in query.after if job_id not in last), None)) is not None:
        return await _denied(reads, replace(asked, job_id=hidden), rules=rules) or _unknown(hidden)
    changed = [job_id for job_id, seen in query.after.items() if last[job_id] not in (seen, _PRUNED)]
    events: list[StoredEvent] = []
    for job_id in changed:
        if len(events) >= limit:
            break
        if (problem := await _denied(reads, replace(asked, job_id=job_id), rules=rules)) is not None:
            return problem
        share = max(1, limit // len(changed))
        events += await reads.history(job_id, after=query.after[job_id], limit=share)
    return EventsPage(events=_listed(events))


def _reader(user: str | None, rules: Rules) -> Reader | None:
    """Whom a store looks for jobs for; None: somebody who may read all."""
    return None if user is None or user in rules.operators else Reader(login=user, teams=rules.teams)


async def checked(tokens: Tokens, query: CheckToken) -> Token | None:
    """The token of an id and a digest, if it is valid; it counts as used then."""
    found, now = await tokens.find(query.token_id), await tokens.now()
    if found is None or not is_same(found[1], query.digest) or found[0].why_invalid(now) is not None:
        return None
    used_at = found[0].last_used_at
    if used_at is None or (now - used_at).total_seconds() >= USED_EVERY_S:
        with suppress(Retryable, Misconfigured):  # a database that cannot be written can still be read
            await tokens.used(query.token_id)
    return found[0]


async def _jobs(reads: Reads, query: ListJobs, *, user: str | None, rules: Rules, limit: int) -> JobsPage:
    """A page of jobs. Few of those found may turn out not to be the login's to read: a page may be a bit short."""
    found = await _overviews(reads, after=query.after, limit=limit, reader=_reader(user, rules))
    seen = tuple([_without_trial_id(one) for one in found if _may_read(one, user=user, rules=rules)])
    names = {one.summary.job_id for one in seen}
    parked = tuple(one for one in await reads.parked_jobs.all() if one.job_id in names) if names else ()
    return JobsPage(jobs=seen, parked=parked, next_after=found[-1].summary.job_id if len(found) == limit else None)


async def _overviews(reads: Reads, *, after: str, limit: int, reader: Reader | None) -> Sequence[JobOverview]:
    """A page of jobs. Of one whose last trial cannot be read here, only what its row says."""
    try:
        return await reads.overviews(after=after, limit=limit, reader=reader)
    except (Rejected, Retryable):  # damaged, or written by a newer release; a database that is away fails again below
        found: list[JobOverview] = []
        for summary in await reads.jobs(after=after, limit=limit, reader=reader):
            try:
                found += await reads.overviews(after=after, limit=1, reader=reader)
            except (Rejected, Retryable):
                row = StoredJob(job_id=summary.job_id, last_seq=summary.last_seq, revision=0, state="")
                found.append(JobOverview(summary=summary, stored=row, last_trial=None))
            after = summary.job_id
        return found


def _without_trial_id(one: JobOverview) -> JobOverview:
    return one if one.last_trial is None else replace(one, last_trial=replace(one.last_trial, trial_id=""))


def _may_read(one: JobOverview, *, user: str | None, rules: Rules) -> bool:
    job = _readable(one.stored) or Job(job_id=one.summary.job_id, owner=one.summary.owner)
    return lacking(job, Right.READ, user=user, rules=rules) is None


def _encoded(answer: Page | Problem, asked: Asked) -> bytes:
    return encode_page(answer, query_id=asked.query_id, job_id=asked.job_id)


def encode_page(answer: Page | Problem, *, query_id: str, job_id: str | None) -> bytes:
    """The answer to a query as a message."""
    return dump(Envelope(type=wire_name(type(answer)), command_id=query_id, job_id=job_id, body=answer))


def encode_refusal(problem: Problem) -> bytes:
    """The answer to a query that cannot be read, or not be answered now."""
    return dump(Envelope(type=wire_name(Problem), command_id="", body=problem))


def _read(envelope: Envelope, expected: Sequence[type]) -> Any:
    names = [wire_name(member) for member in expected]
    if envelope.type not in names:
        raise MalformedMessage(f"expected one of {', '.join(names)}, got {envelope.type[:60]!r}")
    return validated(_TYPES[envelope.type], envelope.body, envelope.type)
