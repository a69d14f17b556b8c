"""What every store must do with the engine on top of it."""

import asyncio
import math
import re
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from bso.domain.commands import DeleteJob, DescribeJob, PowerMeasurement, RenewLease, ReportPowerProfile, Request
from bso.domain.events import EpochReported, JobRegistered, TrialStarted
from bso.domain.hardware import EnergyMethod, HardwareKind
from bso.domain.replies import (
    EpochJudged,
    JobDescription,
    LeaseRenewed,
    Problem,
    Registered,
    Reply,
    TrialBegun,
    TrialFinished,
)
from bso.domain.trial import Outcome, TrialState
from bso.service.engine import Engine
from bso.service.memory import InMemoryStore
from bso.service.ports import Store
from tests.contract.storage.conftest import OpenStore
from tests.contract.storage.job_requests import (
    HARDWARE,
    JOB,
    Campaign,
    ask,
    assert_log_equals_tables,
    begin,
    beginning,
    finish,
    registration,
    report,
    request,
    whole_history,
)


async def test_a_training_is_decided_and_recorded(store: Store) -> None:
    engine = Engine(store)
    [registered] = await ask(engine, registration())
    assert isinstance(registered.reply, Registered)
    trial = await begin(engine, recurrence_id="monday")
    [going, done] = await ask(engine, report(trial, 1), report(trial, 2, metric=0.95))
    assert isinstance(going.reply, EpochJudged)
    assert not going.reply.should_stop
    assert isinstance(done.reply, EpochJudged)
    assert done.reply.outcome is Outcome.CONVERGED
    folded = await assert_log_equals_tables(store)
    assert folded.trials[1].outcome is Outcome.CONVERGED
    [summary] = await store.jobs()
    assert (summary.job_id, summary.last_trial_number, summary.policy) == (JOB, 1, "curve")


async def test_eight_racers_register_one_job_and_begin_trials_of_it(open_another: OpenStore) -> None:
    engines = [Engine(open_another()) for _ in range(8)]

    async def race(engine: Engine, number: int) -> int:
        await ask(engine, registration())
        return (await begin(engine, recurrence_id=f"recurrence-of-{number}")).trial_number

    numbers = await asyncio.gather(*(race(engine, number) for number, engine in enumerate(engines)))
    assert sorted(numbers) == list(range(1, 9))
    store = open_another()
    history = await whole_history(store, JOB)
    assert sum(isinstance(recorded.event, JobRegistered) for recorded in history) == 1
    await assert_log_equals_tables(store)


async def test_a_command_sent_again_gets_the_same_answer_and_leaves_no_trace(open_another: OpenStore) -> None:
    first, second = Engine(open_another()), Engine(open_another())
    await ask(first, registration())
    again = beginning()
    [told] = await ask(first, again)
    [repeated] = await ask(second, again)
    assert (repeated.is_repeat, repeated.reply, repeated.events) == (True, told.reply, ())
    assert len(await whole_history(open_another(), JOB)) == 1 + len(told.events)


async def test_a_command_twice_in_one_batch_is_decided_once(store: Store) -> None:
    engine = Engine(store)
    twice = beginning()
    _, first, second = await ask(engine, registration(), twice, twice)
    assert isinstance(first.reply, TrialBegun)
    assert (second.is_repeat, second.reply) == (True, first.reply)
    assert [trial.trial_number for trial in await store.trials(JOB)] == [1]


async def test_commands_of_one_job_in_one_batch_build_on_one_another(store: Store) -> None:
    engine = Engine(store)
    await ask(engine, registration())
    trial = await begin(engine)
    answers = await ask(
        engine, report(trial, 1), report(trial, 2), report(trial, 2), report(trial, 3, metric=0.99), report(trial, 4)
    )
    told = [getattr(answer.reply, "reason", getattr(answer.reply, "type", "")) for answer in answers]
    assert told[2] == "recorded before"
    assert answers[3].reply.outcome is Outcome.CONVERGED  # type: ignore[union-attr]
    assert told[4] == "trial_ended"
    await assert_log_equals_tables(store)


async def test_a_command_id_is_for_one_command(store: Store) -> None:
    engine = Engine(store)
    await ask(engine, registration())
    trial, elsewhere = await begin(engine, recurrence_id="one"), await begin(engine, recurrence_id="another")
    first = report(trial, 1)
    [reply] = await ask(engine, first)
    for wrong in (report(trial, 2), report(elsewhere, 1), request(DeleteJob()), beginning()):
        [answer] = await ask(engine, replace(wrong, command_id=first.command_id))
        assert isinstance(answer.reply, Problem), wrong
        assert answer.reply.type == "command_id_taken"
    [again] = await ask(engine, first)
    assert (again.is_repeat, again.reply) == (True, reply.reply)
    [_, at_once] = await ask(engine, fresh := report(trial, 3), replace(report(trial, 4), command_id=fresh.command_id))
    assert isinstance(at_once.reply, Problem)
    assert at_once.reply.type == "command_id_taken"
    await assert_log_equals_tables(store)


async def test_the_command_id_of_another_job_is_refused(store: Store) -> None:
    engine = Engine(store)
    first = registration("first")
    await ask(engine, first)
    [answer] = await ask(engine, replace(first, job_id="second"))
    assert isinstance(answer.reply, Problem)
    assert answer.reply.type == "command_id_taken"
    one = registration("third")
    [_, other] = await ask(engine, one, replace(one, job_id="fourth"))
    assert isinstance(other.reply, Problem)
    assert [job.job_id for job in await store.jobs()] == ["first", "third"]


async def test_a_refused_registration_leaves_nothing(store: Store) -> None:
    engine = Engine(store)
    [answer] = await ask(engine, registration(batch_sizes=[]))
    assert isinstance(answer.reply, Problem)
    assert await store.jobs() == []
    assert await store.job(JOB) is None
    await ask(engine, registration())
    assert [job.job_id for job in await store.jobs()] == [JOB]


async def test_a_command_without_a_valid_address_is_refused_and_its_batch_is_not(store: Store) -> None:
    engine = Engine(store)
    bad = ["", "with space", "a/b", "naïve", "x" * 121, "'; DROP TABLE job; --", "🚀"]
    no_uuid = replace(registration("fine"), command_id="not-a-uuid-but-a-very-long-story-of-many-words")
    *refused, told = await ask(engine, *map(registration, bad), no_uuid, registration())
    assert {answer.reply.type for answer in refused if isinstance(answer.reply, Problem)} == {"invalid_identifier"}
    assert len(refused) == len(bad) + 1
    assert isinstance(told.reply, Registered)
    assert [job.job_id for job in await store.jobs()] == [JOB]


async def test_unknown_jobs_and_trials_are_refused(store: Store) -> None:
    engine = Engine(store)

    def of_trial(number: int) -> Request:
        return request(RenewLease(trial_number=number, trial_id="00000000-0000-0000-0000-000000000000"))

    [unknown_job] = await ask(engine, beginning())
    await ask(engine, registration())
    answers = await ask(engine, of_trial(1), of_trial(10**40), of_trial(-1))
    types = [answer.reply.type for answer in (unknown_job, *answers) if isinstance(answer.reply, Problem)]
    assert types == ["unknown_job", "unknown_trial", "unknown_trial", "unknown_trial"]


async def test_the_same_seed_and_commands_give_the_same_decisions_everywhere(store: Store) -> None:
    expected = await Campaign(engine=Engine(InMemoryStore(lambda: datetime(2026, 1, 1, tzinfo=UTC))), seed=5).run(12)
    campaign = Campaign(engine=Engine(store), seed=5)
    assert _as_told(await campaign.run(12)) == _as_told(expected)
    folded = await assert_log_equals_tables(store)
    assert folded.last_trial_number >= 12


async def test_two_stores_decide_concurrently_on_one_job(open_another: OpenStore) -> None:
    engines = [Engine(open_another()), Engine(open_another())]
    await ask(engines[0], registration(early_stopping=False))

    async def train(engine: Engine, number: int) -> None:
        trial = await begin(engine, recurrence_id=f"night-{number}")
        for epoch in range(1, 4):
            await ask(engine, report(trial, epoch))
        [over] = await ask(engine, report(trial, 4, metric=1.0))
        assert isinstance(over.reply, EpochJudged)
        assert over.reply.outcome is Outcome.CONVERGED

    await asyncio.gather(*(train(engines[number % 2], number) for number in range(8)))
    folded = await assert_log_equals_tables(open_another())
    assert [folded.trials[number].outcome for number in sorted(folded.trials)] == [Outcome.CONVERGED] * 8


async def test_one_batch_serves_many_jobs(open_another: OpenStore) -> None:
    engines = [Engine(open_another()) for _ in range(4)]
    jobs = [f"job-{number}" for number in range(12)]

    async def work(engine: Engine, order: list[str]) -> None:
        await ask(engine, *(registration(job_id) for job_id in order))
        await ask(engine, *(beginning(job_id) for job_id in order))

    await asyncio.gather(*(work(engine, jobs if number % 2 else jobs[::-1]) for number, engine in enumerate(engines)))
    store = open_another()
    for job_id in jobs:
        folded = await assert_log_equals_tables(store, job_id)
        assert folded.last_trial_number == 4
    assert [job.job_id for job in await store.jobs(after="job-2", limit=3)] == ["job-3", "job-4", "job-5"]


async def test_an_overview_holds_the_snapshot_and_the_last_trial_of_each_job(store: Store) -> None:
    engine = Engine(store)
    for job_id in ("first", "second", "third"):
        await ask(engine, registration(job_id))
    await ask(engine, beginning("first"), beginning("first", recurrence_id="b"), beginning("third"))
    overviews = await store.overviews()
    assert [one.summary for one in overviews] == list(await store.jobs())
    assert [one.stored for one in overviews] == [await store.job(job_id) for job_id in ("first", "second", "third")]
    last = [one.last_trial for one in overviews]
    assert [trial and trial.trial_number for trial in last] == [2, None, 1]
    assert last[0] == (await store.trials("first"))[-1]
    assert [one.active for one in overviews] == [
        tuple(await store.active_trials(job_id)) for job_id in ("first", "second", "third")
    ]
    assert [one.summary.job_id for one in await store.overviews(after="first", limit=1)] == ["second"]
    assert await store.overviews(after="third") == []
    assert [await store.summary(one.summary.job_id) for one in overviews] == [one.summary for one in overviews]
    assert await store.summary("unknown") is None


async def test_the_trials_that_have_not_ended_are_read_alone(store: Store) -> None:
    engine = Engine(store)
    await ask(engine, registration(), registration("other"), beginning("other"))
    trials = [await begin(engine, recurrence_id=name) for name in ("a", "b", "c")]
    await ask(engine, finish(trials[1], Outcome.NOT_CONVERGED))
    assert [trial.trial_number for trial in await store.active_trials(JOB)] == [1, 3]
    assert list(await store.active_trials(JOB)) == [one for one in await store.trials(JOB) if one.is_active]
    assert await store.active_trials("unknown") == []


@pytest.mark.parametrize("metric", [math.nan, math.inf, -math.inf])
async def test_metrics_that_are_no_numbers_come_back(store: Store, metric: float) -> None:
    engine = Engine(store)
    await ask(engine, registration(higher_is_better_metric=metric != math.inf))
    trial = await begin(engine)
    await ask(engine, report(trial, 1, metric=metric))
    [row] = await store.trials(JOB)
    assert repr(row.metric) == repr(metric)
    last = (await whole_history(store, JOB))[-1].event
    assert isinstance(last, EpochReported)
    assert repr(last.metric) == repr(metric)
    [again] = await ask(engine, report(trial, 1, metric=metric))
    assert isinstance(again.reply, EpochJudged)
    await assert_log_equals_tables(store)


async def test_words_of_any_language_and_length_come_back(store: Store) -> None:
    engine = Engine(store)
    gpu = HardwareKind(
        gpu_model="Ünïcödé GPU 🚀 '\"`\\%s;-- " * 12, max_power_w=0.1 + 0.2, energy_method=EnergyMethod.ASSUMED
    )
    await ask(engine, registration(version="résnet-50 🐍 'x'"))
    trial = await begin(engine, hardware=gpu)
    reason = "плохо 😱 \\ ' \" \n\t{}" * 200
    await ask(engine, finish(trial, Outcome.NOT_CONVERGED, reason))
    [row] = await store.trials(JOB)
    assert row.hardware == gpu
    assert row.outcome_reason
    [summary] = await store.jobs()
    assert summary.version == "résnet-50 🐍 'x'"
    await assert_log_equals_tables(store)


async def test_moments_keep_their_microseconds(store: Store) -> None:
    engine = Engine(store)
    before = datetime.now(UTC)
    await ask(engine, registration())
    moments = []
    for _ in range(5):
        trial = await begin(engine)
        [row] = [row for row in await store.trials(JOB) if row.trial_number == trial.trial_number]
        [started] = [e for e in await whole_history(store, JOB) if isinstance(e.event, TrialStarted)][-1:]
        assert isinstance(started.event, TrialStarted)
        assert row.started_at == started.event.started_at == started.recorded_at
        assert row.lease_expires_at is not None
        assert (row.lease_expires_at - row.started_at).total_seconds() == 600.0
        moments.append(row.started_at)
    assert moments == sorted(moments)
    assert any(moment.microsecond % 1000 for moment in moments)
    assert before <= moments[0] <= moments[-1] <= datetime.now(UTC)


async def test_a_lower_epoch_is_filled_in_or_recognised(store: Store) -> None:
    engine = Engine(store)
    await ask(engine, registration())
    trial = await begin(engine)
    await ask(engine, report(trial, 1), report(trial, 3))
    [fill_in] = await ask(engine, report(trial, 2))
    [same] = await ask(engine, report(trial, 2))
    [other] = await ask(engine, report(trial, 2, metric=0.51))
    assert [len(answer.events) for answer in (fill_in, same, other)] == [1, 0, 0]
    assert isinstance(other.reply, Problem)
    assert other.reply.type == "conflicting_report"
    [odd] = await ask(engine, report(trial, -math.inf))
    assert isinstance(odd.reply, Problem)
    await assert_log_equals_tables(store)


async def test_ended_trials_are_loaded_where_a_command_asks_for_one(store: Store) -> None:
    engine = Engine(store)
    await ask(engine, registration())
    trial = await begin(engine)
    over = finish(trial, Outcome.NOT_CONVERGED, "gave up")
    [first] = await ask(engine, over)
    assert isinstance(first.reply, TrialFinished)
    [again] = await ask(engine, replace(over, command_id="00000000-0000-4000-8000-000000000001"))
    assert isinstance(again.reply, TrialFinished)
    assert again.reply.outcome is Outcome.NOT_CONVERGED
    [late] = await ask(engine, report(trial, 9))
    assert isinstance(late.reply, Problem)
    assert late.reply.type == "trial_ended"
    await assert_log_equals_tables(store)


async def test_a_renewal_moves_the_lease_and_leaves_no_event(store: Store) -> None:
    engine = Engine(store)
    await ask(engine, registration())
    trial = await begin(engine)
    [before] = await store.trials(JOB)
    [answer] = await ask(engine, request(RenewLease(trial_number=1, trial_id=trial.trial_id)))
    [after] = await store.trials(JOB)
    assert isinstance(answer.reply, LeaseRenewed)
    assert answer.events == ()
    assert before.lease_expires_at is not None
    assert after.lease_expires_at is not None
    assert after.lease_expires_at > before.lease_expires_at
    assert replace(after, lease_expires_at=None) == replace(before, lease_expires_at=None)


async def test_a_query_changes_nothing(store: Store) -> None:
    engine = Engine(store)
    await ask(engine, registration())
    await begin(engine)
    history = await whole_history(store)
    [answer] = await ask(engine, request(DescribeJob()))
    assert isinstance(answer.reply, JobDescription)
    assert [trial.trial_number for trial in answer.reply.active_trials] == [1]
    assert await whole_history(store) == history


async def test_power_profiles_are_kept_and_replaced(store: Store) -> None:
    engine = Engine(store)
    await ask(engine, registration())
    for watts in (200.0, 150.0):
        measured = PowerMeasurement(power_limit_w=watts, average_power_w=watts - 10, samples_per_s=1e3 / 3)
        profile = ReportPowerProfile(batch_size=64, hardware=HARDWARE, measurements=(measured,))
        await ask(engine, request(profile))
    [kept] = await store.power_profiles(JOB)
    assert kept.hardware == HARDWARE
    assert [measurement.power_limit_w for measurement in kept.measurements] == [150.0]
    await assert_log_equals_tables(store)


async def test_a_deleted_job_is_a_tombstone_and_its_numbers_go_on(store: Store) -> None:
    engine = Engine(store)
    await ask(engine, registration())
    await begin(engine)
    await ask(engine, request(DeleteJob()))
    [summary] = await store.jobs()
    assert summary.is_deleted
    [cancelled] = await store.trials(JOB)
    assert cancelled.state is TrialState.ENDED
    await ask(engine, registration())
    assert (await begin(engine)).trial_number == 2
    await assert_log_equals_tables(store)


def _as_told(replies: list[Reply]) -> list[str]:
    """Replies as text, without what depends on the clock."""
    return [re.sub(r"datetime\.datetime\([^)]*\)", "", repr(reply)) for reply in replies]
