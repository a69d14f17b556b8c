"""``bso replay`` on a database with a history, in this process: what it prints, and how it ends."""

import asyncio
import json
import os
import shlex
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from bso.domain.commands import BeginTrial, RegisterJob
from bso.domain.replies import Problem
from bso.service.engine import Engine
from bso.storage import open_store
from bso_cli.main import app
from bso_migrations import upgrade
from tests.contract.storage.job_requests import HARDWARE, SPEC, Campaign, request
from tests.fakes.policies import installed
from tests.servers import PATIENCE_S
from tests.unit.policies import broken_policies

JOB = "toy"


@dataclass(frozen=True, kw_only=True)
class Done:
    """How a command ended."""

    returncode: int
    stdout: str
    stderr: str


@dataclass(frozen=True, kw_only=True)
class Bso:
    """Runs commands on one SQLite file."""

    url: str

    def __call__(self, *arguments: object, **environment: str) -> Done:
        """Run to the end, whatever the end is."""
        known = {name: None for name in os.environ if name.startswith("BSO_")}
        done = CliRunner().invoke(
            app, [*map(str, arguments)], env={**known, "BSO_DATABASE_URL": self.url, "COLUMNS": "200", **environment}
        )
        return Done(returncode=done.exit_code, stdout=done.stdout, stderr=done.stderr)

    def ok(self, *arguments: object, **environment: str) -> str:
        """Run to a good end; what it printed."""
        done = self(*arguments, **environment)
        assert done.returncode == 0, done
        return done.stdout

    def json(self, *arguments: object) -> Any:
        """Run with --json to a good end; the object that it printed."""
        return json.loads(self.ok(*arguments, "--json"))

    def lines(self, *arguments: object) -> list[Any]:
        """Run to a good end; the JSON objects that it printed, one a line."""
        return [json.loads(line) for line in self.ok(*arguments).splitlines()]

    def refused(self, *arguments: object) -> str:
        """Run to a bad end; the one sentence that says why."""
        done = self(*arguments)
        assert done.returncode == 1, done
        return " ".join(done.stderr.split())


@pytest.fixture
def trained(tmp_path: Path) -> Bso:
    """Commands on a database with one job."""
    url = f"sqlite:///{tmp_path / 'bso.sqlite'}"

    async def train() -> None:
        await upgrade(url)
        store = open_store(url)
        await Campaign(engine=Engine(store), seed=3, job_id=JOB).run(1)
        await store.close()

    asyncio.run(train())
    return Bso(url=url)


def test_tables_are_verified_tampered_with_and_rebuilt(trained: Bso, tmp_path: Path) -> None:
    assert "1 job with" in trained.ok("replay", "verify")
    with sqlite3.connect(tmp_path / "bso.sqlite") as database:
        database.execute("UPDATE trial SET cost = 5, reason = 'a whim' WHERE trial_number = 1")
    database.close()
    found = trained("replay", "verify", "--most", 1)
    assert found.returncode == 1
    assert "trial 1, column reason: the log says nothing has converged yet; 64" in found.stdout
    assert "and 1 more" in found.stdout
    [job] = [json.loads(line) for line in trained("replay", "verify", "--json").stdout.splitlines()]
    assert {one["column"] for one in job["differences"]} == {"cost", "reason"}

    assert trained("replay", "rebuild").returncode == 1  # nobody there to say yes
    [rebuilt] = trained.lines("replay", "rebuild", "--yes", "--json")
    assert (rebuilt["job_id"], rebuilt["changed_rows"]) == ("toy", 1)
    assert "no differences" in trained.ok("replay", "verify")


def test_a_job_whose_policy_is_not_installed_is_not_said_to_be_unsound(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'bso.sqlite'}"

    async def train() -> None:
        await upgrade(url)
        store = open_store(url)
        engine = Engine(store)
        for command in (RegisterJob(spec=SPEC | {"policy": "sound"}), BeginTrial(hardware=HARDWARE)):
            [answer] = await engine.execute([request(command, job_id=JOB)])
            assert not isinstance(answer.reply, Problem), answer.reply
        await store.close()

    with installed(tmp_path / "site", sound=f"{broken_policies.__name__}:INSTALLED.sound"):
        asyncio.run(train())
        Bso(url=url).ok("replay", "verify")
    checked = Bso(url=url)("replay", "verify")
    assert checked.returncode == 1
    assert "policy 'sound' is not installed here" in checked.stdout
    assert "1 of them not checked, since a policy is not installed here" in checked.stdout
    assert "not sound" not in checked.stdout
    [job] = [json.loads(line) for line in Bso(url=url)("replay", "verify", "--json").stdout.splitlines()]
    assert job["is_sound"] is None
    restored = Bso(url=url)("restored")
    assert restored.returncode == 1
    assert "→ install its policy" in restored.stdout


def test_after_a_restore_another_epoch_begins_if_every_log_fits_its_tables(trained: Bso) -> None:
    first, second = (trained.json("restored") for _ in range(2))
    assert (first["jobs"], first["unsound"]) == (1, [])
    assert second["log_epoch"] > first["log_epoch"] > 1
    trained.ok("jobs", "delete", JOB, "--yes")
    events = trained.lines("events", "history", JOB, "--json")
    assert [event["log_epoch"] for event in events[-2:]] == [1, second["log_epoch"]]
    assert trained.lines("events", "history", "--json", "--after", second["log_epoch"]) == events[-1:]
    assert "has begun" in trained.ok("restored", "--unchecked")


def test_a_log_that_nothing_can_mend_keeps_workers_stopped_until_somebody_says_otherwise(
    trained: Bso, tmp_path: Path
) -> None:
    with sqlite3.connect(tmp_path / "bso.sqlite") as database:
        database.execute("DELETE FROM event WHERE seq = 2")
    database.close()
    refused = trained("restored")
    assert refused.returncode == 1
    assert "its log is damaged" in refused.stdout
    assert "Workers stay stopped" in refused.stdout
    assert "run `bso restored`" in trained.refused("jobs", "allow", JOB, 32)
    doctor = trained("doctor", BSO_STATE_DIR=str(tmp_path))
    assert "older state than before" in doctor.stdout
    assert "has begun" in trained.ok("restored", "--unchecked")
    assert "older state than before" not in trained("doctor", BSO_STATE_DIR=str(tmp_path)).stdout


def test_a_backup_is_made_checked_and_brought_into_another_database(trained: Bso, tmp_path: Path) -> None:
    backup, other = tmp_path / "backup.jsonl", f"sqlite:///{tmp_path / 'other.sqlite'}"
    exported = trained.json("replay", "export", "--output", backup)
    assert exported == {"jobs": 1, "events": len(backup.read_bytes().splitlines())}
    assert trained.ok("replay", "export", "toy").encode() == backup.read_bytes()
    assert trained.ok("replay", "export", "--from", backup).encode() == backup.read_bytes()
    assert "no differences" in trained.ok("replay", "verify", "--from", backup)
    assert "no differences" in trained.ok(
        "replay", "verify", "--log-only", "--from", backup, BSO_DATABASE_URL="sqlite:////nowhere/at/all"
    )

    assert "bso migrate" in trained.refused("replay", "import", backup, "--database-url", other)
    trained.ok("migrate", "--database-url", other)
    [first] = trained.lines("replay", "import", backup, "--json", "--database-url", other)
    assert first["added_events"] == exported["events"]
    assert "nothing to do" in trained.ok("replay", "import", backup, "--database-url", other)
    assert "nothing to do" in trained.ok("replay", "rebuild", "--to", other)
    shown = [trained.json("jobs", "show", "toy", "--database-url", url) for url in (other, trained.url)]
    assert shown[0] == shown[1]


def test_bad_files_and_unknown_jobs_are_refused_in_a_sentence(trained: Bso, tmp_path: Path) -> None:
    backup = tmp_path / "backup.jsonl"
    trained.ok("replay", "export", "--output", backup)
    cut = tmp_path / "cut.jsonl"
    cut.write_bytes(backup.read_bytes()[:-30])
    last = backup.read_bytes().count(b"\n")
    assert f"cut.jsonl, line {last}: not an event" in trained.refused("replay", "import", cut)
    assert "no file" in trained.refused("replay", "import", tmp_path / "none.jsonl")
    assert "nothing is recorded of nobody" in trained.refused("replay", "export", "nobody")
    assert trained("replay", "verify", "nobody").returncode == 1
    nobody = trained("replay", "verify", "nobody", "--log-only", "--from", backup)
    assert (nobody.returncode, "the log holds no event of it" in nobody.stdout) == (1, True)
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    assert "holds no event" in trained.refused("replay", "verify", "--log-only", "--from", empty)
    assert trained("replay", "publish", "--type", "nonsense").returncode == 2
    assert "replays are the broker's" in trained.refused("replay", "publish")

    lines = [json.loads(line) for line in backup.read_text().splitlines()]
    lines[2]["recorded_at"] = "2020-02-02T00:00:00Z"
    cut.write_text("".join(json.dumps(line) + "\n" for line in lines))
    refused = trained("replay", "import", cut)
    assert refused.returncode == 1
    assert "event 3 of job toy is already recorded with another recorded_at" in " ".join(refused.stderr.split())


def test_an_archive_that_a_full_disk_has_torn_is_mended_by_the_next_pruning(trained: Bso, tmp_path: Path) -> None:
    events = trained.lines("events", "history", "--json")
    prune = ("events", "prune", "--before", "0h", "--yes", "--export")
    full = trained.refused(*prune, "/dev/full")
    assert "/dev/full: No space left on device" in full
    torn = tmp_path / "archive.jsonl"
    line = json.dumps(events[0])
    torn.write_text(f"{line}\n{line[:-40]}")
    pruned = trained(*prune, torn)
    assert pruned.returncode == 0, pruned
    assert "ended within a line, which is cut off" in " ".join(pruned.stderr.split())
    assert [json.loads(line) for line in torn.read_text().splitlines()] == [events[0], *events]
    whole = tmp_path / "whole.jsonl"
    whole.write_text(line)  # its end alone is missing
    assert "cut off" not in trained(*prune, whole).stderr
    assert json.loads(whole.read_text().splitlines()[0]) == events[0]
    other = f"sqlite:///{tmp_path / 'other.sqlite'}"
    trained.ok("migrate", "--database-url", other)
    trained.ok("replay", "import", torn, "--database-url", other)
    assert trained.lines("events", "history", "--json", "--database-url", other)[-1]["seq"] == events[-1]["seq"]


def test_an_event_that_cannot_be_read_harms_no_other_job(trained: Bso, tmp_path: Path) -> None:
    async def train() -> None:
        store = open_store(trained.url, has_outbox=False)
        await Campaign(engine=Engine(store), seed=4, job_id="zoo").run(1)
        await store.close()

    asyncio.run(train())
    events = trained.lines("events", "history", "--json")
    bad = next(event for event in events if (event["job_id"], event["seq"]) == (JOB, 4))
    with sqlite3.connect(tmp_path / "bso.sqlite") as database:
        database.execute("UPDATE event SET type = 'no_such_type' WHERE event_id = ?", [bad["event_id"]])
    database.close()
    shown = trained("events", "history", "--json")
    assert [json.loads(line) for line in shown.stdout.splitlines()] == events[: events.index(bad)]
    said = " ".join(shown.stderr.split())
    assert f"To go on behind it: --after {bad['event_id']}" in said
    assert "try again" not in said
    later = trained.lines("events", "history", "--json", "--after", bad["event_id"])
    assert later == events[events.index(bad) + 1 :]
    archive = tmp_path / "archive.jsonl"
    pruned = trained("events", "prune", "--before", "0h", "--export", archive, "--yes", "--json")
    assert pruned.returncode == 1
    counts = json.loads(pruned.stdout)
    assert counts["jobs"] == 1
    assert [*counts["unreadable"]] == [JOB]
    archived = [json.loads(line) for line in archive.read_text().splitlines()]
    assert {event["seq"] for event in archived if event["job_id"] == "zoo"} == {
        event["seq"] for event in events if event["job_id"] == "zoo"
    }
    left = trained.lines("events", "history", "zoo", "--json")
    assert [event["type"] for event in left] == ["job_snapshotted"]


def test_an_export_goes_into_what_is_there(trained: Bso, tmp_path: Path) -> None:
    expected = trained.ok("replay", "export", JOB).encode()
    real, link, dangling, pipe = (tmp_path / name for name in ("real", "link", "dangling", "pipe"))
    real.touch(mode=0o600)
    link.symlink_to(real)
    dangling.symlink_to(tmp_path / "new")
    os.mkfifo(pipe)
    for output in (link, dangling):
        trained.ok("replay", "export", JOB, "--output", output)
        assert output.is_symlink()
        assert output.read_bytes() == expected
    assert real.stat().st_mode & 0o777 == 0o600
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(pipe.read_bytes)
        trained.ok("replay", "export", JOB, "--output", pipe)
        assert reading.result(PATIENCE_S) == expected
    assert pipe.is_fifo()
    assert "/dev/full: No space left on device" in trained.refused("replay", "export", JOB, "--output", "/dev/full")
    assert Path("/dev/full").is_char_device()


def test_who_reads_no_further_gets_no_traceback(trained: Bso) -> None:
    verify = f"{shlex.quote(sys.executable)} -m bso_cli replay verify --json | true"
    known = {name: text for name, text in os.environ.items() if not name.startswith("BSO_")}
    done = subprocess.run(
        ["bash", "-c", verify],
        env=known | {"BSO_DATABASE_URL": trained.url},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert "Traceback" not in done.stderr
    assert "asynchronous generator" not in done.stderr
