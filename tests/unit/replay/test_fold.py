"""Logs that cannot be: what is said of them."""

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from bso.domain.events import EpochReported, JobSnapshotted
from bso.domain.log import RecordedEvent
from bso.replay.event_lines import logged_event
from bso.replay.expected_rows import expected_rows
from bso.replay.export_file import BadExport, stage
from bso.replay.fold import LogBroken
from bso.service.engine import Engine
from bso.service.errors import Unstorable
from bso.service.memory import InMemoryStore
from bso.service.records import LoggedEvent
from tests.contract.storage.job_requests import JOB, ask, begin, folded, registration, report, whole_history

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
async def history() -> list[RecordedEvent]:
    """A registration, a trial and a report."""
    store = InMemoryStore(lambda: NOW)
    engine = Engine(store)
    await ask(engine, registration())
    await ask(engine, report(await begin(engine), 1))
    return await whole_history(store, JOB)


def changed(recorded: RecordedEvent, **fields: Any) -> RecordedEvent:
    """The same place in the log with another event."""
    event: Any = recorded.event
    return replace(recorded, event=replace(event, **fields))


def test_a_report_of_a_trial_that_nobody_began_is_named(history: list[RecordedEvent]) -> None:
    *before, last = history
    assert isinstance(last.event, EpochReported)
    with pytest.raises(LogBroken, match=rf"event {last.seq} of job {JOB} does not follow .* EpochReported"):
        folded([*before, changed(last, trial_number=7)])


def test_what_no_table_could_hold_is_said(history: list[RecordedEvent]) -> None:
    *before, last = history
    with pytest.raises(LogBroken, match="has a value that no table can hold: cost of trial 1"):
        expected_rows(folded([*before, changed(last, cost=float("inf"))]))


@pytest.mark.parametrize(
    ("state", "said"), [({}, "stored state of job"), ({"state_major": 99}, "this program reads up to")]
)
def test_a_snapshot_that_cannot_be_read_is_named(
    history: list[RecordedEvent], state: dict[str, object], said: str
) -> None:
    last = history[-1]
    snapshot = replace(last, seq=last.seq + 1, event=JobSnapshotted(state=state))
    with pytest.raises(LogBroken, match=rf"the snapshot in event {snapshot.seq} cannot be read: .*{said}"):
        folded([*history, snapshot])


async def test_the_one_line_that_cannot_be_stored_is_named() -> None:
    """However many are laid out at once."""
    report_line = {
        "job_id": JOB,
        "recorded_at": NOW.isoformat(),
        "type": "trial_suspended",
        "command_id": "4ff5ac43-9a8b-4a2f-9b3d-6d0a5a4f6f52",
        "payload": {"trial_number": 1},
    }
    lines = [json.dumps({**report_line, "seq": seq, "part": seq}).encode() + b"\n" for seq in range(1, 9)]
    kept: list[LoggedEvent] = []

    class Log:
        async def append_log(self, events: Sequence[LoggedEvent]) -> int:
            if any(one.new.seq == 5 for one in events):
                raise Unstorable("too much")
            kept.extend(events)
            return len(events)

    with pytest.raises(BadExport, match=r"some\.jsonl, line 5: too much"):
        await stage(lines, Log(), name="some.jsonl")
    assert kept == [logged_event(line) for line in lines[:4]]
