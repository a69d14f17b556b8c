"""Workers where every training has a login of its own."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from bso.domain.commands import BeginTrial, DeleteJob, RegisterJob, Request
from bso.domain.decide import Rules
from bso.domain.identifiers import trial_id_for
from bso.domain.replies import Deleted, Problem, Registered
from bso.domain.trial import TrialState
from bso.schema.codec import encode_command
from bso.service.engine import Engine
from bso.service.serialization import read_snapshot
from bso.storage import SqlStore
from bso_broker.dead_letters import CLAIMED_HEADER, SENDER_HEADER
from bso_broker.messages import DeadLetter
from bso_broker.rabbit import RabbitBroker
from bso_broker.topology import COMMAND_KEY, QUERY_KEY
from tests.integration.broker.test_permissions import Logins, permitted
from tests.integration.workers.fixtures import StartWorker, running_worker
from tests.integration.workers.raw import RawSender
from tests.integration.workers.recurrences import HARDWARE, SPEC, Direct, Queue, begin, new_job, recur, register
from tests.servers import eventually_async
from tools.private_servers import UNMISTAKABLE, Management

OPERATOR = "guest"


@pytest.fixture
async def logins(amqp_url: str, rabbitmq_management: Management, store: SqlStore) -> AsyncIterator[Logins]:
    """Alice and Bob, and a worker that tells them apart; the login of amqp_url is the operator."""
    await RabbitBroker(amqp_url).declare()
    logins = await asyncio.to_thread(permitted, amqp_url, rabbitmq_management)
    separate: dict[str, Any] = {"require_user_id": True, "operators": [OPERATOR]}
    async with RabbitBroker(logins.worker) as broker, running_worker(broker, store, **separate):
        yield logins


async def owner_of(store: SqlStore, job: str) -> str | None:
    stored = await store.job(job)
    assert stored is not None
    return read_snapshot(stored).owner


def registration(job: str) -> bytes:
    request = Request(command_id=str(uuid.uuid4()), job_id=job, command=RegisterJob(spec=SPEC))
    return encode_command(request)


async def test_a_job_belongs_to_the_login_that_registered_it(logins: Logins, store: SqlStore, ask: Queue) -> None:
    job = new_job()
    async with (
        RabbitBroker(logins.alice) as alice_broker,
        RabbitBroker(logins.bob) as bob_broker,
        Queue(broker=alice_broker) as alice,
        Queue(broker=bob_broker) as bob,
    ):
        await register(alice, job)
        assert await owner_of(store, job) == "alice"
        assert (await recur(alice, job, "monday"))[-1].outcome is not None
        refused = await bob(job, DeleteJob())
        assert isinstance(refused, Problem)
        assert "alice" not in refused.type
        assert isinstance(await ask(job, DeleteJob()), Deleted), "an operator may"


async def test_a_command_without_its_login_is_refused(logins: Logins, store: SqlStore) -> None:
    job = new_job()
    async with RawSender(logins.alice, user="alice") as sender:
        problem = await sender.problem(registration(job), user_id=None)
    assert problem.type == "no_user_id"
    assert await store.job(job) is None


@pytest.mark.parametrize("routing_key", [COMMAND_KEY, QUERY_KEY])
@pytest.mark.parametrize("length", [36, 255])
async def test_a_reply_to_nobody_is_no_reply_to_a_command_of_another_login(
    logins: Logins, routing_key: str, length: int
) -> None:
    """Who names no login may name any reply queue, but no command of its owner."""
    async with RawSender(logins.alice, user="alice") as alice, RawSender(logins.bob, user="bob") as bob:
        asked = {"correlation_id": "x" * length, "reply_to": alice.reply_queue, "user_id": None}
        await bob.send(b"{", routing_key=routing_key, **asked)
        replied = (await alice.receive()).header.properties.correlation_id
    assert replied is not None
    assert replied.startswith("anonymous.xxx")


async def test_nobody_can_send_a_command_in_anothers_name(logins: Logins, store: SqlStore) -> None:
    job = new_job()
    async with RawSender(logins.bob, user="bob") as sender:
        await sender.send(registration(job), user_id="bob", headers={SENDER_HEADER: "alice"})
        await sender.receive_reply()
    assert await owner_of(store, job) == "bob"


async def test_nobody_but_a_gateway_can_send_a_command_for_somebody_else(logins: Logins, store: SqlStore) -> None:
    job = new_job()
    request = Request(command_id=str(uuid.uuid4()), job_id=job, command=RegisterJob(spec=SPEC), on_behalf_of="alice")
    async with RawSender(logins.bob, user="bob") as sender:
        problem = await sender.problem(encode_command(request), user_id="bob")
    assert problem.type == "forged_user"
    assert await store.job(job) is None


async def test_a_dead_letter_that_an_operator_sends_again_is_still_its_senders(
    amqp_url: str, rabbitmq_management: Management, store: SqlStore, start_worker: StartWorker
) -> None:
    job = new_job()
    await RabbitBroker(amqp_url).declare()
    logins = await asyncio.to_thread(permitted, amqp_url, rabbitmq_management)
    async with RabbitBroker(logins.worker) as broker, RawSender(logins.alice, user="alice") as sender:
        await sender.send(registration(job), user_id="alice")
        consumer = broker.command_consumer()
        await consumer.start()
        (delivery,) = await consumer.next_batch()
        await consumer.dead_letter(delivery, reason="a worker of old had a bug", sender="alice")
        await consumer.close()
        start_worker(amqp_url=logins.worker, require_user_id=True, operators=OPERATOR).ready()
        async with RabbitBroker(amqp_url).dead_letters() as box:
            assert await box.requeue() == 1
        await sender.receive_reply()
    assert await owner_of(store, job) == "alice"


@pytest.mark.parametrize("headers", [{}, {SENDER_HEADER: "alice"}, {CLAIMED_HEADER: "alice"}])
async def test_a_dead_letter_that_names_no_login_is_nobodys_also_when_an_operator_sends_it_again(
    logins: Logins, amqp_url: str, store: SqlStore, headers: dict[str, str]
) -> None:
    """Else anybody could have an operator delete a job, by a command that is refused first."""
    job = new_job()
    deletion = encode_command(Request(command_id=str(uuid.uuid4()), job_id=job, command=DeleteJob()))
    async with RabbitBroker(logins.alice) as broker, Queue(broker=broker) as alice:
        await register(alice, job)
    async with RawSender(logins.bob, user="bob") as bob, RabbitBroker(amqp_url).dead_letters() as box:

        async def is_back() -> bool:
            counts = await box.counts()
            return (counts.commands, counts.dead_letters) == (0, 1)

        await bob.send(deletion, user_id=None, headers=headers)
        await eventually_async(is_back, what="a dead letter")
        for _ in range(2):
            assert await box.requeue() == 1
            await bob.receive_reply()
            await eventually_async(is_back, what="the same dead letter again")
    stored = await store.job(job)
    assert stored is not None
    assert not read_snapshot(stored).is_deleted


async def test_nobody_can_take_the_command_id_under_which_another_jobs_lease_will_expire(
    amqp_url: str, rabbitmq_management: Management, store: SqlStore
) -> None:
    """From the command_id of an event the trial_id follows, and a reader sees when the lease ends."""
    job, begun_by = new_job(), str(uuid.uuid4())
    await RabbitBroker(amqp_url).declare()
    logins = await asyncio.to_thread(permitted, amqp_url, rabbitmq_management)
    alice = Direct(engine=Engine(store, Rules(lease_s=0.0)))
    await register(alice, job)
    await alice(job, BeginTrial(hardware=HARDWARE), command_id=begun_by)
    (lapsed,) = await store.lapsed_leases()
    assert lapsed.trial_id == trial_id_for(begun_by)
    derived = uuid.uuid5(uuid.UUID(lapsed.trial_id), lapsed.lease_expires_at.isoformat())
    async with RawSender(logins.bob, user="bob") as bob:
        command = Request(command_id=str(derived), job_id=new_job(), command=RegisterJob(spec=SPEC))
        await bob.send(encode_command(command), user_id="bob")

        async def is_suspended() -> bool:
            return [trial.state for trial in await store.trials(job)] == [TrialState.SUSPENDED]

        async with RabbitBroker(logins.worker) as broker, running_worker(broker, store, lease_s=0.5):
            assert isinstance(await bob.receive_reply(), Registered)
            await eventually_async(is_suspended, what="a trial whose lease has expired")


@dataclass(frozen=True, kw_only=True)
class Rotation:
    """The URLs of a training, of workers with a former login, and of workers with their login of today."""

    alice: str
    former: str
    new: str
    store: SqlStore

    @asynccontextmanager
    async def workers(self, *, operators: Sequence[str]) -> AsyncIterator[None]:
        settings: dict[str, Any] = {"amqp_url": self.new, "require_user_id": True, "operators": operators}
        async with (
            RabbitBroker(self.new, operators=operators) as broker,
            running_worker(broker, self.store, **settings),
        ):
            yield

    async def park(self, sender: RawSender, job: str) -> None:
        """Let workers with the former login park a registration."""
        await sender.send(registration(job), user_id="alice")
        async with RabbitBroker(self.former) as broker:
            consumer = broker.command_consumer()
            await consumer.start()
            (delivery,) = await consumer.next_batch()
            await consumer.park(delivery, sender="alice", pause_s=1.0)
            await consumer.close()


@pytest.fixture
async def rotation(amqp_url: str, rabbitmq_management: Management, store: SqlStore) -> Rotation:
    await RabbitBroker(amqp_url).declare()

    def url_of(name: str) -> str:
        return rabbitmq_management.add_user(amqp_url, name, UNMISTAKABLE, configure=".*", write=".*", read=".*")

    urls = {name: await asyncio.to_thread(url_of, name) for name in ("alice", "former", "new")}
    return Rotation(**urls, store=store)


async def test_what_workers_parked_under_a_former_login_is_decided_where_that_is_an_operator(
    rotation: Rotation,
) -> None:
    job = new_job()
    async with RawSender(rotation.alice, user="alice") as sender:
        await rotation.park(sender, job)
        async with rotation.workers(operators=["former"]):
            await sender.receive_reply()
    assert await owner_of(rotation.store, job) == "alice"


async def test_what_workers_parked_under_an_unknown_login_is_a_dead_letter_until_the_login_is_an_operator(
    amqp_url: str, rotation: Rotation
) -> None:
    job = new_job()
    async with RawSender(rotation.alice, user="alice") as sender, RabbitBroker(amqp_url).dead_letters() as box:

        async def letters() -> Sequence[DeadLetter]:
            return await box.peek()

        await rotation.park(sender, job)
        for requeued in (0, 1):
            async with rotation.workers(operators=[OPERATOR]):
                assert await box.requeue() == requeued
                await eventually_async(letters, what="a dead letter")
            (letter,) = await letters()
            assert (letter.user_id, letter.reason.partition(":")[0]) == ("former", "parked_by_unknown_login")
        assert await rotation.store.job(job) is None
        async with rotation.workers(operators=["former", OPERATOR]):
            assert await box.requeue() == 1
            await sender.receive_reply()
    assert await owner_of(rotation.store, job) == "alice"


async def test_a_queue_that_is_deleted_under_the_worker_is_made_again(
    amqp_url: str, rabbitmq_management: Management, store: SqlStore, ask: Queue, start_worker: StartWorker
) -> None:
    worker = start_worker().ready()
    job = new_job()
    await register(ask, job)
    vhost = amqp_url.rpartition("/")[2]
    await asyncio.to_thread(rabbitmq_management.request, "DELETE", f"queues/{vhost}/bso.inbox")
    await eventually_async(lambda: worker.lines("broker_connection_lost"))
    worker.ready()
    assert (await begin(ask, job)).trial_number == 1
