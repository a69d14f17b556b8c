"""The audit of dependencies, against a service that speaks OSV's protocol on this machine."""

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from deploy.pins import FILE, pins
from tools.audit import FOUND, Answer, AuditFailed, ask, understood

ROOT = Path(__file__).parents[3]
KNOWN = {
    "id": "GHSA-9999-9999-9999",
    "summary": "a test",
    "details": "a test",
    "aliases": ["CVE-2026-99999"],
    "affected": [
        {
            "package": {"name": "aiohttp", "ecosystem": "PyPI"},
            "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "99.1"}]}],
        }
    ],
}

Query = dict[str, Any]


@contextmanager
def service(answer: Callable[[Query], tuple[int, bytes]]) -> Iterator[list[str]]:
    """One that answers queries like osv.dev's; pip-audit's options that name it."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            status, body = answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        @override
        def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield ["-s", "osv", "--osv-url", f"http://127.0.0.1:{server.server_port}/v1/query"]
        finally:
            server.shutdown()
            thread.join()


def knows_one(query: Query) -> tuple[int, bytes]:
    known = [KNOWN] if query["package"]["name"] == "aiohttp" else []
    return 200, json.dumps({"vulns": known} if known else {}).encode()


def knows_none(_: Query) -> tuple[int, bytes]:
    return 200, b"{}"


def audit(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tools.audit", *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_a_known_vulnerability_fails_and_is_named_with_its_repair() -> None:
    with service(knows_one) as options:
        done = audit(*options)
    assert done.returncode == FOUND
    [pin] = [pin for pin in pins(FILE.read_text(encoding="utf-8")) if pin.name == "aiohttp"]
    of_image, of_wheel = done.stdout.splitlines()
    for line in (of_image, of_wheel):
        assert re.search(r": aiohttp \S+: CVE-2026-99999, GHSA-9999-9999-9999; repaired in 99\.1$", line)
    assert f"the image's pins: aiohttp {pin.version}:" in of_image
    assert "what the wheel requires" in of_wheel


def test_every_release_of_the_image_and_of_the_wheels_extras_is_asked_about() -> None:
    asked: list[tuple[str, str]] = []

    def remembers(query: Query) -> tuple[int, bytes]:
        asked.append((query["package"]["name"], query["version"]))
        return knows_none(query)

    with service(remembers) as options:
        done = audit(*options)
    assert (done.returncode, done.stdout.count("no vulnerability is known")) == (0, 2)
    assert {(pin.name, pin.version) for pin in pins(FILE.read_text(encoding="utf-8"))} <= set(asked)
    assert {"aio-pika", "asyncpg", "scikit-learn", "scipy"} <= {name for name, _ in asked}
    assert not {"pytest", "bso-optimizer"} & {name for name, _ in asked}


@pytest.mark.parametrize(
    ("status", "body"), [(500, b""), (403, b"forbidden"), (200, b"<html>log in first</html>")], ids=str
)
def test_a_service_that_refuses_was_not_asked(status: int, body: bytes) -> None:
    with service(lambda _: (status, body)) as options:
        assert ask(["aiohttp==3.14.5"], options).not_asked


def made(options: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """``make audit`` with options of pip-audit, in this environment as it is."""
    venv = Path(sys.executable).parents[1]
    command = ["make", f"--old-file={venv}/.installed-dev", "audit", f"VENV={venv}", f"ARGS={' '.join(options)}"]
    environ = {name: text for name, text in os.environ.items() if not name.startswith("MAKE")}
    return subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)


def test_make_says_that_nobody_answers_and_fails_only_where_a_vulnerability_is_known() -> None:
    done = made(["-s", "osv", "--osv-url", "http://127.0.0.1:1/v1/query"])
    assert (done.returncode, done.stdout.count(": not audited: requests.exceptions.ConnectionError")) == (0, 2)
    with service(knows_one) as options:
        assert made(options).returncode != 0


def test_releases_that_the_service_does_not_know_are_not_taken_for_clean() -> None:
    known = {"name": "aiohttp", "version": "3.14.5", "vulns": []}
    unknown = {"name": "yarl", "skip_reason": "Dependency not found on PyPI and could not be audited: yarl (1.25.1)"}
    answer = understood({"dependencies": [known, unknown], "fixes": []})
    assert answer == Answer(asked=1, not_asked=f"1 of 2 releases, {unknown['skip_reason']} ...")


def test_a_failure_of_pip_audit_itself_is_no_answer_of_a_service() -> None:
    with pytest.raises(AuditFailed, match="unrecognized arguments: --nonsense"):
        ask(["aiohttp==3.14.5"], ["--nonsense"])
    with pytest.raises(AuditFailed):
        ask(["no requirement at all"], [])
