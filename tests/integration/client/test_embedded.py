"""The embedded mode: a file that makes itself, shared by processes, without a worker."""

import asyncio
import re
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import text
from typing_extensions import override

from bso.domain.decide import Rules
from bso.domain.errors import Misconfigured
from bso.domain.events import TrialSuspended
from bso.domain.hardware import HardwareKind
from bso.domain.job import Job, Recurrence
from bso.domain.policy import Choice
from bso.domain.replies import TrialBegun
from bso.service.engine import Engine
from bso.service.errors import JobDamaged, SchemaMissing, StoreNotReady, StoreUnusable
from bso.service.records import SchemaStatus
from bso.storage import open_store
from bso_client import BatchSizeOptimizer, JobSpec, Refused
from bso_client.transports.embedded import open_embedded
from tests.contract.storage.job_requests import (
    JOB,
    Campaign,
    ask,
    assert_log_equals_tables,
    begin,
    beginning,
    registration,
    whole_history,
)
from tests.fakes.policies import installed
from tests.integration.storage.older_schema import go_back
from tests.unit.policies.broken_policies import Sound


async def test_the_file_makes_itself_and_is_found_again(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "state" / "bso.sqlite"
    first = await open_embedded(path)
    assert (first.was_created, first.path) == (True, path)
    await Campaign(engine=first.engine, seed=1).run(3)
    await first.close()
    again = await open_embedded(f"sqlite:///{path}")
    assert not again.was_created
    folded = await assert_log_equals_tables(again.store)
    assert folded.last_trial_number >= 3
    await again.close()


async def test_looking_at_a_file_that_does_not_exist_makes_none(tmp_path: Path) -> None:
    path = tmp_path / "bso.sqlite"
    store = open_store(f"sqlite:///{path}")
    assert (await store.schema_state()).status is SchemaStatus.MISSING
    with pytest.raises(SchemaMissing, match="does not exist"):
        await store.jobs()
    await store.close()
    assert await asyncio.to_thread(lambda: list(tmp_path.iterdir())) == []


async def test_an_older_file_is_upgraded(tmp_path: Path) -> None:
    path = tmp_path / "bso.sqlite"
    first = await open_embedded(path)
    await ask(first.engine, registration())
    await first.close()
    await go_back(f"sqlite:///{path}", revision=4)
    again = await open_embedded(path)
    await begin(again.engine)
    await assert_log_equals_tables(again.store)
    await again.close()


async def test_a_file_of_a_newer_release_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "bso.sqlite"
    first = await open_embedded(path)
    async with first.store.engine.connect() as connection:
        await connection.execute(text("UPDATE bso_schema_version SET version_num = '9999'"))
        await connection.commit()
    await first.close()
    with pytest.raises(StoreNotReady, match="upgrade the program"):
        await open_embedded(path)


async def test_beginning_a_trial_expires_lapsed_leases_first(tmp_path: Path) -> None:
    path = tmp_path / "bso.sqlite"
    killed = await open_embedded(path, rules=Rules(lease_s=0.0))
    await ask(killed.engine, registration())
    await begin(killed.engine, recurrence_id="monday")
    await killed.close()
    handle = await open_embedded(path)
    [answer] = await handle.execute([beginning(recurrence_id="monday")])
    assert isinstance(answer.reply, TrialBegun)
    kinds = [type(recorded.event) for recorded in await whole_history(handle.store, JOB)]
    assert kinds.index(TrialSuspended) < len(kinds) - 1
    await assert_log_equals_tables(handle.store)
    await handle.close()


async def test_a_damaged_job_keeps_no_other_from_beginning_a_trial(tmp_path: Path) -> None:
    path = tmp_path / "bso.sqlite"
    killed = await open_embedded(path, rules=Rules(lease_s=0.0))
    for job_id in (JOB, "damaged"):
        await ask(killed.engine, registration(job_id))
        await begin(killed.engine, job_id)
    await killed.close()
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE job SET revision = revision + 1, state = '{' WHERE job_id = 'damaged'")
    handle = await open_embedded(path)
    [answer] = await handle.execute([beginning()])
    assert isinstance(answer.reply, TrialBegun)
    with pytest.raises(JobDamaged, match="job damaged cannot be read"):
        await handle.execute([beginning("damaged")])
    await handle.close()


async def test_there_is_no_outbox(tmp_path: Path) -> None:
    handle = await open_embedded(tmp_path / "bso.sqlite")
    await ask(handle.engine, registration(), beginning())
    assert (await handle.store.unpublished(older_than_s=0.0)).events == []
    await handle.close()


async def test_processes_that_start_together_share_one_new_file(tmp_path: Path) -> None:
    path = tmp_path / "bso.sqlite"
    pipe = asyncio.subprocess.PIPE
    program = [sys.executable, "-m", "tests.integration.client.embedded_training", str(path)]
    trainings = [
        await asyncio.create_subprocess_exec(*program, f"night-{number}", stdout=pipe, stderr=pipe)
        for number in range(3)
    ]
    ends = await asyncio.gather(*(training.communicate() for training in trainings))
    assert [error.decode() for _, error in ends] == [""] * 3
    assert sorted(int(output) for output, _ in ends) == [1, 2, 3]
    handle = await open_embedded(path)
    folded = await assert_log_equals_tables(handle.store)
    assert sorted(folded.trials) == [1, 2, 3]
    await handle.close()


async def test_another_process_that_closes_a_file_takes_nothing_from_who_brought_it_up_to_date(tmp_path: Path) -> None:
    path = tmp_path / "bso.sqlite"
    path.touch()  # another process has just begun to make it
    handle = await open_embedded(path)
    await ask(handle.engine, registration())
    look = f"import sqlite3; print(sqlite3.connect({str(path)!r}).execute('SELECT count(*) FROM trial').fetchone()[0])"
    for begun in range(3):  # the last one to close a file moves its log into it, and removes the log
        assert int(await asyncio.to_thread(subprocess.check_output, [sys.executable, "-c", look])) == begun
        await begin(handle.engine)
    await handle.close()


async def test_a_write_waits_for_another_process_instead_of_failing(tmp_path: Path) -> None:
    handle = await open_embedded(tmp_path / "bso.sqlite")
    other = await open_embedded(tmp_path / "bso.sqlite")
    await ask(handle.engine, registration())
    async with handle.store.unit_of_work() as uow:
        await uow.lock([JOB], creating=())
        second = asyncio.create_task(Engine(other.store).execute([beginning()]))
        await handle.store.jobs()
        assert not second.done()
    [answer] = await second
    assert isinstance(answer.reply, TrialBegun)
    await handle.close()
    await other.close()


@pytest.mark.parametrize("address", ["mysql://me@db/bso", "sqlite://"])
async def test_only_a_file_can_be_embedded(address: str) -> None:
    with pytest.raises(Misconfigured):
        await open_embedded(address)


async def test_a_folder_that_cannot_be_made_is_explained(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Misconfigured, match="BSO_URL"):
        await open_embedded(tmp_path / "file" / "bso.sqlite")


async def test_a_file_that_is_no_database_is_explained(tmp_path: Path) -> None:
    path = tmp_path / "bso.sqlite"
    path.write_text("these are not the bytes of a database, whatever its name says" * 100)
    with pytest.raises(Misconfigured, match="not a database"):
        await open_embedded(path)


def test_a_file_that_cannot_be_opened_leaves_no_thread_that_complains_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    complaints: list[object] = []
    monkeypatch.setattr(threading, "excepthook", complaints.append)

    async def look() -> None:
        store = open_store(f"sqlite:///{tmp_path}")
        with pytest.raises(StoreUnusable):
            await store.ping()
        await store.close()

    for _ in range(100):
        asyncio.run(look())
    assert complaints == []


async def test_a_damaged_file_is_named_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "bso.sqlite"
    await (await open_embedded(path)).close()
    whole = path.read_bytes()
    path.write_bytes(whole[:4096] + b"?" * (len(whole) - 4096))
    with pytest.raises(Misconfigured, match=r"bso\.sqlite: .*remove the file, or let BSO_STATE_DIR"):
        await _register_in(path)


async def _register_in(path: Path) -> None:
    handle = await open_embedded(path)
    try:
        await handle.execute([registration()])
    finally:
        await handle.close()


def test_a_training_beside_which_the_file_is_deleted_goes_on_and_is_recorded_in_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("BSO_STATE_DIR", str(tmp_path))
    monkeypatch.setenv("BSO_ENERGY", "assumed")
    path = tmp_path / "jobs.sqlite"
    spec = JobSpec(job_id=JOB, batch_sizes=[32, 64], default_batch_size=64, target_metric=0.9)
    with BatchSizeOptimizer(spec, url=f"sqlite:///{path}") as bso:
        for _night in range(2):
            for trial in bso.trials():
                with trial:
                    trial.on_evaluate(0.95)
            for suffix in ("", "-wal", "-shm"):
                path.with_name(path.name + suffix).unlink(missing_ok=True)
    assert f"{path} was there, and is gone: the next process makes a new one" in caplog.text
    with BatchSizeOptimizer(spec, url=f"sqlite:///{path}") as bso:
        bso.get_batch_size()
        assert bso.trial is not None
        assert bso.trial.trial_number == 2, "that of the second night is the first one of the new file"


def test_what_a_policy_does_wrong_is_said_where_it_runs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BSO_ENERGY", "assumed")
    with installed(tmp_path / "site", wild=f"{__name__}:WILD"):
        spec = JobSpec(job_id=JOB, batch_sizes=[16, 32], default_batch_size=32, policy="wild")
        bso = BatchSizeOptimizer(spec, state_dir=tmp_path)
        for mistake, words in (
            (39, "policy wild chose batch size 39: choose has to return one of the job's, 16, 32"),
            ("16", "policy wild chose batch size '16'"),
            (ValueError("boom in choose"), "ValueError: boom in choose"),
            (SystemExit(3), "SystemExit: 3"),
        ):
            WILD.mistake = mistake
            with pytest.raises(Refused, match=f"Nothing was recorded: .*{words}"):
                bso.get_batch_size()
            assert words in caplog.text
        assert re.search(r"SystemExit: 3 \(policy wild, \S*test_embedded.py:\d+\)", caplog.text)
        assert "raise self.mistake" in caplog.text, "the traceback"
        WILD.mistake = 16
        assert bso.get_batch_size() == 16
        bso.close()


class Wild(Sound):
    """Chooses what it is given, or raises it."""

    name = "wild"
    mistake: object = None

    @override
    def choose(self, job: Job, recurrence: Recurrence, hardware: HardwareKind) -> Choice:
        if isinstance(self.mistake, BaseException):
            raise self.mistake
        return Choice(batch_size=self.mistake, reason="so it was set")  # type: ignore[arg-type]  # that is the mistake


WILD = Wild()
