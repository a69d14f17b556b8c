"""Who may send commands, and in whose name."""

import uuid
from dataclasses import replace
from typing import Any

import pytest

from bso.domain.commands import FinishTrial, RegisterJob, ReportEpoch, Request
from bso.domain.trial import Outcome
from bso.schema.codec import encode_command
from bso_broker.dead_letters import CLAIMED_HEADER, PARKED_HEADER, SENDER_HEADER
from bso_broker.messages import Delivery
from bso_workers.admission import Admission, Admitted, Undecidable
from tests.integration.workers.recurrences import SPEC

OPEN = Admission()
SEPARATE = Admission(operators=frozenset({"operator"}), requires_user_id=True)
COMMAND_ID = str(uuid.uuid4())
COMMAND = Delivery(
    body=encode_command(Request(command_id=COMMAND_ID, job_id="a-job", command=RegisterJob(spec=SPEC))),
    message_id=COMMAND_ID,
    reply_to=f"bso.reply.alice.{'0' * 32}",
    user_id="alice",
)


def admitted(admission: Admission, delivery: Delivery) -> Admitted:
    verdict = admission.admit(delivery)
    assert isinstance(verdict, Admitted), verdict
    return verdict


def refused(admission: Admission, delivery: Delivery) -> Undecidable:
    verdict = admission.admit(delivery)
    assert isinstance(verdict, Undecidable), verdict
    return verdict


@pytest.mark.parametrize("admission", [OPEN, SEPARATE])
def test_a_command_is_decided_in_the_name_of_its_login(admission: Admission) -> None:
    assert admitted(admission, COMMAND).request.user == "alice"


def test_a_command_without_a_login_is_decided_where_logins_are_not_separate() -> None:
    assert admitted(OPEN, replace(COMMAND, user_id=None)).request.user is None


def test_a_command_without_a_login_is_refused_where_logins_are_separate() -> None:
    verdict = refused(SEPARATE, replace(COMMAND, user_id=None))
    assert (verdict.kind, verdict.problem.type) == ("no_user_id", "no_user_id")
    assert verdict.sender.reply_to == COMMAND.reply_to


@pytest.mark.parametrize("admission", [OPEN, SEPARATE])
def test_a_command_whose_properties_could_not_be_read_is_refused(admission: Admission) -> None:
    verdict = refused(admission, replace(COMMAND, is_damaged=True, user_id=None, reply_to=None))
    assert (verdict.kind, verdict.problem.type, verdict.sender.reply_to) == ("malformed", "malformed", None)


@pytest.mark.parametrize("name", ["user_id", "message_id", "correlation_id"])
@pytest.mark.parametrize("hidden", ["\x1b[2J", "\n", "\u202e", "\u3164"], ids=ascii)
def test_a_property_by_which_people_know_a_command_has_no_hidden_characters(name: str, hidden: str) -> None:
    changed: Any = {name: f"a{hidden}"}
    verdict = refused(OPEN, replace(COMMAND, reply_to=None, **changed))
    assert (verdict.kind, verdict.problem.type) == ("malformed", "malformed")
    assert f"expected a {name} without hidden characters" in verdict.reason


def test_a_header_has_no_part_in_a_decision_whatever_is_in_it() -> None:
    assert admitted(OPEN, replace(COMMAND, headers={"note\x1b": "\x1b[2J"})).request.job_id == "a-job"


def test_a_command_whose_body_was_too_large_to_be_read_is_refused_and_its_sender_learns_the_sizes() -> None:
    verdict = refused(OPEN, replace(COMMAND, body=b"", discarded_bytes=16_000_000))
    assert (verdict.kind, verdict.problem.type, verdict.sender.reply_to) == ("too_large", "too_large", COMMAND.reply_to)
    assert "16000000" in verdict.reason
    assert "1048576" in verdict.problem.detail


def test_what_a_foreign_binding_brings_is_no_command_and_names_the_exchange() -> None:
    verdict = refused(OPEN, replace(COMMAND, exchange="bso.events"))
    assert verdict.kind == "foreign_binding"
    assert "'bso.events'" in verdict.reason
    for own in ("bso.commands", ""):
        admitted(OPEN, replace(COMMAND, exchange=own))


def test_a_report_that_was_parked_is_recorded_and_not_judged() -> None:
    command = ReportEpoch(trial_number=1, trial_id="x", epoch=1.0, time_s=1.0, energy_j=1.0, metric=0.5)
    report = replace(COMMAND, body=encode_command(Request(command_id=COMMAND_ID, job_id="a-job", command=command)))
    assert admitted(OPEN, report).request.command == command
    parked = replace(report, user_id="worker", headers={SENDER_HEADER: "alice"}, parked_s=5.0)
    verdict = admitted(SEPARATE, parked)
    assert (verdict.request.user, verdict.request.command) == ("alice", replace(command, is_journalled=True))


def test_a_finish_that_was_parked_is_decided_as_one_that_its_training_kept() -> None:
    command = FinishTrial(trial_number=1, trial_id="x", outcome=Outcome.NOT_CONVERGED)
    finish = replace(COMMAND, body=encode_command(Request(command_id=COMMAND_ID, job_id="a-job", command=command)))
    assert admitted(OPEN, finish).request.command == command
    parked = admitted(SEPARATE, replace(finish, user_id="worker", headers={SENDER_HEADER: "alice"}, parked_s=5.0))
    assert parked.request.command == replace(command, is_journalled=True)


PARKED = replace(COMMAND, user_id="former", headers={PARKED_HEADER: 5, SENDER_HEADER: "alice"})
REQUEUED = replace(COMMAND, user_id="operator", headers={SENDER_HEADER: "former", CLAIMED_HEADER: "alice"})


@pytest.mark.parametrize("delivery", [PARKED, REQUEUED, replace(PARKED, headers={PARKED_HEADER: 5})])
def test_what_an_unknown_login_has_parked_is_refused_with_the_login_and_the_remedy(delivery: Delivery) -> None:
    verdict = refused(SEPARATE, delivery)
    assert (verdict.kind, verdict.sender.user, verdict.sender.reply_to) == ("parked_by_unknown_login", "former", None)
    for word in ("'former'", "BSO_OPERATORS", "bso dead-letters requeue"):
        assert word in verdict.reason


def test_what_a_login_has_parked_is_its_senders_once_the_login_is_an_operator() -> None:
    knowing = Admission(operators=frozenset({"operator", "former"}), requires_user_id=True)
    verdict = admitted(knowing, REQUEUED)
    assert (verdict.request.user, verdict.sender.reply_to) == ("alice", COMMAND.reply_to)
    nobodys = replace(REQUEUED, headers={SENDER_HEADER: "former", CLAIMED_HEADER: ""})
    assert admitted(replace(knowing, requires_user_id=False), nobodys).request.user is None


def test_an_operator_sends_a_command_again_in_its_senders_name() -> None:
    again = replace(COMMAND, user_id="operator", headers={SENDER_HEADER: "alice"})
    verdict = admitted(SEPARATE, again)
    assert (verdict.request.user, verdict.sender.reply_to) == ("alice", COMMAND.reply_to)


def test_nobody_else_is_believed_to_send_in_anothers_name() -> None:
    forged = replace(COMMAND, user_id="mallory", headers={SENDER_HEADER: "alice"})
    verdict = refused(SEPARATE, forged)
    assert (verdict.kind, verdict.sender.user, verdict.sender.reply_to) == ("forged_reply_address", "mallory", None)


def test_a_name_without_a_login_is_not_believed() -> None:
    nameless = replace(COMMAND, user_id=None, headers={SENDER_HEADER: "alice"})
    assert admitted(OPEN, nameless).request.user is None
    assert refused(SEPARATE, nameless).kind == "no_user_id"


FOR_CAROL = replace(
    COMMAND,
    body=encode_command(
        Request(command_id=COMMAND_ID, job_id="a-job", command=RegisterJob(spec=SPEC), on_behalf_of="carol")
    ),
)


def test_a_gateway_sends_commands_for_its_own_users() -> None:
    gateways = Admission(gateways=frozenset({"alice"}), requires_user_id=True)
    request = admitted(gateways, FOR_CAROL).request
    assert (request.user, request.is_from_gateway) == ("carol", True)
    own = admitted(gateways, COMMAND).request
    assert (own.user, own.is_from_gateway) == ("alice", True)


@pytest.mark.parametrize("admission", [OPEN, SEPARATE])
def test_nobody_else_may_send_for_others(admission: Admission) -> None:
    verdict = refused(admission, FOR_CAROL)
    assert (verdict.kind, verdict.problem.type, verdict.sender.user) == ("forged_user", "forged_user", "alice")
    assert "BSO_GATEWAYS" in verdict.reason
    assert not admitted(admission, COMMAND).request.is_from_gateway


def test_the_reply_address_must_be_the_senders_own() -> None:
    assert refused(OPEN, replace(COMMAND, user_id="bob")).kind == "forged_reply_address"


def test_without_a_reply_address_there_is_nothing_to_forge() -> None:
    assert admitted(OPEN, replace(COMMAND, reply_to=None)).sender.reply_to is None
    assert admitted(OPEN, replace(COMMAND, reply_to="")).sender.reply_to is None


def test_an_unreadable_message_may_be_answered_at_a_good_address() -> None:
    verdict = refused(OPEN, replace(COMMAND, body=b"{"))
    assert (verdict.kind, verdict.sender.reply_to) == ("malformed", COMMAND.reply_to)
