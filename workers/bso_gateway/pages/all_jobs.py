"""All jobs of a reader, read beside the pages that show them: totals, orders and searches need them all."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeGuard

from starlette.requests import Request

from bso.domain.savings import SavedInMonth, TotalSaved, total_saved
from bso.domain.tokens import Token
from bso.domain.trial import Trial
from bso.service import queries
from bso.service.listed_jobs import UNREADABLE, ListedJob, listed_job
from bso.service.records import JobOverview, ParkedJob
from bso_gateway.http import UNTIL, Gate, HttpError, token_of
from bso_gateway.pages.answers import ask

_MOST_READERS = 100  # whose jobs are kept
_OFTEN_S, _RARELY_S = 0.8, 5.0
_FIRST_S = 3.0  # that a page waits for the first jobs, where it would be empty
_OLD_S = 30.0  # so long jobs are shown beyond the time at which they should be read anew
_KEPT_S, _KEPT_TIMES = 0.5, 4.0  # jobs are read anew after this, or after so many times as long as reading them took
_RANKS = ("attention", "running", "")

SORTS: Mapping[str, Callable[[ListedJob], Any]] = {
    "name": lambda job: job.overview.summary.job_id,
    "state": lambda job: _RANKS.index("attention" if job.attention else "running" if job.overview.active else ""),
    "running": lambda job: len(job.overview.active),
    "best": lambda job: job.kind and job.kind.best_batch_size,
    "default": lambda job: job.description and job.description.spec.default_batch_size,
    "saving": lambda job: job.expected_saving,
    "saved": lambda job: _size_of(job.total_saved),
    "trials": lambda job: job.overview.summary.last_trial_number,
    "took": lambda job: job.overview.last_trial.time_s if _has_reported(job.overview.last_trial) else None,
    "changed": lambda job: job.overview.summary.changed_at,
}
"""What jobs can be ordered by; None: not known, which comes last in both directions."""


@dataclass(slots=True)
class AllJobs:
    """Jobs by id as far as they have been read, deleted ones too; ``is_complete``: all of them have been.

    ``fresh_until_s`` and ``shown_until_s`` are on the event loop's clock: then they are read anew, and shown no more.
    """

    found: dict[str, ListedJob] = field(default_factory=dict)
    is_complete: bool = False
    fresh_until_s: float = 0.0
    shown_until_s: float = math.inf
    has_some: asyncio.Event = field(default_factory=asyncio.Event)
    took_s: float = math.inf

    @property
    def renewed_every_ms(self) -> int:
        """How often a page of them should ask for news: the more often, the less reading them all takes."""
        return int(1000 * min(_RARELY_S, max(_OFTEN_S, _KEPT_TIMES * self.took_s)))

    @property
    def unreadable(self) -> int:
        """How many cannot be read."""
        return sum(job.attention == UNREADABLE for job in self.found.values())

    def shown(self, *, contains: str = "") -> Sequence[ListedJob]:
        """Those that have not been deleted and whose id contains a text, by id."""
        wanted = contains.lower()
        jobs = (job for name, job in sorted(self.found.items()) if wanted in name.lower())
        return [job for job in jobs if not job.overview.summary.is_deleted]

    def total(self, prefix: str = "") -> TotalSaved:
        """What jobs whose id begins with ``prefix`` saved, all together."""
        return total_saved(self._saved(prefix))

    def by_month(self, prefix: str = "") -> Mapping[str, TotalSaved]:
        """What was saved in each month, the last one first."""
        months: dict[str, list[tuple[str, SavedInMonth]]] = {}
        for each in self._saved(prefix):
            months.setdefault(each[1].month, []).append(each)
        return {month: total_saved(months[month]) for month in sorted(months, reverse=True)}

    def by_job(self, prefix: str = "") -> Sequence[tuple[str, TotalSaved]]:
        """What each job saved, those first that saved or lost most energy."""
        jobs = [(name, job.total_saved) for name, job in self.found.items() if job.saved and name.startswith(prefix)]
        return sorted(jobs, key=lambda each: (-abs(_size_of(each[1]) or 0.0), each[0]))

    def _saved(self, prefix: str) -> Iterator[tuple[str, SavedInMonth]]:
        return ((name, one) for name, job in self.found.items() if name.startswith(prefix) for one in job.saved)


def _has_reported(trial: Trial | None) -> TypeGuard[Trial]:
    return trial is not None and trial.reports > 0


def ordered(jobs: Sequence[ListedJob], sort: str) -> Sequence[ListedJob]:
    """Jobs by one of the orders, from high to low where a minus stands before it; what is not known comes last."""
    key = SORTS[sort.removeprefix("-")]
    keys = {id(job): key(job) for job in jobs}
    known = [job for job in jobs if keys[id(job)] is not None]
    known.sort(key=lambda job: keys[id(job)], reverse=sort.startswith("-"))
    return known + [job for job in jobs if keys[id(job)] is None]


class JobsReader:
    """Reads all jobs for each reader that looks, and again while somebody does."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._known: dict[str | None, AllJobs] = {}  # by token_id
        self._fresh: dict[str | None, AllJobs] = {}  # what is being read
        self._reading: dict[str | None, asyncio.Task[None]] = {}
        self._listed: dict[str, ListedJob] = {}  # of all readers
        self._failures: dict[str | None, HttpError] = {}  # of the last attempt to read, where it failed
        self._changes = 0

    async def jobs(self, request: Request, *, wait_s: float) -> AllJobs:
        """The jobs that the reader may see, deleted ones too; what there is after a while, where they are being read.

        Raises HttpError where nothing can be read.
        """
        token, now_s = token_of(request), asyncio.get_running_loop().time()
        key = None if token is None else token.token_id
        reading, known = self._reading.get(key), self._known.get(key)
        if known is not None and now_s > known.shown_until_s:
            del self._known[key]
            known = None
        if reading is None and (known is None or now_s > known.fresh_until_s):
            fresh = self._fresh[key] = AllJobs()
            reading = asyncio.create_task(self._read(Request({**request.scope}), token, fresh), name="all jobs")
            reading.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody may wait for it
            self._reading[key] = reading
        if reading is not None:
            await asyncio.wait({reading}, timeout=wait_s)
            await self._wait_for_some(reading, key)
            if reading.done():
                reading.result()
        found = self._known.get(key) or self._fresh.get(key) or AllJobs()
        if not found.found and key in self._failures:
            raise self._failures[key]
        return replace(found, found=dict(found.found))  # reading goes on

    async def _wait_for_some(self, reading: asyncio.Task[None], key: str | None) -> None:
        """Wait a while longer where there is nothing to show at all."""
        fresh = self._fresh.get(key)
        if key in self._known or fresh is None:
            return
        some = asyncio.create_task(fresh.has_some.wait())
        await asyncio.wait({reading, some}, timeout=_FIRST_S, return_when=asyncio.FIRST_COMPLETED)
        some.cancel()

    def changed(self, job_id: str, *, is_deleted: bool) -> None:
        """A job has just been changed or deleted: read it again, and show a deleted one no more."""
        self._changes += 1
        for known in (*self._known.values(), *self._fresh.values()):
            known.fresh_until_s = 0.0
            job = known.found.get(job_id)
            if is_deleted and job is not None:
                summary = replace(job.overview.summary, is_deleted=True)
                overview = replace(job.overview, summary=summary, active=())
                known.found[job_id] = replace(job, overview=overview, description=None)

    async def _read(self, request: Request, token: Token | None, fresh: AllJobs) -> None:
        key, began_s = None if token is None else token.token_id, asyncio.get_running_loop().time()
        changes = self._changes
        try:
            place: str | None = ""
            while place is not None:
                request.scope.pop(UNTIL, None)  # nobody waits for all of it
                page = await ask(self._gate, request, queries.ListJobs(after=place), queries.JobsPage)
                parked = {each.job_id: each for each in page.parked}
                for each in page.jobs:
                    job_id = each.summary.job_id
                    fresh.found[job_id] = await self._of(each, parked.get(job_id))
                fresh.has_some.set()
                place = page.next_after
            now_s = asyncio.get_running_loop().time()
            fresh.took_s = now_s - began_s
            kept_s = max(_KEPT_S, _KEPT_TIMES * fresh.took_s) if changes == self._changes else 0.0
            fresh.is_complete, fresh.fresh_until_s, fresh.shown_until_s = True, now_s + kept_s, now_s + kept_s + _OLD_S
            self._failures.pop(key, None)
            self._known.pop(key, None)
            self._known[key] = fresh
            while len(self._known) > _MOST_READERS:
                del self._known[next(iter(self._known))]
            self._forget_unseen()
        except HttpError as error:
            self._failures[key] = error
            raise
        finally:
            del self._reading[key], self._fresh[key]

    async def _of(self, overview: JobOverview, parked: ParkedJob | None) -> ListedJob:
        """A job of the list; one that has not changed is not described again."""
        kept = self._listed.get(overview.summary.job_id)
        slim = replace(overview, stored=replace(overview.stored, state=""))
        if kept is None or (kept.overview.stored, kept.overview.summary) != (slim.stored, slim.summary):
            kept = replace(await asyncio.to_thread(listed_job, overview), overview=slim)
            self._listed[overview.summary.job_id] = kept
        return replace(kept, parked=parked)

    def _forget_unseen(self) -> None:
        """Keep no job that no reader sees any more."""
        seen = {name for known in self._known.values() for name in known.found}
        for name in self._listed.keys() - seen:
            del self._listed[name]


def _size_of(total: TotalSaved) -> float | None:
    estimate = total.energy_j or total.assumed_energy_j
    return None if estimate is None else estimate.value
