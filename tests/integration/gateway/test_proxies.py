"""What stands between: proxies in front of a gateway, those that a training's machine sends through, and TLS."""

import os
import select
import socket
import subprocess
import sys
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, Self
from urllib.parse import urlsplit

import pytest

from bso_client.errors import Unreachable
from bso_client.transports.http import HttpCaller
from tests.integration.gateway.conftest import Answered, Gateway, StartGateway, gateway_process
from tests.integration.gateway.test_pages import keys
from tests.integration.workers.processes import WorkerProcess
from tests.servers import PATIENCE_S
from tests.servers.certificates import Authority

CLIENT, OTHER = "203.0.113.7", "198.51.100.9"
HERE = "127.0.0.1"
TRAINING = """
import sys
from bso_client import BatchSizeOptimizer, JobSpec

spec = JobSpec(job_id="job", batch_sizes=[32, 64], default_batch_size=64, target_metric=0.9)
bso = BatchSizeOptimizer(spec, unreachable_timeout=float(sys.argv[1]))
for trial in bso.trials():
    with trial:
        trial.on_evaluate(0.95)
        print(trial.outcome.value, trial.trial_number)
bso.close()
"""


def logged(gateway: Gateway, path: str) -> str:
    """The address of the client of the last request for a path, as its log has it."""

    def lines() -> list[dict[str, Any]]:
        return [line for line in gateway.process.lines("request") if line["path"] == path]

    gateway.process.until(lines)  # it is written after the answer
    shown: str = lines()[-1]["client"]
    return shown


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], WorkerProcess]]:
    """Starts one gateway for each value of trusted_proxies."""
    folder, started = tmp_path_factory.mktemp("gateway"), dict[str, WorkerProcess]()

    def start(trusted: str) -> WorkerProcess:
        if trusted not in started:
            files = (folder / f"{len(started)}.{kind}" for kind in ("log", "sqlite"))
            log, url = next(files), f"sqlite:///{next(files)}"
            started[trusted] = gateway_process(log, url, trusted_proxies=trusted, names="bso.example")
        return started[trusted]

    yield start
    for process in started.values():
        process.stop()


@pytest.fixture
def behind(processes: Callable[[str], WorkerProcess]) -> Gateway:
    """A gateway that believes this machine, and a network."""
    return Gateway(processes("127.0.0.1, 10.0.0.0/8"))


@pytest.fixture
def open_to_all(processes: Callable[[str], WorkerProcess]) -> Gateway:
    """A gateway that believes others than this machine."""
    return Gateway(processes("10.0.0.0/8"))


@pytest.mark.parametrize(
    ("forwarded", "shown"),
    [
        (CLIENT, CLIENT),
        (f"{OTHER}, {CLIENT}", CLIENT),  # what a client says of itself stands before what the proxy has added
        (f"{CLIENT}, 10.1.2.3", CLIENT),  # a proxy behind another one
        ("", HERE),
    ],
)
def test_the_log_shows_the_client_behind_proxies_that_are_named(behind: Gateway, forwarded: str, shown: str) -> None:
    behind.ask("GET", f"/v1/jobs/{behind.job_id}", X_Forwarded_For=forwarded)
    assert logged(behind, f"/v1/jobs/{behind.job_id}") == shown


def test_who_is_no_named_proxy_is_not_believed(alone: Gateway, open_to_all: Gateway) -> None:
    for gateway in (alone, open_to_all):
        gateway.ask("GET", f"/v1/jobs/{gateway.job_id}", X_Forwarded_For=CLIENT)
        assert logged(gateway, f"/v1/jobs/{gateway.job_id}") == HERE


def test_the_cookie_of_a_page_that_a_named_proxy_shows_by_https_is_sent_by_https_alone(
    behind: Gateway, open_to_all: Gateway
) -> None:
    for gateway, is_secure in ((behind, True), (open_to_all, False)):
        opened = gateway.ask("GET", keys(gateway)[-1], X_Forwarded_Proto="https")
        assert ("secure" in opened.headers["set-cookie"].lower().split("; ")) is is_secure


def test_a_page_that_a_proxy_shows_by_https_may_use_its_gateway(behind: Gateway, open_to_all: Gateway) -> None:
    headers = {"Host": "bso.example", "X_Forwarded_Proto": "https", "Content_Type": "application/json"}
    spec = {"spec": {"batch_sizes": [32, 64], "default_batch_size": 64}}
    for gateway in (behind, open_to_all):
        path = f"/v1/jobs/{gateway.job_id}"
        assert gateway.ask("PUT", path, spec, Origin="https://bso.example", **headers).status == 201
        assert gateway.ask("PUT", path, spec, Origin="https://evil.example", **headers).status == 403
        # Only a named proxy is believed that the page came by HTTPS, and then one without it is a page of another.
        plain = gateway.ask("PUT", path, spec, Origin="http://bso.example", **headers)
        assert plain.status == (403 if gateway is behind else 200)


@pytest.mark.parametrize(("trusted", "status"), [(HERE, 401), ("10.0.0.0/8", 429)])
def test_who_guesses_tokens_makes_others_wait_unless_a_named_proxy_tells_them_apart(
    start_gateway: StartGateway, trusted: str, status: int
) -> None:
    gateway = start_gateway(tokens=True, trusted_proxies=trusted)

    def guess(number: int, client: str) -> Answered:
        return gateway.ask("GET", "/v1/jobs", Authorization=f"Bearer {number}", X_Forwarded_For=client)

    assert {guess(number, CLIENT).status for number in range(10)} == {401}
    assert guess(10, CLIENT).status == 429
    assert guess(11, OTHER).status == status


class ForwardProxy(ThreadingHTTPServer):
    """A forward proxy on a free port: it passes requests on, and makes tunnels for those by HTTPS.

    ``asked`` has the method and the target of each, ``heads`` all headers. With a ``login`` it asks for that.
    """

    daemon_threads = True

    def __init__(self, *, login: str | None = None) -> None:
        super().__init__((HERE, 0), _Handler)
        self.login = login
        self.asked: list[str] = []
        self.heads: list[str] = []
        self._thread = Thread(target=self.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        """Its address, without the login."""
        return f"http://{HERE}:{self.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    @property
    def _proxy(self) -> ForwardProxy:
        assert isinstance(self.server, ForwardProxy)
        return self.server

    def do_POST(self) -> None:
        """Pass a request on."""
        self._note()
        if not self._is_known():
            return
        target = urlsplit(self.path)
        there = HTTPConnection(str(target.hostname), target.port or 80, timeout=PATIENCE_S)
        try:
            there.request("POST", target.path, self.rfile.read(int(self.headers["Content-Length"])), dict(self.headers))
            answer = there.getresponse()
            body = answer.read()
        finally:
            there.close()
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.headers["Content-Type"])
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_CONNECT(self) -> None:
        """Pass on whatever comes, in both directions."""
        self._note()
        self.close_connection = True
        if not self._is_known():
            return
        self.send_response(200)
        self.end_headers()
        host, _, port = self.path.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as there:
            other = {self.connection: there, there: self.connection}
            while True:
                for end in select.select(list(other), [], [], PATIENCE_S)[0]:
                    if not (part := end.recv(65_536)):
                        return
                    other[end].sendall(part)

    def _is_known(self) -> bool:
        """Whether the request has the login; it is answered otherwise."""
        login = self._proxy.login
        expected = None if login is None else f"Basic {b64encode(login.encode()).decode()}"
        if expected in (None, self.headers["Proxy-Authorization"]):
            return True
        self.rfile.read(int(self.headers["Content-Length"] or 0))
        self.send_response(407)
        self.send_header("Proxy-Authenticate", 'Basic realm="proxy"')
        self.send_header("Content-Length", "0")
        self.end_headers()
        return False

    def _note(self) -> None:
        self._proxy.asked.append(f"{self.command} {self.path}")
        self._proxy.heads.append(str(self.headers))

    def log_request(self, code: object = "-", size: object = "-") -> None:
        """Nothing."""


@pytest.fixture
def proxy() -> Iterator[ForwardProxy]:
    with ForwardProxy() as proxy:
        yield proxy


@pytest.fixture
def encrypted(start_gateway: StartGateway, authority: Authority) -> str:
    """The address of a gateway with a certificate of an authority that nobody knows."""
    issued = authority.issue("gateway", HERE)
    return start_gateway(tls_certificate=issued.cert, tls_key=issued.key).url.replace("http://", "https://")


def train(
    url: str, state_dir: Path, environ: Mapping[str, str], *, patience_s: float = PATIENCE_S
) -> subprocess.CompletedProcess[str]:
    """A training in a process of its own, which has ended. It knows no proxy and no authority of this machine's."""
    inherited = {
        name: text
        for name, text in os.environ.items()
        if not name.startswith(("BSO_", "SSL_")) and not name.lower().endswith("_proxy")
    }
    return subprocess.run(
        [sys.executable, "-c", TRAINING, str(patience_s)],
        env={**inherited, "BSO_URL": url, "BSO_STATE_DIR": str(state_dir), "BSO_ENERGY": "assumed", **environ},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def test_a_training_reaches_its_gateway_by_http_proxy(
    start_gateway: StartGateway, proxy: ForwardProxy, tmp_path: Path
) -> None:
    url = start_gateway().url
    trained = train(url, tmp_path, {"HTTP_PROXY": proxy.url})
    assert trained.stdout == "converged 1\n", trained.stderr
    assert set(proxy.asked) == {f"POST {url}/v1/commands"}


def test_a_training_reaches_its_gateway_by_https_proxy_which_reads_nothing(
    encrypted: str, authority: Authority, proxy: ForwardProxy, tmp_path: Path
) -> None:
    with_token = encrypted.replace("://", "://any:bso_1_secret@")  # which this gateway does not ask for
    trained = train(with_token, tmp_path, {"HTTPS_PROXY": proxy.url, "SSL_CERT_FILE": str(authority.ca)})
    assert trained.stdout == "converged 1\n", trained.stderr
    assert set(proxy.asked) == {f"CONNECT {encrypted.removeprefix('https://')}"}
    assert "authorization" not in "".join(proxy.heads).lower()


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_proxy_that_asks_for_a_login_gets_the_one_in_its_address_or_is_named(
    start_gateway: StartGateway, encrypted: str, authority: Authority, tmp_path: Path, scheme: str
) -> None:
    url = encrypted if scheme == "https" else start_gateway().url
    environ = {"SSL_CERT_FILE": str(authority.ca)}
    with ForwardProxy(login="ann:secret") as proxy:
        known, unknown = ({f"{scheme.upper()}_PROXY": proxy.url.replace("://", at)} for at in ("://ann:secret@", "://"))
        trained = train(url, tmp_path / "known", environ | known)
        refused = train(url, tmp_path / "unknown", environ | unknown, patience_s=5.0)
    assert trained.stdout == "converged 1\n", trained.stderr
    assert "answers 407, it asks for a login: HTTP_PROXY or HTTPS_PROXY has to be" in refused.stderr
    assert "BSO_TOKEN" not in refused.stderr


def test_no_proxy_goes_around_it(encrypted: str, authority: Authority, proxy: ForwardProxy, tmp_path: Path) -> None:
    around = {"HTTPS_PROXY": proxy.url, "NO_PROXY": f"localhost,{HERE}", "SSL_CERT_FILE": str(authority.ca)}
    trained = train(encrypted, tmp_path, around)
    assert trained.stdout == "converged 1\n", trained.stderr
    assert proxy.asked == []


async def test_an_address_without_the_tls_that_its_port_speaks(encrypted: str) -> None:
    caller = HttpCaller(encrypted.replace("https://", "http://"))
    await caller.start()
    try:
        with pytest.raises(Unreachable, match="where this port speaks TLS, the address begins with https://"):
            await caller.call(b"{}", kind="queries", timeout_s=5.0)
    finally:
        await caller.close()


def test_a_certificate_of_an_authority_that_is_not_known_is_not_trusted(encrypted: str, tmp_path: Path) -> None:
    refused = train(encrypted, tmp_path, {}, patience_s=5.0)
    assert "is not trusted" in refused.stderr
    assert "SSL_CERT_FILE" in refused.stderr
