"""Trainings and commands over HTTP: the same decisions as over a broker and over a file, and the same patience."""

import asyncio
import json
import os
import re
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from bso.domain.commands import (
    BeginTrial,
    Command,
    DeleteJob,
    DescribeJob,
    FinishTrial,
    OnConflict,
    RegisterJob,
    ReportEpoch,
    Request,
)
from bso.domain.errors import BsoError, Misconfigured
from bso.domain.frozen_values import replace
from bso.domain.hardware import EnergyMethod, HardwareKind
from bso.domain.replies import EpochJudged, JobDescription, Problem, Reply, TrialBegun
from bso.domain.trial import Outcome
from bso_broker.connection import login_of
from bso_client import BatchSizeOptimizer, JobSpec
from bso_client.delivery.flush import Flushed, flush
from bso_client.delivery.journal import Journal, Kept, destination_of
from bso_client.delivery.left_behind import contents
from bso_client.delivery.obstacle import REFUSED, obstacle_of
from bso_client.errors import Unreachable
from bso_client.settings import read_settings
from bso_client.transports import Transport, open_transport
from bso_client.transports.http import HttpCaller, NotTaken
from tests.integration.gateway.conftest import StartGateway
from tests.integration.gateway.test_hostile_http import without_its_body
from tests.integration.gateway.test_tokens import tokens_of
from tests.integration.workers.fixtures import StartWorker
from tests.servers import PATIENCE_S
from tests.servers.proxy import TcpProxy

JSON = {"Content_Type": "application/json"}
A40 = HardwareKind(gpu_model="A40", max_power_w=300.0, energy_method=EnergyMethod.NVML_COUNTER)
TOO_LARGE = b'{"type": "urn:bso:problem:too_large", "code": "too_large", "detail": "a body may have at most 10 bytes"}'
SPEC = {"batch_sizes": [32, 64, 128], "default_batch_size": 64, "target_metric": 0.9, "max_epochs": 4}


class Life:
    """Recurrences of one job over a transport; the ids of commands are always the same, and so are all draws."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._sent = 0
        self.replies: list[Reply] = []

    async def live(self) -> list[Reply]:
        await self._transport.start()
        try:
            await self._send(RegisterJob(spec=SPEC))
            await self._send(RegisterJob(spec={"batch_sizes": []}))
            for night in range(6):
                await self._train(epochs=3 if night % 2 else 9)
            await self._send(DescribeJob())
            await self._send_refused()
        finally:
            await self._transport.close()
        return self.replies

    async def _train(self, *, epochs: int) -> None:
        trial = await self._send(BeginTrial(hardware=A40))
        assert isinstance(trial, TrialBegun)
        named: dict[str, Any] = {"trial_number": trial.trial_number, "trial_id": trial.trial_id}
        for epoch in range(1, 5):
            numbers: dict[str, Any] = {"time_s": 50.0 * epoch, "energy_j": 9_000.0 * epoch + trial.batch_size}
            metric = 0.95 if epoch >= epochs else 0.1 * epoch
            judged = await self._send(ReportEpoch(**named, epoch=float(epoch), metric=metric, **numbers))
            assert isinstance(judged, EpochJudged)
            if judged.should_stop:
                await self._send(FinishTrial(**named, outcome=judged.outcome or Outcome.INTERRUPTED))
                break

    async def _send_refused(self) -> None:
        """Send what is refused, and what was sent before."""
        await self._send(BeginTrial(hardware=replace(A40, max_power_w=0.0)))
        await self._send(RegisterJob(spec=SPEC | {"eta_knob": 0.1}, on_conflict=OnConflict.RAISE))
        await self._send(DescribeJob(), job_id="nobody")
        trial = await self._send(BeginTrial(hardware=A40))
        assert isinstance(trial, TrialBegun)
        report = ReportEpoch(
            trial_number=trial.trial_number, trial_id=trial.trial_id, epoch=2.0, time_s=9.0, energy_j=9.0, metric=0.1
        )
        for sent in (
            report,
            report,
            replace(report, metric=0.2),
            replace(report, epoch=3.0, time_s=1.0),
            replace(report, trial_number=99),
            replace(report, trial_id="another"),
            FinishTrial(trial_number=trial.trial_number, trial_id=trial.trial_id, outcome=Outcome.CANCELLED),
            replace(report, epoch=3.0, time_s=10.0),
        ):
            await self._send(sent)

    async def _send(self, command: Command, *, job_id: str = "job") -> Reply:
        self._sent += 1
        command_id = str(uuid.uuid5(uuid.NAMESPACE_OID, str(self._sent)))
        request = Request(command_id=command_id, job_id=job_id, command=command)
        self.replies.append(await self._transport.call(request, timeout_s=PATIENCE_S))
        return self.replies[-1]


@pytest.fixture(params=["http over a file", "http over workers", "amqp to workers"])
def transport(request: pytest.FixtureRequest, start_gateway: StartGateway) -> Transport:
    """Each way to an optimizer that is another process."""
    if request.param == "http over a file":
        return open_transport(start_gateway().url)
    request.getfixturevalue("migrated_url")
    url: str = request.getfixturevalue("amqp_url")
    start_worker: StartWorker = request.getfixturevalue("start_worker")
    start_worker(gateways=login_of(url)).ready()
    return open_transport(url if request.param == "amqp to workers" else start_gateway(url=url).url)


async def test_decisions_and_errors_are_those_of_the_embedded_optimizer(transport: Transport, tmp_path: Path) -> None:
    embedded = await Life(open_transport(f"sqlite:///{tmp_path / 'embedded.sqlite'}")).live()
    elsewhere = await Life(transport).live()
    assert [_comparable(reply) for reply in elsewhere] == [_comparable(reply) for reply in embedded]
    assert {type(reply).__name__ for reply in embedded} >= {"Registered", "TrialBegun", "EpochJudged", "TrialFinished"}
    problems = {reply.type for reply in embedded if isinstance(reply, Problem)}
    assert problems == {
        "invalid_spec",
        "invalid_trial",
        "job_conflict",
        "unknown_job",
        "unknown_trial",
        "wrong_trial_id",
        "conflicting_report",
        "report_goes_backwards",
        "trial_ended",
    }


def _comparable(reply: Reply) -> str:
    """A reply without the moments and the owner in it."""
    if isinstance(reply, JobDescription):
        reply = replace(reply, active_trials=(), owner=None)
    return str(reply)


def train(url: str, state_dir: Path, metrics: list[float], **options: Any) -> Outcome | None:
    spec = JobSpec(job_id="job", batch_sizes=[32, 64], default_batch_size=64, target_metric=0.9)
    with BatchSizeOptimizer(spec, url=url, state_dir=state_dir, **options) as bso:
        for trial in bso.trials():
            with trial:
                for metric in metrics:
                    trial.on_evaluate(metric)
                    if trial.finished:
                        break
            return trial.outcome
    return None


def test_a_training(start_gateway: StartGateway, tmp_path: Path) -> None:
    gateway = start_gateway()
    assert train(gateway.url, tmp_path, [0.1, 0.95]) is Outcome.CONVERGED
    [trial] = gateway.ask("GET", "/v1/jobs/job/trials").value["trials"]
    assert (trial["outcome"], trial["epoch"]) == ("converged", 2.0)


def test_what_cannot_be_delivered_is_kept_and_delivered_later(start_gateway: StartGateway, tmp_path: Path) -> None:
    gateway = start_gateway()
    train(gateway.url, tmp_path, [0.95])
    port, url = gateway.port, gateway.url
    gateway.process.kill()
    assert train(url, tmp_path, [0.1, 0.95], unreachable_timeout=0.3) is Outcome.CONVERGED
    bso = [sys.executable, "-m", "bso_cli"]
    environ = {name: text for name, text in os.environ.items() if not name.startswith("BSO_")}
    environ |= {"BSO_URL": url, "BSO_STATE_DIR": str(tmp_path)}
    again = start_gateway(port=port)
    flushed = subprocess.run(
        [*bso, "journal", "flush"], env=environ, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert flushed.returncode == 0, flushed.stderr
    trials = again.ask("GET", "/v1/jobs/job/trials").value["trials"]
    assert [each["outcome"] for each in trials] == ["converged"] * 2
    listed = subprocess.run(
        [*bso, "jobs", "list", "--json"], env=environ, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert [each["job_id"] for each in json.loads(listed.stdout)] == ["job"], listed.stderr


async def test_what_is_sent_again_for_the_journal_before_its_first_answer_is_not_given_up(
    amqp_url: str, migrated_url: str, start_gateway: StartGateway, start_worker: StartWorker
) -> None:
    worker = start_worker(gateways=login_of(amqp_url)).ready()
    gateway = start_gateway(url=amqp_url, answer_timeout_s=PATIENCE_S)
    async with connected(gateway.url) as transport:
        trial = await begun(transport)
        worker.stop()
        awaited = report_of(trial, 1.0, is_journalled=False)
        late = replace(report_of(trial, 1.0), command_id=awaited.command_id)
        for request in (awaited, late):
            with pytest.raises(Unreachable):
                await transport.call(request, timeout_s=0.6)
        start_worker(gateways=login_of(amqp_url)).ready()
        assert isinstance(await transport.call(late, timeout_s=PATIENCE_S), EpochJudged)


async def test_what_a_gateway_refuses_is_set_aside_with_the_reason_and_what_comes_after_it_is_delivered(
    start_gateway: StartGateway, tmp_path: Path
) -> None:
    gateway = start_gateway(max_body_bytes=2048)
    async with connected(gateway.url) as transport:
        trial, deleted = await begun(transport), await begun(transport, "deleted")
        await transport.call(request_of(DeleteJob(), "deleted"), timeout_s=PATIENCE_S)
        too_large = FinishTrial(
            trial_number=1, trial_id=trial, outcome=Outcome.INTERRUPTED, reason=2048 * "x", is_journalled=True
        )
        for letters, reason in (
            ([request_of(too_large), report_of(trial, 1.0)], "not_taken: .* at most 2048 bytes"),
            ([report_of("another", 2.0), report_of(trial, 2.0)], "wrong_trial_id: "),
            ([report_of(deleted, 1.0, "deleted")], "trial_ended: .* was deleted"),
        ):
            folder = left_behind(tmp_path, gateway.url, letters)
            flushed = await flush(folder, transport, timeout_s=PATIENCE_S)
            assert flushed == Flushed(delivered=len(letters) - 1, set_aside=1)
            (aside,) = (each.set_aside[-1] for each in contents(tmp_path) if each.folder == folder)
            assert re.match(reason, aside["reason"])
    [recorded] = gateway.ask("GET", "/v1/jobs/job/trials").value["trials"]
    assert recorded["epoch"] == 2.0


@pytest.mark.parametrize(("jobs", "status"), [(None, 401), ("other-*", 403)])
async def test_what_a_gateway_does_not_let_in_is_kept_until_the_token_is_corrected(
    jobs: str | None, status: int, start_gateway: StartGateway, tmp_path: Path
) -> None:
    gateway = start_gateway(tokens=True)
    database_url = f"sqlite:///{tmp_path / 'bso.sqlite'}"
    [right] = await tokens_of(database_url, ["alice"])
    wrong = right[:-1] + ("A" if right[-1] != "A" else "B")
    if jobs is not None:
        [wrong] = await tokens_of(database_url, ["alice"], jobs=jobs)
    async with connected(with_token(gateway.url, right)) as transport:
        folder = left_behind(tmp_path, gateway.url, [report_of(await begun(transport), 1.0)])
        async with connected(with_token(gateway.url, wrong)) as refused:
            flushed = await flush(folder, refused, timeout_s=PATIENCE_S)
        assert isinstance(flushed.obstacle, Misconfigured)
        assert f"answers {status}" in str(flushed.obstacle)
        assert await flush(folder, transport, timeout_s=PATIENCE_S) == Flushed(delivered=1)


async def test_what_a_gateway_has_no_room_for_is_kept_until_it_has(start_gateway: StartGateway, tmp_path: Path) -> None:
    gateway = start_gateway(max_connections=1)
    async with connected(gateway.url) as transport:
        folder = left_behind(tmp_path, gateway.url, [report_of(await begun(transport), 1.0)])
    with without_its_body(gateway):
        async with connected(gateway.url) as transport:
            flushed = await flush(folder, transport, timeout_s=2.0)
    assert isinstance(flushed.obstacle, Unreachable)
    assert "BSO_GATEWAY_MAX_CONNECTIONS" in str(flushed.obstacle)
    async with connected(gateway.url) as transport:
        assert await flush(folder, transport, timeout_s=PATIENCE_S) == Flushed(delivered=1)


@pytest.mark.parametrize("status", [429, 503])
async def test_what_has_to_wait_is_kept_and_not_sent_before_the_time_that_the_gateway_names(
    status: int, tmp_path: Path
) -> None:
    sent: list[tuple[str, str | None]] = []
    with answering(status, b"{}", sent=sent, retry_after="3600") as url:
        letters = [report_of("one", epoch) for epoch in (1.0, 2.0)]
        folder = left_behind(tmp_path, url, letters)
        async with connected(url) as transport:
            flushed = await flush(folder, transport, timeout_s=PATIENCE_S)
    assert isinstance(flushed.obstacle, Unreachable)
    assert len(sent) == 1, "an answer an hour later is beyond the time there was"
    [kept] = contents(tmp_path)
    assert [each.request for each in kept.letters] == letters


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Transport]:
    """A transport that is started, and closed in the end."""
    transport = open_transport(url)
    await transport.start()
    try:
        yield transport
    finally:
        await transport.close()


def with_token(url: str, token: str) -> str:
    return url.replace("://", f"://any:{token}@")


def request_of(command: Command, job_id: str = "job") -> Request:
    return Request(command_id=str(uuid.uuid4()), job_id=job_id, command=command)


async def begun(transport: Transport, job_id: str = "job") -> str:
    """The trial_id of the first trial of a new job."""
    await transport.call(request_of(RegisterJob(spec=SPEC), job_id), timeout_s=PATIENCE_S)
    trial = await transport.call(request_of(BeginTrial(hardware=A40), job_id), timeout_s=PATIENCE_S)
    assert isinstance(trial, TrialBegun)
    return trial.trial_id


def report_of(trial_id: str, epoch: float, job_id: str = "job", *, is_journalled: bool = True) -> Request:
    """A report of the first trial of a job."""
    numbers: dict[str, Any] = {"epoch": epoch, "time_s": 60.0 * epoch, "energy_j": 1000.0 * epoch, "metric": 0.1}
    return request_of(ReportEpoch(trial_number=1, trial_id=trial_id, is_journalled=is_journalled, **numbers), job_id)


def left_behind(state_dir: Path, url: str, requests: Sequence[Request]) -> Path:
    """The folder of a journal in which a process that has ended has left these commands."""
    journal = Journal(state_dir, destination_of(url), requests[0].job_id)
    for request in requests:
        journal.keep(Kept(training="training", request=request))
    journal.close()
    return journal.folder


async def test_a_token_that_is_refused_is_no_outage(start_gateway: StartGateway) -> None:
    gateway = start_gateway(tokens=True)
    for url in (gateway.url, gateway.url.replace("://", "://any:wrong@")):
        error = await _error(url)
        assert isinstance(error, Misconfigured)
        assert obstacle_of(error) is REFUSED
        assert "BSO_TOKEN" in str(error)
        assert "wrong" not in str(error)


async def test_an_address_without_a_gateway_is_no_outage(start_gateway: StartGateway) -> None:
    error = await _error(f"{start_gateway().url}/elsewhere")
    assert isinstance(error, Misconfigured)
    assert "BSO_URL has to be the address of `bso serve`" in str(error)


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (502, b"<html>Bad Gateway</html>", "answers 502"),
        (503, b'{"detail": "the database is away"}', "the database is away"),
        (200, b"<html>Please log in</html>", "`bso serve`, and nothing in between may change answers"),
        (429, b"", "answers 429"),
        (413, b"<html>Request Entity Too Large</html>", "no answer of `bso serve`: a proxy on the way may give it"),
        (400, b'{"code": "bad_request", "detail": "of another program"}', "of another program"),
        (204, b"", "answers 204, and that is no answer"),
        (202, b"{}", "answers 202, and that is no answer"),
    ],
)
async def test_what_stands_between_may_fail(status: int, body: bytes, words: str) -> None:
    with answering(status, body) as url:
        error = await _error(url)
    assert isinstance(error, Unreachable)
    assert words in str(error)


async def test_a_command_on_a_connection_that_hangs_is_sent_again() -> None:
    asked = list[str]()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        asked.append(head.decode())
        if len(asked) > 1:
            writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: %d\r\n\r\n%b" % (len(TOO_LARGE), TOO_LARGE))
        await reader.read()  # until the client gives up
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        caller = HttpCaller(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", resend_after_s=0.2)
        await caller.start()
        with pytest.raises(NotTaken):
            await caller.call(b"{}", kind="commands", timeout_s=PATIENCE_S)
        await caller.close()
    assert len(asked) == 2


async def test_what_a_gateway_will_never_take_is_a_problem() -> None:
    with answering(413, TOO_LARGE) as url:
        transport = open_transport(url)
        await transport.start()
        reply = await transport.call(_describe(), timeout_s=PATIENCE_S)
        await transport.close()
    assert isinstance(reply, Problem)
    assert (reply.type, reply.is_retryable) == ("not_taken", False)
    assert "at most 10 bytes" in reply.detail


def test_the_token_is_the_password_of_the_address() -> None:
    def url(address: str, **environ: str) -> str:
        return read_settings({"BSO_URL": address, **environ}).resolved_url

    assert url("https://host/bso", BSO_TOKEN="bso_1_a") == "https://token:bso_1_a@host/bso"
    assert url("https://alice@host", BSO_TOKEN="bso_1_a") == "https://alice:bso_1_a@host"
    assert url("https://alice:bso_2_b@host", BSO_TOKEN="bso_1_a") == "https://alice:bso_2_b@host"
    assert url("amqp://host/", BSO_TOKEN="bso_1_a") == "amqp://host/"


@pytest.mark.parametrize("is_by_proxy", [False, True])
async def test_a_token_wins_over_a_login_for_its_address_in_netrc(
    is_by_proxy: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("default login me password other\n", encoding="utf-8")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    sent: list[tuple[str, str | None]] = []
    with answering(413, TOO_LARGE, sent=sent) as address:
        monkeypatch.setenv("http_proxy", address if is_by_proxy else "http://127.0.0.1:1")
        monkeypatch.setenv("no_proxy", "" if is_by_proxy else "127.0.0.1")
        host = "bso.invalid" if is_by_proxy else address.removeprefix("http://")
        await _not_taken(f"http://any:bso_1_a@{host}")
        await _not_taken(f"http://{host}")
    at = f"http://{host}" if is_by_proxy else ""
    assert sent == [(f"{at}/v1/commands", "Bearer bso_1_a"), (f"{at}/v1/commands", "Basic bWU6b3RoZXI=")]


async def _not_taken(url: str) -> None:
    transport = open_transport(url)
    await transport.start()
    try:
        reply = await transport.call(_describe(), timeout_s=PATIENCE_S)
    finally:
        await transport.close()
    assert isinstance(reply, Problem)
    assert reply.type == "not_taken"


def _describe() -> Request:
    return request_of(DescribeJob())


async def _error(url: str) -> BsoError:
    transport = open_transport(url)
    await transport.start()
    try:
        with pytest.raises(BsoError) as raised:
            await transport.call(_describe(), timeout_s=0.4)
        return raised.value
    finally:
        await transport.close()


@contextmanager
def answering(
    status: int, body: bytes, *, sent: list[tuple[str, str | None]] | None = None, retry_after: str | None = None
) -> Iterator[str]:
    """A server that answers everything alike; the target and the login of each request are added to ``sent``."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:  # its name in http.server
            self.rfile.read(int(self.headers["Content-Length"]))
            if sent is not None:
                sent.append((self.path, self.headers["Authorization"]))
            self.send_response(status)
            if retry_after is not None:
                self.send_header("Retry-After", retry_after)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_request(self, code: object = "-", size: object = "-") -> None:
            """Nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def tailing(url: str, job_id: str, *, count: int) -> Iterator["subprocess.Popen[str]"]:
    """``bso events tail``, once it follows what happens."""
    command = [sys.executable, "-m", "bso_cli", "events", "tail", job_id, "--json", "--count", str(count)]
    environ = {name: text for name, text in os.environ.items() if not name.startswith("BSO_")} | {"BSO_URL": url}
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert "from now on" in said_by(process)
            yield process
        finally:
            process.kill()


def said_by(process: "subprocess.Popen[str]") -> str:
    assert process.stderr is not None
    return process.stderr.readline()


def seqs_of(process: "subprocess.Popen[str]") -> list[int]:
    assert process.stdout is not None
    return [json.loads(process.stdout.readline())["seq"] for _ in range(2)]


def test_live_events_are_received_through_a_gateway_and_after_its_restart(start: StartGateway) -> None:
    gateway = start()
    gateway.register()
    with tailing(gateway.url, gateway.job_id, count=4) as process:
        gateway.begin()
        assert seqs_of(process) == [2, 3]
        gateway.process.process.kill()
        gateway.process.wait()
        again = start(port=gateway.port)
        again.job_id = gateway.job_id
        assert again.ask("PUT", f"/v1/jobs/{gateway.job_id}/allowed/64", {}, **JSON).status == 200
        assert again.ask("PUT", f"/v1/jobs/{gateway.job_id}/allowed/64", {}, **JSON).status == 200
        assert seqs_of(process) == [4, 5]
        assert process.wait(PATIENCE_S) == 0


@pytest.mark.slow
def test_where_a_proxy_holds_live_events_back_they_are_asked_for(start: StartGateway) -> None:
    gateway = start()
    gateway.register()
    with TcpProxy(gateway.url) as proxy:
        proxy.stall_replies_after(b"text/event-stream")
        with tailing(proxy.url, gateway.job_id, count=2) as process:
            assert "holds live events back" in said_by(process)
            proxy.restore()
            gateway.begin()
            assert seqs_of(process) == [2, 3]


def test_live_events_of_all_jobs_need_the_broker(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bso_cli", "events", "tail"],
        env=os.environ | {"BSO_URL": "http://127.0.0.1:1", "BSO_STATE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (done.returncode, "bso events tail JOB" in done.stderr) == (1, True), done.stderr
