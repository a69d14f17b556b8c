"""What pages show, asked for by the queries that every client has, with the rights of the one who looks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from starlette.requests import Request

from bso.domain.events import EpochReported, TrialStarted
from bso.domain.identifiers import identifier_problem
from bso.domain.replies import JobDescription, KindDescription, Problem
from bso.domain.rights import Right
from bso.domain.savings import saved, saved_in_words
from bso.domain.trial import Trial
from bso.service import queries
from bso.service.listed_jobs import ListedJob, listed_job
from bso.service.queries import THE_END, Query
from bso.service.records import ParkedJob, StoredEvent
from bso_gateway.http import Gate, HttpError, token_of
from bso_gateway.problems import refused

MOST_JOBS, MOST_TRIALS, MOST_EVENTS = 100, 400, 600
_FIRST_WINDOW = 1_000  # event_ids of all jobs together, in which a job's last events are looked for first
_WIDER = 10
_HIGHEST = "~"  # sorts after all that an id may hold

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetContents:
    """Jobs by id, those whose id begins with ``prefix``. ``next_after``: more come after this one; None: no more."""

    jobs: Sequence[ListedJob]
    prefix: str
    next_after: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobContents:
    """A job, its last trials and its last events.

    ``job`` is None where it cannot be read, ``unreadable`` says why. ``parked``: its commands wait for now.
    """

    job_id: str
    job: JobDescription | None
    parked: ParkedJob | None
    unreadable: str | None
    trials: Sequence[Trial]
    events: Sequence[StoredEvent]

    def kind(self, hardware_key: str | None) -> KindDescription | None:
        """What is known on a hardware kind; without a name, on that of the last trial."""
        kinds = {each.hardware_key: each for each in self.job.kinds} if self.job is not None else {}
        last = self.trials[-1].hardware.key if self.trials else None
        return kinds.get(hardware_key or last or "", next(iter(kinds.values()), None))

    def saving(self, kind: KindDescription) -> str:
        """What was saved on a hardware kind, net of all that was tried, as a sentence; empty: not known yet."""
        if self.job is None:
            return ""
        number, spec = self.job.version_number, self.job.spec
        found = saved(self.trials, spec, version_number=number, hardware_key=kind.hardware_key)
        return "" if found is None else saved_in_words(found, spec)

    def reports_of(self, trial_number: int) -> Sequence[EpochReported]:
        """The reports of a trial that are among the last events, in order."""
        return [
            event
            for event in (each.recorded.event for each in self.events)
            if isinstance(event, EpochReported) and event.trial_number == trial_number
        ]

    def trial(self, trial_number: int) -> Trial | None:
        """A trial by its number."""
        return next((each for each in self.trials if each.trial_number == trial_number), None)


class Contents:
    """Asks for what pages show. Raises HttpError where the optimizer does not answer, or not this reader."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    async def fleet(self, request: Request, *, prefix: str, after: str) -> FleetContents:
        """A screen full of jobs."""
        jobs: list[ListedJob] = []
        place: str | None = max(after, _before(prefix))
        token = token_of(request)
        while place is not None and len(jobs) <= MOST_JOBS:
            page = await self._ask(request, queries.ListJobs(after=place), queries.JobsPage)
            parked = {each.job_id: each for each in page.parked}
            for each in page.jobs:
                job_id = each.summary.job_id
                is_covered = token is None or token.covers(Right.READ, job_id)
                if job_id.startswith(prefix) and is_covered and not each.summary.is_deleted:
                    jobs.append(listed_job(each, parked.get(job_id)))
            place = page.next_after
            if place is not None and prefix and not place.startswith(prefix) and place > prefix:
                place = None  # they come by their ids
        has_more = len(jobs) > MOST_JOBS
        jobs = jobs[:MOST_JOBS]
        next_after = jobs[-1].overview.summary.job_id if has_more else None
        return FleetContents(jobs=jobs, prefix=prefix, next_after=next_after)

    async def job(self, request: Request, job_id: str) -> JobContents:
        """A job as far as it can be read."""
        _check(job_id)
        shown = await self._ask(request, queries.ShowJob(), queries.ShownJob, job_id)
        count = 0 if shown.job is None else shown.job.trials
        return JobContents(
            job_id=job_id,
            job=shown.job,
            parked=shown.parked,
            unreadable=shown.unreadable,
            trials=await self._trials(request, job_id, after=max(0, count - MOST_TRIALS)),
            events=await self._last_events(request, job_id),
        )

    async def trial(self, request: Request, job_id: str, trial_number: int) -> JobContents:
        """The same with one trial alone, and its events."""
        _check(job_id)
        shown = await self._ask(request, queries.ShowJob(), queries.ShownJob, job_id)
        page = await self._ask(request, queries.ListTrials(after=trial_number - 1), queries.TrialsPage, job_id)
        trials = [each for each in page.trials if each.trial_number == trial_number]
        if not trials:
            raise HttpError(404, f"job {job_id} has no trial {trial_number}", kind="unknown_trial")
        events = await self._last_events(request, job_id, since_trial=trial_number)
        return JobContents(
            job_id=job_id, job=shown.job, parked=shown.parked, unreadable=shown.unreadable, trials=trials, events=events
        )

    async def newest(self, request: Request, job_id: str) -> int:
        """The event_id at which the log of a job ends."""
        _check(job_id)
        page = await self._ask(request, queries.ListEvents(after=THE_END), queries.EventsPage, job_id)
        return page.next_after or 0

    async def _trials(self, request: Request, job_id: str, *, after: int) -> Sequence[Trial]:
        trials: list[Trial] = []
        place: int | None = after
        while place is not None:
            page = await self._ask(request, queries.ListTrials(after=place), queries.TrialsPage, job_id)
            trials += page.trials
            place = page.next_after
        return trials

    async def _last_events(
        self, request: Request, job_id: str, *, since_trial: int | None = None
    ) -> Sequence[StoredEvent]:
        """The last events of a job, about 600 of them, or those since a trial began.

        The log is read forwards from a place: one is looked for that is far enough back. Event_ids are those of all
        jobs together.
        """
        end = await self.newest(request, job_id)
        window = _FIRST_WINDOW
        while True:
            first = max(0, end - window)
            events = await self._events(request, job_id, after=first)
            is_enough = len(events) >= MOST_EVENTS if since_trial is None else _has_begun(events, since_trial)
            if is_enough or not first:
                return events if since_trial is not None else events[-MOST_EVENTS:]
            window *= _WIDER

    async def _events(self, request: Request, job_id: str, *, after: int) -> Sequence[StoredEvent]:
        events: list[StoredEvent] = []
        place: int | None = after
        while place is not None:
            page = await self._ask(request, queries.ListEvents(after=place), queries.EventsPage, job_id)
            events += page.stored
            place = page.next_after
        return events

    async def _ask(self, request: Request, query: Query, kind: type[Answer], job_id: str | None = None) -> Answer:
        page = await self._gate.ask(request, query, job_id)
        if isinstance(page, Problem):
            raise refused(page)
        assert isinstance(page, kind)
        return page


def _before(prefix: str) -> str:
    """A text that sorts before all ids that begin with a prefix, and after those that are smaller."""
    return prefix[:-1] + chr(ord(prefix[-1]) - 1) + _HIGHEST if prefix else ""


def _has_begun(events: Sequence[StoredEvent], trial_number: int) -> bool:
    started = (each.recorded.event for each in events if isinstance(each.recorded.event, TrialStarted))
    return any(event.trial_number <= trial_number for event in started)


def _check(job_id: str) -> None:
    if (problem := identifier_problem(job_id)) is not None:
        raise HttpError(404, f"job_id {problem}", kind="unknown_job")
