"""The audit of the fault matrix: what it must find, from ledgers and logs that are written by hand."""

import uuid

from bso.domain.commands import Command, DescribeJob, ReportPowerProfile, Request
from bso.domain.replies import PowerProfileRecorded
from tests.faults.matrix.auditing import unanswered
from tests.faults.matrix.ledger import Asked, Ledger
from tests.faults.matrix.result import Result
from tests.integration.workers.recurrences import HARDWARE

RECOVERED_S, OVER_S = 50.0, 60.0
PROFILE = ReportPowerProfile(batch_size=64, hardware=HARDWARE, measurements=())


def new_result() -> Result:
    return Result(scenario="any", seed=1, broker="", database="")


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
