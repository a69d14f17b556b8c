"""Tests fail whose programs show a password."""

import re
import subprocess
import sys
from pathlib import Path

from tests.servers import PATIENCE_S
from tools.private_servers.server import new_password

# The password is put together there: written out, it would be found in this test's own folder.
TESTS = """
import logging
import re
import subprocess
import sys
from urllib.parse import quote

import pytest

from tests.servers.leaks import printed

PASSWORD = "/".join(["canary", "Xq7"])

@pytest.fixture
def child():
    command, pipe = [sys.executable, "-c", "print(flush=True); input()", PASSWORD], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        process.stdout.readline()  # it runs
        yield process
        process.stdin.close()

def test_print(): print(f"amqp://guest:{PASSWORD}@host/")
def test_encoded(): print(f"amqp://guest:{quote(PASSWORD, safe='')}@host/")
def test_error(): print(PASSWORD, file=sys.stderr)
def test_log(): logging.getLogger("some").warning("with %s", PASSWORD)
def test_program(): printed("", PASSWORD)
def test_file(tmp_path): (tmp_path / "journal.jsonl").write_text(PASSWORD)
def test_arguments(child): pass
def test_secret(tmp_path): (tmp_path / "database_url").write_text(PASSWORD)
def test_nothing(tmp_path, child=None): print("canary: a bird"); (tmp_path / "file").write_text("nothing")
"""


def test_a_password_that_is_printed_logged_written_or_passed_as_an_argument_fails_the_test(tmp_path: Path) -> None:
    file = tmp_path / "test_some.py"
    file.write_text(TESTS)
    options = ["-p", "tests.servers.fixtures", "-p", "no:cacheprovider", "-q", "-rA", "--rootdir", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(file)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        cwd=Path(__file__).parents[3],
    )
    failed = set(re.findall(r"^(?:FAILED|ERROR) .*::test_(\w+)", done.stdout, re.MULTILINE))
    assert failed == {"print", "encoded", "error", "log", "program", "file", "arguments"}, done.stdout[-3000:]


def test_no_two_servers_share_a_password() -> None:
    assert new_password() != new_password()
