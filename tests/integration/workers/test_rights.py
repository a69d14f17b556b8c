"""Every operation with every kind of login, as raw messages: what comes of it is what docs/security.md says."""

import asyncio
import re
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bso.domain import commands as do
from bso.domain.commands import Command, PowerMeasurement, Request
from bso.domain.replies import Deleted, Problem, Registered, Reply, RightsRecorded, TrialBegun
from bso.domain.rights import Right
from bso.domain.trial import Outcome
from bso.schema.codec import encode_command
from bso.storage import SqlStore
from bso_broker.rabbit import RabbitBroker
from bso_broker.topology import EVENTS, client_permissions, worker_permissions
from tests.integration.workers.fixtures import running_worker
from tests.integration.workers.raw import RawSender
from tests.integration.workers.recurrences import HARDWARE, SPEC, new_job, report
from tools.private_servers import Management

PAGE = Path(__file__).parents[3] / "docs/security.md"
LOGINS = {
    "owner": "vision-ann",
    "team": "vision-bob",
    "may operate": "olga",
    "may train": "tim",
    "may read": "rita",
    "another login": "mallory",
    "operator": "root",
}
GRANTED = {"olga": Right.OPERATE, "tim": Right.TRAIN, "rita": Right.READ}


def as_written() -> Mapping[str, Mapping[str, str]]:
    """The table of the page: what each kind of login may do, by operation."""
    section = PAGE.read_text(encoding="utf-8").partition("## Operations")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line[:2] == "| "]
    (_, *kinds), *operations = rows
    return {name: dict(zip(kinds, answers, strict=True)) for name, *answers in operations}


@dataclass(kw_only=True)
class Trained:
    """A job that vision-ann owns, which is granted to others, and a trial of hers."""

    job_id: str
    trial: TrialBegun
    begun_by: str

    def finish(self) -> Command:
        return do.FinishTrial(
            trial_number=self.trial.trial_number, trial_id=self.trial.trial_id, outcome=Outcome.INTERRUPTED
        )

    def renew(self) -> Command:
        return do.RenewLease(trial_number=self.trial.trial_number, trial_id=self.trial.trial_id)


PROFILE = do.ReportPowerProfile(
    batch_size=64,
    hardware=HARDWARE,
    measurements=(PowerMeasurement(power_limit_w=200.0, average_power_w=180.0, samples_per_s=900.0),),
)
COMMANDS: Mapping[str, Callable[[Trained], Command]] = {
    "see the job (`describe_job`)": lambda _: do.DescribeJob(),
    "register it again, unchanged (`register_job`)": lambda _: do.RegisterJob(spec=SPEC),
    "begin a trial (`begin_trial`)": lambda _: do.BeginTrial(hardware=HARDWARE),
    "report an epoch (`report_epoch`)": lambda job: report(job.trial, 1),
    "renew a lease (`renew_lease`)": Trained.renew,
    "finish a trial (`finish_trial`)": Trained.finish,
    "report a power profile (`report_power_profile`)": lambda _: PROFILE,
    "change its specification (`register_job`)": lambda _: do.RegisterJob(spec={**SPEC, "target_metric": 0.5}),
    "allow a batch size (`allow_batch_size`)": lambda _: do.AllowBatchSize(batch_size=64),
    "grant it (`grant_job`)": lambda _: do.GrantJob(login="mallory", right=Right.OPERATE),
    "give it away (`give_job`)": lambda _: do.GiveJob(login="mallory"),
    "delete it (`delete_job`)": lambda _: do.DeleteJob(),
}
INHERITING = "inherit from it (`like=`)"
ASKING_AGAIN = "ask again for an answer (the same `command_id`)"


@dataclass(kw_only=True)
class Team:
    """Each kind of login, connected."""

    senders: Mapping[str, RawSender]

    async def ask(self, login: str, job_id: str, command: Command, *, command_id: str | None = None) -> Reply:
        """The answer to a command that a login sends."""
        request = Request(command_id=command_id or str(uuid.uuid4()), job_id=job_id, command=command)
        await self.senders[login].send(encode_command(request), user_id=login)
        return await self.senders[login].receive_reply()

    async def trained(self) -> Trained:
        """A new job."""
        job_id, command_id, owner = new_job(), str(uuid.uuid4()), LOGINS["owner"]
        assert isinstance(await self.ask(owner, job_id, do.RegisterJob(spec=SPEC)), Registered)
        for login, right in GRANTED.items():
            granted = await self.ask(owner, job_id, do.GrantJob(login=login, right=right))
            assert isinstance(granted, RightsRecorded)
        trial = await self.ask(owner, job_id, do.BeginTrial(hardware=HARDWARE), command_id=command_id)
        assert isinstance(trial, TrialBegun)
        return Trained(job_id=job_id, trial=trial, begun_by=command_id)

    async def tried(self, operation: str, login: str) -> str:
        """Whether an operation is refused (no) or carried out (yes); in other words, what else came of it."""
        job = await self.trained()
        if operation == INHERITING:
            registered = await self.ask(login, new_job(), do.RegisterJob(spec=SPEC, like=job.job_id))
            assert isinstance(registered, Registered)
            return "no" if any("this login cannot read it" in words for words in registered.warnings) else "yes"
        if operation == ASKING_AGAIN:
            begin, register = do.BeginTrial(hardware=HARDWARE), do.RegisterJob(spec=SPEC)
            again = (begin, register, do.DescribeJob(), do.GiveJob(login="x"))
            replies = [await self.ask(login, job.job_id, one, command_id=job.begun_by) for one in again]
            return "yes" if any(isinstance(reply, TrialBegun) for reply in replies) else "no"
        reply = await self.ask(login, job.job_id, COMMANDS[operation](job))
        if not isinstance(reply, Problem):
            return "yes"
        return "no" if reply.type == "not_owner" else f"{reply.type}: {reply.detail}"


@pytest.fixture
async def team(amqp_url: str, rabbitmq_management: Management, store: SqlStore) -> AsyncIterator[Team]:
    """Logins with the permissions that are shipped, and a worker with a team and an operator."""
    await RabbitBroker(amqp_url).declare()

    def login(name: str) -> str:
        granted = worker_permissions() if name == "worker" else client_permissions(name, job_id_prefix=f"{name}-")
        url = rabbitmq_management.add_user(
            amqp_url, name, "secret", configure=granted.configure, write=granted.write, read=granted.read
        )
        rabbitmq_management.permit_topics(
            name, amqp_url, exchange=EVENTS, write=granted.topic_write, read=granted.topic_read
        )
        return url

    urls = {name: await asyncio.to_thread(login, name) for name in (*LOGINS.values(), "worker")}
    settings: dict[str, Any] = {"operators": ["root"], "teams": ["vision"]}
    async with (
        RabbitBroker(urls.pop("worker")) as broker,
        running_worker(broker, store, **settings),
        AsyncExitStack() as connected,
    ):
        yield Team(
            senders={name: await connected.enter_async_context(RawSender(url, user=name)) for name, url in urls.items()}
        )


async def test_each_login_may_do_what_the_page_says(team: Team) -> None:
    written = as_written()
    assert set(written) == {*COMMANDS, INHERITING, ASKING_AGAIN}
    tried = {
        operation: {kind: await team.tried(operation, login) for kind, login in LOGINS.items()} for operation in written
    }
    assert tried == written


def test_the_page_has_every_command_but_the_workers_own() -> None:
    named = {word for row in as_written() for word in re.findall(r"`(\w+)`", row)}
    every = {re.sub(r"(?<!^)(?=[A-Z])", "_", member.__name__).lower() for member in do.Command.__args__}
    assert every - named == {"expire_lease"}


async def test_a_login_without_rights_learns_nothing_from_a_refusal_but_the_owner(team: Team) -> None:
    job = await team.trained()
    reply = await team.ask("mallory", job.job_id, report(job.trial, 1, metric=0.99))
    assert isinstance(reply, Problem)
    assert "vision-ann" in reply.detail
    assert job.trial.trial_id not in str(reply)


async def test_the_name_of_a_deleted_job_stays_its_owners(team: Team) -> None:
    job = await team.trained()
    assert isinstance(await team.ask("olga", job.job_id, do.DeleteJob()), Deleted)
    for login in ("olga", "mallory"):
        refused = await team.ask(login, job.job_id, do.RegisterJob(spec=SPEC))
        assert isinstance(refused, Problem)
        assert refused.type == "not_owner"
    assert isinstance(await team.ask("vision-bob", job.job_id, do.RegisterJob(spec=SPEC)), Registered)


async def test_a_lost_owners_job_is_given_to_somebody_else_by_an_operator(team: Team) -> None:
    job = await team.trained()
    assert await team.ask("root", job.job_id, do.GiveJob(login="mallory")) == RightsRecorded(
        owner="mallory", grants=GRANTED
    )
    assert isinstance(await team.ask("mallory", job.job_id, do.BeginTrial(hardware=HARDWARE)), TrialBegun)
