"""Tokens: made and revoked by operators, asked for by gateways over a file and over a broker."""

import asyncio
import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.types import ASGIApp, Message
from typer.testing import CliRunner, Result

from bso.domain.commands import BeginTrial, Command, RegisterJob, Request
from bso.domain.frozen_values import replace
from bso.domain.hardware import EnergyMethod, HardwareKind
from bso.domain.replies import Problem
from bso.domain.rights import Right
from bso.domain.tokens import ALL_JOBS, Token
from bso.schema.codec import encode_command
from bso.service.queries import Asked, CheckToken, FollowJobs, encode_query
from bso.service.tokens import digest_of, new_secret
from bso.storage import open_store
from bso_broker.connection import login_of
from bso_cli.main import app
from bso_gateway.access import KNOWN_FOR_S, Access
from bso_gateway.front import Front, GatewayMetrics
from bso_gateway.http import Gate, Limits
from bso_gateway.live import Streams
from bso_gateway.optimizer import SqliteOptimizer
from bso_gateway.rest import RestApi
from tests.integration.gateway.conftest import SPEC, Answered, Gateway, StartGateway
from tests.integration.workers.fixtures import StartWorker
from tests.servers import PATIENCE_S, eventually_async

LIMITS = Limits(max_body_bytes=1_048_576, body_timeout_s=PATIENCE_S, answer_timeout_s=PATIENCE_S)
DIGITS = {"batch_sizes": [32, 64], "default_batch_size": 64}
A40 = HardwareKind(gpu_model="A40", max_power_w=300.0, energy_method=EnergyMethod.NVML_COUNTER)
HARDWARE = {"gpu_model": "A40", "max_power_w": 300.0, "energy_method": "nvml_counter"}


@dataclass(frozen=True, slots=True)
class Guarded:
    """A gateway that asks for tokens, and the database that keeps them."""

    gateway: Gateway
    database_url: str

    def bso(self, *words: str) -> Any:
        """What a command of an operator prints."""
        done = subprocess.run(
            [sys.executable, "-m", "bso_cli", "tokens", *words, "--json"],
            env=os.environ | {"BSO_DATABASE_URL": self.database_url},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def token(self, *words: str) -> str:
        """A new token."""
        secret: str = self.bso("create", *words)["token"]
        return secret

    def ask(self, token: str, method: str, path: str, body: object = None) -> Answered:
        """The answer to a request with a token."""
        headers = {"Authorization": f"Bearer {token}", "Content_Type": "application/json"}
        return self.gateway.ask(method, path, body, **headers)


@pytest.fixture(params=["sqlite", pytest.param("broker", marks=pytest.mark.slow)])
def guarded(request: pytest.FixtureRequest, start_gateway: StartGateway, tmp_path: Any) -> Guarded:
    """Over a file, and over a broker with a worker."""
    if request.param == "sqlite":
        return Guarded(start_gateway(tokens=True), f"sqlite:///{tmp_path / 'bso.sqlite'}")
    database_url: str = request.getfixturevalue("migrated_url")
    url: str = request.getfixturevalue("amqp_url")
    start_worker: StartWorker = request.getfixturevalue("start_worker")
    start_worker(gateways=login_of(url)).ready()
    return Guarded(start_gateway(url=url, tokens=True), database_url)


async def tokens_of(
    database_url: str, users: Sequence[str], *, right: Right = Right.TRAIN, jobs: str = ALL_JOBS
) -> Sequence[str]:
    """The secrets of new tokens, made without a process for each."""
    store = open_store(database_url)
    now, secrets = await store.tokens.now(), []
    for user in users:
        token_id, secret = new_secret(os.urandom)
        token = Token(token_id=token_id, user=user, right=right, jobs=jobs, created_at=now)
        await store.tokens.create(token, digest_of(secret))
        secrets.append(secret)
    await store.close()
    return secrets


async def revoke_all(database_url: str) -> None:
    """Let no token open anything any more."""
    store = open_store(database_url)
    for token in await store.tokens.all():
        await store.tokens.change(replace(token, revoked_at=await store.tokens.now()))
    await store.close()


@dataclass(slots=True)
class Clock:
    """Stands still until it is moved."""

    now_s: float = 0.0


class LiveEvents:
    """The answer of an application in this process to a request for live events, as far as it has come."""

    def __init__(self) -> None:
        self.text = ""
        self.has_ended = False
        self._asked = False

    async def read(self, app: ASGIApp, target: str, token: str) -> None:
        """Read until the application ends it."""
        path, _, query = target.partition("?")
        headers = {"host": "localhost", "accept": "text/event-stream", "authorization": f"Bearer {token}"}
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "GET",
            "scheme": "http",
            "path": path,
            "query_string": query.encode(),
            "headers": [(name.encode(), text.encode()) for name, text in headers.items()],
            "client": ("127.0.0.1", 1),
        }
        await app(scope, self._receive, self._send)

    async def _receive(self) -> Message:
        if self._asked:
            await asyncio.Event().wait()  # the client does not go away
        self._asked = True
        return {"type": "http.request", "body": b"", "more_body": False}

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            assert message["status"] == 200
            return
        self.text += message["body"].decode()
        self.has_ended = not message.get("more_body", False)


@pytest.mark.parametrize(
    ("jobs", "seen"),
    [
        ("vision-*", ["vision-1", "vision-2", "vision-3"]),
        ("v?s*-[23]", ["vision-2", "vision-3"]),
        ("vision-2", ["vision-2"]),
        ("*-z", ["night-z", "zoo-z"]),
        ("nothing-*", []),
    ],
)
def test_a_token_for_some_jobs_lists_these_and_names_no_other(guarded: Guarded, jobs: str, seen: list[str]) -> None:
    alice = guarded.token("alice")
    for name in ("night-z", *(f"vision-{number}" for number in (1, 2, 3)), "zoo-z"):
        assert guarded.ask(alice, "POST", "/jobs", SPEC | {"job_id": name, "job_id_prefix": name[:2]}).status == 201
    for number in range(25):
        name = f"secret-{number:02}" if number % 2 else f"visionary-{number:02}"
        assert guarded.ask(alice, "POST", "/jobs", SPEC | {"job_id": name, "job_id_prefix": name[:2]}).status == 201
    token = guarded.token("alice", "--jobs", jobs, "--may", "read")
    for path in ("/v1/jobs", "/v1/savings"):
        after: str | None = ""
        found = list[str]()
        while after is not None:
            page = guarded.ask(token, "GET", f"{path}?after={after}")
            assert page.status == 200
            assert "secret" not in str(page.value)
            found += [one["job_id"] for one in page.value["jobs"]]
            after = page.value["next_after"]
        assert found == seen


def test_each_token_is_for_what_it_was_made(guarded: Guarded) -> None:
    gateway = guarded.gateway
    assert gateway.ask("GET", "/livez").status == 200
    for path in ("/v1/jobs", "/jobs/batch_size?job_id=mnist-1", "/openapi.json"):
        refused = gateway.ask("GET", path)
        assert (refused.status, refused.headers["www-authenticate"]) == (401, "Bearer")
    alice = guarded.token("alice", "--jobs", "mnist-*")
    bob, carol = guarded.token("bob"), guarded.token("alice", "--may", "read")
    job = SPEC | {"job_id": "mnist-1"}
    assert guarded.ask(carol, "POST", "/jobs", job).status == 403
    assert guarded.ask(alice, "POST", "/jobs", job).status == 201
    assert guarded.ask(alice, "POST", "/jobs", job | {"job_id": "cifar-1", "job_id_prefix": "cifar"}).status == 403
    begun = guarded.ask(alice, "GET", "/jobs/batch_size?job_id=mnist-1")
    assert begun.value["trial_number"] == 1
    assert guarded.ask(alice, "DELETE", "/jobs?job_id=mnist-1").status == 403, "it is to train"

    others = guarded.ask(bob, "POST", "/v1/jobs/mnist-1/trials", {"hardware": HARDWARE})
    assert (others.status, others.value["code"]) == (403, "not_owner")
    assert [each["owner"] for each in guarded.ask(carol, "GET", "/v1/jobs").value["jobs"]] == ["alice"]
    assert guarded.ask(bob, "GET", "/v1/jobs").value["jobs"] == []
    assert guarded.ask(carol, "GET", "/v1/jobs/mnist-1/trials").value["trials"][0]["trial_number"] == 1
    assert guarded.ask(carol, "GET", "/v1/events?job_id=mnist-1").value["events"][0]["seq"] == 1
    assert guarded.ask(bob, "GET", "/v1/events?job_id=mnist-1").value["code"] == "not_owner"
    cursor = guarded.ask(carol, "GET", "/v1/events?job_id=mnist-1").value["next_after"]
    nothing_new = guarded.ask(carol, "GET", f"/v1/events?job_id=mnist-1&after={cursor}")
    assert nothing_new.value == {"events": [], "next_after": None}
    guessed = guarded.ask(bob, "GET", f"/v1/events?job_id=mnist-1&after={cursor}")
    assert (guessed.status, guessed.value["code"]) == (403, "not_owner"), "nor whether there is anything new"
    assert guarded.ask(alice, "GET", "/v1/events?job_id=mnist-1&job_id=cifar-1").value["code"] == "token_not_for_this"
    follow = encode_query(Asked(query=FollowJobs(after={"cifar-1": 0}), query_id=str(uuid.uuid4())))
    assert guarded.ask(alice, "POST", "/v1/queries", follow).value["code"] == "token_not_for_this"


def test_nobody_names_somebody_else_in_a_message(guarded: Guarded) -> None:
    bob = guarded.token("bob")
    registering = Request(
        command_id=str(uuid.uuid4()), job_id="mine", command=RegisterJob(spec=DIGITS), on_behalf_of="alice"
    )
    assert guarded.ask(bob, "POST", "/v1/commands", encode_command(registering)).status == 200
    assert [each["owner"] for each in guarded.ask(bob, "GET", "/v1/jobs").value["jobs"]] == ["bob"]
    checking = Asked(query=CheckToken(token_id="0" * 12, digest="0" * 64), query_id=str(uuid.uuid4()))
    assert guarded.ask(bob, "POST", "/v1/queries", encode_query(checking)).status == 422


def test_many_who_come_at_once_for_the_first_time_are_let_in(guarded: Guarded) -> None:
    guarded.token("first")  # the tables are there
    secrets = asyncio.run(tokens_of(guarded.database_url, [f"user-{number}" for number in range(24)]))

    def answered(secret: str) -> int:
        """The first answer that is not to ask again later, as on a busy machine."""
        while (answer := guarded.ask(secret, "GET", "/v1/jobs")).status == 503:
            time.sleep(float(answer.headers["retry-after"]))  # noqa: TID251  # as the gateway asks for
        return answer.status

    with ThreadPoolExecutor(len(secrets)) as pool:
        assert list(pool.map(answered, secrets)) == [200] * len(secrets)


def test_zeus_clients_have_it_as_a_password(guarded: Guarded) -> None:
    token = guarded.token("alice")
    basic = subprocess.run(["base64", "-w0"], input=f"any:{token}", capture_output=True, text=True, check=True).stdout
    job = SPEC | {"job_id": "mnist-1"}
    assert guarded.gateway.ask("POST", "/jobs", job, Authorization=f"Basic {basic}").status == 201
    shown = guarded.gateway.process.text()
    assert token not in shown
    assert basic not in shown


def test_tokens_are_listed_rotated_and_revoked(guarded: Guarded) -> None:
    first = guarded.token("alice", "--expires", "90d")
    assert guarded.ask(first, "GET", "/v1/jobs").status == 200
    [listed] = guarded.bso("list")
    assert (listed["name"], listed["may"], listed["jobs"], listed["problem"]) == ("alice", "train", "*", None)
    assert listed["last_used_at"] is not None
    assert "digest" not in listed
    second = guarded.bso("rotate", listed["token_id"], "--overlap", "1h")["token"]
    for token in (first, second):
        assert guarded.ask(token, "GET", "/v1/jobs").status == 200
    guarded.bso("revoke", listed["token_id"])
    assert [each["problem"] is None for each in guarded.bso("list")] == [False, True]
    with_another = Gateway(guarded.gateway.process)
    assert with_another.ask("GET", "/v1/jobs", Authorization=f"Bearer {second}").status == 200


def test_a_forged_token_opens_nothing(guarded: Guarded) -> None:
    token = guarded.token("alice")
    forged = token[:-1] + ("A" if token[-1] != "A" else "B")
    for secret in (forged, token[:30], "", token + "x"):
        assert guarded.ask(secret, "GET", "/v1/jobs").status == 401
    assert guarded.ask(token, "GET", "/v1/jobs").status == 200


def test_a_token_may_be_made_before_the_first_gateway(start_gateway: StartGateway, tmp_path: Any) -> None:
    url = f"sqlite:///{tmp_path / 'bso.sqlite'}"
    environ = {name: text for name, text in os.environ.items() if not name.startswith("BSO_")}
    made = subprocess.run(
        [sys.executable, "-m", "bso_cli", "tokens", "create", "alice"],
        env=environ | {"BSO_URL": url},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    assert Guarded(start_gateway(tokens=True), url).ask(made.stdout.strip(), "GET", "/v1/jobs").status == 200


def test_a_revoked_token_opens_nothing_at_a_new_gateway(start_gateway: StartGateway, tmp_path: Any) -> None:
    first = Guarded(start_gateway(tokens=True), f"sqlite:///{tmp_path / 'bso.sqlite'}")
    token = first.token("alice")
    first.bso("revoke", first.bso("list")[0]["token_id"])
    refused = Guarded(start_gateway(tokens=True), first.database_url).ask(token, "GET", "/v1/jobs")
    assert (refused.status, refused.value["code"]) == (401, "unauthorized")


@pytest.mark.parametrize("target", ["/v1/jobs/job/events", "/v1/events?job_id=job"])
async def test_live_events_end_with_their_token(target: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'bso.sqlite'}"
    optimizer = SqliteOptimizer(url)
    await optimizer.start()
    [secret] = await tokens_of(url, ["alice"])
    clock = Clock()
    gate = Gate(optimizer, LIMITS, is_draining=asyncio.Event())
    app = FastAPI()
    app.include_router(RestApi(gate, Streams()).router())
    front = Front(
        app,
        pages=app,
        names=(),
        metrics=GatewayMetrics(),
        has_access_log=False,
        access=Access(gate.check, clock=lambda: clock.now_s),
        answer_timeout_s=LIMITS.answer_timeout_s,
        direct={},
    )

    async def decide(command: Command) -> None:
        request = Request(command_id=str(uuid.uuid4()), job_id="job", command=command, on_behalf_of="alice")
        assert not isinstance(await optimizer.call(request, timeout_s=PATIENCE_S), Problem)

    await decide(RegisterJob(spec=DIGITS))
    stream = LiveEvents()
    reading = asyncio.create_task(stream.read(front, target, secret))
    try:
        await eventually_async(lambda: "event: job_registered" in stream.text)
        clock.now_s += KNOWN_FOR_S
        await decide(BeginTrial(hardware=A40))
        await eventually_async(lambda: "event: trial_started" in stream.text, what="events of a token that is good")
        await revoke_all(url)
        clock.now_s += KNOWN_FOR_S
        async with asyncio.timeout(PATIENCE_S):
            await reading
    finally:
        reading.cancel()
        await optimizer.close()
    assert stream.has_ended


@pytest.mark.parametrize(
    ("typed", "right"),
    [
        ("read", Right.READ),
        ("read,train", Right.TRAIN),
        ("train, read", Right.TRAIN),
        ("train,read,operate", Right.OPERATE),
    ],
)
def test_of_several_rights_the_one_counts_that_includes_the_others(typed: str, right: Right, tmp_path: Any) -> None:
    made = _create("--may", typed, database=f"sqlite:///{tmp_path / 'bso.sqlite'}")
    assert json.loads(made.output)["may"] == right.value


@pytest.mark.parametrize("typed", ["", "read,", "train,delete", "TRAIN", "read train"])
def test_what_is_no_right_is_refused(typed: str, tmp_path: Any) -> None:
    refused = _create("--may", typed, database=f"sqlite:///{tmp_path / 'bso.sqlite'}")
    assert refused.exit_code == 2
    assert "expected read, train, operate, or several of them, separated by commas; got '" in " ".join(
        refused.output.replace("│", " ").split()
    )
    assert not list(tmp_path.iterdir())


def _create(*words: str, database: str) -> Result:
    environ = {"BSO_DATABASE_URL": database, "COLUMNS": "200", "TERM": "dumb"}
    return CliRunner().invoke(app, ["tokens", "create", "ann", *words, "--json"], env=environ)


def test_with_tokens_it_may_listen_for_other_machines(start_gateway: StartGateway) -> None:
    gateway = start_gateway(tokens=True, host="0.0.0.0", names="bso.example")
    assert gateway.ask("GET", "/livez", Host="bso.example").status == 200


def test_a_login_that_is_no_gateway_cannot_check_tokens(
    amqp_url: str, migrated_url: str, start_gateway: StartGateway, start_worker: StartWorker
) -> None:
    start_worker().ready()
    guarded = Guarded(start_gateway(url=amqp_url, tokens=True), migrated_url)
    refused = guarded.ask(guarded.token("alice"), "GET", "/v1/jobs")
    assert refused.status == 503
    assert "BSO_GATEWAYS" in refused.value["detail"]


def test_a_token_that_is_rotated_again_has_as_long_as_the_first_one(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'bso.sqlite'}"
    first = answered(tokens(url, "create", "ann"))
    answered(tokens(url, "rotate", first["token_id"], "--overlap", "1h"))
    again = answered(tokens(url, "rotate", first["token_id"], "--overlap", "7d"))
    assert again["expires_at"] is None
    of_bob = answered(tokens(url, "create", "bob", "--expires", "90d"))
    answered(tokens(url, "rotate", of_bob["token_id"], "--overlap", "1h"))
    again = answered(tokens(url, "rotate", of_bob["token_id"]))
    assert again["lifetime_s"] == 90 * 86400
    assert again["expires_at"] >= of_bob["expires_at"]
    ends = {each["token_id"]: each["expires_at"] for each in answered(tokens(url, "list"))}
    said = tokens(url, "rotate", of_bob["token_id"], "--overlap", "7d", as_json=False).stderr
    assert f"valid until {ends[of_bob['token_id']][:19].replace('T', ' ')}" in " ".join(said.split())


def test_the_token_itself_names_it_and_is_not_shown(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'bso.sqlite'}"
    token = answered(tokens(url, "create", "ann"))["token"]
    refused = tokens(url, "revoke", token.replace("bso_", "bso-"))
    assert refused.exit_code == 2
    assert "as `bso tokens list` shows" in " ".join(refused.stderr.replace("│", " ").split())
    revoked = tokens(url, "revoke", token[:-20])
    assert answered(revoked)["revoked_at"] is not None
    for done in (refused, revoked):
        assert token.rpartition("_")[2][:20] not in done.output


def test_a_token_that_nobody_has_read_is_revoked(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'bso.sqlite'}"
    environ = {name: text for name, text in os.environ.items() if not name.startswith("BSO_")}
    with Path("/dev/full").open("w") as full:
        create = [sys.executable, "-m", "bso_cli", "tokens", "create", "ann"]
        done = subprocess.run(
            create,
            env=environ | {"BSO_URL": url},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
    assert done.returncode == 1
    assert "could not be printed, and is revoked" in " ".join(done.stderr.split())
    [made] = answered(tokens(url, "list"))
    assert made["revoked_at"] is not None


def tokens(url: str, *words: str, as_json: bool = True) -> Result:
    options = ["--json"] if as_json else []
    return CliRunner().invoke(app, ["tokens", *words, *options], env={"BSO_URL": url, "BSO_DATABASE_URL": None})


def answered(done: Result) -> Any:
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)
