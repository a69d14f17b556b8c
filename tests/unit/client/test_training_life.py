"""What can happen to a training, what it sends then, and what it decides alone: the pure state, nothing else."""

import ast
import json
import math
import random
import re
from dataclasses import replace
from pathlib import Path

import pytest

import bso_client.training
from bso.domain.commands import (
    BeginTrial,
    FinishTrial,
    PowerMeasurement,
    RegisterJob,
    RenewLease,
    ReportEpoch,
    ReportEpochCosts,
)
from bso.domain.replies import EpochJudged, LeaseRenewed, NearestPowerProfile, Problem, Reply, TrialBegun, TrialFinished
from bso.domain.trial import EpochReport, Outcome, Profiled
from bso_client import CannotResume, TrainFailed, WrongOrder
from bso_client.training import state as state_module
from bso_client.training.checkpoint import checkpoint_of, read_checkpoint
from bso_client.training.recurrence import Failure, choose_alone, first_recurrence, loop_after
from bso_client.training.start import begun, begun_alone, registered, resumed
from bso_client.training.state import TRANSITIONS, Consumption, Phase, Probed, Step, TrainingState
from bso_client.training.transitions import (
    acknowledged,
    checkpointed,
    ended,
    probed,
    profiled,
    received,
    reported,
    started,
    unanswered,
)
from tests.unit.client.doubles import HARDWARE, job_spec

SPEC = job_spec(max_attempts=3).resolve()
BEGUN = TrialBegun(
    trial_number=7,
    trial_id="seven",
    recurrence_id="monday",
    attempt=1,
    batch_size=64,
    reason="",
    is_last_attempt=False,
    bound=50.0,
    lease_s=600.0,
    spec=SPEC,
)
GONE = Problem(type="unknown_trial", title="No", detail="gone")
GO_ON = EpochJudged(should_stop=False, reason="", cost=10.0, bound=40.0)
STOP = EpochJudged(
    should_stop=True, reason="too costly", cost=10.0, bound=5.0, outcome=Outcome.COST_EXCEEDED, should_retry=True
)
REPLIES: tuple[Reply, ...] = (GO_ON, STOP, BEGUN, GONE)
REGISTERS = RegisterJob(spec={})
USED = Consumption(time_s=9.0, energy_j=90.0)


def a_training() -> TrainingState:
    """One that trains, as the optimizer has begun it."""
    return started(begun(BEGUN, job_id="job", key="key", hardware=HARDWARE, learning_rate=None).state)


def alone(recurrence_id: str | None = None) -> Step:
    """The beginning of one that nobody has answered."""
    return begun_alone(
        job_id="job",
        key="key",
        choice=(32, "the best one"),
        spec=SPEC,
        hardware=HARDWARE,
        attempt=3,
        recurrence_id=recurrence_id,
        learning_rate=None,
        replaces="question",
        registers=RegisterJob(spec={}),
    )


def evaluation(epoch: float = 1.0, metric: float = 0.5, energy_j: float | None = 10.0) -> EpochReport:
    return EpochReport(epoch=epoch, time_s=epoch, energy_j=energy_j, metric=metric)


def judged(training: TrainingState, reply: Reply, *, epoch: float = 1.0, metric: float = 0.5) -> TrainingState:
    """The training after an evaluation and the reply to it."""
    step = reported(training, evaluation(epoch, metric))
    return received(step.state, step.sends[0].command, reply).state


def test_a_script_is_given_reasons_in_which_hidden_characters_are_shown() -> None:
    hidden, seen = "\x1b[2J\nall is \u202ewell", r"\x1b[2J\nall is \u202ewell"
    step = begun(replace(BEGUN, reason=hidden), job_id="job", key="key", hardware=HARDWARE, learning_rate=None)
    assert step.state.reason == seen
    assert judged(started(step.state), replace(STOP, reason=hidden)).outcome_reason == seen


def test_the_diagram_in_the_words_is_the_one_in_the_code() -> None:
    drawn = re.findall(r"^    ([A-Z]+)\s+-> ([A-Z]+)", str(state_module.__doc__), re.MULTILINE)
    assert {(Phase[one], Phase[other]) for one, other in drawn} == TRANSITIONS


def test_the_diagram_in_the_architecture_is_the_same() -> None:
    page = (Path(__file__).parents[3] / "docs" / "architecture.md").read_text(encoding="utf-8")
    drawn = re.findall(r"^    (\w+) --> (\w+):", page.partition("## A training")[2], re.MULTILINE)
    assert {(Phase(one), Phase(other)) for one, other in drawn} == TRANSITIONS


def test_a_training_reports_and_waits_for_the_verdict() -> None:
    step = reported(a_training(), evaluation())
    [message] = step.sends
    assert step.is_awaited
    assert message.command == ReportEpoch(
        trial_number=7, trial_id="seven", epoch=1.0, time_s=1.0, energy_j=10.0, metric=0.5
    )
    assert message.late == replace(message.command, is_journalled=True)
    assert (step.state.epoch, step.state.metric, step.state.cost) == (1.0, 0.5, 10.0)


def test_a_verdict_in_time_that_lets_it_go_on_changes_its_bound() -> None:
    training = judged(a_training(), GO_ON)
    assert (training.phase, training.bound, training.outcome) == (Phase.TRAINING, 40.0, None)


def test_a_stop_is_acknowledged_once() -> None:
    stopped = judged(a_training(), STOP)
    assert (stopped.phase, stopped.outcome, stopped.should_retry) == (Phase.STOPPED, Outcome.COST_EXCEEDED, True)
    step = acknowledged(stopped)
    [message] = step.sends
    assert message.command == FinishTrial(
        trial_number=7, trial_id="seven", outcome=Outcome.COST_EXCEEDED, reason="too costly"
    )
    assert step.state.phase is Phase.ENDED
    assert not step.is_awaited
    assert acknowledged(step.state) == Step(state=step.state)


def test_a_training_that_goes_on_after_a_stop_gets_an_error() -> None:
    with pytest.raises(TrainFailed, match="too costly"):
        reported(judged(a_training(), STOP), evaluation(2.0))


def test_a_model_overrules_a_stop_that_is_not_acknowledged() -> None:
    step = reported(judged(a_training(), STOP), evaluation(2.0, 0.95))
    assert not step.is_awaited
    assert isinstance(step.sends[0].command, ReportEpoch)
    assert step.sends[0].command.is_journalled
    final = unanswered(step.state)
    [finish] = final.sends
    assert isinstance(finish.command, FinishTrial)
    assert (finish.command.outcome, finish.command.is_journalled) == (Outcome.CONVERGED, True)
    assert (final.state.outcome, final.state.should_retry) == (Outcome.CONVERGED, False)


def test_no_training_overrules_a_stop_that_it_has_acknowledged() -> None:
    known = acknowledged(judged(a_training(), STOP)).state
    step = reported(known, evaluation(2.0, 0.95))
    assert step.sends == ()


@pytest.mark.parametrize(
    ("metrics", "outcome"),
    [([0.95], Outcome.CONVERGED), ([math.nan, math.inf], Outcome.NOT_CONVERGED), ([0.1] * 5, Outcome.NOT_CONVERGED)],
)
def test_without_an_answer_it_knows_target_divergence_and_limit(metrics: list[float], outcome: Outcome) -> None:
    training = replace(a_training(), bound=None)
    step = Step(state=training)
    for epoch, metric in enumerate(metrics, start=1):
        step = unanswered(reported(training, evaluation(epoch, metric)).state)
        training = step.state
        assert training.has_ended is (epoch == len(metrics))
    assert training.outcome is outcome
    [finish] = step.sends
    assert isinstance(finish.command, FinishTrial)
    assert finish.command.is_journalled


def test_without_an_answer_it_goes_by_the_last_bound() -> None:
    training = judged(a_training(), replace(GO_ON, bound=25.0))
    training = unanswered(reported(training, evaluation(2.0, energy_j=20.0)).state).state
    assert not training.has_ended
    step = unanswered(reported(training, evaluation(3.0, energy_j=30.0)).state)
    assert (step.state.outcome, step.state.should_retry) == (Outcome.COST_EXCEEDED, True)
    assert isinstance(step.sends[0].command, FinishTrial)
    assert (step.sends[0].command.bound, step.sends[0].command.energy_j) == (25.0, 30.0)


def test_energy_that_was_not_measured_counts_as_before() -> None:
    training = reported(a_training(), evaluation(1.0)).state
    training = reported(training, evaluation(2.0, energy_j=None)).state
    assert (training.energy_j, training.is_energy_complete, training.cost) == (10.0, False, 10.0)


def test_a_verdict_after_its_own_changes_the_bound_and_no_outcome() -> None:
    step = reported(a_training(), evaluation(metric=0.95))
    converged = unanswered(step.state).state
    late = received(converged, step.sends[0].command, STOP).state
    assert (late.outcome, late.phase, late.bound) == (Outcome.CONVERGED, Phase.ENDED, 5.0)


def test_one_refused_report_does_not_silence_it_and_a_refused_trial_does() -> None:
    for kind, is_silent in (("invalid_report", False), ("conflicting_report", False), ("unknown_trial", True)):
        training = judged(a_training(), Problem(type=kind, title="No", detail="these numbers"))
        assert training.is_refused is is_silent
        assert (reported(training, evaluation(2.0)).sends == ()) is is_silent


def test_one_that_began_alone_registers_its_job_and_itself_and_reports_without_a_number() -> None:
    step = alone("monday")
    assert [type(message.command) for message in step.sends] == [RegisterJob, BeginTrial]
    begin = step.sends[1].command
    assert isinstance(begin, BeginTrial)
    assert (begin.batch_size, begin.replaces, begin.recurrence_id) == (32, "question", "monday")
    assert step.state.is_last_attempt
    report = reported(started(step.state), evaluation()).sends[0].command
    assert isinstance(report, ReportEpoch)
    assert (report.trial_number, report.trial_id) == (0, "")


def test_the_late_reply_to_its_registration_names_it() -> None:
    step = alone()
    known = received(step.state, step.sends[1].command, BEGUN).state
    assert (known.trial_number, known.trial_id, known.recurrence_id, known.attempt) == (7, "seven", "monday", 1)


def test_one_whose_registration_is_refused_reports_no_more() -> None:
    step = alone()
    refused = received(step.state, step.sends[1].command, Problem(type="unknown_job", title="No", detail="gone"))
    assert refused.state.is_refused
    assert "could not be registered" in refused.notices[0].words


def test_its_end_carries_what_it_consumed_where_that_says_something() -> None:
    interrupted = ended(a_training(), Outcome.INTERRUPTED, "SIGTERM", consumed=USED).sends[0].command
    left = ended(a_training(), Outcome.NOT_CONVERGED, "left", consumed=USED).sends[0].command
    assert isinstance(interrupted, FinishTrial)
    assert isinstance(left, FinishTrial)
    assert (interrupted.time_s, interrupted.energy_j, interrupted.may_resume) == (9.0, 90.0, False)
    assert (left.time_s, left.energy_j) == (None, None)


def test_the_reply_to_its_end_says_whether_another_trial_is_due() -> None:
    step = ended(a_training(), Outcome.NOT_CONVERGED, "left", consumed=USED)
    assert step.state.should_retry
    finished = TrialFinished(outcome=Outcome.NOT_CONVERGED, reason="", cost=12.0, should_retry=False)
    known = received(step.state, step.sends[0].command, finished).state
    assert (known.should_retry, known.cost) == (False, 12.0)


def test_a_renewal_brings_the_bound_that_holds_now() -> None:
    renewed = LeaseRenewed(
        trial_number=7, recurrence_id="r", batch_size=64, epoch=1.0, time_s=2.0, energy_j=20.0, bound=3.0, lease_s=30.0
    )
    training = received(a_training(), RenewLease(trial_number=7, trial_id="seven"), renewed).state
    assert (training.bound, training.lease_s) == (3.0, 30.0)


def test_a_checkpoint_is_the_state() -> None:
    training = judged(a_training(), GO_ON, metric=math.inf)
    training = replace(training, profiled=Profiled(epochs=0.5, time_s=1.0, energy_j=2.0), is_profiling=True)
    saved = checkpointed(training, USED)
    assert read_checkpoint(json.loads(json.dumps(checkpoint_of(saved)))) == saved
    assert saved.is_resumable


def test_something_else_is_no_checkpoint() -> None:
    for broken in ({}, {"format": 2}, {"format": 1, "job_id": "job"}, checkpoint_of(a_training()) | {"epoch": "x"}):
        with pytest.raises(CannotResume, match=r"not what state_dict\(\) gave"):
            read_checkpoint(broken)


def test_epochs_that_are_trained_again_are_neither_sent_nor_counted() -> None:
    saved = checkpointed(judged(a_training(), GO_ON), Consumption(time_s=1.5, energy_j=15.0))
    known = LeaseRenewed(
        trial_number=7,
        recurrence_id="monday",
        batch_size=64,
        epoch=2.0,
        bound=40.0,
        lease_s=60.0,
        time_s=2.0,
        energy_j=20.0,
    )
    training = started(
        resumed(saved, spec=SPEC, reply=known, recurrence_id=None, learning_rate=None, registers=REGISTERS).state
    )
    again = reported(training, EpochReport(epoch=2.0, time_s=2.5, energy_j=25.0, metric=0.5))
    assert again.sends == ()
    report = reported(again.state, EpochReport(epoch=3.0, time_s=3.5, energy_j=35.0, metric=0.5)).sends[0].command
    assert isinstance(report, ReportEpoch)
    assert (report.time_s, report.energy_j) == (3.0, 30.0)


def test_one_that_has_measured_power_limits_before_it_is_registered_takes_no_other_profile() -> None:
    measured = (PowerMeasurement(power_limit_w=300.0, average_power_w=250.0, samples_per_s=10.0),)
    nearest = NearestPowerProfile(batch_size=128, measurements=measured)
    reply = replace(BEGUN, nearest_power_profile=nearest)
    state = a_training()
    assert registered(state, reply).nearest_power_profile == nearest
    after = registered(profiled(state, measured).state, reply)
    assert (after.power_profile, after.nearest_power_profile) == (measured, None)


def test_what_was_probed_is_not_probed_again_and_nothing_after_a_step_that_failed() -> None:
    training = replace(a_training(), to_probe=(32, 128, 256))
    step = probed(training, Probed(out_of_memory=(256,), time_s=1.0))
    assert (step.state.to_probe, step.state.probing_s) == ((32, 128), 1.0)
    [sent] = step.sends
    assert isinstance(sent.command, ReportEpochCosts)
    assert probed(step.state, Probed(time_s=1.0, is_broken=True)).state.to_probe == ()


def test_a_resumed_one_that_was_never_registered_registers_itself() -> None:
    saved = checkpointed(started(alone().state), USED)
    step = resumed(saved, spec=SPEC, reply=None, recurrence_id="monday", learning_rate=None, registers=REGISTERS)
    assert [type(message.command) for message in step.sends] == [RegisterJob, BeginTrial]


def test_a_trial_trains_once() -> None:
    with pytest.raises(WrongOrder, match="begun already"):
        started(a_training())


def test_a_recurrence_counts_its_failures_and_ends_with_a_model() -> None:
    monday = first_recurrence("monday")
    failed = acknowledged(judged(a_training(), STOP)).state
    second = monday.after(failed)
    assert (second.attempt, second.recurrence_id) == (2, "monday")
    model = unanswered(reported(a_training(), evaluation(metric=0.95)).state).state
    assert second.failed == (Failure(batch_size=64, is_out_of_memory=False),)
    reason = "out_of_memory: it does not fit"
    too_large = replace(a_training(), outcome=Outcome.INFEASIBLE, outcome_reason=reason, should_retry=True)
    assert second.after(too_large).failed[1:] == (Failure(batch_size=64, is_out_of_memory=True),)
    assert second.after(model) == replace(first_recurrence("monday"), recurrence_id="monday-2", count=2)


def test_a_recurrence_goes_on_with_what_has_failed_in_earlier_processes_of_the_same_name() -> None:
    failed = (Failure(batch_size=64, is_out_of_memory=True),)
    monday = first_recurrence("monday")
    assert monday.gone_on_with("monday", failed) == replace(monday, failed=failed)
    for other in (first_recurrence("tuesday"), first_recurrence(None)):
        assert other.gone_on_with("monday", failed) == other


def test_alone_it_takes_the_best_one_then_the_nearest_and_after_out_of_memory_only_smaller_ones() -> None:
    why = "nobody answers"
    assert choose_alone(SPEC, 128, [], why=why)[0] == 128
    assert choose_alone(SPEC, None, [], why=why)[0] == 64
    failed = Failure(batch_size=64, is_out_of_memory=False)
    assert choose_alone(SPEC, None, [failed], why=why)[0] == 32
    too_large = Failure(batch_size=64, is_out_of_memory=True)
    size, reason = choose_alone(SPEC, 128, [too_large], why=why)
    assert (size, reason) == (32, "nobody answers: the nearest to 128 that has not failed")


def test_a_loop_ends_when_exceptions_have_worn_it_out() -> None:
    interrupted = replace(
        ended(a_training(), Outcome.INTERRUPTED, "ValueError", consumed=USED).state, should_retry=True
    )
    assert loop_after(interrupted, interruptions=2).goes_on
    end = loop_after(interrupted, interruptions=3)
    assert not end.goes_on
    assert end.notice is not None
    assert "3 trials of this loop" in end.notice.words


@pytest.mark.parametrize("seed", range(200))
def test_whatever_happens_in_whatever_order_its_life_follows_the_diagram(seed: int) -> None:
    chance = random.Random(seed)
    twin = training = a_training()
    command = RenewLease(trial_number=7, trial_id="seven")
    sent: list[object] = []
    for epoch in range(1, 30):
        report = evaluation(float(epoch), chance.choice([0.5, 0.5, 0.95, math.nan]))
        reply: Reply = chance.choice(REPLIES)
        happening = chance.randrange(6)
        steps = []
        for each in (training, twin):
            try:
                if happening == 0:
                    step = Step(state=started(each))
                elif happening == 1:
                    step = reported(each, report)
                elif happening == 2:
                    step = received(each, command, reply)
                elif happening == 3:
                    step = unanswered(each)
                elif happening == 4:
                    step = acknowledged(each)
                else:
                    step = ended(each, Outcome.INTERRUPTED, "SIGTERM", consumed=USED)
            except (TrainFailed, WrongOrder):
                step = Step(state=each)
            steps.append(step)
        assert steps[0] == steps[1], "ranks that apply the same inputs hold the same state"
        after = steps[0].state
        assert after.phase is training.phase or (training.phase, after.phase) in TRANSITIONS
        assert after.has_ended is (after.phase in (Phase.STOPPED, Phase.ENDED))
        sent += [message.command for message in steps[0].sends]
        training = twin = after
    finishes = [one for one in sent if isinstance(one, FinishTrial)]
    assert len({one.outcome for one in finishes if not one.is_journalled}) <= 1


def test_the_state_knows_no_thread_socket_loop_or_transport() -> None:
    folder = Path(next(iter(bso_client.training.__path__)))
    imported = set()
    for path in folder.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {each.name for each in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add(str(node.module))
    ours = {name for name in imported if name.startswith("bso")}
    assert not imported & {"asyncio", "threading", "socket", "time", "os", "select", "concurrent.futures"}
    assert all(
        name.startswith(("bso.domain", "bso.schema", "bso_client.training", "bso_client.errors")) for name in ours
    ), ours
