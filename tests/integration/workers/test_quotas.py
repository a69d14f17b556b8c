"""Quotas: a login that sends too much waits, and loses nothing; the others go on."""

import asyncio
import json
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bso.domain.commands import BeginTrial, DeleteJob, DescribeJob, RegisterJob, ReportEpoch, Request
from bso.domain.replies import Deleted, JobDescription, Problem, Registered, Reply, TrialBegun
from bso.domain.trial import Outcome
from bso.schema.codec import encode_command
from bso.storage import SqlStore
from bso_broker.rabbit import RabbitBroker
from bso_client import BatchSizeOptimizer, EnergyMethod, HardwareKind, JobSpec
from bso_workers.bootstrap import WorkerParts
from bso_workers.rates import LETTER_BYTES_A_DAY
from tests.integration.broker.test_permissions import Logins, permitted
from tests.integration.workers.fixtures import running_worker
from tests.integration.workers.raw import RawSender
from tests.integration.workers.recurrences import HARDWARE, SPEC, Queue, audit, begin, history, new_job, recur, register
from tests.integration.workers.test_rights import run
from tests.servers import PATIENCE_S, eventually_async
from tools.private_servers import Management

QUOTAS = {"alice": {"jobs": 2, "commands_per_s": 4.0, "open_recurrences": 1}, "*": {"jobs": 3}}
BURST = 5 * 4


@dataclass(frozen=True, kw_only=True)
class Scene:
    """Alice, whose quota is small, Bob, and a worker."""

    logins: Logins
    worker: WorkerParts

    def over(self, login: str, limit: str) -> float:
        found = self.worker.metrics.registry.get_sample_value("bso_over_quota_total", {"login": login, "limit": limit})
        return found or 0.0


@pytest.fixture
async def scene(amqp_url: str, rabbitmq_management: Management, store: SqlStore) -> AsyncIterator[Scene]:
    await RabbitBroker(amqp_url).declare()
    logins = await asyncio.to_thread(permitted, amqp_url, rabbitmq_management)
    settings: dict[str, Any] = {"quotas": json.dumps(QUOTAS)}
    async with RabbitBroker(logins.worker) as broker, running_worker(broker, store, **settings) as worker:
        yield Scene(logins=logins, worker=worker)


async def answer(sender: RawSender, body: bytes) -> Reply:
    await sender.send(body)
    return await sender.receive_reply()


def registration(job: str) -> bytes:
    request = Request(command_id=str(uuid.uuid4()), job_id=job, command=RegisterJob(spec=SPEC))
    return encode_command(request)


async def test_the_jobs_of_a_login_are_limited_and_a_refusal_says_who_can_change_that(
    scene: Scene, store: SqlStore, migrated_url: str
) -> None:
    async with RawSender(scene.logins.alice, user="alice") as sender:
        jobs = [new_job() for _ in range(3)]
        replies = [await answer(sender, registration(job)) for job in jobs]
        deletion = Request(command_id=str(uuid.uuid4()), job_id=jobs[0], command=DeleteJob())
        assert isinstance(await answer(sender, encode_command(deletion)), Deleted)
        assert isinstance(await answer(sender, registration(jobs[2])), Problem), "deleted, and not purged"
        await asyncio.to_thread(run, "bso jobs purge --before 0d --yes", BSO_DATABASE_URL=migrated_url)
        assert isinstance(await answer(sender, registration(jobs[2])), Registered)
    assert [type(reply) for reply in replies] == [Registered, Registered, Problem]
    assert isinstance(replies[-1], Problem)
    assert replies[-1].detail == (
        "login alice owns 2 jobs, those deleted and not purged included, and may own 2; an operator can purge deleted "
        "jobs (`bso jobs purge`, with --before also those of the last 30 days), or change the limit (BSO_QUOTAS)"
    )
    assert scene.over("alice", "jobs") == 2
    assert len([job for job in await store.jobs() if job.owner == "alice"]) == 2


async def test_another_recurrence_begins_when_one_has_ended(scene: Scene) -> None:
    job = new_job()
    async with RabbitBroker(scene.logins.alice) as broker, Queue(broker=broker) as ask:
        await register(ask, job)
        await begin(ask, job, recurrence_id="monday")
        refused = await ask(job, BeginTrial(hardware=HARDWARE, recurrence_id="tuesday"))
        assert isinstance(refused, Problem)
        assert (refused.type, refused.is_retryable) == ("over_quota", True)
        assert scene.over("alice", "open_recurrences") == 1
        ask.is_patient = True
        assert (await recur(ask, job, "monday"))[-1].outcome is not None
        assert isinstance(await begin(ask, job, recurrence_id="tuesday"), TrialBegun)


async def test_one_who_sends_too_fast_is_asked_to_wait_and_others_are_not(scene: Scene) -> None:
    job = new_job()
    question = DescribeJob()
    async with (
        RabbitBroker(scene.logins.bob) as broker,
        Queue(broker=broker) as bob,
        RawSender(scene.logins.alice, user="alice") as alice,
    ):
        await register(bob, job)
        for _ in range(600):
            request = Request(command_id=str(uuid.uuid4()), job_id="nobodys", command=question)
            await alice.send(encode_command(request))
        bobs = await asyncio.gather(*(bob(job, question) for _ in range(50)))  # more of a job may be asked to wait
        alices = [await alice.receive_reply() for _ in range(600)]
    assert all(isinstance(reply, JobDescription) for reply in bobs)
    problems = [reply for reply in alices if isinstance(reply, Problem)]
    fast = [problem for problem in problems if problem.type == "over_quota"]
    assert len(fast) >= 400, "a burst of 20, and 4 in each second"
    assert len(problems) - len(fast) >= BURST
    assert all(problem.is_retryable and problem.retry_after_s for problem in fast)
    assert scene.over("alice", "commands_per_s") == len(fast)
    assert scene.over("bob", "commands_per_s") == 0


async def test_messages_that_are_no_commands_count_for_their_login(scene: Scene) -> None:
    async with RawSender(scene.logins.alice, user="alice") as alice:
        for _ in range(300):
            await alice.send(b"{")
        request = Request(command_id=str(uuid.uuid4()), job_id="nobodys", command=DescribeJob())
        await alice.send(encode_command(request))
        replies = [await alice.receive_reply() for _ in range(301)]
    types = Counter(reply.type for reply in replies if isinstance(reply, Problem))
    assert types == {"malformed": 300, "over_quota": 1}


async def test_a_login_that_fills_the_dead_letters_pushes_out_none_of_another_login(
    scene: Scene, amqp_url: str
) -> None:
    large = b"{".ljust(LETTER_BYTES_A_DAY // 10)
    async with (
        RawSender(scene.logins.bob, user="bob") as bob,
        RawSender(scene.logins.alice, user="alice") as alice,
        RabbitBroker(amqp_url).dead_letters() as box,
    ):
        assert (await bob.problem(b"{")).type == "malformed"
        for _ in range(15):
            assert (await alice.problem(large)).type == "malformed"
        assert (await bob.problem(b"{")).type == "malformed"
        letters = Counter(letter.user_id for letter in await box.peek())
    assert letters == {"bob": 2, "alice": 11}
    assert scene.worker.metrics.registry.get_sample_value("bso_dead_letters_total", {"reason": "not_kept"}) == 4


async def test_reports_that_come_too_fast_for_too_long_are_dead_letters_however_many(
    amqp_url: str, store: SqlStore
) -> None:
    quotas = json.dumps({"*": {"commands_per_s": 0.01}})
    report = ReportEpoch(trial_number=1, trial_id="x", epoch=1.0, time_s=1.0, energy_j=1.0, metric=0.5)
    request = Request(command_id=str(uuid.uuid4()), job_id="nobodys", command=report)
    large = encode_command(request).ljust(LETTER_BYTES_A_DAY // 10)
    async with (
        RabbitBroker(amqp_url) as broker,
        running_worker(broker, store, quotas=quotas, operators=[], park_limit_s=1.0),
        RawSender(amqp_url) as sender,
        broker.dead_letters() as box,
    ):
        for _ in range(13):  # one is decided, the others are parked for a while
            await sender.send(large, reply_to=None)

        async def are_there() -> bool:
            return (await box.counts()).dead_letters == 12

        await eventually_async(are_there, what="12 dead letters")
        assert [letter.reason.partition(":")[0] for letter in await box.peek()] == ["over_quota"] * 12


@pytest.mark.slow
@pytest.mark.parametrize("is_awaited", [True, False])
async def test_no_report_is_lost_that_was_sent_too_fast(scene: Scene, store: SqlStore, is_awaited: bool) -> None:
    """Whose answer is awaited is sent again by its sender; the others are kept by the broker until there is room."""
    job = new_job()
    async with (
        RabbitBroker(scene.logins.alice) as broker,
        Queue(broker=broker, is_patient=True) as ask,
        RawSender(scene.logins.alice, user="alice") as sender,
    ):
        await register(ask, job, max_epochs=100, target_metric=1.0)
        trial = await begin(ask, job)
        reports = [_report(trial, epoch) for epoch in range(1, 41)]
        if is_awaited:
            await asyncio.gather(*(ask(job, one) for one in reports))
        else:
            for one in reports:
                request = Request(command_id=str(uuid.uuid4()), job_id=job, command=one)
                await sender.send(encode_command(request), reply_to=None)
        await eventually_async(lambda: _has_all(store, job, reports), what="all reports in the log")
    assert scene.over("alice", "commands_per_s") > 0
    assert await audit(store, job)


def _report(trial: TrialBegun, epoch: int) -> ReportEpoch:
    return ReportEpoch(
        trial_number=trial.trial_number,
        trial_id=trial.trial_id,
        epoch=float(epoch),
        time_s=float(epoch),
        energy_j=float(epoch),
        metric=0.5,
        is_journalled=True,
    )


async def _has_all(store: SqlStore, job: str, reports: list[ReportEpoch]) -> bool:
    events = [stored.recorded.event for stored in await history(store, job)]
    return {one.epoch for one in reports} <= {getattr(event, "epoch", None) for event in events}


@pytest.mark.slow
async def test_a_training_that_reports_too_fast_goes_on_and_all_is_recorded(
    scene: Scene, store: SqlStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = new_job()
    spec = JobSpec(job_id=job, batch_sizes=[32, 64], default_batch_size=64, target_metric=0.9, max_epochs=99)

    def train() -> None:
        hardware = HardwareKind(gpu_model="test", max_power_w=1.0, energy_method=EnergyMethod.ASSUMED)
        bso = BatchSizeOptimizer(spec, url=scene.logins.alice, hardware=hardware, state_dir=tmp_path)
        for trial in bso.trials():
            with trial:
                for _ in range(59):
                    trial.on_evaluate(0.1)
                trial.on_evaluate(0.95)
        bso.close(timeout=PATIENCE_S)

    await asyncio.to_thread(train)
    [trial] = await store.trials(job)
    assert (trial.reports, trial.outcome) == (60, Outcome.CONVERGED)
    assert [getattr(record, "action", "") for record in caplog.records].count("at_quota") == 1, "it is said once"
    assert scene.over("alice", "commands_per_s") > 0
    assert await audit(store, job)
