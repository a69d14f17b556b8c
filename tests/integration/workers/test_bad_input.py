"""Bad input: each piece gets a clear problem or goes to the dead letters, and the worker goes on."""

import json
import math
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from bso.domain.commands import BeginTrial, DescribeJob, FinishTrial, RegisterJob, ReportEpoch, Request
from bso.domain.replies import EpochJudged, JobDescription, Problem, Registered, Reply, TrialBegun
from bso.domain.trial import Outcome
from bso.schema.codec import encode_command
from bso.storage import SqlStore
from bso_broker.messages import DeadLetter
from bso_broker.rabbit import RabbitBroker
from bso_broker.topology import COMMAND_QUEUE, DEAD_LETTERS, EVENT_LOG
from bso_workers.bootstrap import WorkerParts
from tests.integration.workers.fixtures import running_worker
from tests.integration.workers.raw import RawSender
from tests.integration.workers.recurrences import (
    HARDWARE,
    SPEC,
    Queue,
    audit,
    begin,
    new_job,
    recur,
    register,
    report,
    train,
)
from tests.servers import eventually_async


@pytest.fixture
async def worker(amqp_url: str, store: SqlStore, ask: Queue) -> AsyncIterator[WorkerParts]:
    """A worker that must still work at the test's end, and must not have stopped in between."""
    async with RabbitBroker(amqp_url) as broker, running_worker(broker, store) as parts:
        yield parts
        job = new_job()
        await register(ask, job)
        trials = await recur(ask, job, "afterwards")
        assert await audit(store, job) == len(trials)
        assert parts.metrics.registry.get_sample_value("bso_pauses_total") == 0


@pytest.fixture
async def sender(amqp_url: str, worker: WorkerParts) -> AsyncIterator[RawSender]:
    async with RawSender(amqp_url) as sender:
        yield sender


@pytest.fixture
async def job(ask: Queue, worker: WorkerParts) -> str:
    job = new_job()
    await register(ask, job)
    return job


def refused(reply: Reply) -> Problem:
    assert isinstance(reply, Problem), reply
    return reply


async def dead_letters(amqp_url: str, count: int) -> tuple[DeadLetter, ...]:
    """Wait until so many lie there."""
    async with RabbitBroker(amqp_url).dead_letters() as box:

        async def letters() -> tuple[DeadLetter, ...]:
            found = await box.peek()
            return found if len(found) >= count else ()

        return await eventually_async(letters, what=f"{count} dead letters")


def envelope(**changes: Any) -> bytes:
    whole = {
        "schema": "1.0",
        "type": "describe_job",
        "command_id": str(uuid.uuid4()),
        "job_id": "some-job",
        "body": {},
        **changes,
    }
    return json.dumps({name: value for name, value in whole.items() if value is not ...}).encode()


BAD_SPEC_FIELDS: list[tuple[str, object]] = [
    ("batch_sizes", []),
    ("batch_sizes", [0]),
    ("batch_sizes", [32, 32]),
    ("batch_sizes", [2**31]),
    ("batch_sizes", "32,64"),
    ("batch_sizes", list(range(1, 1002))),
    ("default_batch_size", 7),
    ("default_batch_size", -1),
    ("default_batch_size", "64"),
    ("eta_knob", -0.1),
    ("eta_knob", 1.1),
    ("eta_knob", "NaN"),
    ("beta_knob", 0.5),
    ("beta_knob", "Infinity"),
    ("target_metric", "NaN"),
    ("target_metric", None),
    ("higher_is_better_metric", "yes"),
    ("max_epochs", 0),
    ("max_epochs", 1.5),
    ("max_epochs", 10**10),
    ("num_pruning_rounds", -1),
    ("window_size", 1),
    ("window_size", -2),
    ("mab_prior_mean", "-Infinity"),
    ("mab_prior_precision", -1),
    ("mab_num_explorations", -1),
    ("mab_seed", -1),
    ("mab_seed", 2**63),
    ("policy", "Astrology, of course"),
    ("version", "x" * 121),
    ("version", "tab\there"),
    ("version", "\u202eno such words"),
    ("cost_budget", 0),
    ("early_stopping", 1),
    ("max_attempts", 0),
    ("a_field_of_the_future", 1),
]


async def test_every_field_of_a_specification_out_of_range_is_named(ask: Queue, worker: WorkerParts) -> None:
    for name, value in BAD_SPEC_FIELDS:
        problem = refused(await ask(new_job(), RegisterJob(spec={**SPEC, name: value})))
        assert problem.type == "invalid_spec", (name, value, problem)
        assert name in problem.fields, (name, value, problem)
        assert len(problem.detail) < 500


async def test_an_unknown_job_is_a_problem(ask: Queue, worker: WorkerParts) -> None:
    for command in (BeginTrial(hardware=HARDWARE), DescribeJob()):
        assert (refused(await ask("never-registered", command))).type == "unknown_job"


async def test_an_unknown_trial_is_a_problem(ask: Queue, job: str) -> None:
    trial = await begin(ask, job)
    stranger = ReportEpoch(trial_number=99, trial_id=trial.trial_id, epoch=1.0, time_s=1.0, energy_j=1.0, metric=0.5)
    assert (refused(await ask(job, stranger))).type == "unknown_trial"
    assert (refused(await ask("other-job", stranger))).type == "unknown_trial"


async def test_a_trial_id_of_another_trial_is_a_problem(ask: Queue, job: str) -> None:
    trial = await begin(ask, job)
    forged = report(trial, 1, trial_id=str(uuid.uuid4()))
    assert (refused(await ask(job, forged))).type == "wrong_trial_id"


async def test_a_report_after_the_end_is_a_problem(ask: Queue, job: str) -> None:
    trial = await begin(ask, job)
    await train(ask, job, trial, lambda: None)
    assert (refused(await ask(job, report(trial, 50)))).type == "trial_ended"


async def test_an_epoch_that_goes_backwards_is_no_harm(ask: Queue, job: str) -> None:
    trial = await begin(ask, job)
    await ask(job, report(trial, 1, epoch=2.0))
    same_epoch = refused(await ask(job, report(trial, 1, epoch=2.0, metric=0.1)))
    assert same_epoch.type == "conflicting_report"
    fill_in = await ask(job, report(trial, 1))
    assert isinstance(fill_in, EpochJudged)
    totals_fall = refused(await ask(job, report(trial, 1, epoch=3.0, time_s=0.5)))
    assert (totals_fall.type, set(totals_fall.fields)) == ("report_goes_backwards", {"time_s"})


async def test_a_number_out_of_range_is_named(ask: Queue, job: str) -> None:
    trial = await begin(ask, job)
    for field, wrong in {"energy_j": (-1.0,), "time_s": (-1.0,), "epoch": (0.0, -1.0)}.items():
        for value in (*wrong, math.nan, math.inf, -math.inf):
            problem = refused(await ask(job, report(trial, 1, **{field: value})))
            assert (problem.type, set(problem.fields)) == ("invalid_report", {field}), value


async def test_a_metric_that_is_no_number_is_a_report_like_any_other(ask: Queue, job: str, store: SqlStore) -> None:
    for first, second in ((math.nan, math.inf), (-math.inf, math.nan)):
        trial = await begin(ask, job)
        one = await ask(job, report(trial, 1, metric=first))
        assert isinstance(one, EpochJudged)
        assert not one.should_stop
        other = await ask(job, report(trial, 2, metric=second))
        assert isinstance(other, EpochJudged)
        assert other.outcome is Outcome.NOT_CONVERGED
    assert await audit(store, job) == 2


async def test_odd_names_of_gpus_are_kept_as_they_are(ask: Queue, job: str, store: SqlStore) -> None:
    names = ["X" * 300, "NVIDIA \"A100\" 'SXM4'; DROP TABLE job;--", "显卡 🔥 GPU", "\\x00 %s {} \\"]
    for name in names:
        await begin(ask, job, hardware=replace(HARDWARE, gpu_model=name))
    assert [trial.hardware.gpu_model for trial in await store.trials(job)] == names


IMPOSSIBLE_HARDWARE: list[tuple[str, object]] = [
    ("gpu_model", "X" * 1001),
    ("gpu_model", ""),
    ("gpu_model", "A40\x1b[2J"),
    ("gpu_model", "A40\u200b"),
    ("max_power_w", 0.0),
    ("max_power_w", math.nan),
    ("max_power_w", math.inf),
    ("number_of_gpus", 0),
    ("memory_mib", -1),
]


async def test_hardware_that_cannot_be_is_refused(ask: Queue, job: str) -> None:
    for field, value in IMPOSSIBLE_HARDWARE:
        changes: dict[str, Any] = {field: value}
        problem = refused(await ask(job, BeginTrial(hardware=replace(HARDWARE, **changes))))
        assert problem.type == "invalid_trial", changes


ODD_IDS = [
    "",
    "a/b",
    "with space",
    "emoji-🔥",
    "quote'\"",
    "-leading",
    "x" * 121,
    "new\nline",
    "null\x00",
    "../../etc",
    "ä",
]


async def test_ids_that_are_none_are_refused(ask: Queue, sender: RawSender, job: str) -> None:
    for odd in ODD_IDS:
        problem = await sender.problem(envelope(job_id=odd))
        assert problem.type == "malformed", odd
        assert "job_id" in problem.detail
        recurrence = refused(await ask(job, BeginTrial(hardware=HARDWARE, recurrence_id=odd)))
        assert set(recurrence.fields) == {"recurrence_id"}, odd


NO_COMMANDS: list[tuple[bytes, str]] = [
    (b"", "malformed"),
    (b"not json", "malformed"),
    (b"\xff\xfe\x00", "malformed"),
    (b"[1, 2, 3]", "malformed"),
    (b"null", "malformed"),
    (b"[" * 100_000, "malformed"),
    (b'{"a": ' * 5_000, "malformed"),
    (b'"\\ud800"', "malformed"),
    (b"x" * 10_000_000, "too_large"),
    (envelope(schema="2.0"), "unsupported_schema"),
    (envelope(schema="99.1"), "unsupported_schema"),
    (envelope(schema="one"), "unsupported_schema"),
    (envelope(type="make_coffee"), "malformed"),
    (envelope(type="trial_started"), "malformed"),
    (envelope(command_id="not-a-uuid"), "malformed"),
    (envelope(command_id=...), "malformed"),
    (envelope(job_id=...), "malformed"),
    (envelope(job_id=5), "malformed"),
    (envelope(type="begin_trial", body={}), "malformed"),
    (envelope(type="begin_trial", body={"hardware": "A40"}), "malformed"),
    (envelope(type="report_epoch", body={"trial_number": "one"}), "malformed"),
    (envelope(type="report_epoch", body={"trial_number": 10**30, "trial_id": "x"}), "malformed"),
    (envelope(trace={"traceparent": 5}), "malformed"),
    (envelope(sent_at="yesterday"), "malformed"),
]


async def test_what_is_no_command_goes_to_the_dead_letters_and_its_sender_is_told(
    amqp_url: str, sender: RawSender
) -> None:
    for body, kind in NO_COMMANDS:
        problem = await sender.problem(body)
        assert problem.type == kind, body[:200]
        assert 0 < len(problem.detail) < 2000
    letters = await dead_letters(amqp_url, len(NO_COMMANDS))
    assert [letter.body for letter in letters] == [b"" if kind == "too_large" else body for body, kind in NO_COMMANDS]
    assert [letter.reason.partition(":")[0] for letter in letters] == [kind for _, kind in NO_COMMANDS]


async def test_an_envelope_without_a_version_is_of_the_first(sender: RawSender) -> None:
    assert (await sender.problem(envelope(schema=...))).type == "unknown_job"


async def test_huge_numbers_in_a_well_formed_command_are_refused(ask: Queue, sender: RawSender, job: str) -> None:
    trial = await begin(ask, job)
    body = {"trial_number": 10**30, "trial_id": trial.trial_id, "epoch": 1, "time_s": 1, "energy_j": 1, "metric": 1}
    problem = await sender.problem(envelope(type="report_epoch", job_id=job, body=body))
    assert problem.type in {"unknown_trial", "malformed"}


async def test_what_nobody_waits_for_goes_to_the_dead_letters_silently(amqp_url: str, sender: RawSender) -> None:
    await sender.send(b"not json", reply_to=None)
    (letter,) = await dead_letters(amqp_url, 1)
    assert letter.reason.startswith("malformed")
    assert await sender.has_heard_nothing()


class Latin1(str):
    """Text that goes out in Latin-1 where AMQP wants UTF-8."""

    __slots__ = ()

    def encode(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
        return super().encode("latin-1", errors)


async def test_a_command_with_properties_that_cannot_be_read_goes_to_the_dead_letters_alone(
    ask: Queue, sender: RawSender, job: str, amqp_url: str
) -> None:
    for _ in range(3):
        await sender.send(envelope(job_id=job), correlation_id=Latin1("é"))
    trials = await recur(ask, job, "between")
    assert trials[-1].outcome is Outcome.CONVERGED
    letters = await dead_letters(amqp_url, 3)
    assert [letter.reason.partition(":")[0] for letter in letters] == ["malformed"] * 3
    assert await sender.has_heard_nothing()


async def test_a_command_without_reply_address_is_carried_out(sender: RawSender, store: SqlStore) -> None:
    job = new_job()
    request = Request(command_id=str(uuid.uuid4()), job_id=job, command=RegisterJob(spec=SPEC))
    await sender.send(encode_command(request), reply_to=None)
    await eventually_async(lambda: store.job(job), what="a registered job")


async def test_a_reply_address_that_is_no_reply_queue_is_not_answered_and_does_no_harm(
    amqp_url: str, sender: RawSender, store: SqlStore
) -> None:
    job = new_job()
    addresses = [COMMAND_QUEUE, DEAD_LETTERS, EVENT_LOG, "bso.reply.guest.x", "bso.reply..", "elsewhere"]
    for address in addresses:
        request = Request(command_id=str(uuid.uuid4()), job_id=job, command=RegisterJob(spec=SPEC))
        await sender.send(encode_command(request), reply_to=address)
    letters = await dead_letters(amqp_url, len(addresses))
    assert {letter.reason.partition(":")[0] for letter in letters} == {"forged_reply_address"}
    assert await store.job(job) is None
    async with RabbitBroker(amqp_url).dead_letters() as box:
        counts = await box.counts()
    assert (counts.commands, counts.dead_letters) == (0, len(addresses))


async def test_one_users_command_cannot_be_answered_to_another(amqp_url: str, sender: RawSender) -> None:
    request = Request(command_id=str(uuid.uuid4()), job_id=new_job(), command=RegisterJob(spec=SPEC))
    await sender.send(encode_command(request), user_id="guest", reply_to=f"bso.reply.victim.{'0' * 32}")
    (letter,) = await dead_letters(amqp_url, 1)
    assert letter.reason.startswith("forged_reply_address")
    assert letter.user_id == "guest"


async def test_the_same_command_twice_is_decided_once(ask: Queue, job: str, store: SqlStore) -> None:
    command_id = str(uuid.uuid4())
    first = await begin(ask, job, command_id=command_id)
    assert await begin(ask, job, command_id=command_id) == first
    assert await audit(store, job) == 1


async def test_a_command_id_of_another_jobs_command_is_refused(ask: Queue, job: str) -> None:
    command_id = str(uuid.uuid4())
    await begin(ask, job, command_id=command_id)
    other = new_job()
    await register(ask, other)
    problem = refused(await ask(other, BeginTrial(hardware=HARDWARE), command_id=command_id))
    assert problem.type == "command_id_taken"


async def test_bad_input_harms_no_good_commands_beside_it(
    ask: Queue, sender: RawSender, job: str, amqp_url: str, store: SqlStore
) -> None:
    for _ in range(20):
        await sender.send(b"not json")
        await sender.send(envelope(schema="7.0"))
    trials = await recur(ask, job, "between")
    assert trials[-1].outcome is Outcome.CONVERGED
    assert len(await dead_letters(amqp_url, 40)) == 40


async def test_a_registration_by_prefix_gets_a_job_id(ask: Queue, sender: RawSender) -> None:
    body = {"spec": SPEC, "job_id_prefix": "mnist"}
    await sender.send(envelope(type="register_job", job_id=None, body=body))
    reply = await sender.receive_reply()
    assert isinstance(reply, Registered)
    assert reply.job_id.startswith("mnist-")
    problem = await sender.problem(envelope(type="register_job", job_id=None, body={**body, "job_id_prefix": "a/b"}))
    assert problem.type == "malformed"


async def test_a_finish_that_claims_what_only_a_report_can_show_is_refused(ask: Queue, job: str) -> None:
    trial = await begin(ask, job)
    finish = FinishTrial(trial_number=trial.trial_number, trial_id=trial.trial_id, outcome=Outcome.CONVERGED)
    assert (refused(await ask(job, finish))).type
    reply = await ask(job, DescribeJob())
    assert isinstance(reply, JobDescription)
    assert isinstance(trial, TrialBegun)
    assert len(reply.active_trials) == 1
