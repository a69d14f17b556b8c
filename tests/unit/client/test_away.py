import asyncio
import logging
import math
import re
import traceback
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from bso.domain.commands import BeginTrial, DeleteJob, FinishTrial, RegisterJob, ReportEpoch, Request
from bso.domain.replies import KEPT, Problem, Reply
from bso_client import BatchSizeOptimizer, Misconfigured, Outcome, Refused, SpecConflict, Unreachable
from bso_client.delivery.flush import flush
from bso_client.delivery.left_behind import contents
from tests.servers.waiting import eventually
from tests.unit.client.doubles import ReachableOptimizer, ScriptedMonitor, job_spec
from tests.unit.client.fixtures import MakeOptimizer


class OutOfMemoryError(RuntimeError):
    """Looks like torch's."""

    __module__ = "torch"
    __qualname__ = "OutOfMemoryError"


def one_converged_recurrence(bso: BatchSizeOptimizer) -> None:
    for trial in bso.trials():
        with trial:
            trial.on_evaluate(0.95, epoch=2.0)


def test_a_first_registration_needs_an_answer(bso: BatchSizeOptimizer, optimizer: ReachableOptimizer) -> None:
    optimizer.is_away = True
    with pytest.raises(Unreachable, match="never registered from this state directory"):
        bso.get_batch_size()


def test_what_keeps_a_training_from_beginning_is_one_error_and_not_a_chain(
    bso: BatchSizeOptimizer, optimizer: ReachableOptimizer
) -> None:
    optimizer.is_away = True
    with pytest.raises(Unreachable) as raised:
        bso.get_batch_size()
    shown = "".join(traceback.format_exception(raised.value))
    assert shown.count("Traceback (most recent call last)") == 1
    assert "contact.py" not in shown


def test_a_job_that_is_known_here_goes_on_with_the_best_size_last_received(
    make_bso: MakeOptimizer, optimizer: ReachableOptimizer, monitor: ScriptedMonitor, has_delivered: Callable[[], bool]
) -> None:
    first = make_bso()
    one_converged_recurrence(first)  # 64
    monitor.energy_j = 1.0
    one_converged_recurrence(first)  # 128, cheaper
    first.close()

    optimizer.is_away = True
    bso = make_bso()
    for trial in bso.trials():
        assert (trial.batch_size, trial.trial_number, trial.recurrence_id) == (128, None, None)
        assert trial.reason == "the optimizer is out of reach: the best one known here"
        with trial:
            trial.on_evaluate(0.5)
            optimizer.is_away = False
            eventually(has_delivered)
            assert (trial.trial_number, len(optimizer.commands(ReportEpoch))) == (3, 3)
            trial.on_evaluate(0.95)

    begun = optimizer.commands(BeginTrial)[-1]
    assert (begun.batch_size, begun.replaces is not None) == (128, True)
    assert [report.is_journalled for report in optimizer.commands(ReportEpoch)[-2:]] == [True, False]
    row = optimizer.trials()[-1]
    assert (row.batch_size, row.outcome, row.epoch) == (128, Outcome.CONVERGED, 2.0)


def test_without_any_result_it_goes_on_with_the_default(make_bso: MakeOptimizer, optimizer: ReachableOptimizer) -> None:
    first = make_bso()
    first.get_batch_size()
    first.close()

    optimizer.is_away = True
    assert make_bso().get_batch_size() == 64


def test_on_unreachable_raise_stops_instead(make_bso: MakeOptimizer, optimizer: ReachableOptimizer) -> None:
    one_converged_recurrence(make_bso())
    optimizer.is_away = True
    with pytest.raises(Unreachable, match="nobody answers"):
        make_bso(on_unreachable="raise").get_batch_size()


def test_a_whole_recurrence_alone_is_delivered_when_the_way_is_back(
    make_bso: MakeOptimizer, optimizer: ReachableOptimizer, monitor: ScriptedMonitor
) -> None:
    one_converged_recurrence(make_bso())
    optimizer.is_away = True
    bso = make_bso(unreachable_timeout=0.2)
    tried = []
    for trial in bso.trials():
        tried.append((trial.batch_size, trial.attempt, trial.is_last_attempt))
        with trial:
            while not trial.finished:
                if trial.attempt == 1:
                    raise OutOfMemoryError("CUDA out of memory")
                trial.on_evaluate(math.nan if trial.attempt == 2 else 0.95)
    assert tried == [(64, 1, False), (32, 2, False), (64, 3, True)]

    optimizer.is_away = False
    eventually(
        lambda: (
            [trial.outcome for trial in optimizer.trials()][-1] is Outcome.CONVERGED and len(optimizer.trials()) == 4
        )
    )
    assert [(trial.batch_size, trial.outcome) for trial in optimizer.trials()][1:] == [
        (64, Outcome.INFEASIBLE),
        (32, Outcome.NOT_CONVERGED),
        (64, Outcome.CONVERGED),
    ]
    assert len({trial.recurrence_id for trial in optimizer.trials()[1:]}) == 1
    assert all(report.is_journalled for report in optimizer.commands(ReportEpoch)[1:])


@pytest.mark.parametrize("recurrence_id", [None, "monday"])
def test_processes_of_one_recurrence_alone_try_other_batch_sizes_and_no_more_than_are_allowed(
    make_bso: MakeOptimizer, optimizer: ReachableOptimizer, recurrence_id: str | None
) -> None:
    one_converged_recurrence(make_bso())
    optimizer.is_away = True
    tried = []
    for launch in range(4):
        bso = make_bso(unreachable_timeout=0.2, recurrence_id=recurrence_id)
        bso.get_batch_size()
        trial = bso.trial
        assert trial is not None
        tried.append((trial.batch_size, trial.attempt, trial.is_last_attempt))
        with trial:
            if launch == 0:
                raise OutOfMemoryError("CUDA out of memory")
            while not trial.finished:
                trial.on_evaluate(math.nan if launch < 3 else 0.95)
        bso.close(timeout=0.0)
    assert tried == [(64, 1, False), (32, 2, False), (64, 3, True), (64, 1, False)]


def test_what_failed_before_an_outage_is_not_tried_again_in_it(
    make_bso: MakeOptimizer, optimizer: ReachableOptimizer
) -> None:
    sizes = []
    for is_away in (False, True):
        optimizer.is_away = is_away
        bso = make_bso(unreachable_timeout=0.2)
        sizes.append(bso.get_batch_size())
        trial = bso.trial
        assert trial is not None
        with trial:
            while not trial.finished:
                trial.on_evaluate(math.nan)
        bso.close(timeout=0.0)
    assert sizes == [64, 32]


def test_reports_in_mid_training_are_kept_and_delivered_in_order(
    bso: BatchSizeOptimizer,
    optimizer: ReachableOptimizer,
    caplog: pytest.LogCaptureFixture,
    has_delivered: Callable[[], bool],
) -> None:
    for trial in bso.trials():
        with trial:
            trial.on_evaluate(0.1)
            optimizer.is_away = True
            trial.on_evaluate(0.2)
            trial.on_evaluate(0.3)
            optimizer.is_away = False
            eventually(has_delivered)
            assert len(optimizer.commands(ReportEpoch)) == 3
            trial.on_evaluate(0.95)

    reports = optimizer.commands(ReportEpoch)
    assert [(report.metric, report.is_journalled) for report in reports] == [
        (0.1, False),
        (0.2, True),
        (0.3, True),
        (0.95, False),
    ]
    actions = [getattr(record, "action", "") for record in caplog.records]
    assert actions.count("optimizer_away") == 1


def test_the_client_judges_itself_meanwhile_by_the_last_bound(
    bso: BatchSizeOptimizer, optimizer: ReachableOptimizer, monitor: ScriptedMonitor
) -> None:
    one_converged_recurrence(bso)
    outcomes, bound = [], None
    for trial in bso.trials():
        with trial:
            bound = trial.bound
            assert bound is not None
            assert 20.0 < bound < 30.0
            optimizer.is_away = True
            while not trial.finished:
                trial.on_evaluate(0.1)
            outcomes.append((trial.outcome, trial.cost))
            optimizer.is_away = False
        break

    assert outcomes == [(Outcome.COST_EXCEEDED, 30.0)]
    eventually(lambda: optimizer.trials()[-1].outcome is not None)
    finish = optimizer.commands(FinishTrial)[-1]
    assert (finish.outcome, finish.is_journalled, finish.bound) == (Outcome.COST_EXCEEDED, True, bound)
    assert optimizer.trials()[-1].outcome is Outcome.COST_EXCEEDED


@pytest.mark.parametrize(
    ("metrics", "outcome"),
    [
        ([0.95], Outcome.CONVERGED),
        ([math.nan, math.nan], Outcome.NOT_CONVERGED),
        ([0.1] * 5, Outcome.NOT_CONVERGED),
    ],
)
def test_the_client_knows_target_divergence_and_max_epochs_itself(
    bso: BatchSizeOptimizer, optimizer: ReachableOptimizer, metrics: list[float], outcome: Outcome
) -> None:
    for trial in bso.trials():
        with trial:
            optimizer.is_away = True
            for metric in metrics:
                assert not trial.finished
                trial.on_evaluate(metric)
            assert trial.outcome is outcome
            optimizer.is_away = False
        break

    eventually(lambda: optimizer.trials()[0].outcome is outcome)


def test_a_report_whose_answer_was_lost_is_judged_once(
    bso: BatchSizeOptimizer, optimizer: ReachableOptimizer, has_delivered: Callable[[], bool]
) -> None:
    for trial in bso.trials():
        with trial:
            optimizer.loses_answers_to = (ReportEpoch,)
            trial.on_evaluate(0.1)
            optimizer.loses_answers_to = ()
            eventually(has_delivered)
            assert len(optimizer.commands(ReportEpoch)) == 2
            trial.on_evaluate(0.95)

    ids = [request.command_id for request in optimizer.requests if isinstance(request.command, ReportEpoch)]
    assert ids[0] == ids[1]
    assert optimizer.event_types().count("EpochReported") == 2


def test_a_begin_whose_answer_was_lost_is_replaced(
    make_bso: MakeOptimizer, optimizer: ReachableOptimizer, has_delivered: Callable[[], bool]
) -> None:
    one_converged_recurrence(make_bso())
    bso = make_bso()
    optimizer.loses_answers_to = (BeginTrial,)
    assert bso.get_batch_size() == 64
    bso.on_train_begin()
    optimizer.loses_answers_to = ()
    eventually(has_delivered)
    assert len(optimizer.trials()) == 3
    bso.on_evaluate(0.95)

    ended = [Outcome.CANCELLED, Outcome.CONVERGED]
    eventually(lambda: [trial.outcome for trial in optimizer.trials()][1:] == ended)


def test_nothing_is_raised_at_a_training_whose_reports_are_refused(
    bso: BatchSizeOptimizer, optimizer: ReachableOptimizer, caplog: pytest.LogCaptureFixture
) -> None:
    for trial in bso.trials():
        with trial:
            optimizer.problem = Problem(type="trial_ended", title="The trial has ended", detail="deleted")
            trial.on_evaluate(0.1)
            trial.on_evaluate(0.2)
            trial.on_evaluate(0.95)
            assert trial.converged
            optimizer.problem = None

    assert len(optimizer.commands(ReportEpoch)) == 1  # the refused trial keeps quiet
    [refused] = [record for record in caplog.records if getattr(record, "action", "") == "report_refused"]
    assert refused.getMessage().endswith("; the training goes on, and nothing more of it is reported")


def test_a_report_that_the_optimizer_keeps_is_delivered_and_not_judged(
    bso: BatchSizeOptimizer, optimizer: ReachableOptimizer, caplog: pytest.LogCaptureFixture
) -> None:
    for trial in bso.trials():
        with trial:
            optimizer.problem = Problem(
                type=KEPT, title="The job is in trouble", detail="later", is_retryable=True, retry_after_s=60.0
            )
            trial.on_evaluate(0.1)
            trial.on_evaluate(0.2)
            optimizer.problem = None
            trial.on_evaluate(0.95)
            assert trial.converged

    reports = optimizer.commands(ReportEpoch)
    assert [report.epoch for report in reports] == [1.0, 2.0, 3.0], "none is sent again"
    assert "report_kept" in [getattr(record, "action", "") for record in caplog.records]


def test_a_problem_that_will_pass_is_waited_for(make_bso: MakeOptimizer, optimizer: ReachableOptimizer) -> None:
    optimizer.problem = Problem(type="busy", title="Busy", detail="later, please", is_retryable=True)
    with pytest.raises(Unreachable, match="later, please"):
        make_bso(unreachable_timeout=0.2).get_batch_size()


def test_a_refusal_says_what_came_and_what_was_expected(make_bso: MakeOptimizer, optimizer: ReachableOptimizer) -> None:
    optimizer.problem = Problem(
        type="not_owner", title="Not yours", detail="job belongs to ann", fields={"job_id": "belongs to ann"}
    )
    with pytest.raises(Refused, match="Not yours: job belongs to ann; job_id belongs to ann") as raised:
        make_bso().get_batch_size()
    assert raised.value.problem is optimizer.problem


def test_another_target_is_another_version_or_a_conflict(
    make_bso: MakeOptimizer, optimizer: ReachableOptimizer, caplog: pytest.LogCaptureFixture
) -> None:
    one_converged_recurrence(make_bso())
    with pytest.raises(SpecConflict, match="target_metric"):
        make_bso(job_spec(target_metric=0.8), on_conflict="raise").get_batch_size()
    with caplog.at_level(logging.WARNING, logger="bso"):
        make_bso(job_spec(target_metric=0.8)).get_batch_size()

    shown = [record.getMessage() for record in caplog.records if getattr(record, "action", "") == "optimizer_warning"]
    assert len(shown) == 1
    assert "target_metric differs from version 1" in shown[0]


def test_a_misconfigured_way_is_an_error_at_first_and_no_reason_to_stop_later(
    make_bso: MakeOptimizer, optimizer: ReachableOptimizer
) -> None:
    class Broken(ReachableOptimizer):
        async def start(self) -> None:
            raise Misconfigured("the password has changed")

    with pytest.raises(Misconfigured, match="the password has changed"):
        make_bso(transport=Broken()).get_batch_size()
    one_converged_recurrence(make_bso())
    assert make_bso(transport=Broken()).get_batch_size() == 64


def test_a_login_that_is_refused_at_the_beginning_is_no_outage_in_any_words(
    make_bso: MakeOptimizer, optimizer: ReachableOptimizer, caplog: pytest.LogCaptureFixture
) -> None:
    one_converged_recurrence(make_bso())
    optimizer.failure = Misconfigured("the broker refuses this login")
    bso = make_bso()
    for trial in bso.trials():
        assert trial.reason == "the optimizer refuses this process: the best one known here"
        with trial:
            trial.on_evaluate(0.95, epoch=2.0)
    bso.close(timeout=0.5)

    said = [(getattr(record, "action", ""), record.getMessage()) for record in caplog.records]
    assert [action for action, _ in said] == ["optimizer_refuses", "closing_waits", "reports_kept"]
    words = "the broker refuses this login: the training goes on alone, and is registered once that is corrected"
    assert said[0][1] == words
    assert re.search(r"since the optimizer refuses this process.*: closing waits", said[1][1])


def test_where_the_reports_of_the_last_trial_were_refused_the_next_one_says_so(
    make_bso: MakeOptimizer, optimizer: ReachableOptimizer, caplog: pytest.LogCaptureFixture
) -> None:
    bso = make_bso(unreachable_timeout=0.2)
    one_converged_recurrence(bso)
    for trial in bso.trials():
        with trial:
            optimizer.failure = Misconfigured("the broker refuses this login")
            trial.on_evaluate(0.95, epoch=2.0)
    bso.get_batch_size()
    assert bso.trial is not None
    assert bso.trial.reason == "the optimizer refuses this process: the best one known here"
    actions = [getattr(record, "action", "") for record in caplog.records]
    assert set(actions) == {"optimizer_refuses"}


def test_a_login_that_is_refused_after_an_outage_is_a_warning_of_its_own(
    bso: BatchSizeOptimizer, optimizer: ReachableOptimizer, caplog: pytest.LogCaptureFixture
) -> None:
    def actions() -> list[str]:
        return [getattr(record, "action", "") for record in caplog.records]

    bso.get_batch_size()
    bso.on_train_begin()
    optimizer.failure = Unreachable("nobody answers")
    bso.on_evaluate(0.1)
    eventually(lambda: "optimizer_away" in actions())
    optimizer.failure = Misconfigured("the broker refuses this login")
    eventually(lambda: "optimizer_refuses" in actions())
    optimizer.failure = Unreachable("nobody answers")
    eventually(lambda: actions().count("optimizer_away") == 2)


def test_what_could_not_be_delivered_at_the_end_is_kept_and_a_warning_says_where(
    bso: BatchSizeOptimizer, optimizer: ReachableOptimizer, caplog: pytest.LogCaptureFixture
) -> None:
    for trial in bso.trials():
        with trial:
            optimizer.is_away = True
            trial.on_evaluate(0.95)
    bso.close(timeout=0.1)

    [said] = [record.getMessage() for record in caplog.records if getattr(record, "action", "") == "reports_kept"]
    assert said.startswith("2 reports could not be delivered: they are kept in ")
    assert "`bso journal flush`" in said


def test_what_earlier_trainings_have_left_goes_first_when_an_outage_ends_in_mid_training(
    make_bso: MakeOptimizer, optimizer: ReachableOptimizer, has_delivered: Callable[[], bool]
) -> None:
    first = make_bso()
    first.get_batch_size()
    first.close()
    optimizer.is_away = True
    earlier = make_bso()
    one_converged_recurrence(earlier)
    earlier.close(timeout=0.0)

    bso = make_bso()
    for trial in bso.trials():
        with trial:
            trial.on_evaluate(0.5, epoch=1.0)
            optimizer.is_away = False
            eventually(has_delivered)
            trial.on_evaluate(0.95, epoch=3.0)
    bso.close()
    assert [report.epoch for report in optimizer.commands(ReportEpoch)] == [2.0, 1.0, 3.0]
    assert [(row.outcome, row.epoch) for row in optimizer.trials()[1:]] == [
        (Outcome.CONVERGED, 2.0),
        (Outcome.CONVERGED, 3.0),
    ]


def test_a_journal_that_cannot_be_read_holds_up_no_training(
    make_bso: MakeOptimizer, optimizer: ReachableOptimizer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = _left_by_an_outage(make_bso, optimizer, tmp_path)
    file.with_name("flush.lock").unlink(missing_ok=True)
    file.with_name("flush.lock").mkdir()

    bso = make_bso()
    one_converged_recurrence(bso)
    bso.close()
    assert "journal_failed" in [getattr(record, "action", "") for record in caplog.records]
    assert file.exists()
    assert len(optimizer.trials()) == 2


def test_a_training_beside_a_frozen_one_begins_and_is_judged(
    make_bso: MakeOptimizer, optimizer: ReachableOptimizer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = _left_by_an_outage(make_bso, optimizer, tmp_path)
    with FileLock(file.with_suffix(".lock")), FileLock(file.with_name("flush.lock")):
        one_converged_recurrence(make_bso())
    actions = [getattr(record, "action", "") for record in caplog.records]
    assert actions[-1] == "journal_in_use"
    assert [report.is_journalled for report in optimizer.commands(ReportEpoch)] == [False, False]
    assert file.exists()


def test_a_known_job_registers_again_when_the_way_is_back(
    make_bso: MakeOptimizer, optimizer: ReachableOptimizer, has_delivered: Callable[[], bool]
) -> None:
    one_converged_recurrence(make_bso())
    optimizer.is_away = True
    bso = make_bso(job_spec(max_epochs=9))
    bso.get_batch_size()
    bso.on_train_begin()
    bso.on_evaluate(0.1)
    optimizer.is_away = False
    eventually(has_delivered)

    kinds = [type(request.command) for request in optimizer.requests][-3:]
    assert kinds == [RegisterJob, BeginTrial, ReportEpoch]
    assert bso.trial is not None
    assert bso.trial.trial_number == 2


def test_a_job_that_was_lost_while_it_was_away_is_there_again_and_a_deleted_one_is_not(
    make_bso: MakeOptimizer, optimizer: ReachableOptimizer, tmp_path: Path
) -> None:
    left = _left_by_an_outage(make_bso, optimizer, tmp_path)
    delete = Request(command_id=str(uuid.uuid4()), job_id="job", command=DeleteJob())
    asyncio.run(optimizer.call(delete, timeout_s=1.0))
    flushed = asyncio.run(flush(left.parent, optimizer, timeout_s=1.0))
    assert (flushed.delivered, flushed.set_aside) == (0, 4)
    [found] = contents(tmp_path / "state")
    assert found.set_aside[0]["reason"] == "unknown_job: The job is unknown: job job was deleted: register it again"

    empty = ReachableOptimizer()
    with make_bso() as bso:
        one_converged_recurrence(bso)
        optimizer.is_away = True
        one_converged_recurrence(bso)
        bso.close(timeout=0.0)
    flushed = asyncio.run(flush(left.parent, empty, timeout_s=1.0))
    assert (flushed.delivered, flushed.set_aside) == (4, 0)
    assert [trial.outcome for trial in empty.trials()] == [Outcome.CONVERGED]


def test_that_what_was_left_is_refused_is_a_warning(
    make_bso: MakeOptimizer, optimizer: ReachableOptimizer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _left_by_an_outage(make_bso, optimizer, tmp_path)
    delete = Request(command_id=str(uuid.uuid4()), job_id="job", command=DeleteJob())
    asyncio.run(optimizer.call(delete, timeout_s=1.0))
    one_converged_recurrence(make_bso())
    [said] = [record for record in caplog.records if getattr(record, "action", "") == "journal_flushed"]
    assert said.levelno == logging.WARNING
    assert said.getMessage().startswith("0 reports of earlier trainings were delivered, 4 refused and set aside in ")


def test_closing_says_at_once_what_it_waits_for(
    bso: BatchSizeOptimizer, optimizer: ReachableOptimizer, caplog: pytest.LogCaptureFixture
) -> None:
    bso.get_batch_size()
    bso.on_train_begin()
    optimizer.is_away = True
    bso.on_evaluate(0.5)
    bso.close(timeout=2.0)

    said = {getattr(record, "action", ""): record.getMessage() for record in caplog.records}
    assert list(said) == ["optimizer_away", "closing_waits", "reports_kept"]
    words = "2 reports are not delivered, since the optimizer does not answer (nobody answers): closing waits"
    assert said["closing_waits"].startswith(words)


def test_closing_says_nothing_where_everything_is_delivered(
    bso: BatchSizeOptimizer, caplog: pytest.LogCaptureFixture
) -> None:
    bso.get_batch_size()
    bso.on_train_begin()
    bso.on_evaluate(0.5)
    bso.close()

    assert caplog.records == []


class _Warnings(logging.Handler):
    """The notices that trainings give while they wait."""

    def __init__(self) -> None:
        super().__init__()
        self.came = asyncio.Event()
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, "action", "") == "begin_waits":
            self.said.append(record.getMessage())
            self.came.set()  # it is logged in the loop of the optimizer


class _AfterWarning(ReachableOptimizer):
    """Answers so many commands at once, and the others only after a training has given notice that it waits."""

    def __init__(self, warnings: _Warnings, *, at_once: int = 0) -> None:
        super().__init__()
        self.at_once = at_once
        self.timeouts_s: list[float] = []
        self._warnings = warnings

    async def call(self, request: Request, *, timeout_s: float) -> Reply:
        self.timeouts_s.append(timeout_s)
        if len(self.requests) >= self.at_once:
            await self._warnings.came.wait()
        return await super().call(request, timeout_s=timeout_s)


@pytest.fixture
def warnings() -> Iterator[_Warnings]:
    warnings = _Warnings()
    logging.getLogger("bso").addHandler(warnings)
    yield warnings
    logging.getLogger("bso").removeHandler(warnings)


def test_a_wait_for_an_answer_is_logged_with_its_limit(make_bso: MakeOptimizer, warnings: _Warnings) -> None:
    assert make_bso(transport=_AfterWarning(warnings), unreachable_timeout=60).get_batch_size()
    assert warnings.said == ["the optimizer has not answered yet: waiting up to 60 s for it"]


def test_a_wait_for_a_file_that_is_being_made_names_the_file(
    make_bso: MakeOptimizer, warnings: _Warnings, tmp_path: Path
) -> None:
    class Making(ReachableOptimizer):
        """Is opened only after the notice."""

        async def start(self) -> None:
            await warnings.came.wait()

    address = f"sqlite:///{tmp_path / 'new.sqlite'}"
    assert make_bso(transport=Making(), url=address, unreachable_timeout=60).get_batch_size()
    assert warnings.said == [f"{address} is being opened; where it is new, it is made first"]


def test_what_was_left_is_delivered_first_for_as_long_as_answers_come(
    make_bso: MakeOptimizer, warnings: _Warnings, tmp_path: Path
) -> None:
    optimizer = _AfterWarning(warnings, at_once=100)
    options = {"transport": optimizer, "unreachable_timeout": 60.0}
    _left_by_an_outage(make_bso, optimizer, tmp_path, **options)
    optimizer.at_once = len(optimizer.requests) + 2
    optimizer.timeouts_s.clear()
    bso = make_bso(**options)
    bso.get_batch_size()
    assert bso.trial is not None
    assert bso.trial.trial_number == 3
    assert warnings.said == ["the reports of earlier trainings are delivered first"]
    assert optimizer.timeouts_s[:4] == [60.0] * 4, "each answer has all the time, whatever those before it took"


def test_what_is_refused_after_an_outage_is_set_aside_with_the_reason(
    bso: BatchSizeOptimizer, optimizer: ReachableOptimizer, tmp_path: Path, has_delivered: Callable[[], bool]
) -> None:
    for trial in bso.trials():
        with trial:
            optimizer.is_away = True
            trial.on_evaluate(0.1)
            optimizer.problem = Problem(type="unknown_job", title="There is no such job", detail="it was deleted")
            optimizer.is_away = False
            eventually(has_delivered)
            optimizer.problem = None
            trial.call_off("seen enough")
    [found] = contents(tmp_path / "state")
    assert found.set_aside[0]["reason"] == "unknown_job: There is no such job: it was deleted"
    assert list(found.letters) == []


def test_what_a_transport_without_an_address_could_not_deliver_goes_nowhere_else(
    make_bso: MakeOptimizer, optimizer: ReachableOptimizer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = _left_by_an_outage(make_bso, optimizer, tmp_path, url=None)
    for transport in (None, ReachableOptimizer()):  # an optimizer in the state directory, and one elsewhere
        bso = make_bso(transport=transport, url=None)
        one_converged_recurrence(bso)
        assert bso.trial is not None
        assert bso.trial.trial_number == 1
        bso.close()
    assert file.exists()
    assert "for transport= without url=" in caplog.text


def test_a_transport_without_an_address_delivers_at_its_next_use(
    make_bso: MakeOptimizer, optimizer: ReachableOptimizer
) -> None:
    bso = make_bso(url=None)
    for trial in bso.trials():
        with trial:
            optimizer.is_away = True
            trial.on_evaluate(0.95)
    bso.close(timeout=0.0)
    optimizer.is_away = False
    bso.get_batch_size()
    assert optimizer.trials()[0].outcome is Outcome.CONVERGED


def _left_by_an_outage(make_bso: MakeOptimizer, optimizer: ReachableOptimizer, state_dir: Path, **options: Any) -> Path:
    """The journal of a training that converged in an outage; the optimizer, which knows one before, is back."""
    optimizer.is_away = False
    first = make_bso(**options)
    one_converged_recurrence(first)
    first.close()
    optimizer.is_away = True
    earlier = make_bso(**options)
    one_converged_recurrence(earlier)
    earlier.close(timeout=0.0)
    optimizer.is_away = False
    [file] = state_dir.rglob("00000001.jsonl")
    return file
