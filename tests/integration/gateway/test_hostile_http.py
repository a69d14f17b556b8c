"""Requests that no client of ours sends."""

import re
import resource
import socket
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.integration.gateway.conftest import SPEC, Gateway, StartGateway, gateway_process
from tests.integration.workers.processes import WorkerProcess
from tests.servers import PATIENCE_S

JOB = SPEC | {"job_id": "mnist-1"}


def sent(gateway: Gateway, data: bytes) -> bytes:
    """All that comes back for these bytes, until the gateway closes the connection."""
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=PATIENCE_S) as connection:
        with suppress(BrokenPipeError, ConnectionResetError):  # it has answered, and reads no more
            connection.sendall(data)
        received = b""
        try:
            while part := connection.recv(65_536):
                received += part
        except ConnectionResetError:
            pass
        return received


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    """A gateway over a file, with short deadlines."""
    folder = tmp_path_factory.mktemp("gateway")
    url = f"sqlite:///{folder / 'bso.sqlite'}"
    process = gateway_process(
        folder / "gateway.log", url, body_timeout_s=0.3, head_timeout_s=2.0, max_body_bytes=10_000
    )
    yield process
    process.stop()


@pytest.fixture
def impatient(process: WorkerProcess) -> Gateway:
    """The same, with a new job_id."""
    return Gateway(process)


def test_a_body_that_is_too_large(impatient: Gateway) -> None:
    declared = b"POST /jobs HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 1000000000\r\n\r\n"
    assert b" 413 " in sent(impatient, declared)
    chunk = b"400\r\n" + b"x" * 1024 + b"\r\n"
    chunked = b"POST /jobs HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert b" 413 " in sent(impatient, chunked + 20 * chunk)
    assert impatient.register().status == 201


@pytest.mark.parametrize("path", [b"/jobs", b"/v1/jobs"])
def test_of_a_body_that_is_too_large_nothing_more_is_read(impatient: Gateway, path: bytes) -> None:
    head = b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 20000\r\n\r\n"
    answer = sent(impatient, head % path).lower()  # it ends, though 20000 bytes may still come
    assert b" 413 " in answer
    assert b"\r\nconnection: close\r\n" in answer


def test_a_body_that_does_not_arrive(impatient: Gateway) -> None:
    head = b"POST /jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"
    assert b" 408 " in sent(impatient, head)
    assert impatient.register().status == 201


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET\r\n\r\n",
        b"POST /jobs HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /livez HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 50_000 + b"\r\n",
        b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 200_000 + b"\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost: a\r\nHost: b\r\nContent-Length: -1\r\n\r\n",
    ],
    ids=["tls", "no-path", "bad-chunk", "many-headers", "long-header", "bad-length"],
)
def test_what_is_no_http_harms_nobody(impatient: Gateway, data: bytes) -> None:
    answer = sent(impatient, data)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 4"), answer[:100]
    assert impatient.register().status == 201


def test_only_known_names_and_origins(start_gateway: StartGateway) -> None:
    gateway = start_gateway(names="bso.example,other.example")
    assert gateway.ask("GET", "/openapi.json", Host="BSO.example:8000").status == 200
    assert gateway.ask("GET", "/openapi.json", Host="evil.example").status == 421
    assert gateway.ask("GET", "/openapi.json", Host="[").status == 421
    assert gateway.ask("POST", "/jobs", JOB, Origin="https://evil.example").status == 403
    here = f"http://127.0.0.1:{gateway.port}"
    assert gateway.ask("POST", "/jobs", JOB, Origin=here).status == 415, "a browser says what it sends"
    assert gateway.ask("POST", "/jobs", JOB, Origin=here, Content_Type="application/json").status == 201
    assert gateway.ask("POST", "/jobs", JOB, Content_Type="text/plain").status == 415
    assert gateway.ask("POST", "/jobs", JOB, Content_Type="application/json; charset=utf-8").status == 200


def test_no_page_of_another_site_begins_a_trial(alone: Gateway) -> None:
    alone.register()
    path = f"/jobs/batch_size?job_id={alone.job_id}"
    for site in ("cross-site", "same-site"):
        assert alone.ask("GET", path, Sec_Fetch_Site=site).status == 403
    assert alone.ask("GET", path, Sec_Fetch_Site="none").value["trial_number"] == 1


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/livez", {"Origin": "http://[x"}, 403),
        ("/v1/jobs/job/events?after=99999999999999999999", {}, 422),
        ("/v1/jobs/job/trials?after=-1", {}, 422),
        ("/v1/jobs/job/events", {"Accept": "text/event-stream", "Last-Event-ID": f"1.1.{'9' * 5000}"}, 400),
        ("/v1/nothing", {}, 404),
        ("/v1/jobs/job/trials/1/end", {}, 405),
    ],
)
def test_odd_headers_and_numbers_are_refused(alone: Gateway, path: str, headers: dict[str, str], status: int) -> None:
    named = {name.replace("-", "_"): text for name, text in headers.items()}
    refused = alone.ask("GET", path, **named)
    assert refused.status == status
    if path.startswith("/v1"):
        assert refused.headers["content-type"] == "application/problem+json"


def test_numbers_that_nobody_can_mean_are_refused(alone: Gateway) -> None:
    alone.register()
    trial = alone.begin()
    assert alone.report({**trial, "trial_number": 10**30}, 1).status == 422
    body = b'{"job_id": "x", "batch_size": 1, "trial_number": 1, "time": 1, "energy": 1, "metric": 1, "current_epoch": '
    assert alone.ask("POST", "/report", body + b"9" * 400 + b"}").status == 422
    too_long = alone.report(trial, 1, time=1e19)
    assert too_long.status == 422
    assert too_long.value["detail"][0]["loc"] == ["body", "time"], "the client's own name of the field"
    assert alone.report(trial, 1, time=1e12).status == 200


def test_who_asks_whether_it_lives_may_call_it_anything(alone: Gateway) -> None:
    for path in ("/livez", "/readyz", "/metrics"):
        assert alone.ask("GET", path, Host="10.1.2.3:8000").status == 200


@pytest.mark.parametrize("data", [b"", b"GET /livez HTTP/1.1\r\nHost: loc"])
def test_a_head_that_does_not_arrive_holds_no_connection(start_gateway: StartGateway, data: bytes) -> None:
    gateway = start_gateway(head_timeout_s=0.3)
    assert sent(gateway, data) == b""
    assert gateway.register().status == 201


def test_requests_have_ids_and_are_logged_and_counted(start_gateway: StartGateway) -> None:
    gateway = start_gateway()
    answer = gateway.ask("GET", "/jobs/batch_size?job_id=nobody", X_Request_Id="night-7")
    assert answer.headers["x-request-id"] == "night-7"
    assert len(gateway.ask("GET", "/nothing", X_Request_Id="no id of ours").headers["x-request-id"]) == 32
    gateway.process.until(lambda: len(gateway.process.lines("request")) >= 2)  # each is logged after its answer
    first, second = gateway.process.lines("request")[:2]
    assert (first["request_id"], first["status"], first["path"]) == ("night-7", 400, "/jobs/batch_size")
    assert (second["status"], second["path"]) == (404, "/nothing")
    counted = gateway.ask("GET", "/metrics").text
    assert 'bso_gateway_requests_total{route="/jobs/batch_size",status="400"} 1.0' in counted


def test_the_application_describes_itself(alone: Gateway) -> None:
    described = alone.ask("GET", "/openapi.json").value
    assert set(described["paths"]) >= {"/jobs", "/jobs/batch_size", "/report", "/trials"}
    body = described["paths"]["/report"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert set(body["required"]) >= {"job_id", "trial_number", "current_epoch", "metric"}


def test_a_short_answer_arrives_in_one_piece(gateway: Gateway) -> None:
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=PATIENCE_S) as connection:
        for _ in range(20):
            connection.sendall(b"GET /jobs/batch_size?job_id=unknown HTTP/1.1\r\nHost: localhost\r\n\r\n")
            head, _, body = connection.recv(65_536).partition(b"\r\n\r\n")
            assert body, "its head and its body are two system calls"
            assert f"content-length: {len(body)}".encode() in head


@pytest.mark.parametrize("start", ["0\r\n", "0\r\nx: ", "5;"])
def test_trailers_without_an_end(impatient: Gateway, start: str) -> None:
    chunked = f"POST /jobs HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n{start}"
    answer = sent(impatient, chunked.encode() + b"x: y\r\n" * 500_000)
    assert b" 400 " in answer or not answer, "it waits for the end of a body"  # it does not read the rest
    assert impatient.register().status == 201


def test_bytes_that_belong_to_no_request_keep_no_connection_open(impatient: Gateway) -> None:
    with socket.create_connection(("127.0.0.1", impatient.port), timeout=PATIENCE_S) as connection:
        connection.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b" 200 " in connection.recv(65_536)
        connection.sendall(b"\r\n")
        with suppress(ConnectionResetError):
            assert not connection.recv(1)


def test_more_requests_at_once_than_are_served(start_gateway: StartGateway) -> None:
    gateway = start_gateway(max_connections=2)
    held = [without_its_body(gateway) for _ in range(2)]
    try:
        for path, field in (("/jobs/batch_size?job_id=mnist-1", "message"), ("/v1/jobs", "detail")):
            refused = gateway.ask("GET", path)
            assert (refused.status, refused.headers["retry-after"]) == (503, "1")
            assert "BSO_GATEWAY_MAX_CONNECTIONS" in refused.value[field]
        assert gateway.ask("GET", "/livez").status == 200, "who probes it must not end it for that"
    finally:
        for connection in held:
            connection.close()
    assert gateway.register().status == 201


def without_its_body(gateway: Gateway) -> socket.socket:
    """A connection with a request under way: it has read of it that its body may come now."""
    connection = socket.create_connection(("127.0.0.1", gateway.port), timeout=PATIENCE_S)
    connection.sendall(b"POST /jobs HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 9\r\n\r\n")
    assert b" 100 " in connection.recv(1000)
    return connection


def test_connections_without_a_request_make_room_for_others(start_gateway: StartGateway) -> None:
    gateway = start_gateway(max_connections=3)
    held = [socket.create_connection(("127.0.0.1", gateway.port), timeout=PATIENCE_S) for _ in range(3)]
    held[1].sendall(b"GET /v1/jobs HT")
    held[2].sendall(b"GET /v1/jobs HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert b" 200 " in held[2].recv(65_536)
    assert [gateway.ask("GET", "/v1/jobs").status for _ in range(20)] == [200] * 20
    for connection in held:
        connection.close()


def test_requests_that_wait_on_one_connection(impatient: Gateway) -> None:
    head = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n"
    answers = sent(impatient, 10 * (head + b"\r\n") + head + b"Connection: close\r\n\r\n")
    assert answers.count(b" 200 OK") == 11
    assert sent(impatient, 10_000 * (head + b"\r\n")).count(b" 200 OK") < 1000
    assert impatient.register().status == 201


@pytest.mark.parametrize(
    "after",
    [
        b"GARBAGE\r\n\r\n",
        b"GET /livez HTTP/1.1\r\n\r\n",
        b"POST /jobs HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_what_is_unreadable_is_refused_after_the_answers_to_what_came_before(impatient: Gateway, after: bytes) -> None:
    body = b'{"spec":{"batch_sizes":[16,32],"default_batch_size":32,"target_metric":0.9}}'
    head = (
        b"PUT /v1/jobs/job HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    )
    put = head % len(body) + body
    for before in (1, 3):
        answers = sent(impatient, before * put + after)
        statuses = re.findall(rb"HTTP/1.1 (\d+) ", answers)
        assert [status in (b"200", b"201") for status in statuses] == [*[True] * before, False]
        assert statuses[-1] == b"400"
    many = sent(impatient, put + 40 * b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert many.count(b"HTTP/1.1 200 OK") == 17
    assert many.endswith(b"too many requests wait on this connection.")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00", b"it is TLS, and this port speaks HTTP without it."),
        (b"GET /v1/jobs/%ff HTTP/1.1\r\nHost: localhost\r\n\r\n", b"its target holds bytes that are no UTF-8."),
        (b"GET /livez HTTP/1.1\r\n\r\n", b"it has no header Host, which HTTP 1.1 needs."),
        (b"GET /livez HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n", b"it has 2 headers Host, expected one."),
        (
            b"GET /livez HTTP/1.1\r\nHost: localhost\r\nAuthorization: a\r\nAuthorization: b\r\n\r\n",
            b"it has 2 headers Authorization, expected one.",
        ),
        (b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n", b"its target is no path, which begins with /."),
        (b"GET http://b/ HTTP/1.1\r\nHost: localhost\r\n\r\n", b"its target is of another host than Host names."),
        (b"GET /" + 100_000 * b"x" + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", b"at most 65536 bytes are read."),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"it is HTTP/2, and this port speaks HTTP/1.1."),
        (b"get /livez HTTP/1.1\r\nHost: localhost\r\n\r\n", b"Invalid method encountered."),
    ],
)
def test_what_is_unreadable_is_refused_with_the_reason(impatient: Gateway, data: bytes, words: bytes) -> None:
    assert sent(impatient, data).endswith(words)


def test_another_protocol_is_not_offered_and_not_warned_of(impatient: Gateway) -> None:
    upgrade = b"Connection: Upgrade, HTTP2-Settings, close\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQ\r\n\r\n"
    assert b" 200 OK" in sent(impatient, b"GET /livez HTTP/1.1\r\nHost: localhost\r\n" + upgrade)
    assert "WebSocket" not in impatient.process.text()


def test_an_encoded_body_is_refused_as_such(impatient: Gateway) -> None:
    refused = impatient.ask("PUT", "/v1/jobs/mnist-1", {"spec": SPEC}, Content_Encoding="gzip")
    assert (refused.status, refused.value["code"]) == (415, "unsupported_media_type")


def test_the_head_of_an_answer_alone(impatient: Gateway) -> None:
    for path, accept in (("/v1/jobs", "*/*"), ("/livez", "*/*"), ("/v1/events?job_id=mnist-1", "text/event-stream")):
        impatient.register()
        got = impatient.ask("GET", path)
        request = f"HEAD {path} HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\nConnection: close\r\n\r\n"
        head, _, body = sent(impatient, request.encode()).partition(b"\r\n\r\n")
        assert f"HTTP/1.1 {got.status} ".encode() in head
        assert f"content-length: {got.headers['content-length']}".encode() in head.lower()
        assert not body


def test_of_a_wrong_method_all_right_ones_are_named(impatient: Gateway) -> None:
    assert (
        impatient.ask("POST", "/v1/jobs/job", {}, Content_Type="application/json").headers["allow"]
        == "DELETE, GET, PUT"
    )
    assert impatient.ask("PUT", "/jobs", {}).headers["allow"] == "DELETE, POST"


@pytest.mark.parametrize(
    "head",
    [
        b"GET /livez HTTP/1.1\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer a\r\nAuthorization: Bearer b\r\n\r\n",
        b"GET /livez HTTP/2.0\r\nHost: localhost\r\n\r\n",
        b"GET /livez\r\nHost: localhost\r\n\r\n",
        b"GET http://evil.example/livez HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"POST /jobs HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    ],
)
def test_what_can_be_read_in_two_ways(impatient: Gateway, head: bytes) -> None:
    assert b" 400 " in sent(impatient, head).partition(b"\r\n")[0]


def test_a_target_may_name_the_host_again(impatient: Gateway) -> None:
    head = b"GET http://localhost/livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    assert b" 200 " in sent(impatient, head)


@pytest.mark.parametrize("host", ["user@localhost", "localhost:x", "localhost:99999", "localhost:"])
def test_a_host_is_a_name_and_a_port(impatient: Gateway, host: str) -> None:
    assert impatient.ask("GET", "/v1/jobs", Host=host).status == (200 if host == "localhost:" else 421)


def test_as_many_files_may_be_open_as_connections_are_served(start_gateway: StartGateway) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (96, hard))  # which a process that is started now inherits
    try:
        gateway = start_gateway()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    held = [without_its_body(gateway) for _ in range(120)]
    assert gateway.ask("GET", "/livez").status == 200
    for connection in held:
        connection.close()
