"""Logs out of databases and into others, and tables made anew from them."""

import asyncio
import json
import math
import random
import shutil
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bso.domain.commands import BeginTrial
from bso.domain.decide import Rules
from bso.domain.replies import TrialBegun
from bso.replay.event_lines import event_line, logged_event
from bso.replay.export_file import BadExport, export, stage
from bso.replay.fold import LogBroken
from bso.replay.rebuild import bring, rebuild
from bso.schema.errors import StateTooNew
from bso.service.engine import Engine
from bso.storage import SqlStore, open_store
from bso.storage.job_logs import LogConflict
from tests.contract.replay.histories import (
    JOBS,
    ODD,
    TRAINED,
    assert_sound,
    execute,
    in_sqlite,
    lived,
    pruned,
    table,
    unusual,
)
from tests.contract.storage.job_requests import HARDWARE, JOB, Campaign, ask, begin, registration, report, request
from tests.unit.domain.builders import searching

RULES = Rules()
TABLES = ("job", "trial", "power_profile")


async def exported(store: SqlStore) -> bytes:
    """The whole export of a store."""
    lines: list[bytes] = []
    for job_id in await store.job_ids():
        await export(store, job_id, lines.append)
    return b"".join(lines)


async def imported(text: bytes, store: SqlStore, staging: SqlStore) -> list[int]:
    """Bring an export into a store; how many events each job got."""
    await stage(text.splitlines(keepends=True), staging, name="export.jsonl")
    return [(await bring(staging, store, job_id, rules=RULES)).added_events for job_id in await staging.job_ids()]


async def without_leases(store: SqlStore) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for job_id in JOBS:
        held = await store.job_rows(job_id)
        assert held.job is not None
        rows += [dict(held.job), *map(dict, held.trials), *map(dict, held.power_profiles)]
    return [
        {name: value for name, value in row.items() if name not in ("lease_expires_at", "revision")} for row in rows
    ]


async def rows_of(url: str, *tables: str) -> list[list[str]]:
    """All rows of tables, in whatever order each database gives them; the revision of a job is no part of history."""
    found = [await table(url, name) for name in tables]
    return [sorted(str({n: v for n, v in row.items() if n != "revision"}) for row in rows) for rows in found]


async def test_an_export_makes_the_same_log_and_tables_elsewhere(
    store: SqlStore, other: SqlStore, staging: SqlStore
) -> None:
    await lived(store)
    text = await exported(store)
    added = await imported(text, other, staging)
    assert sum(added) == text.count(b"\n") == len(await store.history(limit=10_000))
    assert await exported(other) == await exported(staging) == text
    assert await without_leases(other) == await without_leases(store)
    await assert_sound(other)
    assert (await other.unpublished(older_than_s=0.0)).events == []


async def test_an_import_into_every_database_and_back(store: SqlStore, other: SqlStore, staging: SqlStore) -> None:
    await lived(other)
    text = await exported(other)
    await imported(text, store, staging)
    assert await exported(store) == text
    assert await without_leases(other) == await without_leases(store)
    await assert_sound(store)


async def test_the_same_import_again_changes_nothing(store: SqlStore, staging: SqlStore, database_url: str) -> None:
    await lived(staging)
    text = await exported(staging)
    for job_id in JOBS:
        assert (await bring(staging, store, job_id, rules=RULES)).changed_rows
    before = await rows_of(database_url, *TABLES, "event")
    for job_id in JOBS:
        again = await bring(staging, store, job_id, rules=RULES)
        assert (again.added_events, again.changed_rows) == (0, 0)
    assert await rows_of(database_url, *TABLES, "event") == before
    assert await exported(store) == text


async def test_an_imported_job_goes_on_and_knows_its_commands(store: SqlStore, staging: SqlStore) -> None:
    engine = Engine(staging)
    asked = request(BeginTrial(hardware=HARDWARE))
    [_, begun] = await ask(engine, registration(), asked)
    assert isinstance(begun.reply, TrialBegun)
    await bring(staging, store, asked.job_id, rules=RULES)
    there = Engine(store)
    [again] = await ask(there, asked)
    assert (again.is_repeat, again.reply) == (True, begun.reply)
    [trial] = await store.trials(asked.job_id)
    assert trial.lease_expires_at is not None
    assert trial.lease_expires_at > trial.started_at
    await ask(there, report(begun.reply, 1))
    await assert_sound(store)


@in_sqlite
async def test_a_broken_off_import_is_resumed_and_a_longer_one_appended(store: SqlStore, staging: SqlStore) -> None:
    await lived(staging)
    lines = (await exported(staging)).splitlines(keepends=True)
    some = [logged_event(line) for line in lines if logged_event(line).new.job_id == TRAINED][:20]
    await store.append_log(some)  # only in the log, as a crash could never leave it
    added = (await bring(staging, store, TRAINED, rules=RULES)).added_events
    assert added == len(await staging.log_page(TRAINED, limit=10_000)) - 20
    await assert_sound(store)
    await Campaign(engine=Engine(staging), seed=9, job_id=TRAINED).run(1)
    more = await bring(staging, store, TRAINED, rules=RULES)
    assert more.added_events == len(await staging.log_page(TRAINED, limit=10_000)) - added - 20
    await assert_sound(store)


@in_sqlite
async def test_another_history_of_the_same_job_is_refused_and_harms_nothing(
    store: SqlStore, staging: SqlStore, database_url: str
) -> None:
    await ask(Engine(store), registration())
    await begin(Engine(store))
    await ask(Engine(staging), registration())
    before = await rows_of(database_url, *TABLES, "event")
    with pytest.raises(LogConflict, match="event 1 of job mnist-nightly is already recorded with another") as raised:
        await bring(staging, store, "mnist-nightly", rules=RULES)
    assert (raised.value.job_id, raised.value.seq) == ("mnist-nightly", 1)
    assert await rows_of(database_url, *TABLES, "event") == before


async def test_a_command_cannot_be_decided_in_two_places(store: SqlStore, staging: SqlStore) -> None:
    asked = registration("one")
    await ask(Engine(store), asked)
    await ask(Engine(staging), request(asked.command, job_id="two", command_id=asked.command_id))
    with pytest.raises(LogConflict, match=r"event 1 of job two is part 0 .* already recorded as event 1 of job one"):
        await bring(staging, store, "two", rules=RULES)
    assert [job.job_id for job in await store.jobs()] == ["one"]


@in_sqlite
async def test_a_log_without_its_beginning_is_refused(store: SqlStore, staging: SqlStore, other: SqlStore) -> None:
    await unusual(other)
    await staging.append_log((await other.log_page(ODD))[5:])
    with pytest.raises(LogBroken, match="begins at event 6, and no snapshot follows"):
        await bring(staging, store, ODD, rules=RULES)
    with pytest.raises(LogBroken, match="holds no event of job nobody"):
        await rebuild(store, "nobody", rules=RULES)
    assert await store.job_ids() == []


@in_sqlite
async def test_pruned_events_and_the_rest_make_a_whole_again(
    store: SqlStore, other: SqlStore, staging: SqlStore
) -> None:
    """In whatever order: what was pruned is found in the file that pruning wrote."""
    await lived(store)
    before = await without_leases(store)
    gone = await pruned(store)
    rest = await exported(store)
    first = await imported(rest, other, staging)
    assert first == [1, 1, 1]
    assert (await bring(staging, other, TRAINED, rules=RULES)).trials_before_log == len(await store.trials(TRAINED))
    lines = b"".join(event_line(one) + b"\n" for one in await _as_pruning_writes(gone))
    await imported(lines, other, staging)
    await assert_sound(other)
    kept = ("last_seq", "changed_at", "revision")  # the snapshot is an event, too
    restored = [{n: v for n, v in row.items() if n not in kept} for row in await without_leases(other)]
    assert restored == [{n: v for n, v in row.items() if n not in kept} for row in before]


@in_sqlite
async def test_a_job_whose_older_events_were_imported_later_is_read_whole(store: SqlStore, other: SqlStore) -> None:
    await lived(other)
    lines = (await exported(other)).splitlines(keepends=True)
    for part in (lines[len(lines) // 2 :], lines[: len(lines) // 2]):
        await stage(part, store, name="half.jsonl")
    for job_id in JOBS:
        seqs = {stored.event_id: stored.recorded.seq for stored in await store.history(job_id)}
        assert [*seqs.values()] == [one.recorded.seq for one in await other.history(job_id)]
        for event_id, seq in seqs.items():
            after = await store.history(job_id, after=event_id)
            assert [one.recorded.seq for one in after] == [later for later in seqs.values() if later > seq]


async def _as_pruning_writes(gone: Any) -> list[Any]:
    from bso_cli.exports import event_fields

    return [logged_event(json.dumps(event_fields(stored))) for stored in gone]


async def test_tables_are_rebuilt_where_they_differ_and_nowhere_else(store: SqlStore, database_url: str) -> None:
    await lived(store)
    whole = await rows_of(database_url, *TABLES)
    for job_id in JOBS:
        assert (await rebuild(store, job_id, rules=RULES)).changed_rows == 0
    assert await rows_of(database_url, *TABLES) == whole
    history = await without_leases(store)
    for statement in (
        "UPDATE job SET state = '{}', policy = 'none', owner = 'me', granted_to = '*' WHERE job_id = 'trained'",
        "UPDATE trial SET cost = -1, outcome = 'cancelled' WHERE trial_number = 2",
        "DELETE FROM trial WHERE trial_number = 3",
        "UPDATE trial SET trial_number = 99 WHERE trial_number = 4 AND job_id = 'odd'",
        "UPDATE power_profile SET gpu_model = 'B200', measurements = '[]' WHERE batch_size = 32",
        "UPDATE power_profile SET batch_size = 65 WHERE batch_size = 64",
        "DELETE FROM job WHERE job_id = 'odd'",
    ):
        assert await execute(database_url, statement), statement
    for job_id in JOBS:
        await rebuild(store, job_id, rules=RULES)
    await assert_sound(store)
    assert await without_leases(store) == history


async def test_what_a_newer_release_has_written_is_not_rebuilt_as_an_older_one(
    store: SqlStore, database_url: str
) -> None:
    await lived(store)
    assert await execute(database_url, "UPDATE job SET state = '{\"state_major\": 2}' WHERE job_id = 'odd'")
    whole = await rows_of(database_url, *TABLES)
    with pytest.raises(StateTooNew, match="version 2, this program reads up to 1: upgrade it"):
        await rebuild(store, ODD, rules=RULES)
    assert await rows_of(database_url, *TABLES) == whole


async def test_rebuilding_a_pruned_job_leaves_what_is_not_in_the_log(store: SqlStore, database_url: str) -> None:
    await lived(store)
    await pruned(store)
    whole = await rows_of(database_url, *TABLES)
    await execute(database_url, "UPDATE trial SET cost = 9 WHERE job_id = 'odd' AND trial_number = 1")  # it runs
    for job_id in JOBS:
        await rebuild(store, job_id, rules=RULES)
    assert await rows_of(database_url, *TABLES) == whole


BAD_LINES = {
    "{": "Invalid JSON",
    "[]": "not an event",
    '{"job_id": "a"}': "seq: is missing",
    "job_id=a/b": "job_id must begin with a letter or digit",
    "seq=0": "seq: expected 1 or more, got 0",
    "type=nonsense": "unknown event 'nonsense'",
    "payload={}": "spec",
    'recorded_at="2026-01-01T00:00:00"': "timezone",
    'reply_type="registered"': "registered",
    "part=-1": "part",
}


@pytest.mark.parametrize("bad", BAD_LINES)
async def test_a_malformed_line_is_named(staging: SqlStore, bad: str) -> None:
    await ask(Engine(staging), registration())
    [good] = (await exported(staging)).splitlines()
    line = bad.encode()
    if "=" in bad:
        name, _, value = bad.partition("=")
        read = json.loads(good)
        read.pop("reply")
        read[name] = json.loads(value) if value[0] in '{"0-' else value
        line = json.dumps(read).encode()
    with pytest.raises(BadExport, match=r"^backup\.jsonl, line 3: ") as raised:
        await stage([good + b"\n", b"\n", line + b"\n"], staging, name="backup.jsonl")
    assert BAD_LINES[bad] in str(raised.value)


async def test_a_file_that_was_cut_off_or_contradicts_itself_is_refused(staging: SqlStore, other: SqlStore) -> None:
    await unusual(other)
    lines = (await exported(other)).splitlines(keepends=True)
    assert await stage([*lines, *lines, lines[0]], staging, name="twice.jsonl") == len(lines)
    with pytest.raises(BadExport, match=r"line 4: .*was the file cut off\?"):
        await stage([*lines[:3], lines[3][:-20]], staging, name="cut.jsonl")
    odd = json.loads(lines[2]) | {"recorded_at": "2020-02-02T00:00:00Z"}
    with pytest.raises(BadExport, match=r"odd\.jsonl, line 2: event 3 of job odd .* another recorded_at"):
        await stage([lines[0], json.dumps(odd).encode() + b"\n"], staging, name="odd.jsonl")


_texts = st.text(st.characters(codec="utf-8"), max_size=9)
_json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | _texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_texts, inner, max_size=3),
    max_leaves=5,
)
_seconds = st.integers(-30_000_000_000, 200_000_000_000)  # the years 1019 to 8307
_moments = st.builds(
    lambda since, microsecond, zone: (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=since)).replace(
        microsecond=microsecond, tzinfo=timezone(timedelta(minutes=zone))
    ),
    _seconds,
    st.integers(0, 999_999),
    st.integers(-720, 840),
)


@given(
    cost=st.floats(allow_nan=False),
    metric=st.floats(),
    seq=st.integers(1, 2**63 - 1),
    at=_moments,
    unknown=_json,
)
@searching(60)
def test_a_line_keeps_whatever_stood_in_it(cost: float, metric: float, seq: int, at: Any, unknown: Any) -> None:
    """Also what a newer release has written and this one does not know."""
    payload = {"trial_number": 1, "epoch": 1.5, "time_s": 1, "energy_j": None, "metric": metric, "cost": cost}
    line = {
        "job_id": "job",
        "seq": seq,
        "recorded_at": at.isoformat(),
        "type": "epoch_reported",
        "command_id": "4ff5ac43-9a8b-4a2f-9b3d-6d0a5a4f6f52",
        "part": 0,
        "payload": {**payload, "bound": None, "from_the_future": unknown},
    }
    once = logged_event(json.dumps(line))
    again = logged_event(event_line(once))
    assert again == once
    assert event_line(again) == event_line(once)
    assert (once.new.seq, once.new.trial_number, once.new.epoch) == (seq, 1, 1.5)
    assert once.recorded_at == at
    assert json.loads(once.new.payload)["cost"] == (cost if math.isfinite(cost) else json.dumps(cost))


@in_sqlite
async def test_export_import_export_is_the_same_whatever_the_order_of_lines(
    store: SqlStore, empty_sqlite: Path, tmp_path: Path
) -> None:
    """Also with lines that stand there more than once."""
    await unusual(store)
    await Campaign(engine=Engine(store), seed=3, job_id=TRAINED).run(1)
    lines = (await exported(store)).splitlines(keepends=True)
    for seed in range(5):
        order = random.Random(seed)
        disordered = [*lines, *order.choices(lines, k=order.randrange(30))]
        order.shuffle(disordered)
        async with AsyncExitStack() as stack:
            copies = [shutil.copy(empty_sqlite, tmp_path / f"{seed}-{name}.sqlite") for name in ("to", "staging")]
            target, log = (open_store(f"sqlite:///{copy}") for copy in copies)
            stack.push_async_callback(target.close)
            stack.push_async_callback(log.close)
            await imported(b"".join(disordered), target, log)
            await assert_sound(target)
            assert await exported(target) == b"".join(lines)


async def test_a_job_in_use_is_rebuilt_and_copied_without_harm(store: SqlStore, other: SqlStore) -> None:
    await ask(Engine(store), registration(TRAINED))
    is_over = asyncio.Event()

    async def train() -> None:
        await Campaign(engine=Engine(store), seed=6, job_id=TRAINED).run(2)
        is_over.set()

    async def meddle() -> int:
        times = 0
        while not is_over.is_set():
            assert (await rebuild(store, TRAINED, rules=RULES)).changed_rows == 0
            await bring(store, other, TRAINED, rules=RULES)
            times += 1
        return times

    async with asyncio.TaskGroup() as group:
        group.create_task(train())
        meddling = group.create_task(meddle())
    assert meddling.result()
    await bring(store, other, TRAINED, rules=RULES)
    for one in (store, other):
        await assert_sound(one)
    assert await exported(other) == await exported(store)


async def test_a_log_that_is_brought_elsewhere_keeps_its_epochs_and_goes_on_in_a_later_one(
    store: SqlStore, other: SqlStore, staging: SqlStore
) -> None:
    """What was recorded after the export, and published, must not be taken for what is recorded after the import."""
    engine = Engine(store)
    await ask(engine, registration())
    trial = await begin(engine)
    restored = await store.log_epochs.begin()
    await ask(engine, report(trial, 1))
    text = await exported(store)
    await ask(engine, report(trial, 2))
    assert sum(await imported(text, other, staging)) == len(text.splitlines())
    assert await exported(other) == text
    await ask(Engine(other), report(trial, 2, metric=0.1))
    there, here = await other.log_page(JOB), await store.log_page(JOB)
    assert [one.new for one in there[:-1]] == [one.new for one in here[:-1]]
    assert here[-2].new.log_epoch == restored.number
    assert there[-1].new.seq == here[-1].new.seq
    assert there[-1].new.log_epoch > here[-1].new.log_epoch


async def test_bringing_the_same_log_again_begins_no_further_epoch(store: SqlStore, other: SqlStore) -> None:
    engine = Engine(store)
    await ask(engine, registration())
    await bring(store, other, JOB, rules=RULES)
    first = await other.log_epochs.current()
    await bring(store, other, JOB, rules=RULES)
    await begin(engine)
    await bring(store, other, JOB, rules=RULES)
    assert await other.log_epochs.current() == first
