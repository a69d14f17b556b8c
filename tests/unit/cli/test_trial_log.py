"""Following a training through the file that its client appends to."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from bso.domain.commands import BeginTrial, FinishTrial, ReportEpoch, Request
from bso.domain.errors import Retryable
from bso.domain.replies import EpochJudged, LeaseRenewed, Problem, Reply, TrialBegun, TrialFinished
from bso.domain.trial import Outcome
from bso_cli.recurring.trials import TrialLog, seen_trials
from bso_client.delivery.logged import LoggedTransport, log_checkpoint
from bso_client.training.state import TrainingState
from tests.unit.cli.samples import HARDWARE, SPEC

BEGUN = TrialBegun(
    trial_number=7,
    trial_id="t7",
    recurrence_id="night",
    attempt=1,
    batch_size=16,
    reason="exploring 16",
    is_last_attempt=False,
    bound=None,
    lease_s=600.0,
    spec=SPEC,
)
TRAINING = TrainingState(
    job_id="job",
    key="training",
    batch_size=16,
    reason="alone",
    spec=SPEC,
    hardware=HARDWARE,
    attempt=2,
    epoch=3.0,
    time_s=6.0,
    energy_j=60.0,
    cost=5.0,
)
REGISTERED = replace(TRAINING, trial_number=7, trial_id="t7")
GOING_ON = EpochJudged(should_stop=False, reason="", cost=2.0, bound=None)
REPORT = ReportEpoch(trial_number=7, trial_id="t7", epoch=1.0, time_s=1.0, energy_j=1.0, metric=0.5)
FINISH = FinishTrial(trial_number=7, trial_id="t7", outcome=Outcome.INTERRUPTED)


class Scripted:
    """A transport that replies what it was given."""

    def __init__(self, *replies: Reply | Exception) -> None:
        self._replies = list(replies)

    async def start(self) -> None: ...

    async def call(self, request: Request, *, timeout_s: float) -> Reply:
        reply = self._replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return reply

    async def close(self) -> None: ...


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "trials.jsonl"
    path.touch()
    return path


def received(log: Path, *replies: Reply | Exception) -> None:
    """Let a training receive these replies."""

    async def receive() -> None:
        transport = LoggedTransport(Scripted(*replies), log)
        for reply in replies:
            command = FINISH if isinstance(reply, TrialFinished) else REPORT
            await transport.call(Request(command_id="c", job_id="job", command=command), timeout_s=1)

    asyncio.run(receive())


def register(log: Path) -> None:
    """Let a training that went on alone be registered."""

    async def receive() -> None:
        begin = BeginTrial(hardware=HARDWARE, batch_size=16)
        transport = LoggedTransport(Scripted(BEGUN), log)
        await transport.call(Request(command_id="beginning", job_id="job", command=begin), timeout_s=1)

    asyncio.run(receive())


def test_a_trial_is_shown_when_it_begins_and_when_it_ends(log: Path) -> None:
    trials = TrialLog(log)
    received(log, BEGUN, GOING_ON)
    [begun] = trials.read_new()
    assert (begun.job_id, begun.begun, begun.outcome) == ("job", BEGUN, None)

    received(log, EpochJudged(should_stop=True, reason="done", cost=5.0, bound=None, outcome=Outcome.CONVERGED))
    [ended] = trials.read_new()
    assert (ended.outcome, ended.outcome_reason, ended.cost) == (Outcome.CONVERGED, "done", 5.0)
    assert trials.read_new() == []


def test_the_cost_is_that_of_the_last_report(log: Path) -> None:
    trials = TrialLog(log)
    received(log, BEGUN, GOING_ON)
    trials.read_new()
    [trial] = trials.trials
    assert trial.cost == 2.0


def test_a_training_that_reports_its_end_has_no_open_trial(log: Path) -> None:
    trials = TrialLog(log)
    received(log, BEGUN, TrialFinished(outcome=Outcome.INTERRUPTED, reason="SIGTERM", cost=1.0, should_retry=False))
    trials.read_new()
    assert [trial.outcome for trial in trials.trials] == [Outcome.INTERRUPTED]


def test_half_a_line_waits_for_its_other_half(log: Path) -> None:
    trials = TrialLog(log)
    received(log, BEGUN)
    whole = log.read_bytes()
    log.write_bytes(whole[:20])
    assert trials.read_new() == []
    log.write_bytes(whole)
    assert [trial.begun.trial_number for trial in trials.read_new()] == [7]


@pytest.mark.parametrize(
    "line",
    [
        '{"hello": 1}',
        '{"job_id": "job", "trial_number": 7, "type": "trial_dreamt", "body": {}}',
        '{"job_id": "job", "trial_number": 7, "type": "trial_begun", "body": {"attempt": "first"}}',
        '{"job_id": ["job"], "trial_number": 7, "type": ["x"], "body": null}',
    ],
)
def test_lines_that_make_no_sense_are_skipped(log: Path, line: str) -> None:
    trials = TrialLog(log)
    log.write_text(f"{line}\n{line}\n")
    received(log, BEGUN)

    assert [trial.begun.trial_number for trial in trials.read_new()] == [7]


def test_refusals_and_renewals_are_not_written_down(log: Path) -> None:
    renewed = LeaseRenewed(
        trial_number=7, recurrence_id="n", batch_size=16, epoch=1.0, time_s=2.0, energy_j=20.0, bound=None, lease_s=1.0
    )
    received(log, renewed, Problem(type="t", title="no", detail="never"))
    assert log.read_bytes() == b""


def test_a_log_that_is_gone_harms_nothing(tmp_path: Path) -> None:
    received(tmp_path / "gone" / "trials.jsonl", BEGUN)
    assert not (tmp_path / "gone").exists()


def test_what_the_transport_raises_goes_through(log: Path) -> None:
    with pytest.raises(Retryable):
        received(log, Retryable("away"))


def test_what_was_measured_is_shown_with_the_answer(log: Path) -> None:
    trials = TrialLog(log)
    received(log, BEGUN, GOING_ON)
    trials.read_new()
    [trial] = trials.trials
    assert (trial.time_s, trial.energy_j, trial.epoch, trial.metric) == (1.0, 1.0, 1.0, 0.5)


def test_what_follows_half_a_line_is_read(log: Path) -> None:
    trials = TrialLog(log)
    received(log, BEGUN)
    log.write_bytes(log.read_bytes() + b'{"job_id": "job", "trial_nu')  # killed in the middle of a word
    trials.end_line()
    received(log, TrialFinished(outcome=Outcome.INTERRUPTED, reason="SIGKILL", cost=1.0, should_retry=True))

    [trial] = seen_trials(log)
    assert (trial.outcome, trial.outcome_reason) == (Outcome.INTERRUPTED, "SIGKILL")


def test_an_interrupted_trial_that_is_resumed_is_followed_again(log: Path) -> None:
    trials = TrialLog(log)
    received(log, BEGUN, TrialFinished(outcome=Outcome.INTERRUPTED, reason="SIGTERM", cost=1.0, should_retry=True))
    trials.read_new()
    received(log, GOING_ON)
    [resumed] = trials.read_new()
    assert (resumed.outcome, resumed.cost) == (None, 2.0)
    received(log, EpochJudged(should_stop=True, reason="done", cost=5.0, bound=None, outcome=Outcome.CONVERGED))
    trials.read_new()
    assert [trial.outcome for trial in trials.trials] == [Outcome.CONVERGED]


def test_what_comes_after_any_other_end_changes_nothing(log: Path) -> None:
    trials = TrialLog(log)
    received(log, BEGUN, EpochJudged(should_stop=True, reason="", cost=5.0, bound=None, outcome=Outcome.COST_EXCEEDED))
    received(log, TrialFinished(outcome=Outcome.INTERRUPTED, reason="late", cost=9.0, should_retry=True), GOING_ON)
    trials.read_new()
    assert [(trial.outcome, trial.cost) for trial in trials.trials] == [(Outcome.COST_EXCEEDED, 5.0)]


def test_warnings_are_those_of_the_end_or_of_the_begin(log: Path) -> None:
    ended = EpochJudged(should_stop=True, reason="", cost=1.0, bound=None, outcome=Outcome.CONVERGED)
    received(log, replace(BEGUN, warnings=("look at it",)), GOING_ON)
    trials = TrialLog(log)
    trials.read_new()
    assert [trial.warnings for trial in trials.trials] == [("look at it",)]
    received(log, ended)
    trials.read_new()
    assert [trial.warnings for trial in trials.trials] == [()]


def test_a_trial_that_goes_on_alone_is_followed_and_is_the_same_when_it_is_registered(log: Path) -> None:
    trials = TrialLog(log)
    training = TRAINING
    alone = LoggedTransport(Scripted(), log)
    alone.begun_alone(training, "beginning")
    [begun] = trials.read_new()
    assert (begun.name, begun.begun.batch_size) == ("trial (not registered yet) of job job", 16)

    register(log)
    assert trials.read_new() == []
    assert [trial.name for trial in trials.trials] == ["trial 7 of job job"]
    alone.ended(replace(training, trial_number=7, outcome=Outcome.CONVERGED, outcome_reason="done"), "beginning")
    [ended] = trials.read_new()
    assert (ended.outcome, ended.outcome_reason, ended.cost, ended.time_s) == (Outcome.CONVERGED, "done", 5.0, 6.0)


@pytest.mark.parametrize("is_registered", [True, False])
def test_a_checkpoint_is_known_also_where_its_rank_does_not_know_the_trial_number(
    log: Path, is_registered: bool
) -> None:
    LoggedTransport(Scripted(), log).begun_alone(TRAINING, "beginning")
    register(log)
    assert [trial.is_resumable for trial in seen_trials(log)] == [False]
    log_checkpoint(log, REGISTERED if is_registered else TRAINING, "beginning")
    assert [(trial.begun.trial_number, trial.is_resumable) for trial in seen_trials(log)] == [(7, True)]


def test_a_trial_that_was_begun_elsewhere_is_known_when_it_is_resumed(log: Path) -> None:
    trials = TrialLog(log)
    LoggedTransport(Scripted(), log).resumed(REGISTERED, "beginning")
    [resumed] = trials.read_new()
    assert (resumed.is_resumed, resumed.is_resumable, resumed.outcome) == (True, True, None)
    assert (resumed.begun.trial_id, resumed.begun.batch_size) == ("t7", 16)
    assert (resumed.cost, resumed.epoch, resumed.time_s, resumed.energy_j) == (5.0, 3.0, 6.0, 60.0)


def test_a_trial_that_is_resumed_has_no_end_and_keeps_its_cost(log: Path) -> None:
    trials = TrialLog(log)
    received(log, BEGUN, TrialFinished(outcome=Outcome.INTERRUPTED, reason="", cost=9.0, should_retry=True))
    trials.read_new()
    LoggedTransport(Scripted(), log).resumed(REGISTERED, "beginning")
    [resumed] = trials.read_new()
    assert (resumed.is_resumed, resumed.outcome, resumed.cost) == (True, None, 9.0)
    assert len(trials.trials) == 1
