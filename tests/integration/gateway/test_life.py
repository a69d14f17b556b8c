"""The life of a gateway's process, and what its clients see while the optimizer is away."""

import asyncio
import os
import socket
import subprocess
import sys
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bso.domain.rights import Right
from bso_broker.connection import BrokerAddress, connect, login_of
from bso_broker.declaration import depth_of
from bso_broker.topology import COMMAND_QUEUE
from tests.integration.gateway.conftest import SPEC, Answered, Gateway, StartGateway
from tests.integration.gateway.test_tokens import tokens_of
from tests.integration.workers.fixtures import StartWorker
from tests.servers import PATIENCE_S, TcpProxy, eventually

ZEUS_TIMEOUT_S = 5.0
"""After so long without an answer Zeus' client gives up, and the training ends of it."""


def ended(*options: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bso_cli", "serve", *options],
        env={name: text for name, text in os.environ.items() if not name.startswith("BSO_")} | environ,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def test_it_drains(start_gateway: StartGateway) -> None:
    gateway = start_gateway()
    assert gateway.ask("GET", "/readyz").value == {"ready": True, "reasons": {}}
    gateway.process.terminate()
    assert gateway.process.wait() == 0
    assert gateway.process.lines("draining")[0]["signal"] == "SIGTERM"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--host", "0.0.0.0"], "every client in that network is authorized"),
        (["--url", "mysql://somebody@host/bso"], "not to its database"),
        (["--zeus-policy", "no such"], "no name of a policy"),
        (["--zeus-strict", "--zeus-policy", "curve"], "needs the policy pruning_thompson"),
        (["--tls-key", "key.pem"], "belong together"),
        (["--port", "70000"], "65535"),
    ],
)
def test_wrong_settings(tmp_path: Path, options: list[str], words: str) -> None:
    done = ended(*options, BSO_STATE_DIR=str(tmp_path))
    assert done.returncode == 2
    assert words in " ".join(done.stderr.split())


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        done = ended("--port", str(other.getsockname()[1]), BSO_STATE_DIR=str(tmp_path))
    assert done.returncode == 2
    assert "cannot listen on 127.0.0.1" in done.stderr


def test_a_file_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "bso.sqlite").write_text("this is no database, and long enough to be read as one" * 100)
    done = ended("--port", "0", BSO_URL=f"sqlite:///{tmp_path / 'bso.sqlite'}")
    assert done.returncode == 2
    assert "bso.sqlite" in done.stderr


def test_without_a_worker_nobody_goes_on_by_mistake(
    amqp_url: str, migrated_url: str, start_gateway: StartGateway, start_worker: StartWorker
) -> None:
    worker = start_worker(gateways=login_of(amqp_url)).ready()
    gateway = start_gateway(url=amqp_url, answer_timeout_s=1.0)
    gateway.register()
    trial = gateway.begin()
    worker.stop()
    for answer in (
        gateway.report(trial, 1),
        gateway.ask("GET", f"/jobs/batch_size?job_id={gateway.job_id}"),
        gateway.end(trial),
    ):
        assert_to_come_back(answer)
    start_worker(gateways=login_of(amqp_url)).ready()
    eventually(lambda: gateway.begin()["trial_number"] > 1)


def assert_to_come_back(answer: Answered) -> None:
    """It is no decision, and says when to ask for one again."""
    assert answer.status == 503
    assert list(answer.value) == ["message"]
    assert int(answer.headers["retry-after"]) >= 1


@pytest.mark.parametrize("fault", ["no_worker", "silent_broker"])
def test_zeus_client_gives_up_on_no_request_before_its_answer(
    fault: str,
    *,
    amqp_url: str,
    migrated_url: str,
    start_gateway: StartGateway,
    start_worker: StartWorker,
    tcp_proxy: Callable[[str], TcpProxy],
) -> None:
    worker, proxy = start_worker(gateways=login_of(amqp_url)).ready(), tcp_proxy(amqp_url)
    gateway = start_gateway(url=proxy.url, tokens=True)  # with the default time for an answer
    known, new = asyncio.run(tokens_of(migrated_url, ["alice", "bob"], right=Right.OPERATE))

    def ask(method: str, path: str, body: object = None, *, token: str = known) -> Answered:
        return gateway.ask(method, path, body, Authorization=f"Bearer {token}")

    job = SPEC | {"job_id": gateway.job_id}
    eventually(lambda: ask("POST", "/jobs", job).status == 201)
    trial = ask("GET", f"/jobs/batch_size?job_id={gateway.job_id}").value
    if fault == "no_worker":
        worker.stop()
    else:
        proxy.stall()
    gateway.patience_s = ZEUS_TIMEOUT_S
    report = trial | {"time": 60.0, "energy": 1000.0, "metric": 0.1, "current_epoch": 1}
    with ThreadPoolExecutor(6) as pool:
        asked = [
            pool.submit(ask, "POST", "/jobs", job),
            pool.submit(ask, "GET", f"/jobs/batch_size?job_id={gateway.job_id}"),
            pool.submit(ask, "POST", "/report", report),
            pool.submit(ask, "PATCH", "/trials", trial),
            pool.submit(ask, "DELETE", f"/jobs?job_id={gateway.job_id}"),
            pool.submit(ask, "POST", "/report", report, token=new),
        ]
        for each in asked:
            assert_to_come_back(each.result())


async def commands_waiting(amqp_url: str) -> int:
    """How many commands wait in the broker."""
    connection = await connect(BrokerAddress(url=amqp_url), name="tests")
    try:
        return (await depth_of(connection, COMMAND_QUEUE)).messages
    finally:
        await connection.close()


def test_a_request_that_comes_again_before_its_answer_gets_the_same_one(
    amqp_url: str, migrated_url: str, start_gateway: StartGateway, start_worker: StartWorker
) -> None:
    worker = start_worker(gateways=login_of(amqp_url)).ready()
    gateway = start_gateway(url=amqp_url, answer_timeout_s=60)
    gateway.register()
    worker.stop()
    path, key = f"/v1/jobs/{gateway.job_id}/trials", str(uuid.uuid4())
    hardware = {"gpu_model": "A40", "max_power_w": 300.0, "energy_method": "monitor"}

    def begin(**more: object) -> Answered:
        headers = {"Idempotency_Key": key, "Content_Type": "application/json"}
        return gateway.ask("POST", path, {"hardware": hardware, **more}, **headers)

    with ThreadPoolExecutor(3) as pool:
        same = [pool.submit(begin) for _ in range(2)]
        eventually(lambda: asyncio.run(commands_waiting(amqp_url)))
        assert begin(recurrence_id="another").status == 409
        start_worker(gateways=login_of(amqp_url)).ready()
        first, second = (each.result() for each in same)
    assert first.status == 201
    assert first.value == second.value


@pytest.mark.slow
def test_a_gateway_that_the_workers_do_not_know_names_no_trial_by_its_number(
    amqp_url: str, migrated_url: str, start_gateway: StartGateway, start_worker: StartWorker
) -> None:
    start_worker().ready()
    gateway = start_gateway(url=amqp_url)
    gateway.register()
    refused = gateway.report(gateway.begin(), 1)
    assert refused.status == 400
    assert "BSO_GATEWAYS" in refused.value["message"]


def test_any_gateway_answers_for_the_other(
    amqp_url: str, migrated_url: str, start_gateway: StartGateway, start_worker: StartWorker
) -> None:
    start_worker(gateways=login_of(amqp_url)).ready()
    first, second = (start_gateway(url=amqp_url) for _ in range(2))
    first.register()
    trial = first.begin()
    first.process.kill()
    assert second.report(trial, 1).status == 200
    assert second.report(trial, 2, metric=0.95).value["converged"] is True


def test_many_trainings_at_once(gateway: Gateway) -> None:
    def train(number: int) -> list[bool]:
        job_id = f"{gateway.job_id}-{number}"
        gateway.register(job_id=job_id)
        trial = gateway.begin(job_id)
        return [gateway.report(trial, epoch, 0.31 * epoch).value["converged"] for epoch in (1, 2, 3)]

    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(train, range(48))) == [[False, False, True]] * 48


def test_a_gateway_that_workers_do_not_know_is_not_ready(
    amqp_url: str, migrated_url: str, start_gateway: StartGateway, start_worker: StartWorker
) -> None:
    start_worker().ready()
    gateway = start_gateway(url=amqp_url)
    eventually(lambda: "BSO_GATEWAYS" in gateway.ask("GET", "/readyz").text)
    assert gateway.ask("GET", "/readyz").status == 503
    assert gateway.ask("GET", "/livez").status == 200


def test_doctor_looks_at_a_gateway(start_gateway: StartGateway, tmp_path: Path) -> None:
    gateway = start_gateway(tokens=True)
    for url, expected, code in (
        (gateway.url, "BSO_TOKEN", 1),
        ("http://127.0.0.1:1", "bso serve", 1),
        (start_gateway().url, "an answer came", 0),
    ):
        environ = {"BSO_URL": url, "BSO_STATE_DIR": str(tmp_path / "state"), "PATH": os.environ["PATH"]}
        looked = subprocess.run(
            [sys.executable, "-m", "bso_cli", "doctor"],
            env=environ,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (expected in looked.stdout, looked.returncode) == (True, code), looked.stdout
