"""The audit of the fault matrix: what it must find, from ledgers and logs that are written by hand."""

import json
import random
import subprocess
import uuid
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest

from bso.domain.commands import BeginTrial, Command, DescribeJob, FinishTrial, ReportPowerProfile, Request
from bso.domain.events import EpochCostsProbed, EpochReported, TrialStarted
from bso.domain.log import RecordedEvent
from bso.domain.replies import (
    KEPT,
    EpochCostsRecorded,
    EpochJudged,
    PowerProfileRecorded,
    Problem,
    Reply,
    TrialBegun,
    TrialFinished,
)
from bso.domain.trial import Outcome
from bso.schema.codec import encode_reply
from bso.service.records import StoredEvent
from bso_broker.rpc import RpcClient
from tests.faults.matrix.auditing import (
    Log,
    contradictions,
    extra_trials,
    is_recorded_after_all,
    lost,
    recorded_twice,
    stream_findings,
    unanswered,
    unreported,
    unreported_evaluations,
)
from tests.faults.matrix.lanes import Sender
from tests.faults.matrix.ledger import Asked, Ledger
from tests.faults.matrix.pair import Pair
from tests.faults.matrix.result import Result
from tests.faults.matrix.stage import Stage, Training
from tests.integration.workers.recurrences import HARDWARE, probed
from tests.unit.domain.builders import JobLife, command_id
from tools.private_servers import Management

RECOVERED_S, OVER_S = 50.0, 60.0
PROFILE = ReportPowerProfile(batch_size=64, hardware=HARDWARE, measurements=())


class Answers:
    """An RPC client that gives answers in order."""

    def __init__(self, replies: list[Reply]) -> None:
        self.replies = replies

    async def call(self, *_: object, **__: object) -> bytes:
        return encode_reply(self.replies.pop(0), command_id="", job_id=None)


def new_result() -> Result:
    return Result(scenario="any", seed=1, broker="", database="")


def new_stage(folder: Path) -> Stage:
    """A stage without servers."""
    management = Management("http://guest:guest@127.0.0.1:1", "amqp://guest:guest@127.0.0.1:1/")
    pair = Pair(management=management, rabbitmq=None, database=None, broker_name="", database_name="")
    return Stage(pair=pair, rng=random.Random(1), folder=folder)


def training(folder: Path, *noted: dict[str, object]) -> Training:
    """A training that has noted these facts and ended."""
    journal = folder / "training.jsonl"
    journal.write_text("".join(json.dumps(fact) + "\n" for fact in noted), encoding="utf-8")
    with subprocess.Popen(["true"]) as process:
        return Training(job_id="job", journal=journal, state_dir=folder, process=process)


def asked(command: Command, *, sent_s: float, answered_s: float | None, lane: str = "") -> Asked:
    request = Request(command_id=str(uuid.uuid4()), job_id="job", command=command)
    reply = PowerProfileRecorded() if answered_s is not None and command is PROFILE else None
    return Asked(request=request, sent_s=sent_s, answered_s=answered_s, is_others=True, lane=lane, reply=reply)


def test_a_command_from_before_the_recovery_that_nobody_answers_is_a_finding() -> None:
    question = DescribeJob()
    early, late = asked(question, sent_s=40.0, answered_s=None), asked(question, sent_s=51.0, answered_s=None)
    ledger = Ledger(asked=[asked(question, sent_s=39.0, answered_s=45.0), early, late])
    result = new_result()
    unanswered(ledger, result, before_s=RECOVERED_S)
    assert not result.is_sound
    assert [early.request.command_id in words for words in result.unexpected] == [True]


@pytest.mark.parametrize(("recorded", "said", "count"), [(64, 64, 0), (64, 32, 1)])
def test_another_batch_size_than_is_recorded_is_a_contradiction(recorded: int, said: int, count: int) -> None:
    life = JobLife()
    life.register()
    begun = life.begin()
    [started] = life.happened(TrialStarted)
    one = replace(
        asked(BeginTrial(hardware=HARDWARE), sent_s=1.0, answered_s=2.0), reply=replace(begun, batch_size=said)
    )
    recording = replace(event(1), event=replace(started, batch_size=recorded), command_id=one.request.command_id)
    log = Log(events=[StoredEvent(event_id=1, recorded=recording)], trials={})
    assert len(contradictions([one], log)) == count


@pytest.mark.parametrize(("said", "count"), [(Outcome.CANCELLED, 0), (Outcome.CONVERGED, 1), (None, 0)])
def test_another_end_of_a_trial_than_is_recorded_is_a_contradiction(said: Outcome | None, count: int) -> None:
    life = JobLife()
    life.register()
    begun = life.begin()
    life.give_up(begun)
    ended = life.rows[begun.trial_number]
    judged = EpochJudged(should_stop=said is not None, reason="", cost=1.0, bound=None, outcome=said)
    one = replace(asked(life.reporting(begun, 1.0), sent_s=1.0, answered_s=2.0), reply=judged)
    log = Log(events=[], trials={("job", begun.trial_number): replace(ended, outcome=Outcome.CANCELLED)})
    assert len(contradictions([one], log)) == count


def test_commands_that_the_end_of_a_scenario_has_stopped_are_no_finding() -> None:
    ledger = Ledger(asked=[asked(PROFILE, sent_s=59.9, answered_s=None)])
    result = new_result()
    unanswered(ledger, result, before_s=RECOVERED_S)
    assert result.is_sound


def test_the_slowest_command_may_be_one_that_is_never_answered() -> None:
    ledger = Ledger(asked=[asked(PROFILE, sent_s=40.0, answered_s=41.0), asked(PROFILE, sent_s=42.0, answered_s=None)])
    assert ledger.slowest_s(since_s=30.0, until_s=OVER_S, is_others=True) == 18.0


def test_a_job_has_not_recovered_while_one_of_its_lanes_waits() -> None:
    quick = asked(PROFILE, sent_s=51.0, answered_s=52.0, lane="quick")
    slow = asked(PROFILE, sent_s=49.0, answered_s=52.0, lane="slow")
    waits = asked(PROFILE, sent_s=53.0, answered_s=None, lane="waits")
    assert Ledger(asked=[slow, quick, waits]).lanes_with_a_decision(since_s=50.0) == {"quick"}


@pytest.mark.parametrize("trial_number", [1, None])
def test_a_trial_that_has_ended_for_its_training_only_is_unreported(tmp_path: Path, trial_number: int | None) -> None:
    stage = new_stage(tmp_path)
    ended = {"did": "trial_ended", "at_s": 1.0, "trial_number": trial_number, "outcome": "converged", "reason": ""}
    stage.trainings.append(training(tmp_path, ended))
    assert unreported(stage, "job", Log(events=[], trials={})) == 1


@pytest.mark.parametrize(("recorded", "count"), [(0.5, 0), (None, 1)])
@pytest.mark.parametrize("trial_number", [1, None])
def test_an_evaluation_that_was_never_recorded_is_a_finding(
    tmp_path: Path, trial_number: int | None, recorded: float | None, count: int
) -> None:
    stage = new_stage(tmp_path)
    stage.trainings.append(
        training(tmp_path, {"did": "evaluated", "at_s": 1.0, "trial_number": trial_number, "epoch": 2})
    )
    events = [] if recorded is None else [StoredEvent(event_id=1, recorded=event(2, metric=recorded))]
    assert len(unreported_evaluations(stage, "job", Log(events=events, trials={}))) == count


def reported(*, metric: float, was_kept: bool = True) -> Asked:
    """A report of the epoch that event(1) records, which was kept."""
    life = JobLife()
    life.register()
    command = replace(life.reporting(life.begin(), 1.0), time_s=1.0, energy_j=None, metric=metric)
    return replace(asked(command, sent_s=1.0, answered_s=2.0), was_kept=was_kept)


@pytest.mark.parametrize(("metric", "count"), [(0.5, 0), (0.6, 1)])
def test_a_kept_report_is_lost_where_other_numbers_are_recorded(metric: float, count: int) -> None:
    log = Log(events=[StoredEvent(event_id=1, recorded=event(1, metric=0.5))], trials={})
    assert len(lost([reported(metric=metric)], log)) == count


@pytest.mark.parametrize(("outcome", "count"), [(Outcome.CANCELLED, 0), (Outcome.CONVERGED, 1)])
def test_a_kept_finish_is_lost_where_another_outcome_is_recorded(outcome: Outcome, count: int) -> None:
    life = JobLife()
    life.register()
    begun = life.begin()
    life.give_up(begun)
    finish = FinishTrial(trial_number=begun.trial_number, trial_id=begun.trial_id, outcome=outcome)
    one = replace(asked(finish, sent_s=1.0, answered_s=2.0), was_kept=True)
    trial = replace(life.rows[begun.trial_number], outcome=Outcome.CANCELLED)
    assert len(lost([one], Log(events=[], trials={("job", begun.trial_number): trial}))) == count


@pytest.mark.parametrize(
    ("was_kept", "said", "count"),
    [(True, Outcome.COST_EXCEEDED, 0), (False, Outcome.COST_EXCEEDED, 1), (True, Outcome.CANCELLED, 1)],
)
def test_a_finish_is_no_loss_where_its_trial_had_ended_by_a_report_that_was_kept(
    was_kept: bool, said: Outcome, count: int
) -> None:
    life = JobLife()
    life.register()
    begun = life.begin()
    report = replace(asked(life.reporting(begun, 1.0), sent_s=1.0, answered_s=2.0), was_kept=was_kept)
    finish = FinishTrial(trial_number=begun.trial_number, trial_id=begun.trial_id, outcome=Outcome.NOT_CONVERGED)
    reply = TrialFinished(outcome=said, reason="", cost=1.0, should_retry=False)
    one = replace(asked(finish, sent_s=3.0, answered_s=4.0), reply=reply)
    trial = replace(life.rows[begun.trial_number], outcome=Outcome.COST_EXCEEDED)
    log = Log(
        events=[StoredEvent(event_id=1, recorded=replace(event(1), command_id=report.request.command_id))],
        trials={("job", begun.trial_number): trial},
    )
    assert len(lost([report, one], log)) == count


def test_a_kept_command_whose_decision_contradicts_the_log_is_found_when_it_is_asked_again() -> None:
    life = JobLife()
    life.register()
    begun = life.begin()
    judged = EpochJudged(should_stop=True, reason="", cost=1.0, bound=None, outcome=Outcome.CONVERGED)
    one = replace(asked(life.reporting(begun, 1.0), sent_s=1.0, answered_s=2.0), was_kept=True, asked_again=judged)
    trial = replace(life.rows[begun.trial_number], outcome=Outcome.CANCELLED)
    assert len(contradictions([one], Log(events=[], trials={("job", begun.trial_number): trial}))) == 1


@pytest.mark.parametrize(
    ("was_kept", "is_journalled", "is_right"), [(True, True, True), (False, True, False), (True, False, False)]
)
def test_of_a_report_that_is_refused_after_the_end_of_its_trial_only_a_kept_copy_may_be_recorded(
    was_kept: bool, is_journalled: bool, is_right: bool
) -> None:
    recorded = event(1, is_journalled=is_journalled)
    one = reported(metric=0.5, was_kept=was_kept)
    request = replace(one.request, command_id=recorded.command_id)
    one = replace(one, request=request, reply=Problem(type="trial_ended", title="", detail=""))
    log = Log(events=[StoredEvent(event_id=1, recorded=recorded)], trials={})
    assert is_recorded_after_all(one, log) is is_right


@pytest.mark.parametrize(("is_replacing", "count"), [(True, 0), (False, 1)])
def test_a_trial_that_no_training_has_noted_is_a_finding_unless_one_took_its_place(
    tmp_path: Path, is_replacing: bool, count: int
) -> None:
    life = JobLife()
    life.register()
    unanswered = life.begin()
    alone = life.begin(batch_size=32, replaces=command_id(life.sent) if is_replacing else None)
    life.give_up(alone)
    stage = new_stage(tmp_path)
    facts: list[dict[str, object]] = [{"did": did, "at_s": 1.0} for did in ("started", "trial_ended", "ended")]
    stage.trainings.append(training(tmp_path, *facts))
    trials = {("job", begun.trial_number): life.rows[begun.trial_number] for begun in (unanswered, alone)}
    found = extra_trials(stage, "job", Log(events=[], trials=trials))
    assert sum("have begun" in words for words in found) == count


@pytest.mark.parametrize(("has_kept_report", "is_expected"), [(True, True), (False, False)])
async def test_the_end_of_a_trial_surprises_a_lane_unless_a_report_of_it_was_kept(
    has_kept_report: bool, is_expected: bool
) -> None:
    life = JobLife()
    life.register()
    report = life.reporting(life.begin(), 1.0)
    kept = Problem(type=KEPT, title="", detail="", retry_after_s=0.0)
    ended = Problem(type="trial_ended", title="", detail="")
    caller = Answers([kept] * 9 if has_kept_report else [])
    sender = Sender(caller=cast(RpcClient, caller), ledger=Ledger(), rng=random.Random(1))
    if has_kept_report:
        await sender.ask("job", report, is_others=True)
    caller.replies[:] = [ended]
    await sender.ask("job", report, is_others=True)
    assert (sender.ledger.surprises == []) is is_expected


def probing() -> tuple[Asked, RecordedEvent, TrialBegun]:
    """A report of probed epoch costs that was acknowledged, what is recorded of it, and its trial."""
    life = JobLife()
    life.register()
    begun = life.begin()
    command = probed(begun, 128)
    life.send(command)
    [found] = life.happened(EpochCostsProbed)
    one = replace(asked(command, sent_s=1.0, answered_s=2.0), reply=EpochCostsRecorded())
    return one, replace(event(1), event=found, command_id=one.request.command_id), begun


def stored(*recorded: RecordedEvent) -> Log:
    return Log(events=[StoredEvent(event_id=each.seq, recorded=each) for each in recorded], trials={})


@pytest.mark.parametrize("was_kept", [False, True])
def test_probed_epoch_costs_that_were_acknowledged_and_are_not_in_the_log_are_lost(*, was_kept: bool) -> None:
    one, recorded, _ = probing()
    if was_kept:
        one = replace(one, reply=Problem(type=KEPT, title="", detail=""), was_kept=True)
    assert lost([one], stored(recorded)) == []
    assert lost([one], stored()) == [one]
    assert lost([one], stored(replace(recorded, command_id=str(uuid.uuid4())))) == [one]


@pytest.mark.parametrize("is_own_command", [False, True])
def test_probed_epoch_costs_that_are_recorded_twice_are_found(*, is_own_command: bool) -> None:
    one, recorded, begun = probing()
    command_id = one.request.command_id if is_own_command else str(uuid.uuid4())
    assert recorded_twice([recorded]) == []
    assert ("a probe", "job", begun.trial_number, 128) in recorded_twice(
        [recorded, replace(recorded, seq=2, command_id=command_id)]
    )


def test_another_batch_size_that_a_trial_has_probed_is_no_copy() -> None:
    _, recorded, _ = probing()
    assert isinstance(recorded.event, EpochCostsProbed)
    own, other = recorded.event.probes
    later = replace(recorded.event, probes=(own, replace(other, batch_size=32)))
    assert recorded_twice([recorded, replace(recorded, seq=2, command_id="another", event=later)]) == []


@pytest.mark.parametrize("changes", [{"trial_number": 9}, {"probes": ()}, {"time_s": 9.0}, {"energy_j": 9.0}])
def test_probed_epoch_costs_that_are_recorded_otherwise_are_a_contradiction(changes: dict[str, Any]) -> None:
    one, recorded, _ = probing()
    assert isinstance(recorded.event, EpochCostsProbed)
    assert contradictions([one], stored(recorded)) == []
    assert len(contradictions([one], stored(replace(recorded, event=replace(recorded.event, **changes))))) == 1


def event(seq: int, *, metric: float = float("nan"), log_epoch: int = 1, is_journalled: bool = False) -> RecordedEvent:
    reported = EpochReported(
        trial_number=1,
        epoch=float(seq),
        time_s=1.0,
        energy_j=None,
        metric=metric,
        cost=1.0,
        bound=None,
        is_journalled=is_journalled,
    )
    return RecordedEvent(
        job_id="job",
        seq=seq,
        recorded_at=datetime(2026, 1, 1, tzinfo=UTC),
        command_id=str(uuid.UUID(int=seq)),
        part=0,
        event=reported,
        log_epoch=log_epoch,
    )


def test_a_stream_that_says_all_of_the_log_some_of_it_twice_is_sound() -> None:
    assert stream_findings([event(1), event(2)], [event(2), event(1), event(2)]) == []


@pytest.mark.parametrize(
    ("streamed", "words"),
    [
        ([event(1)], "1 of 2 events never reached the stream"),
        ([event(1), event(2), event(3)], "1 events of the stream are not in the log"),
        ([event(1), event(2), event(2, log_epoch=2)], "1 events of the stream are not in the log"),
        ([event(1), event(2), event(2, metric=0.5)], "1 events of the stream say something else in the log"),
        ([event(1), replace(event(2), command_id="another")], "1 events of the stream say something else in the log"),
    ],
)
def test_a_stream_that_differs_from_the_log_is_a_finding(streamed: list[RecordedEvent], words: str) -> None:
    (finding,) = stream_findings([event(1), event(2)], streamed)
    assert finding.startswith(words)


def test_a_deleted_stream_may_lack_events_but_may_not_invent_any() -> None:
    assert stream_findings([event(1), event(2)], [event(2)], needed=[event(2)]) == []
    assert stream_findings([event(1), event(2)], [event(1)], needed=[event(2)]) != []
    assert stream_findings([event(1), event(2)], [event(2), event(3)], needed=[event(2)]) != []


def test_a_restored_log_may_lack_events_of_the_epochs_before() -> None:
    restored = [event(1), event(2, log_epoch=2)]
    assert stream_findings(restored, [*restored, event(2), event(3)], forgotten_before=2) == []
    assert stream_findings(restored, [*restored, event(3, log_epoch=2)], forgotten_before=2) != []
