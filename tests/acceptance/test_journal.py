"""``bso journal``, as an operator types it, over what a training has really left behind."""

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

TRAINING = """
import sys
from bso.domain.errors import Misconfigured
from bso_client import BatchSizeOptimizer, JobSpec, Unreachable
from bso_client.transports import open_transport

class Away:
    '''An optimizer that answers until the training has begun, or never.'''
    def __init__(self, url, answers):
        self.other, self.answers = open_transport(url), answers
    async def start(self):
        await self.other.start()
    async def call(self, request, *, timeout_s):
        if self.answers <= 0:
            raise Unreachable("nobody answers")
        self.answers -= 1
        return await self.other.call(request, timeout_s=timeout_s)
    async def close(self):
        await self.other.close()

url, answers, nights = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
for night in range(nights):
    # Costs are real seconds: without a bound no slow night is stopped, and none waits for an answer to its next trial.
    spec = JobSpec(
        job_id="nightly", batch_sizes=[8, 16], default_batch_size=8, target_metric=0.9, max_epochs=3, beta_knob=None
    )
    bso = BatchSizeOptimizer(spec, url=url, transport=Away(url, answers), unreachable_timeout=60.0 if answers else 0.1)
    for trial in bso.trials():
        with trial:
            while not trial.finished:
                trial.on_evaluate(0.5 if trial.epoch < 1 else 0.95)
    bso.close(timeout=5.0 if answers > 9 else 0.1)
"""


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    kept = {name: text for name, text in os.environ.items() if not name.startswith("BSO_")}
    return kept | {"BSO_STATE_DIR": str(tmp_path), "BSO_ENERGY": "assumed", "COLUMNS": "200"}


def bso(environ: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bso_cli", *arguments]
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=False)


def answered(environ: dict[str, str], *arguments: str) -> Any:
    done = bso(environ, *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def train(environ: dict[str, str], url: str, *, answers: int, nights: int = 1) -> str:
    command = [sys.executable, "-c", TRAINING, url, str(answers), str(nights)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    return done.stderr


@pytest.fixture
def url(tmp_path: Path, environ: dict[str, str]) -> str:
    url = f"sqlite:///{tmp_path / 'optimizer.sqlite'}"
    train(environ, url, answers=100)
    return url


def models(url: str) -> int:
    """How many trainings are recorded that have a model; each night has one, after attempts that were stopped."""
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as database:
        [number] = database.execute("SELECT COUNT(*) FROM trial WHERE outcome = 'converged'").fetchone()
    return int(number)


def test_what_an_outage_has_left_is_listed_and_delivered(environ: dict[str, str], url: str) -> None:
    said = train(environ, url, answers=0, nights=3)
    assert "bso journal flush" in said

    [entry] = answered(environ, "journal", "list")
    assert (entry["job_id"], entry["trainings"], entry["is_held"], entry["set_aside"]) == ("nightly", 3, False, [])
    listed = bso(environ, "journal", "list")
    assert "nightly at sqlite" in listed.stdout
    assert "`bso journal flush`" in listed.stderr
    assert "`bso journal drop JOB` deletes" in listed.stderr

    assert answered(environ, "journal", "flush", "--url", url)["delivered"] == entry["commands"]
    assert models(url) == 4
    assert answered(environ, "journal", "list") == []
    assert "nothing is kept" in bso(environ, "journal", "list").stderr


def test_the_next_training_delivers_it_before_it_begins(environ: dict[str, str], url: str) -> None:
    train(environ, url, answers=0, nights=2)
    train(environ, url, answers=100)
    assert models(url) == 4
    assert answered(environ, "journal", "list") == []


@pytest.mark.slow
def test_what_is_kept_for_another_address_is_not_sent(environ: dict[str, str], url: str, tmp_path: Path) -> None:
    train(environ, url, answers=0)
    other = f"sqlite:///{tmp_path / 'other.sqlite'}"
    assert answered(environ, "journal", "flush", "--url", other)["delivered"] == 0
    assert len(answered(environ, "journal", "list")) == 1


def test_a_flush_says_for_what_it_waits_what_is_left_and_what_other_addresses_hold(
    environ: dict[str, str], url: str
) -> None:
    away = "amqp://ann:secret@127.0.0.1:9/"
    train(environ, url, answers=0)
    train(environ, away, answers=0)
    kept = {entry["address"]: entry["commands"] for entry in answered(environ, "journal", "list")}
    done = bso(environ, "journal", "flush", "--url", away, "--timeout", "0.2")
    assert done.stdout == "0 commands delivered, 0 refused and set aside\n"
    assert done.returncode == 1
    address = "amqp://127.0.0.1:9/%2F"
    said = done.stderr.splitlines()
    assert f"{kept[address]} commands for {address}: waiting up to 0.2 s for each answer" in said
    assert f"still to be delivered: {kept[address]} commands" in said
    assert f"{kept[url]} commands of {url} stay: they are delivered to that address only, with BSO_URL or --url" in said


def test_what_another_login_has_kept_stays_and_is_named(environ: dict[str, str], url: str) -> None:
    train(environ, "amqp://ann:secret@127.0.0.1:9/", answers=0)  # the job is known here from another place
    done = bso(environ, "journal", "flush", "--url", "amqp://bob:secret@127.0.0.1:9/")
    assert done.stdout == "0 commands delivered, 0 refused and set aside\n"
    assert "commands of login ann stay: only that login delivers them" in done.stderr
    assert done.returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("answers", [0, 3], ids=["begun alone", "registered, begun, one report"])
def test_what_a_deleted_job_refuses_is_shown_with_the_reason(environ: dict[str, str], url: str, answers: int) -> None:
    train(environ, url, answers=answers)
    deleted = bso(environ, "jobs", "delete", "nightly", "--url", url, "--yes")
    assert deleted.returncode == 0, deleted.stderr
    flushed = bso(environ, "journal", "flush", "--url", url, "--json")
    assert (json.loads(flushed.stdout)["set_aside"] > 0, flushed.returncode) == (True, 1)
    shown = bso(environ, "journal", "list").stdout
    assert "set aside" in shown
    assert "nightly" in shown


@pytest.mark.slow
def test_dropping_asks_first(environ: dict[str, str], url: str) -> None:
    train(environ, url, answers=0)
    refused = bso(environ, "journal", "drop", "nightly")
    assert refused.returncode != 0
    assert len(answered(environ, "journal", "list")) == 1
    assert answered(environ, "journal", "drop", "nightly", "--yes")["dropped"] > 0
    assert answered(environ, "journal", "list") == []


def test_a_job_that_is_not_there_is_named(environ: dict[str, str], url: str) -> None:
    done = bso(environ, "journal", "flush", "weekly", "--url", url)
    assert done.returncode == 1
    assert "nothing is kept of job weekly" in done.stderr
