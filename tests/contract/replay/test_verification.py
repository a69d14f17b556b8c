"""What ``bso replay verify`` finds, and what it does not take for a fault."""

import asyncio
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from bso.domain.decide import Rules
from bso.domain.replies import EpochJudged
from bso.domain.trial import Outcome
from bso.replay.differences import Difference
from bso.replay.rebuild import rebuild
from bso.replay.verification import verify, verify_against, verify_log
from bso.service.engine import Engine
from bso.service.retention import prune_events
from bso.storage import SqlStore, open_store
from tests.contract.replay.histories import (
    FAR,
    JOBS,
    ODD,
    TRAINED,
    assert_sound,
    execute,
    given_up,
    in_sqlite,
    lived,
    pruned,
    published,
    unusual,
    verdicts,
)
from tests.contract.storage.job_requests import JOB, Campaign, ask, begin, finish, registration, report


async def test_what_the_engine_has_recorded_is_sound(store: SqlStore) -> None:
    await lived(store)
    found = await verdicts(store)
    assert [verdict.job_id for verdict in found] == list(JOBS)
    await assert_sound(store)
    [odd] = [verdict for verdict in found if verdict.job_id == ODD]
    assert (odd.trials, odd.trials_before_log) == (4, 0)
    assert odd.events == len(await store.log_page(ODD))


@dataclass(frozen=True, kw_only=True)
class Tampering:
    """A change behind the engine's back, and the difference that must be named."""

    statement: str
    table: str
    column: str
    row: Mapping[str, object]


ONE = {"trial_number": 1}
PROFILE = {"batch_size": 64, "hardware_key": "KEY"}
TAMPERINGS = (
    Tampering(statement="UPDATE job SET policy = 'none' WHERE job_id = :job", table="job", column="policy", row={}),
    Tampering(statement="UPDATE job SET owner = 'me' WHERE job_id = :job", table="job", column="owner", row={}),
    Tampering(
        statement="UPDATE job SET granted_to = '[\"me\"]' WHERE job_id = :job", table="job", column="granted_to", row={}
    ),
    Tampering(
        statement="UPDATE job SET last_seq = last_seq - 1 WHERE job_id = :job", table="job", column="last_seq", row={}
    ),
    Tampering(statement="UPDATE job SET state = '{' WHERE job_id = :job", table="job", column="state", row={}),
    Tampering(
        statement="UPDATE job SET changed_at = '2020-01-01 00:00:00.000000' WHERE job_id = :job",
        table="job",
        column="changed_at",
        row={},
    ),
    Tampering(
        statement="UPDATE trial SET cost = cost * 1.0000001 WHERE job_id = :job AND trial_number = 1",
        table="trial",
        column="cost",
        row=ONE,
    ),
    Tampering(
        statement="UPDATE trial SET state = 'ended' WHERE job_id = :job AND trial_number = 1",
        table="trial",
        column="state",
        row=ONE,
    ),
    Tampering(
        statement="UPDATE trial SET nonfinite_metric = NULL WHERE job_id = :job AND trial_number = 1",
        table="trial",
        column="nonfinite_metric",
        row=ONE,
    ),
    Tampering(
        statement="UPDATE trial SET learning_rate = NULL WHERE job_id = :job AND trial_number = 1",
        table="trial",
        column="learning_rate",
        row=ONE,
    ),
    Tampering(
        statement="DELETE FROM trial WHERE job_id = :job AND trial_number = 1", table="trial", column="", row=ONE
    ),
    Tampering(
        statement="UPDATE trial SET trial_number = 77 WHERE job_id = :job AND trial_number = 1",
        table="trial",
        column="",
        row={"trial_number": 77},
    ),
    Tampering(
        statement="UPDATE power_profile SET measurements = '[]' WHERE job_id = :job AND batch_size = 64",
        table="power_profile",
        column="measurements",
        row=PROFILE,
    ),
    Tampering(
        statement="DELETE FROM power_profile WHERE job_id = :job AND batch_size = 64",
        table="power_profile",
        column="",
        row=PROFILE,
    ),
    Tampering(
        statement="UPDATE event SET epoch = 2.5 WHERE job_id = :job AND epoch = 1.5",
        table="event",
        column="epoch",
        row={},
    ),
)


def is_named(tampering: Tampering, difference: Difference) -> bool:
    return (
        difference.table == tampering.table
        and difference.column == tampering.column
        and all(difference.row[name] == value for name, value in tampering.row.items() if value != "KEY")
    )


async def test_whatever_was_tampered_with_is_named(sqlite_url: str, other: SqlStore, tmp_path: Path) -> None:
    """In SQLite alone: how rows are compared is the same everywhere."""
    await unusual(other)
    await other.close()
    for number, tampering in enumerate(TAMPERINGS):
        copy = shutil.copy(tmp_path / "other.sqlite", tmp_path / f"{number}.sqlite")
        url = sqlite_url.replace("bso.sqlite", f"{number}.sqlite")
        assert await execute(url, tampering.statement, job=ODD) == 1, tampering
        store = open_store(f"sqlite:///{copy}")
        verdict = await verify(store, ODD)
        await store.close()
        found = [difference for difference in verdict.differences if is_named(tampering, difference)]
        assert found, (tampering, [one.sentence for one in verdict.differences])
        assert len(verdict.differences) <= 2, tampering  # a renumbered row is one too many and one too few
        assert tampering.column in found[0].sentence


async def test_tampering_is_found_in_every_database(store: SqlStore, database_url: str) -> None:
    await unusual(store)
    await execute(database_url, "UPDATE trial SET bound = 1.5, gpu_model = 'B200' WHERE trial_number = 1")
    await execute(database_url, "UPDATE power_profile SET max_power_w = 1 WHERE batch_size = 32")
    verdict = await verify(store, ODD)
    assert [(one.table, one.column, one.found) for one in verdict.differences] == [
        ("trial", "bound", 1.5),
        ("trial", "gpu_model", "B200"),
        ("power_profile", "max_power_w", 1.0),
    ]


@in_sqlite
async def test_a_difference_in_the_snapshot_is_named_by_its_path(store: SqlStore, database_url: str) -> None:
    await Campaign(engine=Engine(store), seed=3, job_id=TRAINED).run(2)
    stored = await store.job(TRAINED)
    assert stored is not None
    state = json.loads(stored.state)
    [knowledge] = state["versions"]["1"]["knowledge"].values()
    knowledge["change_points"] += 1
    await execute(database_url, "UPDATE job SET state = :state", state=json.dumps(state, indent=1))
    [difference] = (await verify(store, TRAINED)).differences
    assert difference.column.startswith("state.versions.1.knowledge.")
    assert difference.column.endswith(".change_points")
    assert difference.found == difference.log + 1


@in_sqlite
async def test_an_event_without_a_moment_is_a_problem_of_its_job_alone(store: SqlStore, database_url: str) -> None:
    await lived(store)
    await execute(database_url, "UPDATE event SET recorded_at = 'noon' WHERE job_id = :job", job=ODD)
    problems = {verdict.job_id: verdict.problem for verdict in await verdicts(store)}
    assert problems.pop(ODD) == f"event 1 of job {ODD} cannot be read: recorded_at is 'noon'"
    assert set(problems.values()) == {None}


@in_sqlite
@pytest.mark.parametrize(
    ("table", "column"),
    [
        ("job", "created_at"),
        ("job", "changed_at"),
        ("trial", "started_at"),
        ("trial", "lease_expires_at"),
        ("trial", "ended_at"),
        ("power_profile", "recorded_at"),
    ],
)
async def test_a_row_without_a_moment_is_named_and_rebuilt(
    store: SqlStore, database_url: str, table: str, column: str
) -> None:
    await unusual(store)
    await execute(database_url, f"UPDATE {table} SET {column} = 'noon' WHERE job_id = :job", job=ODD)
    for verdict in await verify(store, ODD), await verify_against(store, store, ODD):
        assert {(one.table, one.column, one.found) for one in verdict.differences} == {(table, column, "noon")}
    await rebuild(store, ODD, rules=Rules())
    assert (await verify(store, ODD)).is_sound


@in_sqlite
async def test_a_gap_in_the_log_is_a_problem(store: SqlStore, database_url: str) -> None:
    await unusual(store)
    await execute(database_url, "DELETE FROM event WHERE seq = 3")
    verdict = await verify(store, ODD)
    assert verdict.problem == "the log of job odd has a gap between the events 2 and 4, and no snapshot follows"
    await execute(database_url, "DELETE FROM event")
    assert "the log holds no event" in str((await verify(store, ODD)).problem)
    assert "neither" in str((await verify(store, "unheard-of")).problem)


async def test_a_pruned_log_starts_at_its_snapshot(store: SqlStore) -> None:
    await lived(store)
    trained = await store.trials(TRAINED)
    assert await pruned(store)
    await assert_sound(store)
    verdict = await verify(store, TRAINED)
    assert (verdict.events, verdict.trials, verdict.trials_before_log) == (1, 0, len(trained))
    assert (await verify(store, ODD)).profiles_before_log == 2
    await Campaign(engine=Engine(store), seed=4, job_id=TRAINED).run(1)
    await unusual(store)
    await assert_sound(store)


async def test_a_stop_that_never_arrived_may_be_overruled_after_its_log_was_pruned(store: SqlStore) -> None:
    engine = Engine(store)
    await ask(engine, registration())
    await ask(engine, report(await begin(engine, recurrence_id="before"), 1, metric=0.95))
    trial = await begin(engine, recurrence_id="night")
    (stopped,) = await ask(engine, report(trial, 1, time_s=900.0, energy_j=90_000.0))
    assert isinstance(stopped.reply, EpochJudged)
    assert stopped.reply.outcome is Outcome.COST_EXCEEDED
    assert await pruned(store)
    late = report(trial, 2, time_s=1000.0, energy_j=95_000.0, metric=0.95, is_journalled=True)
    await ask(engine, late, finish(trial, Outcome.CONVERGED, is_journalled=True))
    assert (await store.trials(JOB))[-1].late_outcome is Outcome.CONVERGED
    await assert_sound(store)


@in_sqlite
async def test_a_row_that_a_pruned_log_should_hold_is_reported_as_missing(store: SqlStore, database_url: str) -> None:
    await unusual(store)
    await pruned(store)
    await execute(database_url, "DELETE FROM trial WHERE trial_number = 1")  # it was running
    await execute(database_url, "UPDATE trial SET state = 'running' WHERE trial_number = 2")  # it had ended
    found = (await verify(store, ODD)).differences
    assert [(one.table, one.row["trial_number"]) for one in found] == [("trial", 1), ("trial", 2)]


@in_sqlite
async def test_a_result_that_comes_after_pruning_is_no_puzzle(store: SqlStore) -> None:
    await ask(Engine(store), registration(ODD))
    late = await given_up(store, ODD)
    await pruned(store)
    await ask(Engine(store), finish(late, Outcome.CONVERGED, job_id=ODD, is_journalled=True))
    [row] = await store.trials(ODD)
    assert row.late_outcome is Outcome.CONVERGED
    verdict = await verify(store, ODD)
    assert (verdict.problem, verdict.differences, verdict.trials) == (None, (), 1)


async def test_jobs_in_use_and_being_pruned_give_no_false_alarm(store: SqlStore) -> None:
    await ask(Engine(store), registration(TRAINED))
    is_over = asyncio.Event()

    async def train() -> None:
        await Campaign(engine=Engine(store), seed=5, job_id=TRAINED).run(2)
        is_over.set()

    async def prune() -> None:
        while not is_over.is_set():
            await published(store)
            await prune_events(store, before=FAR, export=lambda _: None)

    async def check() -> int:
        checks = 0
        while not is_over.is_set():
            await assert_sound(store)
            checks += 1
        return checks

    async with asyncio.TaskGroup() as group:
        group.create_task(train())
        group.create_task(prune())
        checking = group.create_task(check())
    assert checking.result()


@in_sqlite
async def test_a_log_from_elsewhere_is_compared_as_far_as_it_goes(store: SqlStore, other: SqlStore) -> None:
    await unusual(store)
    await other.append_log(await store.log_page(ODD))
    assert (await verify_against(other, store, ODD)).is_sound
    assert (await verify_log(other, ODD)).is_sound
    assert not (await verify(other, ODD)).is_sound  # no tables there
    await begin(Engine(store), ODD)
    [behind] = (await verify_against(other, store, ODD)).differences
    assert (behind.table, behind.column) == ("job", "last_seq")
    assert behind.found > behind.log


@in_sqlite
async def test_a_snapshot_in_the_midst_of_a_log_must_agree_with_it(store: SqlStore, other: SqlStore) -> None:
    await lived(store)
    whole = {job_id: await store.log_page(job_id) for job_id in JOBS}
    await pruned(store)
    for job_id in JOBS:
        await other.append_log(whole[job_id])
        await other.append_log(await store.log_page(job_id))
        assert (await verify_log(other, job_id)).is_sound


@in_sqlite
async def test_a_snapshot_that_disagrees_is_named(store: SqlStore, other: SqlStore, database_url: str) -> None:
    await unusual(store)
    whole = await store.log_page(ODD)
    await pruned(store)
    [snapshot] = await store.log_page(ODD)
    payload = json.loads(snapshot.new.payload)
    payload["state"]["last_recurrence_number"] = 99
    payload["state"]["trials"][0]["cost"] = -1.0
    await execute(database_url, "UPDATE event SET payload = :payload", payload=json.dumps(payload))
    await other.append_log(whole)
    await other.append_log(await store.log_page(ODD))
    found = (await verify_log(other, ODD)).differences
    assert [(one.table, one.column) for one in found] == [
        ("snapshot", "state.last_recurrence_number"),
        ("snapshot", "trials.1.cost"),
    ]
