"""Batching is invisible: the same commands give the same log, whatever arrives together."""

import asyncio
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as some

from bso.domain.commands import (
    BeginTrial,
    Command,
    DeleteJob,
    DescribeJob,
    ExpireLease,
    FinishTrial,
    RegisterJob,
    RenewLease,
    ReportEpoch,
    Request,
)
from bso.domain.identifiers import trial_id_for
from bso.domain.replies import Reply
from bso.domain.trial import Outcome
from bso.schema.codec import event_payload, reply_payload
from bso.service.answers import Answer
from bso.service.engine import Engine
from bso.service.memory import InMemoryStore
from tests.contract.storage.job_requests import HARDWARE, SPEC, assert_log_equals_tables, whole_history

NOW = datetime(2026, 1, 1, tzinfo=UTC)
JOBS = ("one", "two")
BEGINNINGS = [str(uuid.UUID(int=number, version=4)) for number in range(4)]

numbers = some.sampled_from([1, 2, 3])
epochs = some.sampled_from([1.0, 2.0, 3.0, 4.5])
metrics = some.sampled_from([0.1, 0.95, float("nan")])
trials = some.sampled_from(BEGINNINGS).map(trial_id_for)
commands: some.SearchStrategy[Command] = some.one_of(
    some.just(RegisterJob(spec=SPEC)),
    some.builds(RegisterJob, spec=some.just({**SPEC, "batch_sizes": [64, 256]})),
    some.builds(
        RegisterJob,
        spec=some.builds(dict, some.just(SPEC), version=some.sampled_from(["v2", "v3"])),
        inherit=some.booleans(),
        like=some.sampled_from([None, *JOBS, "nobody"]),
    ),
    some.builds(
        ReportEpoch,
        trial_number=numbers,
        trial_id=trials,
        epoch=epochs,
        time_s=epochs,
        energy_j=epochs,
        metric=metrics,
        is_journalled=some.booleans(),
    ),
    some.builds(FinishTrial, trial_number=numbers, trial_id=trials, outcome=some.sampled_from(Outcome)),
    some.builds(RenewLease, trial_number=numbers, trial_id=trials),
    some.builds(
        ExpireLease, trial_number=numbers, trial_id=trials, lease_expires_at=some.just(NOW + timedelta(seconds=600))
    ),
    some.just(DescribeJob()),
    some.just(DeleteJob()),
)
begins = some.builds(
    Request,
    command_id=some.sampled_from(BEGINNINGS),
    job_id=some.sampled_from(JOBS),
    command=some.builds(
        BeginTrial, hardware=some.just(HARDWARE), recurrence_id=some.sampled_from([None, "night", "day"])
    ),
)
others = some.builds(
    Request,
    command_id=some.integers(2**100, 2**100 + 40).map(lambda number: str(uuid.UUID(int=number, version=4))),
    job_id=some.sampled_from(JOBS),
    command=commands,
)


@given(asked=some.lists(begins | others, max_size=30), sizes=some.lists(some.integers(1, 7), min_size=30, max_size=30))
@settings(max_examples=150, deadline=None)
def test_batches_of_any_size_give_the_log_that_single_commands_give(asked: list[Request], sizes: list[int]) -> None:
    registered = [
        Request(command_id=str(uuid.UUID(int=900 + n, version=4)), job_id=job_id, command=RegisterJob(spec=SPEC))
        for n, job_id in enumerate(JOBS)
    ]
    one_by_one = asyncio.run(told(registered + asked, [1] * (len(asked) + 2)))
    batched = asyncio.run(told(registered + asked, [2, *sizes]))
    assert batched == one_by_one


async def told(asked: Sequence[Request], sizes: Sequence[int]) -> tuple[list[str], list[tuple[str, int, str, str]]]:
    """Replies and log of commands that arrive in batches of these sizes."""
    store = InMemoryStore(lambda: NOW)
    engine = Engine(store)
    answers: list[Answer] = []
    for size in sizes:
        answers += await engine.execute(asked[len(answers) : len(answers) + size])
    assert [answer.poison for answer in answers if answer.poison] == []
    for job in await store.jobs():
        await assert_log_equals_tables(store, job.job_id)
    history = [
        (recorded.job_id, recorded.seq, *event_payload(recorded.event))
        for job_id in JOBS
        for recorded in await whole_history(store, job_id)
    ]
    return [_as_text(answer.reply) for answer in answers], history


def _as_text(reply: Reply) -> str:
    return " ".join(reply_payload(reply))
