"""Commands, replies and events as messages and back, and everything else that may arrive."""

import json
import math
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bso.domain import commands as do
from bso.domain.commands import Request
from bso.domain.errors import Rejected
from bso.domain.events import CommonEvent, Event, JobSnapshotted, PolicyData, TrialStarted, TrialSuspended
from bso.domain.foreign_text import is_plain
from bso.domain.identifiers import job_id_for
from bso.domain.inheritance import Inheritance
from bso.domain.knowledge import Knowledge
from bso.domain.log import RecordedEvent
from bso.domain.replies import EpochJudged, Problem, Reply
from bso.policies.curve.cost_records import EpochCostKnowledge
from bso.policies.curve.epoch_records import EpochKnowledge
from bso.policies.curve.memory import LearntCurve
from bso.policies.pruning_thompson.memory import PruningState, RoundEnded, StageEntered
from bso.schema import codec
from bso.schema.codec import COMMANDS, REPLIES, all_events
from bso.schema.envelope import MAX_MESSAGE_BYTES, unseal
from bso.schema.errors import MalformedMessage, UnsupportedSchema
from tests.unit.domain.builders import A100, command_id, searching
from tests.unit.domain.commands_at_random import odd_commands

NOW = datetime(2026, 1, 1, 12, 30, 0, 123456, tzinfo=UTC)
JSON = st.dictionaries(st.text(max_size=5), st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=5))
st.register_type_strategy(datetime, st.datetimes(timezones=st.just(UTC)).map(lambda moment: moment.replace(fold=0)))
OPEN_FIELDS: dict[type, dict[str, Any]] = {
    JobSnapshotted: {"state": JSON},
    Problem: {"context": JSON},
}
# What policies remember and learn; that of one which is not installed stays as it is.
MEMORIES = st.fixed_dictionaries(
    {},
    optional={
        "curve": st.builds(EpochCostKnowledge),
        "pruning_thompson": st.builds(PruningState),
        "of_somebody_else": JSON,
    },
)
st.register_type_strategy(Knowledge, st.builds(Knowledge, memories=MEMORIES))
st.register_type_strategy(
    Inheritance, st.builds(Inheritance, memories=st.fixed_dictionaries({"curve": st.builds(EpochKnowledge)}))
)
st.register_type_strategy(
    PolicyData,
    st.builds(PolicyData, policy=st.just("curve"), data=st.builds(LearntCurve))
    | st.builds(PolicyData, policy=st.just("of_somebody_else"), data=JSON),
)


def exactly(value: object) -> str:
    """A value with all its types, in which NaN equals NaN; that UTC has two names does not matter."""
    return repr(value).replace("TzInfo(0)", "datetime.timezone.utc")


def values_of(union: Any) -> st.SearchStrategy[Any]:
    return st.one_of(*(st.builds(member, **OPEN_FIELDS.get(member, {})) for member in get_args(union)))


@searching(150)
@given(command=odd_commands, user=st.none() | st.just("alice"))
def test_every_command_is_read_as_it_was_written(command: do.Command, user: str | None) -> None:
    request = Request(command_id=command_id(1), job_id="job", command=command, user=user, trace={"a": "b"})
    again = codec.decode_command(codec.encode_command(request, sent_at=NOW), user=user)
    if isinstance(command, do.RegisterJob):
        assert again.command == codec.decode_command(codec.encode_command(again), user=user).command
    else:
        assert exactly(again) == exactly(request)


@searching(150)
@given(event=values_of(CommonEvent) | st.builds(RoundEnded) | st.builds(StageEntered))
def test_every_event_is_read_as_it_was_written(event: Event) -> None:
    recorded = RecordedEvent(job_id="job", seq=3, recorded_at=NOW, command_id=command_id(1), part=0, event=event)
    assert exactly(codec.decode_event(codec.encode_event(recorded))) == exactly(codec.published(recorded))
    name, payload = codec.event_payload(event)
    assert exactly(codec.event_from(name, json.loads(payload))) == exactly(event)


@searching(150)
@given(reply=values_of(Reply))
def test_every_reply_is_read_as_it_was_written(reply: Reply) -> None:
    message = codec.encode_reply(reply, command_id=command_id(1), job_id=None)
    assert exactly(codec.decode_reply(message)) == exactly(reply)
    name, payload = codec.reply_payload(reply)
    assert exactly(codec.reply_from(name, json.loads(payload))) == exactly(reply)


@given(number=st.floats())
def test_floats_arrive_bit_by_bit(number: float) -> None:
    command = do.ReportEpoch(trial_number=1, trial_id="x", epoch=1.0, time_s=1.0, energy_j=number, metric=number)
    request = Request(command_id=command_id(1), job_id="job", command=command)
    again = codec.decode_command(codec.encode_command(request)).command
    assert isinstance(again, do.ReportEpoch)
    assert math.isnan(number) or (again.metric.hex(), float(again.energy_j or 0.0).hex()) == (
        number.hex(),
        number.hex() if number else (0.0).hex(),
    )


def envelope(**changes: Any) -> dict[str, Any]:
    return {"schema": "1.0", "type": "delete_job", "command_id": command_id(1), "job_id": "job", "body": {}, **changes}


def read(**changes: Any) -> Request:
    return codec.decode_command(json.dumps(envelope(**changes)).encode())


def test_names_on_the_wire_never_change() -> None:
    assert sorted(COMMANDS) == [
        "allow_batch_size",
        "begin_trial",
        "delete_job",
        "describe_job",
        "expire_lease",
        "finish_trial",
        "give_job",
        "grant_job",
        "register_job",
        "renew_lease",
        "report_epoch",
        "report_epoch_costs",
        "report_power_profile",
    ]
    assert {"job_registered", "trial_started", "epoch_reported", "trial_ended", "late_result"} < set(all_events())
    assert {"registered", "trial_begun", "epoch_judged", "trial_finished", "problem"} < set(REPLIES)


def test_unknown_fields_are_ignored_everywhere() -> None:
    body = {"trial_number": 1, "trial_id": "x", "colour": "red"}
    request = read(type="renew_lease", body=body, flavour=3, trace={})
    assert request.command == do.RenewLease(trial_number=1, trial_id="x")


def test_what_a_program_leaves_out_has_a_meaning() -> None:
    hardware = {"gpu_model": "A100", "max_power_w": 400.0, "energy_method": "rapl"}
    begin = read(type="begin_trial", body={"hardware": hardware}).command
    assert isinstance(begin, do.BeginTrial)
    assert begin.learning_rate is None
    numbers = {"trial_number": 1, "trial_id": "x", "epoch": 1.0, "time_s": 2.0, "energy_j": None, "metric": 0.5}
    report = read(type="report_epoch", body=numbers).command
    assert isinstance(report, do.ReportEpoch)
    assert not report.is_profiling
    registration = read(type="register_job", body={"spec": {"batch_sizes": [64]}}).command
    assert registration == do.RegisterJob(spec={"batch_sizes": [64]}, inherit=True, like=None)


def test_an_unknown_scaling_rule_says_what_is_known() -> None:
    hardware = {"gpu_model": "A100", "max_power_w": 400.0, "energy_method": "rapl"}
    rate = {"value": 0.1, "reference_batch_size": 32, "rule": "cubic"}
    with pytest.raises(MalformedMessage, match=r"learning_rate\.rule.*'linear', 'square_root' or 'none'"):
        read(type="begin_trial", body={"hardware": hardware, "learning_rate": rate})


def test_a_minor_version_of_the_future_is_read() -> None:
    assert isinstance(read(schema="1.7").command, do.DeleteJob)


@pytest.mark.parametrize(
    "changes",
    [
        {"schema": "2.0"},
        {"schema": "2.0", "command_id": 5},
        {"schema": "2.0", "type": {"name": "x"}},
        {"schema": 2},
        {"schema": 2.0, "body": None},
        {"schema": "0.9"},
        {"schema": ""},
        {"schema": "10.0"},
    ],
    ids=repr,
)
def test_another_major_version_is_unsupported_whatever_else_differs(changes: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedSchema, match=r"reads schema 1\.x"):
        read(**changes)


def test_a_future_envelope_without_our_fields_is_unsupported_too() -> None:
    with pytest.raises(UnsupportedSchema):
        unseal(b'{"schema": "3.1", "kind": "delete"}')


DEEP = b"[" * 100_000 + b"]" * 100_000
BAD_MESSAGES = {
    "nothing": b"",
    "no JSON": b"\x00\x01\x02",
    "pickle": b"\x80\x04K\x01.",
    "invalid UTF-8": b'{"schema": "\xff"}',
    "a list": b"[]",
    "a number": b"1",
    "null": b"null",
    "cut off": b'{"schema": "1.0", "type"',
    "two values": b"{} {}",
    "deep nesting": DEEP,
    "deep body": json.dumps(envelope()).encode().replace(b'"body": {}', b'"body": ' + DEEP),
    "lone surrogate": json.dumps(envelope(job_id="\ud800")).encode(),
    "10 MB": json.dumps(envelope(body={"x": "y" * 10_000_000})).encode(),
    "a number of 10 000 digits": json.dumps(envelope(type="allow_batch_size"))
    .encode()
    .replace(b'"body": {}', b'"body": {"batch_size": ' + b"9" * 10_000 + b"}"),
}


@pytest.mark.parametrize("message", BAD_MESSAGES.values(), ids=BAD_MESSAGES)
def test_what_is_no_message_of_ours_is_malformed(message: bytes) -> None:
    with pytest.raises(MalformedMessage) as refused:
        codec.decode_command(message)
    assert isinstance(refused.value, Rejected)
    assert len(str(refused.value)) < 1000


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"type": "explode"}, "unknown command 'explode'"),
        ({"type": "job_registered"}, "unknown command"),
        ({"command_id": "17"}, "command_id must be a UUID"),
        ({"job_id": None}, "job_id must be a string"),
        ({"job_id": "a/b"}, "job_id must begin with a letter or digit"),
        ({"job_id": "with space"}, "job_id must begin"),
        ({"job_id": "🚀"}, "job_id must begin"),
        ({"job_id": "it's"}, "job_id must begin"),
        ({"job_id": '"quoted"'}, "job_id must begin"),
        ({"job_id": "x" * 121}, "at most 120 characters, got 121"),
        ({"job_id": ""}, "must not be empty"),
        ({"body": None}, "delete_job"),
        ({"type": "renew_lease", "body": {"trial_number": "x", "trial_id": "y"}}, "trial_number"),
        ({"type": "renew_lease", "body": {"trial_number": 1}}, "trial_id: is missing"),
        ({"type": "begin_trial", "body": {"hardware": {"gpu_model": "x", "max_power_w": 1, "energy_method": "guess"}}},
         "energy_method"),
        ({"type": "register_job", "job_id": None, "body": {"spec": {}, "job_id_prefix": "a b"}}, "job_id_prefix must"),
    ],
    ids=lambda value: repr(value)[:60],
)  # fmt: skip
def test_a_faulty_field_is_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(MalformedMessage, match=words.replace("(", r"\(")):
        read(**changes)


REPORTED = {"trial_number": 1, "trial_id": "t", "epoch": 1, "time_s": 2.5, "energy_j": None, "metric": 0.5}
ON = {"gpu_model": "A40", "energy_method": "nvml_counter"}
OF = {"trial_number": 1, "trial_id": "t"}


@pytest.mark.parametrize(
    ("command", "body", "words"),
    [
        ("report_epoch", REPORTED | {"metric": True}, "report_epoch: metric: expected a number, got True"),
        ("report_epoch", REPORTED | {"metric": "1"}, "metric: expected a number, got '1'"),
        ("report_epoch", REPORTED | {"metric": "inf"}, "metric: expected a number, got 'inf'"),
        ("report_epoch", REPORTED | {"epoch": "1", "time_s": True}, "epoch: expected a number, got '1'; time_s: expec"),
        ("report_epoch", REPORTED | {"trial_number": True}, "trial_number: expected a whole number, got True"),
        ("begin_trial", {"hardware": ON | {"max_power_w": "400"}}, "hardware.max_power_w: expected a number, got"),
        (
            "report_epoch_costs",
            OF | {"probes": [{"batch_size": 8, "time_s": 1, "energy_j": True, "variance": 0.1}]},
            "probes.0.energy_j: expected a number, got True",
        ),
    ],
)
def test_what_pydantic_would_take_for_a_number_is_none(command: str, body: dict[str, Any], words: str) -> None:
    with pytest.raises(MalformedMessage) as caught:
        read(type=command, body=body)
    assert words in str(caught.value)


@pytest.mark.parametrize("metric", ["NaN", "Infinity", "-Infinity", 1, 0.5])
def test_numbers_are_numbers_and_those_that_json_lacks_have_names(metric: Any) -> None:
    command = read(type="report_epoch", body=REPORTED | {"metric": metric}).command
    assert isinstance(command, do.ReportEpoch)
    assert repr(command.metric) == repr(float(metric))


def test_a_job_id_of_120_characters_is_good() -> None:
    assert read(job_id="x" * 120).job_id == "x" * 120


def test_the_last_of_two_equal_keys_counts() -> None:
    twice = json.dumps(envelope()).replace('"job_id": "job"', '"job_id": "a/b", "job_id": "job"')
    assert codec.decode_command(twice.encode()).job_id == "job"


def test_a_registration_without_a_job_id_gets_one_from_its_prefix_and_command() -> None:
    command = do.RegisterJob(spec={}, job_id_prefix="mnist")
    request = Request(command_id=command_id(4), job_id="", command=command)
    assert codec.decode_command(codec.encode_command(request)).job_id == job_id_for("mnist", command_id(4))
    assert len(job_id_for("p" * 120, command_id(4))) == 120


def test_the_largest_message_is_read_and_a_larger_one_is_not() -> None:
    empty = len(json.dumps(envelope(trace={"x": ""})))
    fitting = json.dumps(envelope(trace={"x": "y" * (MAX_MESSAGE_BYTES - empty)})).encode()
    assert isinstance(codec.decode_command(fitting).command, do.DeleteJob)
    with pytest.raises(MalformedMessage, match="at most 1048576 bytes, got 1048577"):
        codec.decode_command(fitting + b" ")


def test_replies_may_be_larger() -> None:
    reply = EpochJudged(should_stop=False, reason="x" * 2 * MAX_MESSAGE_BYTES, cost=1.0, bound=None)
    assert codec.decode_reply(codec.encode_reply(reply, command_id=command_id(1), job_id=None)) == reply


@searching(20)
@given(event=st.builds(TrialStarted))
def test_no_subscriber_learns_a_trial_id(event: TrialStarted) -> None:
    event = replace(event, trial_id="the-secret-one")
    recorded = RecordedEvent(job_id="job", seq=3, recorded_at=NOW, command_id=command_id(1), part=0, event=event)
    assert b"the-secret-one" not in codec.encode_event(recorded)


def test_an_event_needs_its_place_in_the_log() -> None:
    event = TrialSuspended(trial_number=1)
    recorded = RecordedEvent(job_id="job", seq=3, recorded_at=NOW, command_id=command_id(1), part=0, event=event)
    message = json.loads(codec.encode_event(recorded))
    with pytest.raises(MalformedMessage, match="seq"):
        codec.decode_event(json.dumps({**message, "seq": None}).encode())


def test_only_known_users_stand_in_a_request() -> None:
    hardware = {"gpu_model": A100.gpu_model, "max_power_w": 400, "energy_method": "nvml_counter"}
    message = json.dumps(envelope(type="begin_trial", body={"hardware": hardware}, user="root")).encode()
    assert codec.decode_command(message, user="alice").user == "alice"


@searching(200)
@given(message=st.binary(max_size=60) | st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=5) | st.integers(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(("schema", "type", "command_id", "job_id", "body", "spec", "trace", "seq")), inner, max_size=5),
    max_leaves=10).map(lambda value: json.dumps(value).encode()))  # fmt: skip
def test_whatever_arrives_is_read_or_rejected(message: bytes) -> None:
    kinds = ((codec.decode_command, Request), (codec.decode_reply, Reply), (codec.decode_event, RecordedEvent))
    for read_it, kind in kinds:
        try:
            found = read_it(message)
        except Rejected:
            continue
        assert isinstance(found, kind)


@given(text=st.text(st.characters() | st.sampled_from("\x7f\x9b\u202e\u2028\u3164\U000e0041\udcff")))
def test_a_line_of_json_holds_no_hidden_characters_and_is_the_same_for_programs(text: str) -> None:
    line = codec.json_line({text: [text, math.inf]})
    assert is_plain(line)
    assert json.loads(line) == {text: [text, "Infinity"]}
