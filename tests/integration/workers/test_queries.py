"""Queries: what a login sees of jobs through the broker, page by page, beside the decisions."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from bso.domain.commands import BeginTrial, DeleteJob, DescribeJob, GrantJob
from bso.domain.decide import Rules
from bso.domain.replies import JobDescription, Problem
from bso.domain.rights import Right
from bso.schema.codec import encode_event
from bso.service import query_answers
from bso.service.queries import (
    Asked,
    EventsPage,
    JobsPage,
    ListEvents,
    ListJobs,
    ListPowerProfiles,
    ListTrials,
    Page,
    Query,
    ShowJob,
    ShownJob,
    decode_page,
    encode_query,
)
from bso.service.query_answers import answered
from bso.storage import SqlStore
from bso_broker.rabbit import RabbitBroker
from bso_broker.topology import QUERY_KEY, QUERY_QUEUE
from bso_cli.broker_reads import BrokerReads, asking
from bso_cli.refusals import CommandRefused
from tests.integration.broker.test_permissions import Logins, permitted
from tests.integration.workers.fixtures import running_worker
from tests.integration.workers.raw import RawSender
from tests.integration.workers.recurrences import HARDWARE, Queue, new_job, recur, register
from tests.integration.workers.test_rights import PROFILE
from tests.servers import eventually_async
from tests.servers.sql import execute
from tools.private_servers import Management

RULES = Rules(operators=frozenset({"guest"}))


@pytest.fixture
async def logins(amqp_url: str, rabbitmq_management: Management, store: SqlStore) -> AsyncIterator[Logins]:
    """Alice and Bob with the permissions that trainings get, and a worker; guest is the operator."""
    await RabbitBroker(amqp_url).declare()
    logins = await asyncio.to_thread(permitted, amqp_url, rabbitmq_management)
    settings: dict[str, Any] = {"operators": ["guest"]}
    async with RabbitBroker(logins.worker) as broker, running_worker(broker, store, **settings):
        yield logins


@asynccontextmanager
async def trained(url: str, *, recurrences: int = 2) -> AsyncIterator[tuple[str, Queue]]:
    """A job that a login has trained."""
    job = new_job()
    async with RabbitBroker(url) as broker, Queue(broker=broker) as ask:
        await register(ask, job)
        for number in range(recurrences):
            await recur(ask, job, f"night-{number}")
        yield job, ask


async def test_the_owner_sees_what_the_database_holds_but_for_trial_ids(logins: Logins, store: SqlStore) -> None:
    async with trained(logins.alice) as (job, ask), asking(logins.alice) as alice:
        await ask(job, PROFILE)
        assert [one.summary.job_id for one in await alice.overviews()] == [job]
        assert await alice.overviews() == [
            replace(one, last_trial=replace(one.last_trial, trial_id="")) if one.last_trial else one
            for one in await store.overviews()
        ]
        assert await alice.trials(job) == [replace(trial, trial_id="") for trial in await store.trials(job)]
        recorded = await store.history(job)
        assert [encode_event(one.recorded) for one in await alice.history(job)] == [
            encode_event(one.recorded) for one in recorded
        ]
        assert [one.event_id for one in await alice.history(job)] == [one.event_id for one in recorded]
        assert await alice.power_profiles(job) == tuple(await store.power_profiles(job))
        assert [one.batch_size for one in await alice.power_profiles(job)] == [PROFILE.batch_size]


async def test_others_see_a_job_once_it_is_granted(logins: Logins) -> None:
    async with trained(logins.alice) as (job, ask), asking(logins.bob) as bob:
        assert not await bob.overviews()
        for look in (bob.trials, bob.history, bob.power_profiles):
            with pytest.raises(CommandRefused, match="belongs to alice"):
                await look(job)
        await ask(job, GrantJob(login="bob", right=Right.READ))
        assert [one.summary.job_id for one in await bob.overviews()] == [job]
        assert await bob.trials(job)
        assert await bob.history(job)


async def test_a_job_is_shown_as_the_command_describes_it_also_while_its_commands_wait(
    logins: Logins, store: SqlStore
) -> None:
    async with trained(logins.alice) as (job, ask), asking(logins.alice) as alice, asking(logins.bob) as bob:
        await ask(job, BeginTrial(hardware=HARDWARE))
        described = await ask(job, DescribeJob())
        assert isinstance(described, JobDescription)
        assert described.active_trials
        async with store.unit_of_work() as uow:  # holds the job: no command about it can be decided
            await uow.lock([job], creating=[])
            assert await alice.shown_job(job) == ShownJob(job=described, parked=None)
        with pytest.raises(CommandRefused, match="belongs to alice"):
            await bob.shown_job(job)
        await ask(job, GrantJob(login="bob", right=Right.READ))
        assert (await bob.shown_job(job)).job == await ask(job, DescribeJob())
        await ask(job, DeleteJob())
        with pytest.raises(CommandRefused, match="was deleted"):
            await alice.shown_job(job)


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        ("UPDATE job SET state = '['", "is not JSON"),
        ("UPDATE trial SET energy_method = 'of a newer release'", "has a value that this program does not know"),
        ("UPDATE job SET state = REPLACE(state, '\"curve\"', '\"theirs\"')", "theirs"),
    ],
)
async def test_a_job_in_trouble_is_shown_as_far_as_it_can_be_read(
    logins: Logins, store: SqlStore, damage: str, why: str
) -> None:
    async with trained(logins.alice) as (job, ask), asking(logins.alice) as alice:
        await ask(job, BeginTrial(hardware=HARDWARE))
        await execute(store, f"{damage} WHERE job_id = '{job}'")
        await store.parked_jobs.park(job, reason="it is damaged", pause_s=60.0)
        shown = await alice.shown_job(job)
        assert shown.job is None
        assert why in (shown.unreadable or "")
        assert shown.parked is not None
        assert shown.parked.reason == "it is damaged"
        assert await alice.history(job)
        async with asking(logins.bob) as bob:
            for look in (bob.shown_job, bob.history):
                with pytest.raises(CommandRefused, match="belongs to alice"):
                    await look(job)


@pytest.mark.parametrize("requires", [True, False])
async def test_one_can_ask_whether_logins_are_required(amqp_url: str, store: SqlStore, *, requires: bool) -> None:
    async with (
        RabbitBroker(amqp_url) as broker,
        running_worker(broker, store, require_user_id=requires),
        asking(amqp_url) as reads,
    ):
        assert await reads.requires_logins() is requires


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE job SET state = '['",
        "UPDATE job SET state = NULL",
        "UPDATE job SET spec = 'none', policy = NULL, version_number = NULL, changed_at = NULL",
        "UPDATE trial SET energy_method = 'of a newer release'",
    ],
)
async def test_a_job_that_cannot_be_read_is_listed_and_hides_no_other(
    logins: Logins, store: SqlStore, damage: str
) -> None:
    async with trained(logins.alice) as (bad, _), trained(logins.alice) as (good, _), asking(logins.alice) as alice:
        await execute(store, f"{damage} WHERE job_id = '{bad}'")
        found = {one.summary.job_id: one for one in await alice.overviews()}
        assert found.keys() == {bad, good}
        assert found[good].last_trial is not None
        async with asking(logins.bob) as bob:
            assert not await bob.overviews()


async def test_an_unforeseen_error_is_answered_and_the_next_query_too(
    logins: Logins, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with trained(logins.alice) as (job, _), asking(logins.alice) as alice:
        with monkeypatch.context() as broken:
            broken.setattr(query_answers, "MOST_TRIALS", "many")
            with pytest.raises(CommandRefused, match="ask again later"):
                await alice.trials(job)
        assert await alice.trials(job)


async def test_an_unknown_job_and_one_without_a_name_are_refused(logins: Logins) -> None:
    async with asking(logins.alice) as alice:
        with pytest.raises(CommandRefused, match="not registered"):
            await alice.trials("nobody")
        with pytest.raises(CommandRefused, match="name a job"):
            await alice.history()


async def test_pages_follow_one_another(logins: Logins, store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_answers, "MOST_TRIALS", 2)
    monkeypatch.setattr(query_answers, "MOST_EVENTS", 3)
    monkeypatch.setattr(query_answers, "MOST_JOBS", 1)
    async with trained(logins.alice, recurrences=4) as (job, _), trained(logins.alice), asking(logins.alice) as alice:
        numbers = [trial.trial_number for trial in await store.trials(job)]
        assert len(numbers) > 3
        assert [trial.trial_number for trial in await alice.trials(job)] == numbers
        assert [trial.trial_number for trial in await alice.trials(job, after=1, limit=2)] == numbers[1:3]
        event_ids = [one.event_id for one in await store.history(job)]
        assert [one.event_id for one in await alice.history(job)] == event_ids
        assert [one.event_id for one in await alice.history(job, after=event_ids[1], limit=4)] == event_ids[2:6]
        assert len(await alice.overviews()) == 2
        assert len(await alice.overviews(limit=1)) == 1


async def test_a_page_fits_into_a_message(logins: Logins, store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    async with trained(logins.alice, recurrences=3) as (job, _):
        whole = await answered(store, Asked(query=ListEvents(), query_id="x", job_id=job), rules=RULES)
        monkeypatch.setattr(query_answers, "MAX_ANSWER_BYTES", len(whole) - 1)
        part = decode_page(await answered(store, Asked(query=ListEvents(), query_id="x", job_id=job), rules=RULES))
        assert isinstance(part, EventsPage)
        assert part.next_after is not None
        monkeypatch.setattr(query_answers, "MAX_ANSWER_BYTES", 500)
        none = decode_page(await answered(store, Asked(query=ListEvents(), query_id="x", job_id=job), rules=RULES))
        assert isinstance(none, Problem)
        assert none.type == "too_large"


async def asked(sender: RawSender, body: bytes, **properties: Any) -> Page | Problem:
    await sender.send(body, routing_key=QUERY_KEY, **properties)
    return decode_page(await sender.receive_body())


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"nonsense", "malformed"),
        (b'{"schema": "1.0", "type": "drop_table", "command_id": "x", "body": {}}', "malformed"),
    ],
)
async def test_nonsense_is_answered_and_the_next_query_too(logins: Logins, body: bytes, kind: str) -> None:
    async with RawSender(logins.alice, user="alice") as sender:
        problem = await asked(sender, body, user_id="alice")
        assert isinstance(problem, Problem)
        assert problem.type == "malformed"
        sound = encode_query(Asked(query=ListJobs(), query_id=str(uuid.uuid4())))
        assert isinstance(await asked(sender, sound, user_id="alice"), JobsPage)


@pytest.mark.parametrize("query", [ShowJob(), ListTrials(), ListEvents(), ListPowerProfiles()])
async def test_a_query_without_its_login_is_refused(logins: Logins, query: Query) -> None:
    async with trained(logins.alice) as (job, _), RawSender(logins.alice, user="alice") as sender:
        body = encode_query(Asked(query=query, query_id=str(uuid.uuid4()), job_id=job))
        problem = await asked(sender, body, user_id=None)
        assert isinstance(problem, Problem)
        assert problem.type == "no_user_id"


async def test_a_query_whose_answer_would_go_to_somebody_else_is_dropped(logins: Logins) -> None:
    async with (
        trained(logins.alice),
        RawSender(logins.alice, user="alice") as alice,
        RawSender(logins.bob, user="bob") as bob,
    ):
        body = encode_query(Asked(query=ListJobs(), query_id=str(uuid.uuid4())))
        await bob.send(body, routing_key=QUERY_KEY, user_id="bob", reply_to=alice.reply_queue)
        seen = await asked(bob, body, user_id="bob")
        assert isinstance(seen, JobsPage)
        assert not seen.jobs
        assert await alice.has_heard_nothing()


async def test_queries_go_on_after_their_queue_was_deleted(
    logins: Logins, amqp_url: str, rabbitmq_management: Management
) -> None:
    vhost = amqp_url.rpartition("/")[2]
    async with trained(logins.alice) as (job, _), asking(logins.alice) as alice:
        assert await alice.trials(job)
        await asyncio.to_thread(rabbitmq_management.request, "DELETE", f"queues/{vhost}/{QUERY_QUEUE}")

        async def is_answered() -> bool:
            return bool(await alice.trials(job))

        await eventually_async(is_answered, what="an answer")


async def test_one_who_asks_without_pause_makes_nobody_else_wait(
    logins: Logins, store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        trained(logins.alice) as (job, _),
        RawSender(logins.alice, user="alice") as alice,
        RawSender(logins.bob, user="bob") as bob,
    ):
        read: list[str] = []
        goes_on = asyncio.Event()

        def watched(name: str, method: Any) -> Any:
            async def look(*arguments: Any, **options: Any) -> Any:
                read.append(name)
                await goes_on.wait()
                return await method(*arguments, **options)

            return look

        # The real store, which notes the order of reads and lets the first one wait until all queries have come.
        monkeypatch.setattr(store, "history", watched("alice", store.history))
        monkeypatch.setattr(store, "overviews", watched("bob", store.overviews))
        query = encode_query(Asked(query=ListEvents(), query_id=str(uuid.uuid4()), job_id=job))
        for _ in range(100):
            await alice.send(query, routing_key=QUERY_KEY)
        refused = [decode_page(await alice.receive_body()) for _ in range(100 - 1 - 8)]
        await bob.send(encode_query(Asked(query=ListJobs(), query_id=str(uuid.uuid4()))), routing_key=QUERY_KEY)
        await alice.send(query, routing_key=QUERY_KEY)  # its refusal shows that Bob's has come
        refused.append(decode_page(await alice.receive_body()))
        goes_on.set()
        assert isinstance(decode_page(await bob.receive_body()), JobsPage)
        assert read[:3] == ["alice", "alice", "bob"]
        answered = [decode_page(await alice.receive_body()) for _ in range(1 + 8)]
    assert all(isinstance(page, EventsPage) for page in answered)
    assert {(one.type, one.is_retryable) for one in refused if isinstance(one, Problem)} == {("not_now", True)}
    assert len(refused) == 92


async def test_a_query_that_nobody_waits_for_any_more_is_not_answered(
    logins: Logins, store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    goes_on = asyncio.Event()
    history = store.history

    async def look(*arguments: Any, after: int, **options: Any) -> Any:
        read.append(after)
        await goes_on.wait()
        return await history(*arguments, after=after, **options)

    async with trained(logins.alice) as (job, _), RawSender(logins.alice, user="alice") as alice:
        monkeypatch.setattr(store, "history", look)  # the real store, which notes what is read
        for number, properties in enumerate(({}, {"expiration": "1"}, {})):
            asked = Asked(query=ListEvents(after=number), query_id=str(uuid.uuid4()), job_id=job)
            await alice.send(encode_query(asked), routing_key=QUERY_KEY, **properties)
        await eventually_async(lambda: read == [0], what="the first one under way")
        goes_on.set()
        for _ in range(2):
            assert isinstance(decode_page(await alice.receive_body()), EventsPage)
    assert read == [0, 2]


async def test_many_pages_take_a_quarter_of_the_time_at_most(logins: Logins, store: SqlStore) -> None:
    """What is left of the time is for decisions: none waits behind a reader of a long history."""
    async with trained(logins.alice, recurrences=3) as (job, ask), asking(logins.alice) as alice:
        reading = asyncio.create_task(_read_on(alice, job))
        try:
            for number in range(20):
                await recur(ask, job, f"beside-{number}")
        finally:
            reading.cancel()
        await asyncio.wait([reading])
        assert reading.cancelled(), reading.exception()
        assert len({trial.recurrence_id for trial in await store.trials(job)}) == 23


async def _read_on(reads: BrokerReads, job: str) -> None:
    while True:
        await reads.history(job)
