"""What a login gets for its query: a page read from a store, or why not. Nobody waits for it, and it for nobody."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import cast

from bso.domain.decide import Rules, describe_job, lacking
from bso.domain.errors import Misconfigured, Rejected, Retryable
from bso.domain.frozen_values import replace
from bso.domain.job import Job
from bso.domain.policies import PolicyMissing
from bso.domain.replies import Problem
from bso.domain.rights import Reader, Right
from bso.domain.savings import saved_by_month
from bso.domain.tokens import Token
from bso.schema.codec import encode_event
from bso.schema.envelope import MAX_ANSWER_BYTES
from bso.schema.errors import StateTooNew
from bso.service.ports import Reads, Tokens
from bso.service.queries import (
    THE_END,
    Asked,
    CheckedToken,
    CheckToken,
    EventsPage,
    FollowJobs,
    JobSavings,
    JobsPage,
    ListedEvent,
    ListEvents,
    ListJobs,
    ListPowerProfiles,
    ListSavings,
    ListTrials,
    Operation,
    Page,
    PowerProfilesPage,
    SavingsPage,
    ShowJob,
    ShownJob,
    ShowOperation,
    TrialsPage,
    encode_page,
)
from bso.service.records import JobOverview, JobSummary, StoredEvent, StoredJob
from bso.service.serialization import read_snapshot
from bso.service.tokens import USED_EVERY_S, is_same

MOST_JOBS, MOST_SAVINGS, MOST_TRIALS, MOST_EVENTS = 10, 10, 200, 100
"""Rows of one page, few enough to hold up no decision; fewer still where they would not fit into a message."""
_TOO_LARGE = Problem(type="too_large", title="The answer is too large", detail="one row alone fits into no message")
_MOST_PARKED = 100
UNPUBLISHED_S = 10.0
"""An event that was recorded so long ago should have been published."""
_PRUNED = 0  # in place of the last event_id: then all events before it were pruned, too


async def answered(reads: Reads, asked: Asked, *, rules: Rules) -> bytes:
    """The answer to a query as a message: a page of what the login may see, or why not. Raises what a store raises."""
    answer: Page | Problem | None = await _denied(reads, asked, rules=rules)
    most = {
        ListJobs: MOST_JOBS,
        ListSavings: MOST_SAVINGS,
        ListTrials: MOST_TRIALS,
        ListEvents: MOST_EVENTS,
        FollowJobs: MOST_EVENTS,
    }
    limit = most.get(type(asked.query), 1)
    while answer is None or len(message := _encoded(answer, asked)) > MAX_ANSWER_BYTES:
        answer = await _page(reads, asked, rules=rules, limit=limit) if limit else _TOO_LARGE
        limit //= 4
    return message


async def _denied(reads: Reads, asked: Asked, *, rules: Rules) -> Problem | None:
    """Why the login may not see what it asks for."""
    if isinstance(asked.query, ShowOperation) and not (asked.user is None or asked.user in rules.operators):
        return Problem(
            type="operators_only",
            title="Only operators may see this",
            detail=f"the query came from {asked.user}; only an operator may ask it (the workers' --operators)",
        )
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
    match query:
        case ListJobs():
            return await _jobs(reads, query, user=asked.user, rules=rules, limit=limit)
        case ShowOperation():
            return await operation(reads)
        case ListSavings():
            return await _savings(reads, query, user=asked.user, rules=rules, limit=limit)
        case ShowJob():
            return await shown_job(reads, cast(str, job_id))
        case ListTrials():
            trials = await reads.trials(cast(str, job_id), after=query.after, limit=limit)
            last = trials[-1].trial_number if len(trials) == limit else None
            return TrialsPage(trials=tuple(replace(trial, trial_id="") for trial in trials), next_after=last)
        case ListEvents():
            return await _events(reads, query, job_id, limit=limit)
        case FollowJobs():
            return await _followed(reads, query, asked, rules=rules, limit=limit)
        case CheckToken():
            return CheckedToken(token=await checked(reads.tokens, query))
        case ListPowerProfiles():
            return PowerProfilesPage(profiles=tuple(await reads.power_profiles(cast(str, job_id))))


async def _events(reads: Reads, query: ListEvents, job_id: str | None, *, limit: int) -> EventsPage:
    if query.after <= THE_END:
        return EventsPage(events=(), next_after=await reads.last_event_id(job_id))
    events = await reads.history(job_id, after=query.after, limit=limit)
    return EventsPage(events=_listed(events), next_after=events[-1].event_id if len(events) == limit else None)


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
    found = await readable_overviews(reads, after=query.after, limit=limit, reader=_reader(user, rules))
    seen = tuple([_without_trial_ids(one) for one in found if _may_read(one, user=user, rules=rules)])
    names = {one.summary.job_id for one in seen}
    parked = tuple(one for one in await reads.parked_jobs.all() if one.job_id in names) if names else ()
    return JobsPage(jobs=seen, parked=parked, next_after=found[-1].summary.job_id if len(found) == limit else None)


async def operation(reads: Reads) -> Operation:
    """How the store stands. Rights are not checked here."""
    parked = await reads.parked_jobs.all()
    return Operation(
        schema=await reads.schema_state(),
        log_epoch=await reads.log_epochs.current(),
        parked=tuple(parked[:_MOST_PARKED]),
        jobs_parked=len(parked),
        lapsed_leases=len(await reads.lapsed_leases()),
        unpublished_events=len((await reads.unpublished(older_than_s=UNPUBLISHED_S)).events),
    )


async def _savings(reads: Reads, query: ListSavings, *, user: str | None, rules: Rules, limit: int) -> SavingsPage:
    found = await readable_overviews(reads, after=query.after, limit=limit, reader=_reader(user, rules))
    jobs, unreadable = savings_of([one for one in found if _may_read(one, user=user, rules=rules)])
    next_after = found[-1].summary.job_id if len(found) == limit else None
    return SavingsPage(jobs=jobs, unreadable=unreadable, next_after=next_after)


def savings_of(overviews: Sequence[JobOverview]) -> tuple[tuple[JobSavings, ...], tuple[str, ...]]:
    """What jobs saved, and the job_ids of those that cannot be read."""
    jobs = {one.summary.job_id: _readable(one.stored) for one in overviews}
    ledgers = {job_id: job.ledger for job_id, job in jobs.items() if job is not None}
    found = tuple(JobSavings(job_id=job_id, saved=saved_by_month(ledger)) for job_id, ledger in ledgers.items())
    return found, tuple(job_id for job_id in jobs if job_id not in ledgers)


async def readable_overviews(
    reads: Reads, *, after: str, limit: int | None, reader: Reader | None = None
) -> Sequence[JobOverview]:
    """A page of jobs. Of one whose last trial cannot be read here, only what its row says."""
    try:
        return await reads.overviews(after=after, limit=limit, reader=reader)
    except (Rejected, Retryable):  # damaged, or written by a newer release; a database that is away fails again below
        summaries = await reads.jobs(after=after, limit=limit, reader=reader)
        if len(summaries) <= 1:
            return [JobOverview(summary=one, stored=_without_state(one), last_trial=None) for one in summaries]
        half = len(summaries) // 2
        first = await readable_overviews(reads, after=after, limit=half, reader=reader)
        after = first[-1].summary.job_id if first else summaries[half - 1].job_id
        left = None if limit is None else limit - len(first)
        return [*first, *await readable_overviews(reads, after=after, limit=left, reader=reader)]


def _without_state(one: JobSummary) -> StoredJob:
    return StoredJob(job_id=one.job_id, last_seq=one.last_seq, revision=0, state="")


def _without_trial_ids(one: JobOverview) -> JobOverview:
    last = None if one.last_trial is None else replace(one.last_trial, trial_id="")
    return replace(one, last_trial=last, active=tuple(replace(trial, trial_id="") for trial in one.active))


def _may_read(one: JobOverview, *, user: str | None, rules: Rules) -> bool:
    job = _readable(one.stored) or Job(job_id=one.summary.job_id, owner=one.summary.owner)
    return lacking(job, Right.READ, user=user, rules=rules) is None


def _encoded(answer: Page | Problem, asked: Asked) -> bytes:
    return encode_page(answer, query_id=asked.query_id, job_id=asked.job_id)
