"""The threat model of docs/security.md: without its defence, the test that a row names fails."""

import asyncio
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.defences.removals import REMOVALS, VARIABLE
from tools.private_servers import MariaDB, RabbitMQ

ROOT = Path(__file__).parents[2]
_TEST = re.compile(r"`(tests/[\w/]+\.py)`: `(test_\w+)`")


def as_written() -> Mapping[str, list[str]]:
    """The tests that the page names, by what somebody may try."""
    page = (ROOT / "docs/security.md").read_text(encoding="utf-8")
    section = page.partition("## What somebody with a training's login may try")[2].partition("\n\n**")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line[:2] == "| "][1:]
    return {attempt: [f"{file}::{name}" for file, name in _TEST.findall(tests)] for attempt, _, tests in rows}


ROWS = as_written()


def test_each_row_names_a_test_and_has_a_removal() -> None:
    assert ROWS.keys() == REMOVALS.keys()
    for tests in ROWS.values():
        assert tests
        for test in tests:
            file, _, name = test.partition("::")
            assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8"), test


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("attempt", REMOVALS)
async def test_without_its_defence_the_test_of_a_row_fails(
    attempt: str, rabbitmq_server: RabbitMQ, mariadb_server: MariaDB
) -> None:
    servers = {
        "BSO_TEST_AMQP_URL": rabbitmq_server.start().url,
        "BSO_TEST_AMQP_MANAGEMENT_URL": rabbitmq_server.management_url,
        "BSO_TEST_DATABASE_URL": mariadb_server.start().create_database(),
    }
    for test in ROWS[attempt]:
        plugins = ("-p", "tests.defences.removals", "-p", "no:rerunfailures")
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "pytest", *plugins, "-m", "slow or not slow", "-q", "-x", test),
            cwd=ROOT,
            env={**os.environ, **servers, VARIABLE: attempt, "PYTEST_ADDOPTS": ""},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        printed = (await process.communicate())[0].decode()
        summary = printed.strip().splitlines()[-1]
        assert process.returncode == 1, f"{test} does not need the defence:\n{printed}"
        assert " failed" in summary, printed
        assert " error" not in summary, printed
