"""``bso import zeus``: what Zeus' server has found out becomes recorded trials of ours, exactly once."""

import asyncio
import hashlib
import json
import sqlite3
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, closing
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from bso.domain.commands import BeginTrial, OnConflict, RegisterJob, ReportEpoch, Request
from bso.domain.job import Job
from bso.domain.knowledge import costs_of
from bso.domain.replies import EpochJudged, TrialBegun
from bso.domain.trial import Outcome, Trial
from bso.schema.codec import job_from_state
from bso.service.engine import Engine
from bso.service.ports import UnitOfWork
from bso.storage import open_store
from bso.storage.store import SqlStore
from bso.storage.urls import database_url
from bso_cli.importing.past import Past
from bso_cli.importing.zeus_database import read_zeus, snapshot
from bso_cli.importing.zeus_history import ZeusHistory, history_of
from tests.integration.gateway.conftest import Gateway, gateway_process
from tests.integration.importing.zeus_jobs import CHEAPEST, EPOCH_S, EPOCHS, JOBS, NIGHTLY, WATTS, decide_at_zeus
from tests.integration.replay.test_commands import Bso

Change = Callable[..., None]


def in_store(bso: Bso, work: Callable[[SqlStore], Any]) -> Any:
    async def run() -> Any:
        store = open_store(bso.url, has_outbox=False)
        try:
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(run())


def trials_of(bso: Bso, job_id: str) -> list[Trial]:
    return list(in_store(bso, lambda store: store.trials(job_id)))


def rows_of(file: Path, job_id: str) -> list[dict[str, Any]]:
    """The trials of Zeus that have ended."""
    with closing(sqlite3.connect(file)) as database:
        database.row_factory = sqlite3.Row
        asked = "SELECT * FROM Trial WHERE job_id = ? AND status <> 'Dispatched' ORDER BY trial_number"
        return [dict(row) for row in database.execute(asked, (job_id,))]


def test_every_ended_trial_is_recorded_with_what_it_took(bso: Bso, zeus_file: Path) -> None:
    said = bso.ok("import", "zeus", f"sqlite+aiosqlite:///{zeus_file}")
    assert "job nightly: 10 trials taken over, new here" in said
    assert "job night-odd: 5 trials taken over, new here; not ended at Zeus, and left out: trial 3, 6" in said
    assert "3 jobs with 27 new trials taken over" in said
    for job_id in ("nightly", "night-odd", "night-loss"):
        for trial, row in zip(trials_of(bso, job_id), rows_of(zeus_file, job_id), strict=True):
            assert trial.batch_size == row["batch_size"]
            assert (trial.time_s, trial.energy_j) == (row["time"] or 0.0, row["energy"] or 0.0)
            assert trial.started_at == datetime.fromisoformat(row["start_timestamp"]).astimezone()
            assert trial.ended_at == datetime.fromisoformat(row["end_timestamp"]).astimezone()
            assert (trial.outcome is Outcome.CONVERGED) is bool(row["converged"])
            assert f"taken over from Zeus: its trial {row['trial_number']} ({row['type']})" == trial.reason
            assert trial.outcome_reason.startswith("taken over from Zeus: ")


def test_how_a_trial_missed_its_target_follows_from_what_zeus_had_seen(bso: Bso, zeus_file: Path) -> None:
    bso.ok("import", "zeus", f"sqlite:///{zeus_file}")
    rows = rows_of(zeus_file, "nightly")
    least = min(row["energy"] * 0.5 + row["time"] * 0.5 * 300.0 for row in rows[:3])
    stopped = trials_of(bso, "nightly")[3]
    assert (stopped.batch_size, stopped.outcome) == (256, Outcome.COST_EXCEEDED)
    assert stopped.bound == pytest.approx(2 * least)
    missed = trials_of(bso, "night-loss")[2]
    assert (missed.batch_size, missed.outcome, missed.bound) == (32, Outcome.NOT_CONVERGED, None)
    assert trials_of(bso, "night-odd")[1].outcome is Outcome.INTERRUPTED


def test_the_history_is_an_ordinary_one(bso: Bso, zeus_file: Path) -> None:
    bso.ok("import", "zeus", f"sqlite:///{zeus_file}")
    assert "no differences" in bso.ok("replay", "verify")
    assert "best batch size so far 64" in bso.ok("jobs", "show", "nightly")
    assert "taken over from Zeus: its trial 4 (Exploration)" in bso.ok("jobs", "why", "nightly", "4")
    assert len(bso.lines("jobs", "export", "nightly")) == 10
    assert "taken over from Zeus: it reached its target" in bso.ok("events", "history", "nightly")


def test_nothing_is_written_at_zeus(bso: Bso, zeus_file: Path, tmp_path: Path) -> None:
    before, names = hashlib.sha256(zeus_file.read_bytes()).digest(), sorted(tmp_path.glob("zeus*"))
    bso.ok("import", "zeus", f"sqlite:///{zeus_file}")
    assert hashlib.sha256(zeus_file.read_bytes()).digest() == before
    assert sorted(tmp_path.glob("zeus*")) == names


def test_a_second_import_adds_only_what_has_ended_since(bso: Bso, zeus_file: Path, change: Change) -> None:
    address = f"sqlite:///{zeus_file}"
    bso.ok("import", "zeus", address)
    events = len(bso.ok("events", "history").splitlines())
    assert "3 jobs with 0 new trials taken over" in bso.ok("import", "zeus", address)
    assert len(bso.ok("events", "history").splitlines()) == events
    change(
        "UPDATE Trial SET status = 'Succeeded', end_timestamp = start_timestamp, time = 300, energy = 60000, "
        "converged = 1 WHERE job_id = 'night-odd' AND trial_number = 3"
    )
    assert "job night-odd: 1 trial taken over, 5 trials there already" in bso.ok("import", "zeus", address)
    assert trials_of(bso, "night-odd")[-1].reason == "taken over from Zeus: its trial 3 (Exploration)"
    assert "no differences" in bso.ok("replay", "verify")


def test_a_second_import_adds_nothing_where_the_job_has_a_new_version_meanwhile(bso: Bso, zeus_file: Path) -> None:
    bso.ok("import", "zeus", f"sqlite:///{zeus_file}")
    spec = {**registration_of(zeus_file, "nightly"), "version": "b"}

    async def change(store: SqlStore) -> Any:
        command = RegisterJob(spec=spec, on_conflict=OnConflict.NEW_VERSION)
        [answer] = await Engine(store).execute(
            [Request(command_id=str(uuid.uuid4()), job_id="nightly", command=command)]
        )
        return answer.reply

    assert in_store(bso, change).version_number == 2
    assert "3 jobs with 0 new trials taken over" in bso.ok("import", "zeus", f"sqlite:///{zeus_file}")
    assert len(trials_of(bso, "nightly")) == 10


def registration_of(file: Path, job_id: str) -> Mapping[str, Any]:
    """The specification that an import registers."""
    [rows] = [rows for rows in asyncio.run(read_zeus(f"sqlite:///{file}")) if rows.job["job_id"] == job_id]
    registration = history_of(rows, policy=None, is_strict=False).registration
    return {**registration.defaults, **registration.spec}


def test_a_dry_run_says_what_an_import_would_do_and_changes_nothing(bso: Bso, zeus_file: Path) -> None:
    address = f"sqlite:///{zeus_file}"
    planned = bso.lines("import", "zeus", address, "--dry-run", "--json")
    assert bso.ok("events", "history") == ""
    assert bso.lines("import", "zeus", address, "--json") == planned
    assert {one["added"] for one in bso.lines("import", "zeus", address, "--dry-run", "--json")} == {0}


def test_only_named_jobs_are_taken_over_for_their_owner(bso: Bso, zeus_file: Path) -> None:
    address = f"sqlite:///{zeus_file}"
    said = bso.refused("import", "zeus", address, "--job", "nightly", "--job", "other")
    assert "Zeus' database has no job other; it has night-loss, night-odd, nightly" in said
    bso.ok("import", "zeus", address, "--job", "nightly", "--owner", "ann")
    [job] = bso.json("jobs", "list")
    assert (job["job_id"], job["owner"]) == ("nightly", "ann")


def test_a_job_that_was_deleted_here_stays_deleted_unless_it_is_named(bso: Bso, zeus_file: Path) -> None:
    address = f"sqlite:///{zeus_file}"
    bso.ok("import", "zeus", address)
    bso.ok("jobs", "delete", "nightly", "--yes")
    assert "--job nightly takes it over anew" in bso.refused("import", "zeus", address)
    assert "10 trials taken over, new here" in bso.ok("import", "zeus", address, "--job", "nightly")
    assert "best batch size so far 64" in bso.ok("jobs", "show", "nightly")


class _Cut:
    """A store whose connection is lost after some commits."""

    def __init__(self, store: SqlStore, commits: int) -> None:
        self._store = store
        self._left = commits

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    @asynccontextmanager
    async def unit_of_work(self) -> AsyncIterator[UnitOfWork]:
        if not self._left:
            raise KeyboardInterrupt
        self._left -= 1
        async with self._store.unit_of_work() as uow:
            yield uow


def history(file: Path, job_id: str, *, policy: str | None = None) -> ZeusHistory:
    found = asyncio.run(read_zeus(f"sqlite:///{file}"))
    return next(history_of(rows, policy=policy, is_strict=False) for rows in found if rows.job["job_id"] == job_id)


@pytest.mark.parametrize("commits", [1, 2, 3])
def test_an_import_that_was_broken_off_is_started_again(
    bso: Bso, zeus_file: Path, change: Change, commits: int
) -> None:
    for number in range(11, 51):
        change(
            "INSERT INTO Trial SELECT job_id, batch_size, ?, start_timestamp, type, status, end_timestamp, time, "
            "energy, converged FROM Trial WHERE job_id = 'nightly' AND trial_number = 10",
            number,
        )
    past = history(zeus_file, "nightly")

    async def cut(store: SqlStore) -> None:
        cut_off: Any = _Cut(store, commits)
        await Past(cut_off).record(past, progress=lambda _: None)

    with pytest.raises(KeyboardInterrupt):
        in_store(bso, cut)
    there = trials_of(bso, "nightly")
    assert len(there) == 20 * (commits - 1)
    assert all(trial.outcome is not None for trial in there)
    bso.ok("import", "zeus", f"sqlite:///{zeus_file}", "--job", "nightly")
    reasons = [trial.reason for trial in trials_of(bso, "nightly")]
    assert len(reasons) == len(set(reasons)) == 50
    assert "no differences" in bso.ok("replay", "verify")


def test_a_training_that_begins_during_an_import_disturbs_nothing(bso: Bso, zeus_file: Path) -> None:
    past = history(zeus_file, "nightly")

    async def record(store: SqlStore) -> None:
        late: Any = _Rival(store)
        await Past(late).record(past, progress=lambda _: None)

    class _Rival(_Cut):
        """A store in which a training begins between a look at the job and what is recorded then."""

        def __init__(self, store: SqlStore) -> None:
            super().__init__(store, 1000)

        async def summary(self, job_id: str) -> Any:
            found = await self._store.summary(job_id)
            begin = Request(command_id=str(_number(1)), job_id=job_id, command=BeginTrial(hardware=past.hardware))
            await Engine(self._store).execute([begin])
            return found

    in_store(bso, record)
    trials = trials_of(bso, "nightly")
    assert [trial.outcome is None for trial in trials] == [True] + [False] * 10
    assert "no differences" in bso.ok("replay", "verify")


def _number(number: int) -> str:
    return f"00000000-0000-4000-8000-{number:012d}"


def job_of(bso: Bso, job_id: str) -> Job:
    stored = in_store(bso, lambda store: store.job(job_id))
    return job_from_state(job_id, stored.last_seq, json.loads(stored.state))


@pytest.mark.parametrize("policy", ["curve", "pruning_thompson"])
def test_the_next_trainings_run_the_cheapest_batch_size_to_their_end(bso: Bso, zeus_file: Path, policy: str) -> None:
    """Under Zeus' rules any batch size that is nearly as cheap may be sampled: here none is."""
    bso.ok("import", "zeus", f"sqlite:///{zeus_file}", "--policy", policy)
    hardware = history(zeus_file, "nightly").hardware

    async def train(store: SqlStore) -> list[tuple[int, Outcome | None, str]]:
        engine, runs = Engine(store), []
        for run in range(1, 6):
            begin = Request(command_id=_number(run), job_id="nightly", command=BeginTrial(hardware=hardware))
            begun = (await engine.execute([begin]))[0].reply
            assert isinstance(begun, TrialBegun)
            runs.append((begun.batch_size, *(await _train(engine, begun, run))))
        return runs

    runs = in_store(bso, train)
    assert runs[0][:2] == (CHEAPEST, Outcome.CONVERGED)
    sizes = [size for size, outcome, _ in runs if outcome is Outcome.CONVERGED]
    assert sizes.count(CHEAPEST) >= 3, runs
    assert all(outcome is Outcome.CONVERGED for size, outcome, _ in runs if size == CHEAPEST), runs
    assert "change_point" not in [event["type"] for event in bso.lines("events", "history", "nightly", "--json")]


async def _train(engine: Engine, begun: TrialBegun, run: int) -> tuple[Outcome | None, str]:
    size = begun.batch_size
    for epoch in range(1, EPOCHS[size] + 1):
        report = ReportEpoch(
            trial_number=begun.trial_number,
            trial_id=begun.trial_id,
            epoch=float(epoch),
            time_s=epoch * EPOCH_S[size],
            energy_j=epoch * EPOCH_S[size] * WATTS,
            metric=0.9 if epoch == EPOCHS[size] else 0.5,
        )
        asked = Request(command_id=_number(1000 * run + epoch), job_id="nightly", command=report)
        judged = (await engine.execute([asked]))[0].reply
        assert isinstance(judged, EpochJudged)
        if judged.should_stop:
            return judged.outcome, judged.reason
    return None, ""


def test_the_arms_of_zeus_rules_are_those_of_zeus(bso: Bso, zeus_file: Path) -> None:
    """Without a window: Zeus' spans the last results of each batch size, ours those of all together."""
    bso.ok("import", "zeus", f"sqlite:///{zeus_file}", "--policy", "pruning_thompson")
    job = job_of(bso, "nightly")
    [knowledge] = job.version.knowledge.values()
    with closing(sqlite3.connect(zeus_file)) as database:
        arms = {
            size: (count, mean, precision)
            for size, count, mean, precision in database.execute(
                "SELECT batch_size, num_observations, param_mean, reward_precision FROM GaussianTsArmState "
                "WHERE job_id = 'nightly'"
            )
        }
    assert set(arms) == {32, 64, 128}, "256 was pruned"
    assert 256 in knowledge.memories["pruning_thompson"].pruned
    assert knowledge.memories["pruning_thompson"].stage.value == "MAB"
    for size, (count, mean, precision) in arms.items():
        costs = costs_of(knowledge, job.spec, size)
        assert costs.count == count
        assert costs.mean == pytest.approx(-mean)
        usual = (count - 1) / count  # Zeus divides by the number of costs, we by one less
        assert 1.0 / costs.variance == pytest.approx(precision * usual)


def test_the_gateway_knows_the_jobs_and_goes_on_with_what_was_learnt(bso: Bso, zeus_file: Path, tmp_path: Path) -> None:
    bso.ok("import", "zeus", f"sqlite:///{zeus_file}")
    with Gateway(gateway_process(tmp_path / "gateway.log", bso.url)) as gateway:
        assert gateway.ask("POST", "/jobs", NIGHTLY).status == 200
        assert gateway.ask("POST", "/jobs", {**NIGHTLY, "max_power": 301.0}).status == 409
        begun = gateway.begin("nightly")
        assert (begun["batch_size"], begun["trial_number"]) == (CHEAPEST, 11)
        judged = gateway.report(begun, 1).value
        assert judged["stop_train"] is False


def test_a_job_that_is_registered_otherwise_is_left_out(bso: Bso, zeus_file: Path, change: Change) -> None:
    bso.ok("import", "zeus", f"sqlite:///{zeus_file}", "--job", "nightly")
    change("UPDATE Job SET max_epochs = 61 WHERE job_id = 'nightly'")
    planned = bso("import", "zeus", f"sqlite:///{zeus_file}", "--dry-run")
    assert (planned.returncode, "job nightly is left out" in planned.stderr) == (1, True)
    done = bso("import", "zeus", f"sqlite:///{zeus_file}")
    assert done.returncode == 1
    assert "job nightly is left out" in done.stderr
    assert "max_epochs is 60, got 61" in " ".join(done.stderr.split())
    assert "2 jobs with 17 new trials taken over; 1 job left out" in done.stdout


def test_what_cannot_be_read_is_said(bso: Bso, zeus_file: Path, tmp_path: Path, change: Change) -> None:
    assert "there is no file" in bso.refused("import", "zeus", f"sqlite:///{tmp_path / 'nothing'}")
    assert not (tmp_path / "nothing").exists()
    said = bso.refused("import", "zeus", bso.url)
    assert "not a database of Zeus' batch size server: expected the tables Job, BatchSize, Trial" in said
    said = bso.refused("import", "zeus", "mysql+asyncmy://root:very-secret@127.0.0.1:1/Zeus")
    assert "Zeus' database mysql+asyncmy://root:***@127.0.0.1:1/Zeus: " in said
    assert "very-secret" not in said
    change("ALTER TABLE Trial DROP COLUMN energy")
    assert "table Trial has no column energy" in bso.refused("import", "zeus", f"sqlite:///{zeus_file}")
    other = Bso(url=f"sqlite:///{tmp_path / 'other.sqlite'}")
    change("ALTER TABLE Trial ADD COLUMN energy FLOAT")
    assert "run `bso migrate`" in other.refused("import", "zeus", f"sqlite:///{zeus_file}")
    assert "ZEUS_BSO_DATABASE_URL" in bso.refused("import", "zeus", "")


def _stored(rows: Any) -> Any:
    """What is stored of jobs, but for the time that it took."""
    return [
        (one.job, list(one.batch_sizes), [{**row, "start_timestamp": 0, "end_timestamp": 0} for row in one.trials])
        for one in rows
    ]


@pytest.mark.slow
def test_zeus_own_server_writes_what_these_tests_read(zeus_file: Path, tmp_path: Path) -> None:
    url = f"sqlite+aiosqlite:///{tmp_path / 'fresh.db'}"
    decide_at_zeus(url, JOBS, tmp_path)
    assert _stored(asyncio.run(read_zeus(url))) == _stored(asyncio.run(read_zeus(f"sqlite:///{zeus_file}")))


@pytest.mark.slow
def test_jobs_of_a_server_on_mariadb_are_taken_over(bso: Bso, mysql_url: str, tmp_path: Path) -> None:
    address = f"mysql+aiomysql:{mysql_url.partition(':')[2]}"
    decide_at_zeus(address, JOBS, tmp_path)
    said = [json.loads(line) for line in bso.ok("import", "zeus", address, "--json").splitlines()]
    assert [(one["job_id"], one["added"]) for one in said] == [("night-loss", 12), ("night-odd", 5), ("nightly", 10)]
    assert [trial.batch_size for trial in trials_of(bso, "nightly")][:4] == [128, 64, 32, 256]


def copied_to_postgres(zeus_file: Path, address: str) -> None:
    """The tables of Zeus' server as SQLAlchemy makes them on PostgreSQL: enumerations are types of their own."""
    tables = sa.MetaData()
    source = sa.create_engine(f"sqlite:///{zeus_file}")
    with source.connect() as connection:
        tables.reflect(connection)
        rows = {
            table: [dict(row) for row in connection.execute(table.select()).mappings()]
            for table in tables.sorted_tables
        }
    source.dispose()
    for each in (column for table in tables.sorted_tables for column in table.columns):
        each.type = each.type.as_generic()
    for table, column, values in (
        ("Job", "stage", ("Pruning", "MAB")),
        ("Trial", "type", ("Exploration", "Concurrent", "MAB")),
        ("Trial", "status", ("Dispatched", "Succeeded", "Failed")),
    ):
        tables.tables[table].c[column].type = sa.Enum(*values, name=f"{table}{column}".lower(), metadata=tables)

    async def copy() -> None:
        store = open_store(address)
        async with store.engine.begin() as connection:
            await connection.run_sync(tables.create_all)
            for table, found in rows.items():
                await connection.execute(table.insert(), found)
        await store.close()

    asyncio.run(copy())


def test_jobs_of_a_server_on_postgresql_are_taken_over(bso: Bso, postgres_url: str, zeus_file: Path) -> None:
    copied_to_postgres(zeus_file, postgres_url)
    read = [asyncio.run(read_zeus(address)) for address in (postgres_url, f"sqlite:///{zeus_file}")]
    histories = [[history_of(rows, policy=None, is_strict=False) for rows in found] for found in read]
    assert histories[0] == histories[1]
    said = [json.loads(line) for line in bso.ok("import", "zeus", postgres_url, "--json").splitlines()]
    assert [(one["job_id"], one["added"]) for one in said] == [("night-loss", 12), ("night-odd", 5), ("nightly", 10)]


async def test_all_tables_are_read_as_they_were_at_one_moment(mysql_url: str) -> None:
    writing = open_store(mysql_url).engine
    try:
        async with writing.begin() as connection:
            await connection.execute(sa.text("CREATE TABLE Job (job_id VARCHAR(10) PRIMARY KEY)"))
        async with snapshot(database_url(mysql_url), mysql_url) as reading:
            async with writing.begin() as connection:
                await connection.execute(sa.text("INSERT INTO Job VALUES ('late')"))
            assert not (await reading.execute(sa.text("SELECT * FROM Job"))).all()
            with pytest.raises(DBAPIError, match=r"(?i)read only"):
                await reading.execute(sa.text("DELETE FROM Job"))
    finally:
        await writing.dispose()
