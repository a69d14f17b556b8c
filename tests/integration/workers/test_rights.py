"""Every operation with every kind of login, as raw messages: what comes of it is what docs/security.md says."""

import asyncio
import itertools
import json
import os
import re
import shlex
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from bso.domain import commands as do
from bso.domain.commands import Command, PowerMeasurement, Request
from bso.domain.replies import Deleted, JobDescription, Problem, Registered, Reply, RightsRecorded, TrialBegun
from bso.domain.rights import Right
from bso.domain.trial import Outcome
from bso.schema.codec import encode_command, wire_name
from bso.service.engine import Engine
from bso.service.queries import CheckToken, Query
from bso.storage import SqlStore
from bso_broker.rabbit import RabbitBroker
from bso_broker.topology import QUERY_KEY
from bso_cli.main import app
from tests.integration.shipped import ShippedBroker, table_of_rights
from tests.integration.workers.fixtures import running_worker
from tests.integration.workers.raw import RawSender
from tests.integration.workers.recurrences import HARDWARE, SPEC, Ask, Direct, new_job, report
from tools.private_servers import Management

OWNER, TEAM, OPERATOR = "vision-ann", "vision-bob", "bso-operator"
GRANTED = {"olga": Right.OPERATE, "tim": Right.TRAIN, "rita": Right.READ}
KINDS: Mapping[str, Sequence[str | None]] = {
    "owner": [OWNER],
    "team": [TEAM],
    "may operate": ["olga"],
    "may train": ["tim"],
    "may read": ["rita"],
    "another login": ["nlp-eve", "bso-training", "bso-worker", "bso-gateway"],
    "operator": [OPERATOR],
    "no login": [None],
    "another login, a job of nobody": ["nlp-eve"],
}
"""Who is of each kind; None: who sends commands without a user_id. nlp is another team, bso-worker the workers,
bso-gateway names nobody else here."""

NOBODYS = "another login, a job of nobody"
FURTHER = [OWNER, TEAM, *GRANTED, "nlp-eve"]
"""The logins that are not shipped."""

Answer = Mapping[str, Any]
"""What a worker sends back: the envelope, as it is on the wire."""


@dataclass(kw_only=True)
class Trained:
    """A job and a trial of it, and the command_id that has begun the trial."""

    job_id: str
    trial: TrialBegun
    begun_by: str

    def finish(self) -> Command:
        return do.FinishTrial(
            trial_number=self.trial.trial_number, trial_id=self.trial.trial_id, outcome=Outcome.INTERRUPTED
        )

    def renew(self) -> Command:
        return do.RenewLease(trial_number=self.trial.trial_number, trial_id=self.trial.trial_id)

    def expire(self) -> Command:
        return do.ExpireLease(
            trial_number=self.trial.trial_number, trial_id=self.trial.trial_id, lease_expires_at=datetime.now(UTC)
        )


PROFILE = do.ReportPowerProfile(
    batch_size=64,
    hardware=HARDWARE,
    measurements=(PowerMeasurement(power_limit_w=200.0, average_power_w=180.0, samples_per_s=900.0),),
)
COMMANDS: Mapping[str, Callable[[Trained], Command]] = {
    "see the job (`describe_job`)": lambda _: do.DescribeJob(),
    "inherit from it (`like=`)": lambda job: do.RegisterJob(spec=SPEC, like=job.job_id),
    "register a new job `vision-...`, the team's name (`register_job`)": lambda _: do.RegisterJob(spec=SPEC),
    "register it again, unchanged (`register_job`)": lambda _: do.RegisterJob(spec=SPEC),
    "begin a trial (`begin_trial`)": lambda _: do.BeginTrial(hardware=HARDWARE),
    "report an epoch (`report_epoch`)": lambda job: report(job.trial, 1),
    "renew a lease (`renew_lease`)": Trained.renew,
    "expire a lease that has lapsed (`expire_lease`)": Trained.expire,
    "finish a trial (`finish_trial`)": Trained.finish,
    "report a power profile (`report_power_profile`)": lambda _: PROFILE,
    "report epoch costs (`report_epoch_costs`)": lambda job: do.ReportEpochCosts(
        trial_number=job.trial.trial_number, trial_id=job.trial.trial_id, time_s=1.0
    ),
    "change its specification (`register_job`)": lambda _: do.RegisterJob(spec={**SPEC, "target_metric": 0.5}),
    "allow a batch size (`allow_batch_size`)": lambda _: do.AllowBatchSize(batch_size=64),
    "grant it (`grant_job`)": lambda _: do.GrantJob(login="somebody", right=Right.OPERATE),
    "give it away (`give_job`)": lambda _: do.GiveJob(login="somebody"),
    "delete it (`delete_job`)": lambda _: do.DeleteJob(),
}
OF_NEW_JOBS = {
    "inherit from it (`like=`)": "",
    "register a new job `vision-...`, the team's name (`register_job`)": "vision-",
}
"""How the job begins that an operation registers."""

IN_THE_BODY: Mapping[str, Callable[[Trained], object]] = {
    "list_jobs": lambda job: job.job_id[:-1],
    "list_savings": lambda job: job.job_id[:-1],
    "follow_jobs": lambda job: {job.job_id: 0},
}
"""The queries that are not about the one job of their envelope: where they begin."""
ASKING_AGAIN = "ask again for an answer (the same `command_id`)"


def messages(operation: str, job: Trained) -> Iterator[tuple[str, bytes]]:
    """The messages of an operation, each with its routing key. What has no command of its own is a query."""
    if operation == ASKING_AGAIN:
        begin, register = do.BeginTrial(hardware=HARDWARE), do.RegisterJob(spec=SPEC)
        for command in (begin, register, do.DescribeJob(), do.GiveJob(login="x")):
            yield "command", encode_command(Request(command_id=job.begun_by, job_id=job.job_id, command=command))
    elif operation in COMMANDS:
        job_id = OF_NEW_JOBS[operation] + new_job() if operation in OF_NEW_JOBS else job.job_id
        request = Request(command_id=str(uuid.uuid4()), job_id=job_id, command=COMMANDS[operation](job))
        yield "command", encode_command(request)
    else:
        (name,) = re.findall(r"`(\w+)`", operation)
        envelope: dict[str, Any] = {"schema": "1.0", "type": name, "command_id": str(uuid.uuid4()), "body": {}}
        about: dict[str, Any] = {"job_id": job.job_id}
        if name in IN_THE_BODY:
            about = {"body": {"after": IN_THE_BODY[name](job)}}
        yield QUERY_KEY, json.dumps(envelope | about).encode()


_REFUSALS = ("not_owner", "no_user_id", "operators_only")


def verdict(answer: Answer, job: Trained) -> str:
    """Whether an operation was refused (no) or carried out (yes); in other words, what else came of it."""
    kind, body = answer["type"], answer["body"]
    if kind == "problem":
        return "no" if body["type"] in _REFUSALS else f"{body['type']}: {body['detail']}"
    if kind == "jobs_page":
        return "yes" if job.job_id in [one["summary"]["job_id"] for one in body["jobs"]] else "no"
    if kind == "savings_page":
        return "yes" if job.job_id in [one["job_id"] for one in body["jobs"]] else "no"
    if kind == "lease_expired" and body["state"] != "running":
        return f"the trial is {body['state']}, although its lease has not lapsed"
    return "no" if any("this login cannot read it" in words for words in body.get("warnings", ())) else "yes"


REMEDY = re.compile(r"(?P<who>[^;:]+) can [^:`]+: `(?P<command>bso [^`]+)`")
BY = {"its owner": OWNER, "the owner's team": TEAM, "an operator": OPERATOR}
"""Which login a refusal means when it says who can carry out its remedy."""


@dataclass(kw_only=True)
class Logins:
    """Each kind of login, connected to a broker with a worker."""

    broker: ShippedBroker
    direct: Ask
    senders: dict[str, RawSender] = field(default_factory=dict)
    remedied: set[tuple[str, str]] = field(default_factory=set)
    _turns: Iterator[int] = field(default_factory=itertools.count)

    async def ask(self, login: str, job_id: str, command: Command, *, command_id: str | None = None) -> Reply:
        """The answer to a command that a login sends."""
        request = Request(command_id=command_id or str(uuid.uuid4()), job_id=job_id, command=command)
        await self.senders[login].send(encode_command(request))
        return await self.senders[login].receive_reply()

    async def trained(self, owner: str = OWNER) -> Trained:
        """A new job of an owner's, granted to others."""
        job_id, begun_by, sender = new_job(), str(uuid.uuid4()), self.senders[owner]
        grants = [do.GrantJob(login=login, right=right) for login, right in GRANTED.items()]
        commands: list[Command] = [do.RegisterJob(spec=SPEC), *grants, do.BeginTrial(hardware=HARDWARE)]
        for command in commands:
            command_id = begun_by if isinstance(command, do.BeginTrial) else str(uuid.uuid4())
            await sender.send(encode_command(Request(command_id=command_id, job_id=job_id, command=command)))
        registered, *granted, trial = [await sender.receive_reply() for _ in commands]
        assert isinstance(registered, Registered)
        assert all(isinstance(one, RightsRecorded) for one in granted)
        assert isinstance(trial, TrialBegun)
        return Trained(job_id=job_id, trial=trial, begun_by=begun_by)

    async def trained_by_nobody(self) -> Trained:
        """A new job that was registered without a login, in the database itself."""
        job_id, begun_by = new_job(), str(uuid.uuid4())
        assert isinstance(await self.direct(job_id, do.RegisterJob(spec=SPEC)), Registered)
        trial = await self.direct(job_id, do.BeginTrial(hardware=HARDWARE), command_id=begun_by)
        assert isinstance(trial, TrialBegun)
        return Trained(job_id=job_id, trial=trial, begun_by=begun_by)

    async def tried(self, operation: str, kind: str) -> set[str]:
        """What comes of an operation by each login of a kind; of a refusal also that its remedy does not help."""
        came = set()
        for login in KINDS[kind]:
            job = await (self.trained_by_nobody() if kind == NOBODYS else self.trained())
            answer = await self.attempt(operation, login, job)
            said = verdict(answer, job)
            came.add(await self.followed(answer["body"], operation, login, job) if said == "no" else said)
        return came

    async def attempt(self, operation: str, login: str | None, job: Trained) -> Answer:
        """The answer to an operation: of several messages, the first that is no refusal."""
        sender, answers = self.senders[login or OWNER], list[Answer]()
        for key, body in messages(operation, job):
            await sender.send(body, routing_key=key, user_id=login)
            answers.append(json.loads(await sender.receive_body()))
        return next((answer for answer in answers if answer["type"] != "problem"), answers[0])

    async def followed(self, refusal: Mapping[str, Any], operation: str, login: str | None, job: Trained) -> str:
        """What comes of a refusal: no, where what it advises helps or it can advise nothing; else in words."""
        advice = str(refusal.get("detail", ""))
        if "choose another job_id" in advice:
            assert isinstance(await self.ask(str(login), new_job(), do.RegisterJob(spec=SPEC)), Registered)
        if refusal.get("type") == "no_user_id":
            login = OPERATOR if "show_operation" in operation else OWNER
        elif (remedy := REMEDY.search(advice)) is not None:
            await self.carry_out(remedy["command"], who=remedy["who"])
        else:
            known = ("the owner's team or an operator may", "only an operator may", "names that begin with vision-")
            return "no" if not advice or any(words in advice for words in known) else advice
        came = verdict(await self.attempt(operation, login, job), job)
        return "no" if came == "yes" else f"no; and after what was advised ({advice}): {came}"

    @asynccontextmanager
    async def joined_by(self, login: str) -> AsyncIterator[None]:
        """Add a login, and connect it."""
        await asyncio.to_thread(self.broker.add, login)
        async with RawSender(self.broker.urls[login], user=login) as sender:
            self.senders[login] = sender
            yield

    async def carry_out(self, command: str, *, who: str) -> None:
        """Run a command as one of those who can, according to a refusal: each of them in turn."""
        named = [login for words, login in BY.items() if words in who]
        login = named[next(self._turns) % len(named)]
        self.remedied.add((command.split()[2], login))
        await asyncio.to_thread(run, command, BSO_URL=self.broker.urls[login])


def run(command: str, **environment: str) -> str:
    """Run a command of bso in this process, to a good end, with a yes to what it asks; what it printed."""
    known = {name: None for name in os.environ if name.startswith("BSO_")}
    done = CliRunner().invoke(app, shlex.split(command)[1:], input="y\n", env={**known, **environment})
    assert done.exit_code == 0, (command, done.output)
    return done.output


@asynccontextmanager
async def connected(
    broker: ShippedBroker, store: SqlStore, *, further: list[str], **settings: Any
) -> AsyncIterator[Logins]:
    """The shipped logins and further ones, and a worker."""
    for login in further:
        await asyncio.to_thread(broker.add, login)
    settings = {"operators": [OPERATOR], "teams": ["vision", "nlp"], **settings}
    async with (
        RabbitBroker(broker.urls["bso-worker"]) as workers,
        running_worker(workers, store, **settings),
        AsyncExitStack() as open_connections,
    ):
        logins = Logins(broker=broker, direct=Direct(engine=Engine(store)))
        for name, url in broker.urls.items():
            logins.senders[name] = await open_connections.enter_async_context(RawSender(url, user=name))
        yield logins


@pytest.fixture
def shipped(amqp_url: str, rabbitmq_management: Management, tmp_path: Path) -> ShippedBroker:
    """A broker with the definitions that are shipped."""
    return ShippedBroker.loaded(rabbitmq_management, amqp_url, tmp_path / "secrets")


@pytest.fixture
async def logins(shipped: ShippedBroker, store: SqlStore) -> AsyncIterator[Logins]:
    """Each kind of login, and a worker with the settings of the compose stack and two teams."""
    async with connected(shipped, store, further=FURTHER) as logins:
        yield logins


async def test_each_login_may_do_what_the_page_says(logins: Logins) -> None:
    """Each refusal names a remedy and logins; each of these logins carries it out, and then the operation succeeds."""
    written = table_of_rights("## Operations")
    tried = {
        operation: {kind: " or ".join(await logins.tried(operation, kind)) for kind in KINDS} for operation in written
    }
    assert tried == written
    assert {login for command, login in logins.remedied if command == "grant"} == {OWNER, TEAM, OPERATOR}
    assert {login for command, login in logins.remedied if command == "give"} == {OPERATOR}


def test_the_page_has_every_command_and_every_query() -> None:
    written = table_of_rights("## Operations")
    assert written.keys() >= {*COMMANDS, ASKING_AGAIN}
    named = {word for operation in written for word in re.findall(r"`(\w+)`", operation)}
    of_gateways = {CheckToken}  # nobody else may ask it: tests/integration/gateway/test_tokens.py
    assert named >= {wire_name(member) for member in {*do.Command.__args__, *Query.__args__} - of_gateways}


async def test_who_names_no_login_may_do_everything_where_that_is_not_required(
    shipped: ShippedBroker, store: SqlStore
) -> None:
    async with connected(shipped, store, further=FURTHER, require_user_id=False) as logins:
        for operation in table_of_rights("## Operations"):
            assert (operation, await logins.tried(operation, "no login")) == (operation, {"yes"})


async def test_a_login_without_rights_learns_nothing_from_a_refusal_but_the_owner(logins: Logins) -> None:
    job = await logins.trained()
    reply = await logins.ask("nlp-eve", job.job_id, report(job.trial, 1, metric=0.99))
    assert isinstance(reply, Problem)
    assert OWNER in reply.detail
    assert job.trial.trial_id not in str(reply)


async def test_the_name_of_a_deleted_job_stays_its_owners(logins: Logins) -> None:
    job = await logins.trained()
    assert isinstance(await logins.ask("olga", job.job_id, do.DeleteJob()), Deleted)
    for login in ("olga", "nlp-eve"):
        refused = await logins.ask(login, job.job_id, do.RegisterJob(spec=SPEC))
        assert isinstance(refused, Problem)
        assert refused.type == "not_owner"
        assert "choose another job_id" in refused.detail
        assert isinstance(await logins.ask(login, new_job(), do.RegisterJob(spec=SPEC)), Registered)
    assert isinstance(await logins.ask(TEAM, job.job_id, do.RegisterJob(spec=SPEC)), Registered)


async def test_the_name_of_a_deleted_job_is_free_once_an_operator_has_purged_it(
    logins: Logins, migrated_url: str
) -> None:
    job = await logins.trained()
    assert isinstance(await logins.ask(OWNER, job.job_id, do.DeleteJob()), Deleted)
    refused = await logins.ask("nlp-eve", job.job_id, do.RegisterJob(spec=SPEC))
    assert isinstance(refused, Problem)
    assert "until an operator purges it" in refused.detail
    await asyncio.to_thread(run, "bso jobs purge --before 0d --yes", BSO_DATABASE_URL=migrated_url)
    assert isinstance(await logins.ask("nlp-eve", job.job_id, do.RegisterJob(spec=SPEC)), Registered)


async def test_a_job_whose_owners_login_is_removed_goes_on_and_operators_can_do_what_the_owner_could(
    logins: Logins,
) -> None:
    management, changing = logins.broker.management, do.RegisterJob(spec={**SPEC, "target_metric": 0.5})
    async with logins.joined_by("gone"):
        job = await logins.trained(owner="gone")
    await asyncio.to_thread(management.request, "DELETE", "users/gone")
    assert isinstance(await logins.ask("tim", job.job_id, do.BeginTrial(hardware=HARDWARE)), TrialBegun)
    refused = await logins.ask("tim", job.job_id, changing)
    assert isinstance(refused, Problem)
    assert "belongs to gone" in refused.detail
    remedy = REMEDY.search(refused.detail)
    assert remedy is not None
    assert "an operator" in remedy["who"]
    await logins.carry_out(remedy["command"], who="an operator")
    assert isinstance(await logins.ask("tim", job.job_id, changing), Registered)
    async with logins.joined_by("gone"):
        assert isinstance(await logins.ask("gone", job.job_id, do.DescribeJob()), JobDescription)
        await logins.carry_out(f"bso jobs give {job.job_id} nlp-eve", who="an operator")
        assert isinstance(await logins.ask("gone", job.job_id, do.DescribeJob()), Problem)
    assert isinstance(await logins.ask("nlp-eve", job.job_id, do.BeginTrial(hardware=HARDWARE)), TrialBegun)
