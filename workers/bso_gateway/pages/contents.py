"""What pages show, asked for by the queries that every client has, with the rights of the one who looks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from starlette.requests import Request

from bso.domain.commands import PowerMeasurement
from bso.domain.events import EpochReported, TrialStarted
from bso.domain.identifiers import identifier_problem
from bso.domain.job_spec import JobSpec
from bso.domain.replies import JobDescription, KindDescription, Problem
from bso.domain.rights import Right
from bso.domain.savings import saved, saved_in_words
from bso.domain.trial import Outcome, Trial
from bso.service import queries
from bso.service.listed_jobs import ListedJob, listed_job
from bso.service.queries import THE_END, Query
from bso.service.records import ParkedJob, PowerProfile, StoredEvent
from bso_gateway.http import Gate, HttpError, token_of
from bso_gateway.problems import refused

MOST_JOBS, MOST_TRIALS, MOST_EVENTS = 100, 400, 600
_MOST_PAGES = 25
"""Pages of answers that one page for people asks for, of each sort: what lies further back is left out."""
_FIRST_WINDOW = 1_000  # event_ids of all jobs together, in which a job's last events are looked for first
_WIDER = 4
_MOST_PREFIX = 200
_HIGHEST = "~"  # sorts after all that an id may hold

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetContents:
    """Jobs by id, those whose id begins with ``prefix``. ``next_after``: more come after this one; None: no more."""

    jobs: Sequence[ListedJob]
    prefix: str
    next_after: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """What was saved as a sentence; where it is not known, why."""

    sentence: str
    is_known: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class JobContents:
    """A job, its last trials and its last events.

    ``job`` is None where it cannot be read, ``unreadable`` says why. ``parked``: its commands wait for now.
    ``has_earlier``: trials or events from before are left out.
    """

    job_id: str
    job: JobDescription | None
    parked: ParkedJob | None
    unreadable: str | None
    trials: Sequence[Trial]
    events: Sequence[StoredEvent]
    has_earlier: bool = False
    profiles: Sequence[PowerProfile] = ()

    def kind(self, hardware_key: str | None) -> KindDescription | None:
        """What is known on a hardware kind; without a name, on that of the last trial. Raises HttpError 404."""
        kinds = {each.hardware_key: each for each in self.job.kinds} if self.job is not None else {}
        if hardware_key is not None and hardware_key not in kinds:
            words = f"job {self.job_id} has not run on {hardware_key[:200]}"
            raise HttpError(404, words, kind="unknown_hardware")
        last = self.trials[-1].hardware.key if self.trials else None
        return kinds.get(hardware_key or last or "", next(iter(kinds.values()), None))

    def saving(self, kind: KindDescription) -> Saved:
        """What was saved on a hardware kind, net of all that was tried."""
        assert self.job is not None
        number, spec = self.job.version_number, self.job.spec
        own = [each for each in self.trials if (each.version_number, each.hardware.key) == (number, kind.hardware_key)]
        if self.has_earlier and own:  # of the first recurrence a part may be missing
            own = [each for each in own if each.recurrence_id != own[0].recurrence_id]
        found = saved(own, spec, version_number=number, hardware_key=kind.hardware_key)
        of_last = f" Of the last {len(self.trials)} trials alone." if self.has_earlier else ""
        if found is not None:
            return Saved(sentence=f"{saved_in_words(found, spec)}{of_last}", is_known=True)
        return Saved(sentence=f"What was saved is not known: {_why_unknown(own, spec)}.{of_last}", is_known=False)

    def measured(self, kind: KindDescription) -> Iterator[tuple[int, PowerMeasurement]]:
        """What was measured under power limits on a hardware kind: batch sizes, and of each the highest limit first."""
        for profile in self.profiles:
            if profile.hardware.key == kind.hardware_key:
                for one in sorted(profile.measurements, key=lambda each: -each.power_limit_w):
                    yield profile.batch_size, one

    def reports(self) -> Mapping[int, Sequence[EpochReported]]:
        """The reports among the last events, in order, by their trials."""
        found: dict[int, list[EpochReported]] = {}
        for each in self.events:
            if isinstance(each.recorded.event, EpochReported):
                found.setdefault(each.recorded.event.trial_number, []).append(each.recorded.event)
        return found


class Contents:
    """Asks for what pages show. Raises HttpError where the optimizer does not answer, or not this reader."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    async def fleet(self, request: Request, *, prefix: str, after: str) -> FleetContents:
        """A screen full of jobs."""
        if prefix and (len(prefix) > _MOST_PREFIX or identifier_problem(prefix) is not None):
            return FleetContents(jobs=(), prefix=prefix, next_after=None)  # no job has such a name
        jobs: list[ListedJob] = []
        place: str | None = max(after, _before(prefix))
        token = token_of(request)
        for _ in range(_MOST_PAGES):
            if place is None or len(jobs) > MOST_JOBS:
                break
            page = await self._ask(request, queries.ListJobs(after=place), queries.JobsPage)
            parked = {each.job_id: each for each in page.parked}
            for each in page.jobs:
                job_id = each.summary.job_id
                is_covered = token is None or token.covers(Right.READ, job_id)
                if job_id.startswith(prefix) and is_covered and not each.summary.is_deleted:
                    jobs.append(listed_job(each, parked.get(job_id)))
            place = page.next_after
            if place is not None and not place.startswith(prefix) and place > prefix:
                place = None  # they come by their ids
        if len(jobs) > MOST_JOBS:
            jobs = jobs[:MOST_JOBS]
            place = jobs[-1].overview.summary.job_id
        return FleetContents(jobs=jobs, prefix=prefix, next_after=place)

    async def job(self, request: Request, job_id: str) -> JobContents:
        """A job as far as it can be read."""
        _check(job_id)
        shown = await self._ask(request, queries.ShowJob(), queries.ShownJob, job_id)
        earlier = 0 if shown.job is None else max(0, shown.job.trials - MOST_TRIALS)
        trials = [] if shown.job is None else await self._trials(request, job_id, after=earlier)
        return JobContents(
            job_id=job_id,
            job=shown.job,
            parked=shown.parked,
            unreadable=shown.unreadable,
            trials=trials,
            events=(await self._last_events(request, job_id))[-MOST_EVENTS:],
            has_earlier=earlier > 0,
            profiles=await self._profiles(request, job_id),
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
        own = [each for each in events if getattr(each.recorded.event, "trial_number", None) == trial_number]
        return JobContents(
            job_id=job_id,
            job=shown.job,
            parked=shown.parked,
            unreadable=shown.unreadable,
            trials=trials,
            events=own[:MOST_EVENTS],
            has_earlier=not _has_begun(own, trial_number) or len(own) > MOST_EVENTS,
        )

    async def newest(self, request: Request, job_id: str) -> int:
        """The event_id at which the log of a job ends."""
        _check(job_id)
        page = await self._ask(request, queries.ListEvents(after=THE_END), queries.EventsPage, job_id)
        return page.next_after or 0

    async def _profiles(self, request: Request, job_id: str) -> Sequence[PowerProfile]:
        page = await self._ask(request, queries.ListPowerProfiles(), queries.PowerProfilesPage, job_id)
        return sorted(page.profiles, key=lambda profile: profile.batch_size)

    async def _trials(self, request: Request, job_id: str, *, after: int) -> Sequence[Trial]:
        trials: list[Trial] = []
        place: int | None = after
        while place is not None and len(trials) < MOST_TRIALS:
            page = await self._ask(request, queries.ListTrials(after=place), queries.TrialsPage, job_id)
            trials += page.trials
            place = page.next_after
        return trials

    async def _last_events(
        self, request: Request, job_id: str, *, since_trial: int | None = None
    ) -> Sequence[StoredEvent]:
        """The last events of a job, 600 at least if there are as many, or those since a trial began.

        A log is read forwards from a place, and event_ids are those of all jobs together: places further and further
        back are tried, and from each what has not been read yet. After 25 pages, what there is has to do.
        """
        first = await self.newest(request, job_id)
        window, pages = _FIRST_WINDOW, _MOST_PAGES
        events: list[StoredEvent] = []
        while first > 0 and pages > 0:
            until, first = first, max(0, first - window)
            found: list[StoredEvent] = []
            place: int | None = first
            while place is not None and place < until and pages > 0:
                page = await self._ask(request, queries.ListEvents(after=place), queries.EventsPage, job_id)
                found += [each for each in page.stored if each.event_id <= until]
                place, pages = page.next_after, pages - 1
            events = [*found, *events]
            if len(events) >= MOST_EVENTS if since_trial is None else _has_begun(events, since_trial):
                break
            window *= _WIDER
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


def _why_unknown(own: Sequence[Trial], spec: JobSpec) -> str:
    ended = [each for each in own if each.outcome is not None]
    if not all(each.has_measured_cost(spec) for each in ended):
        return "the energy of some trials was not measured to its end"
    if not any((each.batch_size, each.outcome) == (spec.default_batch_size, Outcome.CONVERGED) for each in ended):
        return f"no training with the default batch size {spec.default_batch_size} has reached the target yet"
    return "it takes two recurrences"


def _has_begun(events: Sequence[StoredEvent], trial_number: int) -> bool:
    started = (each.recorded.event for each in events if isinstance(each.recorded.event, TrialStarted))
    return any(event.trial_number <= trial_number for event in started)


def _check(job_id: str) -> None:
    if (problem := identifier_problem(job_id)) is not None:
        raise HttpError(404, f"job_id {problem}", kind="unknown_job")
