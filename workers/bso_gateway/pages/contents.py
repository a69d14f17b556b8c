"""What pages show, asked for by the queries that every client has, with the rights of the one who looks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from starlette.requests import Request

from bso.domain.commands import PowerMeasurement
from bso.domain.errors import BsoError
from bso.domain.events import EpochReported, TrialStarted
from bso.domain.identifiers import identifier_problem
from bso.domain.log import RecordedEvent
from bso.domain.replies import JobDescription, KindDescription, VersionDescription
from bso.domain.savings import TotalSaved, saved_on, total_saved
from bso.domain.savings_in_words import in_words
from bso.domain.trial import Trial
from bso.replay.hindsight import Hindsight, before_trial
from bso.schema.codec import decode_event
from bso.service import queries
from bso.service.listed_jobs import ListedJob
from bso.service.queries import THE_END, Operation, Query
from bso.service.records import ParkedJob, PowerProfile, StoredEvent
from bso_broker.messages import QueueDepth
from bso_broker.topology import COMMAND_QUEUE
from bso_gateway.http import UNTIL, Gate, HttpError, Latency
from bso_gateway.pages.all_jobs import SORTS, AllJobs, ordered
from bso_gateway.pages.answers import Answer, ask

MOST_JOBS, MOST_TRIALS, MOST_EVENTS = 50, 400, 600
_MOST_PAGES = 25
"""Pages of answers that one page for people asks for, of each sort: what lies further back is left out."""
_FIRST_WINDOW = 1_000  # event_ids of all jobs together, in which a job's last events are looked for first
_WIDER = 4
_MOST_RUNNING = 10
_MOST_DIGITS = 9
_MOST_HINDSIGHTS = 500
AT_ONCE, AT_LENGTH = 25, 400
"""Pages of a log that a page reads by the way, and when it is asked for what takes the whole log."""
LOG_TOO_LONG = "its log is long"


class LogTooLong(Exception):
    """A log has more pages than a page may read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetContents:
    """A screen full of jobs in an order of SORTS, those whose id contains a text; of all of these, what is urgent.

    ``count`` is how many there are; ``page`` counts from 1 to ``pages``. ``running`` are trials with their jobs, those
    that began last first, ``attention`` jobs that somebody should look at; of either the first ones. Of a job with more
    than ten trials that run, ten are counted.
    """

    jobs: Sequence[ListedJob]
    contains: str
    sort: str
    page: int
    pages: int
    count: int
    running: Sequence[tuple[ListedJob, Trial]]
    running_count: int
    attention: Sequence[ListedJob]
    attention_count: int


def fleet_of(found: AllJobs, *, contains: str = "", sort: str = "", page: str = "") -> FleetContents:
    """What a page shows of jobs; an order or a page that there is not becomes the first one."""
    jobs = found.shown(contains=contains)
    sort = sort if sort.removeprefix("-") in SORTS else "name"
    pages = max(1, -(-len(jobs) // MOST_JOBS))
    number = min(pages, max(1, int(page))) if page.isascii() and page.isdigit() and len(page) <= _MOST_DIGITS else 1
    running = [(job, trial) for job in jobs for trial in job.overview.active]
    running.sort(key=lambda each: each[1].started_at, reverse=True)
    troubled = [job for job in jobs if job.attention]
    return FleetContents(
        jobs=ordered(jobs, sort)[(number - 1) * MOST_JOBS : number * MOST_JOBS],
        contains=contains,
        sort=sort,
        page=number,
        pages=pages,
        count=len(jobs),
        running=running[:_MOST_RUNNING],
        running_count=len(running),
        attention=troubled[:_MOST_RUNNING],
        attention_count=len(troubled),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedSentence:
    """What was saved as a sentence; where it is not known, why."""

    sentence: str
    is_known: bool
    is_loss: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationContents:
    """How the store stands, what waits in the broker's queues, and what keeps the gateway from deciding commands."""

    store: Operation
    queues: Mapping[str, QueueDepth | None]
    trouble: str | None
    latency: Latency | None

    @property
    def workers(self) -> int | None:
        """How many workers take commands; None: there is no broker, or its login may not look."""
        depth = self.queues.get(COMMAND_QUEUE)
        return None if depth is None else depth.consumers


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

    def saving(self, kind: KindDescription) -> SavedSentence:
        """What the current version saved on a hardware kind, net of all that was tried."""
        assert self.job is not None
        found = saved_on(self.job.saved, version_number=self.job.version_number, hardware_key=kind.hardware_key)
        if found.time_s is not None:
            return SavedSentence(sentence=in_words(found), is_known=True, is_loss=found.time_s.value < 0.0)
        default = self.job.spec.default_batch_size
        why = f"no training with the default batch size {default} has reached the target there"
        return SavedSentence(sentence=f"What was saved is not known: {why}.", is_known=False)

    def versions(self) -> Iterator[tuple[VersionDescription, TotalSaved]]:
        """The newest of several versions of the job, the newest first, and what each saved on all hardware."""
        if self.job is None:
            return
        for version in self.job.versions:
            own = [one for one in self.job.saved if one.version_number == version.version_number]
            yield version, total_saved((self.job_id, one) for one in own)

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
        # What never changes: for a trial what was known, or why not, with the pages of the log that were allowed for.
        self._hindsights: dict[tuple[str, int, datetime], tuple[int, Hindsight | str]] = {}

    async def operation(self, request: Request) -> OperationContents:
        """How the optimizer stands, for operators."""
        store = await self._ask(request, queries.ShowOperation(), queries.Operation)
        return OperationContents(
            store=store,
            queues=await self._gate.optimizer.queues(),
            trouble=self._gate.optimizer.trouble,
            latency=self._gate.latency,
        )

    async def job(self, request: Request, job_id: str) -> JobContents:
        """A job as far as it can be read."""
        _check(job_id)
        shown = await self._ask(request, queries.ShowJob(), queries.ShownJob, job_id)
        earlier = 0 if shown.job is None else max(0, shown.job.trials - MOST_TRIALS)
        trials: list[Trial] = []
        if shown.job is not None:
            async for page in self.all_trials(request, job_id, after=earlier):
                trials += page
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

    async def shown(self, request: Request, job_id: str) -> JobContents:
        """The same without its trials and events. Raises HttpError where it cannot be read."""
        _check(job_id)
        shown = await self._ask(request, queries.ShowJob(), queries.ShownJob, job_id)
        if shown.job is None:
            raise HttpError(409, f"job {job_id} cannot be read: {shown.unreadable}", kind="unreadable_job")
        return JobContents(job_id=job_id, job=shown.job, parked=shown.parked, unreadable=None, trials=(), events=())

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

    async def known_before(self, request: Request, job_id: str, trial: Trial, *, most_pages: int) -> Hindsight | str:
        """What was known when a trial began, or why that is not known. The caller has checked the right to read."""
        key = (job_id, trial.trial_number, trial.started_at)
        kept = self._hindsights.get(key)
        if kept is not None and (kept[0] >= most_pages or not isinstance(kept[1], str)):
            return kept[1]
        found: Hindsight | str | None
        try:
            found = await before_trial(job_id, trial.trial_number, self.log(request, job_id, most_pages=most_pages))
        except LogTooLong:
            found = LOG_TOO_LONG
        except (BsoError, HttpError) as error:  # the rest of the page is there all the same
            return f"it cannot be restored: {error}"
        if found is None:
            found = "the log does not reach back so far: it was pruned"
        self._hindsights[key] = (most_pages, found)
        while len(self._hindsights) > _MOST_HINDSIGHTS:
            del self._hindsights[next(iter(self._hindsights))]
        return found

    async def log(self, request: Request, job_id: str, *, most_pages: int) -> AsyncIterator[RecordedEvent]:
        """The log of a job from its beginning. Raises LogTooLong where so many pages do not hold it."""
        async for message in self.messages(request, job_id, most_pages=most_pages):
            yield decode_event(message.encode())

    async def messages(self, request: Request, job_id: str, *, most_pages: int) -> AsyncIterator[str]:
        """The same, as events are published."""
        place: int | None = 0
        for _ in range(most_pages):
            request.scope.pop(UNTIL, None)  # each page may take as long as an answer
            page = await self._ask(request, queries.ListEvents(after=place or 0), queries.EventsPage, job_id)
            for each in page.events:
                yield each.message
            place = page.next_after
            if place is None:
                return
        raise LogTooLong(f"the log of job {job_id} is too long to be read here")

    async def _profiles(self, request: Request, job_id: str) -> Sequence[PowerProfile]:
        page = await self._ask(request, queries.ListPowerProfiles(), queries.PowerProfilesPage, job_id)
        return sorted(page.profiles, key=lambda profile: profile.batch_size)

    async def all_trials(self, request: Request, job_id: str, *, after: int = 0) -> AsyncIterator[Sequence[Trial]]:
        """The trials of a job after a number, page by page."""
        _check(job_id)
        place: int | None = after
        while place is not None:
            request.scope.pop(UNTIL, None)
            page = await self._ask(request, queries.ListTrials(after=place), queries.TrialsPage, job_id)
            yield page.trials
            place = page.next_after

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
        return await ask(self._gate, request, query, kind, job_id)


def _has_begun(events: Sequence[StoredEvent], trial_number: int) -> bool:
    started = (each.recorded.event for each in events if isinstance(each.recorded.event, TrialStarted))
    return any(event.trial_number <= trial_number for event in started)


def _check(job_id: str) -> None:
    if (problem := identifier_problem(job_id)) is not None:
        raise HttpError(404, f"job_id {problem}", kind="unknown_job")
