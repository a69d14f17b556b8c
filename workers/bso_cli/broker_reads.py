"""What a login may see of jobs, asked through the broker: for those who know no database."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from bso_cli.access import CALL_TIMEOUT_S, failing_once, refused, saying_it_is_slow
from bso_cli.refusals import CommandRefused

if TYPE_CHECKING:
    from bso.domain.replies import Problem
    from bso.domain.trial import Trial
    from bso.service.queries import JobSavings, Page, Query, ShownJob
    from bso.service.records import JobOverview, ParkedJob, PowerProfile, StoredEvent
    from bso_broker.rpc import RpcClient
    from bso_client.transports.http import HttpCaller

P = TypeVar("P")
_WHERE_TO_LOOK = "`bso jobs list` shows those that your login may read"
_TRIES = 6
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.25, 2.0
_AFTER_ALL = "~"  # no job_id begins with it, and none comes after it


class BrokerReads:
    """Reads jobs as a store does, page by page, by queries that workers answer. Raises CommandRefused."""

    def __init__(self, caller: RpcClient | HttpCaller) -> None:
        self._caller = caller

    async def overviews(self, *, after: str = "", limit: int | None = None) -> Sequence[JobOverview]:
        """The jobs that the login may read, by id: all, or a page of those after an id."""
        found, _ = await self.jobs(after=after, limit=limit)
        return found

    async def jobs(
        self, *, after: str = "", limit: int | None = None
    ) -> tuple[Sequence[JobOverview], Sequence[ParkedJob]]:
        """The jobs that the login may read, and those of them that are in trouble."""
        from bso.service.queries import JobsPage, ListJobs

        jobs: list[JobOverview] = []
        parked: list[ParkedJob] = []
        following: str | None = after
        while following is not None and (limit is None or len(jobs) < limit):
            page = await self._ask(JobsPage, ListJobs(after=following))
            jobs += page.jobs
            parked += page.parked
            following = page.next_after
        return jobs[:limit], parked

    async def savings(self) -> tuple[Sequence[JobSavings], Sequence[str]]:
        """What the jobs saved that the login may read, and the job_ids of those that cannot be read."""
        from bso.service.queries import ListSavings, SavingsPage

        jobs: list[JobSavings] = []
        unreadable: list[str] = []
        following: str | None = ""
        while following is not None:
            page = await self._ask(SavingsPage, ListSavings(after=following))
            jobs += page.jobs
            unreadable += page.unreadable
            following = page.next_after
        return jobs, unreadable

    async def shown_job(self, job_id: str) -> ShownJob:
        """A job as far as it can be read."""
        from bso.service.queries import ShowJob, ShownJob

        return await self._ask(ShownJob, ShowJob(), job_id)

    async def trials(self, job_id: str, *, after: int = 0, limit: int | None = None) -> Sequence[Trial]:
        """The trials of a job after a number, without their trial_ids: all, or a page of them."""
        from bso.service.queries import ListTrials, TrialsPage

        trials: list[Trial] = []
        following: int | None = after
        while following is not None and (limit is None or len(trials) < limit):
            page = await self._ask(TrialsPage, ListTrials(after=following), job_id)
            trials += page.trials
            following = page.next_after
        return trials[:limit]

    async def power_profiles(self, job_id: str) -> Sequence[PowerProfile]:
        """What was measured of a job's batch sizes."""
        from bso.service.queries import ListPowerProfiles, PowerProfilesPage

        return (await self._ask(PowerProfilesPage, ListPowerProfiles(), job_id)).profiles

    async def history(
        self, job_id: str | None = None, *, after: int = 0, before: datetime | None = None, limit: int = 1000
    ) -> Sequence[StoredEvent]:
        """A page of a job's events, by event_id."""
        from bso.service.queries import EventsPage, ListEvents

        if job_id is None:
            raise CommandRefused(
                "through a broker, history is read job by job: name a job; `bso jobs list` shows those that your login "
                "may read"
            )
        events: list[StoredEvent] = []
        following: int | None = after
        while following is not None and len(events) < limit:
            page = await self._ask(EventsPage, ListEvents(after=following), job_id)
            events += [one for one in page.stored if before is None or one.recorded.recorded_at < before]
            following = page.next_after
        return events[:limit]

    async def last_event_id(self, job_id: str) -> int:
        """Where the log of a job ends now; 0 if it is empty."""
        from bso.service.queries import THE_END, EventsPage, ListEvents

        return (await self._ask(EventsPage, ListEvents(after=THE_END), job_id)).next_after or 0

    async def requires_logins(self) -> bool:
        """Whether workers refuse what does not name its login: else everybody may do everything."""
        from bso.domain.replies import Problem
        from bso.service.queries import ListJobs

        answer = await self._answer(ListJobs(after=_AFTER_ALL), is_anonymous=True)
        return isinstance(answer, Problem) and answer.type == "no_user_id"

    async def _ask(self, expected: type[P], query: Query, job_id: str | None = None) -> P:
        from bso.domain.replies import Problem

        answer: Any = await self._answer_in_the_end(query, job_id)
        if isinstance(answer, Problem):
            raise refused(answer, where_to_look=_WHERE_TO_LOOK)
        assert isinstance(answer, expected), f"expected {expected.__name__}, got {type(answer).__name__}"
        return answer

    async def _answer_in_the_end(self, query: Query, job_id: str | None) -> Page | Problem:
        """The answer; if it is to ask again later, that of the last of some tries."""
        import tenacity

        def last(tries: tenacity.RetryCallState) -> Any:
            return None if tries.outcome is None else tries.outcome.result()

        asking_again = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_result(lambda answer: getattr(answer, "is_retryable", False)),
            stop=tenacity.stop_after_attempt(_TRIES) | tenacity.stop_after_delay(CALL_TIMEOUT_S),
            wait=tenacity.wait_random_exponential(multiplier=_FIRST_PAUSE_S, max=_LONGEST_PAUSE_S),
            retry_error_callback=last,
        )
        answer: Page | Problem = await asking_again(self._answer, query, job_id)
        return answer

    async def _answer(self, query: Query, job_id: str | None = None, *, is_anonymous: bool = False) -> Page | Problem:
        from bso.service.queries import Asked, decode_page, encode_query
        from bso_broker.topology import QUERY_KEY
        from bso_client.transports.http import HttpCaller

        asked = Asked(query=query, query_id=str(uuid.uuid4()), job_id=job_id)
        if isinstance(self._caller, HttpCaller):
            with saying_it_is_slow():
                return decode_page(
                    await self._caller.call(encode_query(asked), kind="queries", timeout_s=CALL_TIMEOUT_S)
                )
        with saying_it_is_slow():
            message = await self._caller.call(
                encode_query(asked),
                message_id=asked.query_id,
                timeout_s=CALL_TIMEOUT_S,
                expiration_s=CALL_TIMEOUT_S,
                routing_key=QUERY_KEY,
                is_anonymous=is_anonymous,
            )
        return decode_page(message)


@asynccontextmanager
async def asking(url: str) -> AsyncIterator[BrokerReads]:
    """What the login of a broker's address may see, or the token of a gateway's."""
    if url.startswith("http"):
        from bso_client.transports.http import HttpCaller

        gateway = HttpCaller(url)
        await gateway.start()
        try:
            yield BrokerReads(gateway)
        finally:
            await gateway.close()
        return
    from bso_broker.rabbit import RabbitBroker

    async with RabbitBroker(url) as broker:
        caller = broker.rpc_client()
        with failing_once():
            await caller.start()
            try:
                yield BrokerReads(caller)
            finally:
                await caller.close()
