"""Commands, replies and events as messages, jobs as stored states, and back.

Names on the wire are fixed once they are released. A stored state is everything of a job but its trials and the columns
beside it, as versioned JSON.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import datetime
from functools import cache
from typing import Any, cast, get_args

from pydantic_core import InitErrorDetails, PydanticSerializationError, ValidationError, to_json, to_jsonable_python

from bso.domain.commands import Command, RegisterJob, Request
from bso.domain.events import CommonEvent, Event, JobRegistered, JobRespecified, LateResult, TrialEnded, TrialStarted
from bso.domain.foreign_text import shown_in_json
from bso.domain.frozen_values import replace
from bso.domain.hardware import HardwareKind
from bso.domain.identifiers import identifier_problem, job_id_for
from bso.domain.job import Job, JobVersion, Recurrence, UnacknowledgedStop
from bso.domain.ledger import Ledger
from bso.domain.log import FIRST_EPOCH, RecordedEvent
from bso.domain.policies import PolicyMissing, find_policy, own_policies, policy_names
from bso.domain.replies import Reply
from bso.domain.rights import Right
from bso.schema.envelope import MAX_ANSWER_BYTES, Envelope, adapter, explain, unseal, validated
from bso.schema.errors import MalformedMessage, StateTooNew
from bso.schema.policy_values import read_end, read_inherited, read_stop, read_version

STATE_MAJOR = 1
"""Raised when an older release could no longer read the state; release n must read what n+1 writes."""
MAX_EVENT_NAME = 40
"""Characters that the name of an event may have as a message, which is also its type in the event table."""

_NAMES_OF_NUMBERS = ("NaN", "Infinity", "-Infinity")  # those that JSON lacks


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """The fields of a job that its snapshot holds."""

    state_major: int
    last_trial_number: int
    last_recurrence_number: int
    owner: str | None
    is_deleted: bool
    current_version: int
    versions: Mapping[int, JobVersion]
    recurrences: Mapping[str, Recurrence]
    unacknowledged_stops: Mapping[int, UnacknowledgedStop]
    has_power_profiles: bool
    grants: Mapping[str, Right] = field(default_factory=dict)
    hardware: HardwareKind | None = None
    job_id_prefix: str = "job"
    ledger: Ledger = Ledger()


def dump(value: object) -> bytes:
    """A value of ours as JSON."""
    return to_json(value, inf_nan_mode="strings")


def json_line(value: object) -> str:
    """The same as text of one line, without hidden characters: it may go to a terminal."""
    try:
        return shown_in_json(dump(value).decode())
    except PydanticSerializationError:  # a lone surrogate, as in the name of a file that is not UTF-8
        return json.dumps(_jsonable(value))


def _jsonable(value: Any) -> Any:
    """A value as json.dumps takes it; pydantic takes no lone surrogate as a key."""
    match value:
        case Mapping():
            return {str(key): _jsonable(each) for key, each in value.items()}
        case list() | tuple():
            return [_jsonable(each) for each in value]
        case float():
            return json.loads(dump(value))
    return to_jsonable_python(value, inf_nan_mode="strings")


def wire_name(message_type: type) -> str:
    """The name of a message class: ``BeginTrial`` is ``begin_trial``."""
    return _snake_case(message_type.__name__)


@cache
def _snake_case(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


COMMANDS: dict[str, type] = {wire_name(member): member for member in get_args(Command)}
REPLIES: dict[str, type] = {wire_name(member): member for member in get_args(Reply)}
ANSWERS: Mapping[str, str] = {
    "register_job": "registered",
    "begin_trial": "trial_begun",
    "report_epoch": "epoch_judged",
    "finish_trial": "trial_finished",
    "renew_lease": "lease_renewed",
    "expire_lease": "lease_expired",
    "report_power_profile": "power_profile_recorded",
    "report_epoch_costs": "epoch_costs_recorded",
    "allow_batch_size": "allowed_again",
    "delete_job": "deleted",
    "grant_job": "rights_recorded",
    "give_job": "rights_recorded",
    "describe_job": "job_description",
}
"""The reply to each command that is not refused with a problem."""
EVENTS: dict[str, type] = {wire_name(member): member for member in get_args(CommonEvent)}


def events_of(policies: Iterable[str]) -> dict[str, type]:
    """The events that these policies have of their own, by their names as messages; of one name, the first.

    What cannot be loaded has none.
    """
    found: dict[str, type] = {}
    for name in policies:
        policy = find_policy(name)
        if not isinstance(policy, PolicyMissing):
            found = {wire_name(member): member for member in policy.events} | found
    return found


@cache
def all_events() -> Mapping[str, type]:
    """Every event that is known here, by its name as a message. Nobody takes a name from this distribution's events."""
    return {**events_of((*own_policies(), *policy_names())), **EVENTS}


def build_validators() -> None:
    """Build the validators of all messages now. Each is else built at its first use, for which pydantic opens files."""
    for message_type in (Envelope, *COMMANDS.values(), *REPLIES.values(), *all_events().values()):
        adapter(message_type)


def encode_command(request: Request, *, sent_at: datetime | None = None) -> bytes:
    """A command as a message. An empty job_id (a registration by prefix) is left out."""
    return dump(
        Envelope(
            type=wire_name(type(request.command)),
            command_id=request.command_id,
            job_id=request.job_id or None,
            sent_at=sent_at,
            trace=request.trace,
            on_behalf_of=request.on_behalf_of,
            body=request.command,
        )
    )


def decode_command(message: bytes, *, user: str | None = None) -> Request:
    """Read a command sent by ``user``. Raises MalformedMessage or UnsupportedSchema."""
    envelope = unseal(message)
    command = command_from(_known(COMMANDS, envelope.type, "command"), envelope.body)
    command_id = _uuid(envelope.command_id)
    job_id = envelope.job_id
    if job_id is None and isinstance(command, RegisterJob):
        _check_identifier("job_id_prefix", command.job_id_prefix)
        job_id = job_id_for(command.job_id_prefix, command_id)
    _check_identifier("job_id", job_id)
    return Request(
        command_id=command_id,
        job_id=cast(str, job_id),
        command=command,
        user=user,
        on_behalf_of=envelope.on_behalf_of,
        trace=envelope.trace,
    )


def command_from(command_type: type, body: Any, in_path: Mapping[str, str] | None = None) -> Command:
    """A command from the body of a message, and from fields in the path of a request. Raises MalformedMessage.

    It does so, too, for true or a text such as "1" where a number belongs: pydantic takes them for numbers.
    """
    command: Command = validated(command_type, {**body, **in_path} if in_path else body, wire_name(command_type))
    faults = [*_no_numbers(command, body)]
    if faults:
        error = ValidationError.from_exception_data(wire_name(command_type), faults, "json")
        raise MalformedMessage(f"{wire_name(command_type)}: {explain(error)}") from error
    return command


_MAY_BE_WRONG = (bool, str, Mapping, list)  # what is no number, or may hold what is none


def _no_numbers(read: object, came: object, *place: str | int) -> Iterator[InitErrorDetails]:
    """What came as something else where a number was read."""
    if isinstance(came, bool | str):
        if isinstance(read, int | float) and not isinstance(read, bool) and came not in _NAMES_OF_NUMBERS:
            yield {"type": "float_type" if isinstance(read, float) else "int_type", "loc": place, "input": came}
    elif isinstance(came, Mapping):
        for name, value in came.items():
            if isinstance(value, _MAY_BE_WRONG):
                yield from _no_numbers(getattr(read, name, None), value, *place, name)
    elif isinstance(came, list) and isinstance(read, tuple):
        for number, (item, value) in enumerate(zip(read, came, strict=False)):
            yield from _no_numbers(item, value, *place, number)


def encode_reply(reply: Reply, *, command_id: str, job_id: str | None) -> bytes:
    """A reply as a message."""
    return dump(Envelope(type=wire_name(type(reply)), command_id=command_id, job_id=job_id, body=reply))


def decode_reply(message: bytes) -> Reply:
    """Read a reply. Raises MalformedMessage or UnsupportedSchema."""
    envelope = unseal(message, most_bytes=MAX_ANSWER_BYTES)
    reply: Reply = validated(_known(REPLIES, envelope.type, "reply"), envelope.body, envelope.type)
    return reply


def published(recorded: RecordedEvent) -> RecordedEvent:
    """An event of the log as subscribers receive it: without the trial_id."""
    if not isinstance(recorded.event, TrialStarted):
        return recorded
    return replace(recorded, event=replace(recorded.event, trial_id=""))


def encode_event(recorded: RecordedEvent) -> bytes:
    """An event of the log as a message, as it is published; consumers order by (job_id, log_epoch, seq)."""
    return dump(
        Envelope(
            type=wire_name(type(recorded.event)),
            command_id=recorded.command_id,
            job_id=recorded.job_id,
            sent_at=recorded.recorded_at,
            seq=recorded.seq,
            part=recorded.part,
            log_epoch=recorded.log_epoch,
            body=published(recorded).event,
        )
    )


def decode_event(message: bytes) -> RecordedEvent:
    """Read an event message. Raises MalformedMessage or UnsupportedSchema."""
    envelope = unseal(message, most_bytes=MAX_ANSWER_BYTES)
    if None in (envelope.job_id, envelope.seq, envelope.part, envelope.sent_at):
        raise MalformedMessage("an event needs job_id, seq, part and sent_at")
    return RecordedEvent(
        job_id=cast(str, envelope.job_id),
        seq=cast(int, envelope.seq),
        part=cast(int, envelope.part),
        recorded_at=cast(datetime, envelope.sent_at),
        command_id=envelope.command_id,
        event=event_from(envelope.type, envelope.body),
        log_epoch=FIRST_EPOCH if envelope.log_epoch is None else envelope.log_epoch,
    )


def event_payload(event: Event) -> tuple[str, str]:
    """An event as (type, JSON text), as the event table keeps it."""
    return wire_name(type(event)), dump(event).decode()


def event_from(event_type: str, body: object) -> Event:
    """An event from its type and its parsed JSON. Raises MalformedMessage."""
    types = EVENTS if event_type in EVENTS else all_events()
    event: Event = validated(_known(types, event_type, "event"), body, event_type)
    match event:
        case TrialEnded() | LateResult():
            return read_end(event)
        case JobRegistered() | JobRespecified():
            return read_inherited(event)
    return event


def reply_payload(reply: Reply) -> tuple[str, str]:
    """A reply as (type, JSON text), as the event table keeps it."""
    return wire_name(type(reply)), dump(reply).decode()


def reply_from(reply_type: str, body: object) -> Reply:
    """A reply from its type and its parsed JSON. Raises MalformedMessage."""
    reply: Reply = validated(_known(REPLIES, reply_type, "reply"), body, reply_type)
    return reply


def state_of(job: Job) -> str:
    """The snapshot of a job as JSON text: equal text exactly for equal states."""
    state = _in_order(
        JobState(
            state_major=STATE_MAJOR,
            last_trial_number=job.last_trial_number,
            last_recurrence_number=job.last_recurrence_number,
            owner=job.owner,
            is_deleted=job.is_deleted,
            current_version=job.current_version,
            versions=job.versions,
            recurrences=job.recurrences,
            unacknowledged_stops=job.unacknowledged_stops,
            has_power_profiles=job.has_power_profiles,
            grants=job.grants,
            hardware=job.hardware,
            job_id_prefix=job.job_id_prefix,
            ledger=job.ledger,
        )
    )
    return dump(state).decode()


def require_known_major(job_id: str, state: Mapping[str, Any]) -> None:
    """Raise StateTooNew for a parsed snapshot that a newer release has written, in a way unknown to this one."""
    major = state.get("state_major")
    if isinstance(major, int) and major > STATE_MAJOR:
        raise StateTooNew(
            f"the stored state of job {job_id} has version {major}, this program reads up to {STATE_MAJOR}: upgrade it"
        )


def job_from_state(job_id: str, last_seq: int, state: Mapping[str, Any]) -> Job:
    """The job that a parsed snapshot describes, without its trials. Raises StateTooNew, MalformedMessage.

    What a policy remembers that is not installed here stays as it was parsed.
    """
    require_known_major(job_id, state)
    stored: JobState = validated(JobState, state, f"stored state of job {job_id}")
    return Job(
        job_id=job_id,
        last_seq=last_seq,
        last_trial_number=stored.last_trial_number,
        last_recurrence_number=stored.last_recurrence_number,
        owner=stored.owner,
        grants=stored.grants,
        hardware=stored.hardware,
        job_id_prefix=stored.job_id_prefix,
        is_deleted=stored.is_deleted,
        current_version=stored.current_version,
        versions={number: read_version(version) for number, version in stored.versions.items()},
        recurrences=stored.recurrences,
        unacknowledged_stops={number: read_stop(stop) for number, stop in stored.unacknowledged_stops.items()},
        has_power_profiles=stored.has_power_profiles,
        ledger=stored.ledger,
    )


def _known(types: Mapping[str, type], name: str, what: str) -> type:
    if name not in types:
        raise MalformedMessage(f"unknown {what} {name[:60]!r}; known are {', '.join(types)}")
    return types[name]


def _uuid(text: str) -> str:
    try:
        return str(uuid.UUID(text))
    except ValueError as error:
        raise MalformedMessage(f"command_id must be a UUID, got {text[:60]!r}") from error


def _check_identifier(name: str, value: object) -> None:
    problem = identifier_problem(value)
    if problem is not None:
        raise MalformedMessage(f"{name} {problem}")


def _in_order(value: Any) -> Any:
    """A value as lists and dictionaries in a fixed order: sets and mappings have none of their own."""
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Mapping):
        return {key: _in_order(value[key]) for key in sorted(value)}
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, tuple):
        return [_in_order(item) for item in value]
    names = _field_names(value.__class__)
    return {name: _in_order(getattr(value, name)) for name in names} if names else value


@cache
def _field_names(value_type: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(value_type)) if is_dataclass(value_type) else ()
