"""Answers that come after nobody waits for them any more."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bso.domain.commands import BeginTrial, Command, FinishTrial, ReportEpoch, Request
from bso.domain.replies import EpochJudged, LeaseRenewed, Problem, Reply, TrialFinished
from bso_client import Outcome, TrainFailed
from bso_client.delivery.journal import Destination, Journal
from bso_client.delivery.obstacle import AWAY
from bso_client.delivery.outbox import Outbox
from bso_client.distributed.exchange import RankExchange
from bso_client.driver import Driver, Place
from bso_client.meter import Meter, PooledMeter
from bso_client.training.state import Consumption, Message, Step, TrainingState
from tests.servers import PATIENCE_S
from tests.servers.waiting import eventually_async
from tests.unit.client.doubles import HARDWARE, ScriptedMonitor, job_spec
from tests.unit.client.test_training_life import BEGUN

GO_ON = EpochJudged(should_stop=False, reason="", cost=10.0, bound=None)
STOP = EpochJudged(
    should_stop=True, reason="too costly", cost=10.0, bound=5.0, outcome=Outcome.COST_EXCEEDED, should_retry=True
)
FINISHED = TrialFinished(outcome=Outcome.CONVERGED, reason="", cost=10.0, should_retry=False)


class SlowTransport:
    """Answers each command only when a test says so."""

    def __init__(self) -> None:
        self.came: list[Request] = []
        self.answers: asyncio.Queue[Reply] = asyncio.Queue()

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def call(self, request: Request, *, timeout_s: float) -> Reply:
        self.came.append(request)
        return await self.answers.get()


@pytest.fixture
def transport() -> SlowTransport:
    return SlowTransport()


def state() -> TrainingState:
    return TrainingState(
        job_id="job",
        key="key",
        batch_size=64,
        reason="",
        spec=job_spec().resolve(),
        hardware=HARDWARE,
        trial_number=1,
        trial_id="secret",
    )


def run_over(transport: SlowTransport, *, report_timeout_s: float = 0.05) -> tuple[Driver, Outbox]:
    outbox = Outbox(transport, journal_of, deliver_earlier=nothing_earlier)
    run = Driver(
        Step(state=state()),
        meter=PooledMeter(Meter(ScriptedMonitor()), before=Consumption(), size=1),
        exchange=RankExchange(None),
        place=Place(local_batch_size=64, report_timeout_s=report_timeout_s),
        outbox=outbox,
        on_end=lambda _state: None,
    )
    run.start()
    return run, outbox


def journal_of(job_id: str) -> Journal:
    raise OSError(f"the tests of the journal keep {job_id}, not these")


async def nothing_earlier(job_id: str) -> None: ...


async def evaluate(run: Driver, metric: float) -> None:
    await run.evaluated(run.measured(metric))
    run.go_on()


async def test_a_slow_answer_does_not_hold_up_the_training(transport: SlowTransport) -> None:
    run, outbox = run_over(transport)
    await evaluate(run, 0.1)
    await evaluate(run, 0.2)

    assert not run.state.has_ended
    assert outbox.waiting == 2
    await transport.answers.put(GO_ON)
    await transport.answers.put(GO_ON)
    assert await outbox.drained(timeout_s=PATIENCE_S)
    commands: list[Command] = [request.command for request in transport.came]
    assert [command.is_journalled for command in commands if isinstance(command, ReportEpoch)] == [False, True]


async def test_a_stop_that_comes_late_ends_the_training_at_its_next_evaluation(transport: SlowTransport) -> None:
    run, _outbox = run_over(transport)
    await evaluate(run, 0.1)
    await transport.answers.put(STOP)
    await eventually_async(lambda: run.state.has_ended)

    with pytest.raises(TrainFailed, match="too costly"):
        await evaluate(run, 0.2)
    assert len(transport.came) == 1
    await run.leave(run.state.failure)
    await eventually_async(lambda: len(transport.came) == 2)
    known = transport.came[-1].command
    assert isinstance(known, FinishTrial)
    assert known.outcome is Outcome.COST_EXCEEDED


async def test_a_stop_that_comes_in_time_is_acknowledged_once(transport: SlowTransport) -> None:
    run, outbox = run_over(transport, report_timeout_s=PATIENCE_S)
    for answer in (STOP, FINISHED):
        await transport.answers.put(answer)
    await evaluate(run, 0.1)
    await run.leave(None)
    await run.finish(Outcome.INTERRUPTED, "the process ended")
    assert await outbox.drained(timeout_s=PATIENCE_S)

    commands = [request.command for request in transport.came]
    assert [type(command) for command in commands] == [ReportEpoch, FinishTrial]
    assert isinstance(commands[1], FinishTrial)
    assert (commands[1].outcome, commands[1].is_journalled) == (Outcome.COST_EXCEEDED, False)


async def test_a_model_that_is_there_when_the_stop_comes_is_kept(transport: SlowTransport) -> None:
    run, outbox = run_over(transport)
    await evaluate(run, 0.1)
    await transport.answers.put(STOP)
    await eventually_async(lambda: run.state.has_ended)
    await evaluate(run, 0.95)

    assert run.state.outcome is Outcome.CONVERGED
    assert not run.state.should_retry
    for answer in (GO_ON, FINISHED):
        await transport.answers.put(answer)
    assert await outbox.drained(timeout_s=PATIENCE_S)
    report, finish = (request.command for request in transport.came[1:])
    assert isinstance(report, ReportEpoch)
    assert isinstance(finish, FinishTrial)
    assert (report.is_journalled, finish.is_journalled, finish.outcome) == (True, True, Outcome.CONVERGED)


async def test_a_verdict_after_the_clients_own_changes_nothing(transport: SlowTransport) -> None:
    run, outbox = run_over(transport)
    await evaluate(run, 0.95)
    assert run.state.outcome is Outcome.CONVERGED
    await transport.answers.put(STOP)
    await transport.answers.put(FINISHED)
    assert await outbox.drained(timeout_s=PATIENCE_S)

    assert run.state.outcome is Outcome.CONVERGED
    report, finish = (request.command for request in transport.came)
    assert isinstance(report, ReportEpoch)
    assert isinstance(finish, FinishTrial)
    assert (finish.outcome, finish.is_journalled) == (Outcome.CONVERGED, True)
    assert (finish.time_s, finish.energy_j) == (report.time_s, report.energy_j), "it may overtake its report"


@pytest.mark.parametrize("kind", ["conflicting_report", "report_goes_backwards", "invalid_report"])
async def test_one_refused_report_does_not_silence_the_trial(transport: SlowTransport, kind: str) -> None:
    run, _outbox = run_over(transport, report_timeout_s=PATIENCE_S)
    for answer in (Problem(type=kind, title="No", detail="these numbers"), GO_ON):
        await transport.answers.put(answer)
    await evaluate(run, 0.1)
    await evaluate(run, 0.2)

    assert len(transport.came) == 2


async def test_an_answer_of_another_kind_is_no_judgement(transport: SlowTransport) -> None:
    run, _outbox = run_over(transport, report_timeout_s=PATIENCE_S)
    await transport.answers.put(
        LeaseRenewed(
            trial_number=1,
            recurrence_id="r",
            batch_size=64,
            epoch=1.0,
            time_s=2.0,
            energy_j=20.0,
            bound=None,
            lease_s=1.0,
        )
    )
    await evaluate(run, 0.95)

    assert run.state.outcome is Outcome.CONVERGED


async def test_a_bug_in_a_letter_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    class Answering(SlowTransport):
        async def call(self, request: Request, *, timeout_s: float) -> Reply:
            self.came.append(request)
            return GO_ON

    transport = Answering()
    outbox = Outbox(transport, journal_of, deliver_earlier=nothing_earlier)
    command = ReportEpoch(trial_number=0, trial_id="", epoch=1.0, time_s=1.0, energy_j=1.0, metric=0.1)

    class Sender:
        state = state()

        def received(self, command: Command, reply: Reply) -> None: ...

    class Broken(Sender):
        @property
        def state(self) -> Any:  # type: ignore[override]  # it cannot be read
            raise ZeroDivisionError

    class Unregistered(Sender):
        state = replace(state(), trial_id=None)

    for sender in (Broken(), Unregistered(), Sender()):
        outbox.post(Message(command=command, late=command), sender, timeout_s=PATIENCE_S)
    assert await outbox.drained(timeout_s=PATIENCE_S)

    assert len(transport.came) == 1
    assert [getattr(record, "action", "") for record in caplog.records] == ["report_failed"]


async def test_a_bug_in_the_journal_does_not_stop_the_letters_after_it(
    transport: SlowTransport, tmp_path: Path
) -> None:
    class Broken(Journal):
        def delivered(self, command_id: str) -> None:
            raise ZeroDivisionError

    class Sender:
        state = state()

        def received(self, command: Command, reply: Reply) -> None: ...

    destination = Destination(address="amqp://broker", login="trainer")
    outbox = Outbox(transport, lambda job_id: Broken(tmp_path, destination, job_id), deliver_earlier=nothing_earlier)
    outbox.expect_nobody(AWAY)  # so that they are kept
    command = ReportEpoch(trial_number=1, trial_id="secret", epoch=1.0, time_s=1.0, energy_j=1.0, metric=0.1)
    for _ in range(2):
        outbox.post(Message(command=command, late=command), Sender(), timeout_s=PATIENCE_S)
        await transport.answers.put(GO_ON)
    assert await outbox.drained(timeout_s=PATIENCE_S)
    assert len(transport.came) == 2
    await outbox.close()


async def test_a_training_that_began_alone_is_not_held_up_by_a_silent_optimizer(transport: SlowTransport) -> None:
    run, outbox = run_over(transport, report_timeout_s=10 * PATIENCE_S)
    outbox.expect_nobody(AWAY)
    async with asyncio.timeout(PATIENCE_S):
        await evaluate(run, 0.1)
        await evaluate(run, 0.2)

    assert outbox.waiting == 2
    await outbox.close()


async def test_after_an_answer_that_did_not_come_nobody_waits_until_one_has_come(transport: SlowTransport) -> None:
    run, outbox = run_over(transport)
    before = outbox.is_away
    await evaluate(run, 0.1)
    meanwhile = outbox.is_away
    await transport.answers.put(GO_ON)
    await outbox.drained(timeout_s=PATIENCE_S)

    assert (before, meanwhile, outbox.is_away) == (False, True, False)


async def test_a_training_whose_ranks_have_not_met_yet_reports_under_its_late_registration(
    transport: SlowTransport,
) -> None:
    class OfRank0:
        """Its state learns of a reply only when the ranks meet."""

        state = replace(state(), trial_number=None, trial_id=None)

        def received(self, command: Command, reply: Reply) -> None: ...

    outbox = Outbox(transport, journal_of, deliver_earlier=nothing_earlier)
    begin = BeginTrial(hardware=HARDWARE, batch_size=64)
    report = ReportEpoch(trial_number=0, trial_id="", epoch=1.0, time_s=1.0, energy_j=1.0, metric=0.1)
    sender = OfRank0()
    for command in (begin, report):
        outbox.post(Message(command=command, late=command), sender, timeout_s=PATIENCE_S)
    for answer in (BEGUN, GO_ON):
        await transport.answers.put(answer)
    assert await outbox.drained(timeout_s=PATIENCE_S)

    sent = transport.came[-1].command
    assert isinstance(sent, ReportEpoch)
    assert (sent.trial_number, sent.trial_id) == (7, "seven")
