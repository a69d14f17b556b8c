"""All messages as an AsyncAPI 3.0 document, made from the classes themselves: what travels is what is described."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode, JsonSchemaValue
from pydantic_core import core_schema

from bso.domain.identifiers import PATTERN
from bso.domain.policies import own_policies
from bso.schema.codec import ANSWERS, COMMANDS, EVENTS, REPLIES, events_of
from bso.schema.envelope import MAX_ANSWER_BYTES, MAX_MESSAGE_BYTES, SCHEMA_MAJOR, SCHEMA_VERSION

REF = "#/components/schemas/{model}"
_NUMBER = "Number"
_FLOAT_MARK = "x-bso-float"

_ALL_EVENTS: Mapping[str, type] = {**EVENTS, **events_of(own_policies())}
"""With those that the policies of this distribution have of their own."""


def asyncapi(channels: Mapping[str, Any]) -> dict[str, Any]:
    """The document. ``channels`` are those of the broker, without messages, by the names below."""
    bodies, schemas = _schemas()
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "bso",
            "version": SCHEMA_VERSION,
            "description": (
                "Commands, replies and events of the batch size optimizer, as JSON over AMQP 0-9-1. The application "
                "described is the worker. Unknown fields are ignored; a message with another major version than "
                f"{SCHEMA_MAJOR} is refused. A command has at most {MAX_MESSAGE_BYTES} bytes, a reply or event "
                f"{MAX_ANSWER_BYTES}."
            ),
        },
        "defaultContentType": "application/json",
        "channels": _channels(channels),
        "operations": {**_decisions(), **_publications()},
        "components": {
            "messages": {
                key: _message(name, message_type, what, bodies[key])
                for what, types, _ in _KINDS
                for name, message_type in types.items()
                for key in [message_key(name, what)]
            },
            "schemas": {_NUMBER: _number(), **schemas},
        },
    }


def message_key(name: str, what: str) -> str:
    """The key of a message among the components: ``command.begin_trial``."""
    return f"{what}.{name}"


def _channels(channels: Mapping[str, Any]) -> dict[str, Any]:
    carried = {
        "commands": [message_key(name, "command") for name in COMMANDS],
        "replies": [message_key(name, "reply") for name in REPLIES],
        "events": [message_key(name, "event") for name in _ALL_EVENTS],
        "replay": [message_key(name, "event") for name in _ALL_EVENTS],
        "dead_letters": [message_key(name, "command") for name in COMMANDS],
    }
    return {name: {**channels[name], "messages": {key: _message_ref(key) for key in carried[name]}} for name in carried}


def _decisions() -> dict[str, Any]:
    return {
        name: {
            "action": "receive",
            "summary": _summary(COMMANDS[name]),
            "channel": {"$ref": "#/channels/commands"},
            "messages": _of_channel("commands", [message_key(name, "command")]),
            "reply": {
                "address": {
                    "location": "$message.header#/reply_to",
                    "description": "The property reply_to of the command names the sender's own queue.",
                },
                "channel": {"$ref": "#/channels/replies"},
                "messages": _of_channel("replies", [message_key(one, "reply") for one in (answer, "problem")]),
            },
        }
        for name, answer in ANSWERS.items()
    }


def _publications() -> dict[str, Any]:
    return {
        "publish_events": {
            "action": "send",
            "summary": "Every event, at least once and in no order: consumers order by (job_id, log_epoch, seq).",
            "channel": {"$ref": "#/channels/events"},
            "messages": _of_channel("events", [message_key(name, "event") for name in _ALL_EVENTS]),
        },
        "publish_again": {
            "action": "send",
            "summary": "Recorded events, when an operator asks for them; sent by `bso replay publish`, not by workers.",
            "channel": {"$ref": "#/channels/replay"},
            "messages": _of_channel("replay", [message_key(name, "event") for name in _ALL_EVENTS]),
        },
        "set_aside": {
            "action": "send",
            "summary": "What no worker can handle, whatever its bytes are, with the reason in the header bso-reason.",
            "channel": {"$ref": "#/channels/dead_letters"},
            "messages": _of_channel("dead_letters", [message_key(name, "command") for name in COMMANDS]),
        },
    }


def _message(name: str, message_type: type, what: str, body: Any) -> dict[str, Any]:
    first, _, rest = (inspect.getdoc(message_type) or "").partition("\n")
    return {
        "name": name,
        "title": name.replace("_", " "),
        "summary": first,
        **({"description": " ".join(rest.split())} if rest.strip() else {}),
        "tags": [{"name": what}],
        "correlationId": {
            "location": "$message.payload#/command_id",
            "description": "A command, its reply and its events carry the same command_id.",
        },
        "payload": _payload(name, what, body),
    }


def _payload(name: str, what: str, body: Any) -> dict[str, Any]:
    properties: dict[str, Any] = {
        "schema": {"type": "string", "pattern": rf"^{SCHEMA_MAJOR}(\.|$)", "examples": [SCHEMA_VERSION]},
        "type": {"const": name},
        "command_id": {"type": "string", "format": "uuid"},
        "job_id": {"type": ["string", "null"], "pattern": f"^{PATTERN}$"},
        "sent_at": {"type": ["string", "null"], "format": "date-time"},
        "trace": {"type": "object", "additionalProperties": {"type": "string"}},
        "body": body,
    }
    required = ["schema", "type", "command_id", "body"]
    if what == "event":
        properties |= {
            "job_id": {"type": "string", "pattern": f"^{PATTERN}$"},
            "sent_at": {"type": "string", "format": "date-time", "description": "When it was recorded."},
            "seq": {"type": "integer", "minimum": 1, "description": "Numbers the events of a job without a gap."},
            "part": {"type": "integer", "minimum": 0, "description": "Numbers the events of one command."},
            "log_epoch": {
                "type": "integer",
                "minimum": 1,
                "default": 1,
                "description": "Restoring a backup begins a new epoch with a higher number: (log_epoch, seq) names one "
                "event of a job.",
            },
        }
        required += ["job_id", "sent_at", "seq", "part"]
    elif what == "command" and name != "register_job":
        properties["job_id"] = {"type": "string", "pattern": f"^{PATTERN}$"}
        required.append("job_id")
    return {"type": "object", "required": required, "properties": properties}


def _schemas() -> tuple[dict[str, Any], dict[str, Any]]:
    """The schemas of all bodies, by message, and of what they are made of: commands as read, others as sent."""
    wanted: list[tuple[str, JsonSchemaMode, TypeAdapter[Any]]] = [
        (message_key(name, what), mode, TypeAdapter(message_type))
        for what, types, mode in _KINDS
        for name, message_type in types.items()
    ]
    bodies, shared = TypeAdapter.json_schemas(wanted, ref_template=REF, schema_generator=_Schemas)
    parts: dict[str, Any] = shared.get("$defs", {})
    return {key: _plain(schema) for (key, _), schema in bodies.items()}, {
        key: _plain(parts[key]) for key in sorted(parts)
    }


_KINDS: Iterable[tuple[str, Mapping[str, type], JsonSchemaMode]] = (
    ("command", COMMANDS, "validation"),
    ("reply", REPLIES, "serialization"),
    ("event", _ALL_EVENTS, "serialization"),
)


class _Schemas(GenerateJsonSchema):
    """JSON Schema as pydantic makes it, with floats marked: they may also be strings like "NaN"."""

    def float_schema(self, schema: core_schema.FloatSchema) -> JsonSchemaValue:
        return {**super().float_schema(schema), _FLOAT_MARK: True}


def _plain(schema: Any) -> Any:
    """A schema with its floats referring to Number, and without titles that only repeat names."""
    if isinstance(schema, list):
        return [_plain(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get(_FLOAT_MARK):
        number = {"$ref": REF.format(model=_NUMBER)}
        return {"allOf": [number], "default": schema["default"]} if "default" in schema else number
    return {
        key: {name: _plain(one) for name, one in value.items()} if key == "properties" else _plain(value)
        for key, value in schema.items()
        if not (key == "title" and isinstance(value, str))
    }


def _number() -> dict[str, Any]:
    return {
        "description": 'A number; those that JSON lacks are the strings "NaN", "Infinity" and "-Infinity".',
        "oneOf": [{"type": "number"}, {"type": "string", "enum": ["NaN", "Infinity", "-Infinity"]}],
    }


def _of_channel(channel: str, keys: Iterable[str]) -> list[dict[str, str]]:
    return [{"$ref": f"#/channels/{channel}/messages/{key}"} for key in keys]


def _message_ref(key: str) -> dict[str, str]:
    return {"$ref": f"#/components/messages/{key}"}


def _summary(message_type: type) -> str:
    return (inspect.getdoc(message_type) or "").partition("\n")[0]
