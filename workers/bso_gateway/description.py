"""What OpenAPI says of the routes under /v1, for who writes a client from that page alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from inspect import getdoc
from typing import Any, get_args

from pydantic import TypeAdapter

from bso.domain import commands as do
from bso.domain import replies
from bso.domain.commands import Command
from bso.domain.decide.trial_end import DECLARED_BY_CLIENT
from bso.domain.job_spec import JobSpec
from bso.schema.codec import all_events, wire_name
from bso.service import queries
from bso.service.queries import Query
from bso_gateway.http import IDEMPOTENCY_KEY, RETRY_AFTER
from bso_gateway.live import MOST_STREAMS, MOST_STREAMS_OF_ONE
from bso_gateway.problems import PROBLEM_SCHEMA
from bso_gateway.specification import specification

STREAM = "text/event-stream"
_SCHEMAS = "#/components/schemas/{model}"
_PROBLEM, _SPECIFICATION = "HttpProblem", "Specification"
_ABOUT_STREAMS = (
    "Server-sent events without an end: `id` is a place to go on after, `event` the type of the event, `data` an Event "
    "as JSON. A comment (`: alive`) comes where no event did for 10 s, with the `id` that filtered events moved to. "
    f"Last-Event-ID counts before `after`. At most {MOST_STREAMS_OF_ONE} streams of a user, and {MOST_STREAMS} in all, "
    "are open at one gateway: then 503."
)
_NO_NUMBER = {"type": "string", "enum": ["NaN", "Infinity", "-Infinity"]}
_OF_LIVE_TRAININGS = ", ".join(sorted(outcome.value for outcome in DECLARED_BY_CLIENT))
_ABOUT_STOPS = (
    "With should_stop true, stop training and end the trial (`PUT .../end`) with the outcome of this answer: it shows "
    "that the stop has arrived. Until then a journalled result of this trial overrules the stop."
)
_ABOUT_ENDS = (
    f"A live training states one of {_OF_LIVE_TRAININGS}; or, once a report was answered with should_stop true, the "
    "outcome of that answer, which acknowledges the stop."
)
_ABOUT_ENERGY = (
    "How the energy of a trial was obtained: nvml_counter by the energy counter of an NVIDIA GPU, rapl by the RAPL "
    "counters of the CPU, monitor by any other meter, assumed by none: a constant power times time. A client of your "
    "own sends what it has read, monitor where that is another meter. Costs of different methods are never compared."
)


@dataclass(frozen=True, slots=True)
class Route:
    """A command as a resource. Fields of the command that stand in the path are not in the body."""

    method: str
    path: str
    command: type
    reply: type
    summary: str
    status: int = 200
    operation: str = ""
    about: str = ""

    @property
    def operation_id(self) -> str:
        """Its name in generated clients: that of the command, unless another route has it."""
        return self.operation or wire_name(self.command)

    @property
    def description(self) -> str:
        """What the command is, and what a client should know of it beside."""
        return "\n\n".join(filter(None, (getdoc(self.command), self.about)))

    @property
    def body(self) -> str:
        """The name of the schema of its body."""
        return f"{self.command.__name__}Body" if self.fields_in_path else self.command.__name__

    @property
    def fields_in_path(self) -> Sequence[str]:
        return [field.name for field in fields(self.command) if f"{{{field.name}}}" in self.path]


JOB = "/jobs/{job_id}"
TRIAL = "/jobs/{job_id}/trials/{trial_number}"
ROUTES = (
    Route("POST", "/jobs", do.RegisterJob, replies.Registered, "Register a new job", operation="register_new_job"),
    Route("PUT", JOB, do.RegisterJob, replies.Registered, "Register or change a job"),
    Route("DELETE", JOB, do.DeleteJob, replies.Deleted, "Delete a job"),
    Route("POST", f"{JOB}/trials", do.BeginTrial, replies.TrialBegun, "Begin a trial, and get its batch size", 201),
    Route(
        "POST",
        f"{TRIAL}/reports",
        do.ReportEpoch,
        replies.EpochJudged,
        "Report an evaluation, and get the decision whether to stop",
        about=_ABOUT_STOPS,
    ),
    Route(
        "POST",
        f"{TRIAL}/epoch-costs",
        do.ReportEpochCosts,
        replies.EpochCostsRecorded,
        "Report what epochs with other batch sizes would cost",
    ),
    Route("PUT", f"{TRIAL}/end", do.FinishTrial, replies.TrialFinished, "Say how a training ended", about=_ABOUT_ENDS),
    Route("PUT", f"{TRIAL}/lease", do.RenewLease, replies.LeaseRenewed, "Say that a training is alive"),
    Route(
        "PUT",
        f"{JOB}/power-profiles/{{batch_size}}",
        do.ReportPowerProfile,
        replies.PowerProfileRecorded,
        "Record what was measured under several power limits",
    ),
    Route(
        "PUT",
        f"{JOB}/allowed/{{batch_size}}",
        do.AllowBatchSize,
        replies.AllowedAgain,
        "Lift the infeasibility of a batch size",
    ),
    Route(
        "PUT",
        f"{JOB}/grants/{{login}}",
        do.GrantJob,
        replies.RightsRecorded,
        "Let a login use a job; a null right takes it away",
    ),
    Route("PUT", f"{JOB}/owner/{{login}}", do.GiveJob, replies.RightsRecorded, "Make another login the owner of a job"),
)
_PAGES = (queries.SavingsPage, queries.Operation, queries.TrialsPage, queries.PowerProfilesPage)
_SHOWN = (replies.JobDescription, *(kind for route in ROUTES for kind in (route.command, route.reply)), *_PAGES)


def schemas() -> dict[str, Any]:
    """The JSON schemas of all bodies and answers, by name."""
    adapters: list[Any] = [(kind.__name__, "validation", TypeAdapter(kind)) for kind in _SHOWN]
    _, defined = TypeAdapter.json_schemas(adapters, ref_template=_SCHEMAS)
    found: dict[str, Any] = defined["$defs"]
    for route in ROUTES:
        found[route.body] = _without(found[route.command.__name__], route.fields_in_path)
        if "spec" in found[route.body]["properties"]:
            found[route.body]["properties"]["spec"] = _reference(_SPECIFICATION)
    found["Trial"]["properties"]["trial_id"]["description"] = "Empty here: it is for those alone who began the trial."
    found["EpochJudged"]["description"] += f"\n\n{_ABOUT_STOPS}"
    found["EnergyMethod"]["description"] = _ABOUT_ENERGY
    ended = found["FinishTrialBody"]["properties"]
    ended["outcome"] = {"allOf": [ended["outcome"]], "description": _ABOUT_ENDS}
    for schema in found.values():
        if "metric" in schema.get("properties", {}):  # what a training has diverged to is no number in JSON
            schema["properties"]["metric"] = {"anyOf": [schema["properties"]["metric"], _NO_NUMBER]}
    return {**found, **_OTHERS, _SPECIFICATION: specification(found[JobSpec.__name__]), _PROBLEM: PROBLEM_SCHEMA}


def decision(route: Route) -> dict[str, Any]:
    """What the framework is to say of a command's route, beside its path."""
    statuses = (200, 201) if route.reply is replies.Registered else (route.status,)
    names = ("job_id", "string"), ("trial_number", "integer"), ("batch_size", "integer"), ("login", "string")
    in_path = [_parameter(name, "path", {"type": kind}) for name, kind in names if f"{{{name}}}" in route.path]
    needs_body = {} if route.method == "DELETE" else {"requestBody": _body(route.body)}
    return {
        "status_code": route.status,
        "operation_id": route.operation_id,
        "summary": route.summary,
        "description": route.description,
        "responses": _answers(dict.fromkeys(statuses, route.reply.__name__)) | {202: _KEPT},
        "openapi_extra": {"parameters": [*in_path, IDEMPOTENCY_KEY], **needs_body},
    }


def message(asked: str, answered: str) -> dict[str, Any]:
    """The same of a route that takes messages."""
    return {"responses": _answers({200: answered}), "openapi_extra": {"requestBody": _body(asked)}}


def page(answered: str, *, is_streamed: bool = False) -> dict[str, Any]:
    """The same of a route that is read. ``is_streamed``: also without an end."""
    found: dict[str, Any] = {"responses": _answers({200: answered})}
    if is_streamed:
        found["responses"][200]["content"][STREAM] = {"schema": {"type": "string", "description": _ABOUT_STREAMS}}
        resumed = _parameter("Last-Event-ID", "header", {"type": "string"})
        found["openapi_extra"] = {"parameters": [resumed]}
    return found


def _answers(names: Mapping[int, str]) -> dict[int | str, Any]:
    made: dict[int | str, Any] = {
        status: {"description": "Done", "content": {"application/json": {"schema": _reference(name)}}}
        for status, name in names.items()
    }
    return {**made, "default": _problem("A problem")}


def _problem(about: str) -> dict[str, Any]:
    return {
        "description": about,
        "headers": {"Retry-After": RETRY_AFTER},
        "content": {"application/problem+json": {"schema": _reference(_PROBLEM)}},
    }


def _body(name: str) -> dict[str, Any]:
    return {"required": True, "content": {"application/json": {"schema": _reference(name)}}}


def _parameter(name: str, place: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": place, "required": place == "path", "schema": schema}


def _without(schema: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """A schema without some properties."""
    properties = {name: each for name, each in schema["properties"].items() if name not in names}
    required = [name for name in schema.get("required", ()) if name not in names]
    return {**schema, "properties": properties, "required": required}


def _reference(name: str) -> dict[str, str]:
    return {"$ref": _SCHEMAS.format(model=name)}


def _object(properties: Mapping[str, Any], *, optional: Sequence[str] = (), about: str = "") -> dict[str, Any]:
    required = [name for name in properties if name not in optional]
    return {"type": "object", "description": about, "properties": properties, "required": required}


_TEXT = {"type": "string"}
_NUMBER = {"type": "integer"}
_TEXT_OR_NULL = {"type": ["string", "null"]}
_NUMBER_OR_NULL = {"type": ["integer", "null"]}
_MOMENT = {"type": "string", "format": "date-time"}
_ANYTHING = {"type": "object"}
_NOTHING = {"type": "null"}


def _envelope(types: Sequence[str], about: str, **more: Mapping[str, Any]) -> dict[str, Any]:
    """A message; docs/messages.md has the bodies by type."""
    properties = {
        "schema": {"type": "string", "description": "The version of the envelope: 1.0"},
        "type": {"type": "string", "enum": sorted(types)} if types else _TEXT,
        "command_id": {"type": "string", "format": "uuid"},
        "job_id": _TEXT_OR_NULL,
        "sent_at": {"type": ["string", "null"], "format": "date-time"},
        "trace": {"type": "object", "additionalProperties": _TEXT},
        "body": _ANYTHING,
        **more,
    }
    return _object(properties, optional=("schema", "job_id", "sent_at", "trace", "on_behalf_of"), about=about)


_KEPT = _problem("It is kept, and will be decided later: do not send it again")
_OTHERS: Mapping[str, Any] = {
    "CommandMessage": _envelope(
        [wire_name(kind) for kind in get_args(Command) if kind is not do.ExpireLease],
        "A command; `body` has its fields, which docs/messages.md lists by type.",
    ),
    "QueryMessage": _envelope(
        [wire_name(kind) for kind in get_args(Query) if kind is not queries.CheckToken],
        "A query; `body` has its fields, which docs/messages.md lists by type.",
    ),
    "AnswerMessage": _envelope(
        [],
        "A reply, a page or a problem; `command_id` is that of what was asked.",
        on_behalf_of=_TEXT_OR_NULL,
        seq=_NOTHING,
        part=_NOTHING,
        log_epoch=_NOTHING,
    ),
    "Event": _envelope(
        list(all_events()),
        "An event of the log.",
        on_behalf_of=_TEXT_OR_NULL,
        event_id=_NUMBER,
        seq=_NUMBER,
        part=_NUMBER,
        log_epoch=_NUMBER,
    ),
    "Events": _object(
        {
            "events": {"type": "array", "items": _reference("Event")},
            "next_after": _NUMBER_OR_NULL,
            "resume_after": _NUMBER,
        },
        about="`next_after`: `after` of the next page; null: this is the last one. `resume_after`: `after` of a later "
        "request for what comes then, also on the last page; events that `type` leaves out are passed.",
    ),
    "EventsOfJobs": _object(
        {"events": {"type": "array", "items": _reference("Event")}, "next_after": _TEXT_OR_NULL},
        about="`next_after`: `after` of the next page; null: nothing came after `after`, with which you may ask again.",
    ),
    "ListedJob": _object(
        {
            "job_id": _TEXT,
            "owner": _TEXT_OR_NULL,
            "version_number": _NUMBER,
            "policy": _TEXT,
            "spec": {"type": ["object", "null"], "description": "Null: it was deleted, or is damaged."},
            "trials": _NUMBER,
            "created_at": _MOMENT,
            "changed_at": _MOMENT,
            "last_trial": {"anyOf": [_reference("Trial"), {"type": "null"}]},
            "trouble": _TEXT_OR_NULL,
        }
    ),
    "ListedJobs": _object(
        {"jobs": {"type": "array", "items": _reference("ListedJob")}, "next_after": _TEXT_OR_NULL},
        about="`next_after`: `after` of the next page; null: this is the last one.",
    ),
}
